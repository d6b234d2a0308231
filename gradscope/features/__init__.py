"""What layers look for, and how they see pictures: filters, channels, features and their space.

A file for each question; ``outputs`` is what all that run a model begin with, ``pictures`` is what
they run it on. A format of saved features is a file in ``formats/``.
"""
