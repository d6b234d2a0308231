"""A training script under observation: it is run as Python would run it, and notices nothing.

``launch.py`` runs the script, ``discovery.py`` finds the models that it trains, ``observer.py``
sees its steps, ``nan_detector/`` finds the origin of a NaN or Inf in the step that produced it.
"""
