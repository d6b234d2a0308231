"""Steps that stand out: their detection, the samples that caused them, and their capsules.

``spikes.py`` judges each step before the optimizer moves the weights, and keeps a capsule of a
spike. ``samples.py`` replays its calls and splits their gradients by sample,
``sample_losses.py`` reads each sample's loss off the loss graph, ``batch_indices.py`` follows the
samplers of data loaders, ``before.py`` has the signals of the steps before.
"""
