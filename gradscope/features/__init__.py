"""Preferences of layers and their view of pictures: filters, channels, features, their space.

A file for each question; every one that runs a model begins with ``outputs`` and runs it on
``pictures``. A format of saved features is a file in ``formats/``.
"""
