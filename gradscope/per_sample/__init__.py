"""Splits the gradient of a batch by sample: norms, shares, and the noise scale.

``contributions.py`` splits the gradients. ``layer_gradients.py`` has a function for each class of
module. ``step.py`` estimates the noise of the gradient.
"""
