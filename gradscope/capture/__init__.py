"""Captures activations and gradients. ``stats`` reduces tensors to numbers, ``hooks`` registers
hooks on modules, ``gradients`` measures gradients in backward, ``graph`` walks over the autograd
graph, and ``recorder`` combines these.
"""
