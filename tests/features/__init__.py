"""Tests of filters, activations and the space of features."""
