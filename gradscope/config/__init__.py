"""A YAML file, a spec and ``key=value`` arguments to one checked ``Config``; no torch.

``reading.py`` reads it. A new key is a field in schema.py; a check that needs no import is a
function that checks.py calls.
"""
