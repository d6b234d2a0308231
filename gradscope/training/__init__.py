"""Runs a training script as Python would, and observes it without changing its results.

``launch.py`` runs the script, ``discovery.py`` finds the models that it trains, ``observer.py``
observes its steps, ``nan_detector/`` finds the origin of a NaN or Inf in the step that produced it.
"""
