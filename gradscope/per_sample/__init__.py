"""Splits the gradient of a batch by sample: norms, shares, and the noise scale.

``contributions.py`` splits the gradients. ``layer_gradients.py`` has a function for each class of
module. ``noise_scale.py`` estimates the noise of the gradient.
"""
