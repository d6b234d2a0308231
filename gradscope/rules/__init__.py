"""The rule book: what a report says is wrong. One file is one rule, found by its name; no torch.

A rule's file has ``RULE``, its documentation, and ``find(report, limits)``, a pure function. Where
the first look cannot tell, ``wants(report, limits)`` names the deep look that could.
"""

from gradscope.rules._book import lookup, rule_book
from gradscope.rules._diagnosis import diagnose, wanted
from gradscope.rules._rule import PRESETS, Limits, Rule, Threshold
from gradscope.rules._settings import FAIL_ON, RuleSettings
from gradscope.rules._severity import SEVERITIES, reaches, severity

__all__ = [
    "FAIL_ON",
    "PRESETS",
    "SEVERITIES",
    "Limits",
    "Rule",
    "RuleSettings",
    "Threshold",
    "diagnose",
    "lookup",
    "reaches",
    "rule_book",
    "severity",
    "wanted",
]
