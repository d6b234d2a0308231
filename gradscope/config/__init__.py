"""Makes one checked ``Config`` from a YAML file, a spec and ``key=value`` arguments; no torch.

``loaded_config.py`` reads it. A new key is a field in schema.py; a check that needs no import is a
function that checks.py calls.
"""
