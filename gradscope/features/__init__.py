"""Filters, channels, features and feature space of layers: one file per question.

``outputs`` runs the model and reads layers, ``pictures`` streams pictures, and ``formats`` has the
formats of saved features.
"""
