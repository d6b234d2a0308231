"""The gradient of each sample of a batch: norms, shares, and the batch's noise scale.

``contributions.py`` splits the gradients, ``layers.py`` has the formula for each class of module;
to add a class, add a function there. ``noise_scale.py`` estimates the noise of the gradient.
"""
