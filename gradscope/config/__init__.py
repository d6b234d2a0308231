"""A YAML file, a spec and ``key=value`` arguments to one checked ``Config``; no torch.

A new key is a field in schema.py; a check that needs no import is a function that checks.py calls.
"""

from gradscope.config.checks import checked_interventions
from gradscope.config.inputs import SOURCES, is_keywords, is_source
from gradscope.config.keys import KeyText, json_schema, keys
from gradscope.config.reading import LoadedConfig, check_spec, read
from gradscope.config.schema import Backward, Config, InterventionConfig
from gradscope.config.specs import LOSSES
from gradscope.config.targets import REFUSED, Target, is_target, parse_target

__all__ = [
    "LOSSES",
    "REFUSED",
    "SOURCES",
    "Backward",
    "Config",
    "InterventionConfig",
    "KeyText",
    "LoadedConfig",
    "Target",
    "check_spec",
    "checked_interventions",
    "is_keywords",
    "is_source",
    "is_target",
    "json_schema",
    "keys",
    "parse_target",
    "read",
]
