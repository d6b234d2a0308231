"""Filters, channels, features and feature space of layers: one file per question.

``streaming`` sends pictures through the model and reads layers; ``vectors`` has the formats of
saved features.
"""
