"""A training script under observation: it is run as Python would run it, and notices nothing.

``launch.py`` runs the script, ``discovery.py`` finds the models that it trains, ``observer.py``
sees its steps, ``sentinel/`` locates a NaN or an infinity in the step that made it.
"""
