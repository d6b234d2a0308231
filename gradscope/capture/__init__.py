"""Capture of activations and gradients: tensors reduced to numbers (stats), hooks on modules
(hooks), gradients on their way back (gradients), the one walk over the autograd graph (graph), and
the recorder built on them.
"""
