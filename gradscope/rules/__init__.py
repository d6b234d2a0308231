"""The rule book: the rules that judge a report. One file is one rule, found by its name; no
torch.

A rule's file has ``RULE``, its documentation, and ``find(report, limits)``, a pure function. If the
first pass is not enough, ``wants(report, limits)`` names the full sample that is. A rule over time
has ``find_over_steps(history, limits)`` or ``find_over_samples(history, limits)``, which read the
history of a training run. ``find_over_ranks(ranks, limits)`` compares the files of its processes.
``RULE.runs`` says how a rule judges a training run.
"""

from gradscope.rules._book import lookup, rule_book
from gradscope.rules._causes import Cause, explanations, folded, is_exact
from gradscope.rules._commands import ReadRun
from gradscope.rules._comparisons import COMPARISONS, documented, explained
from gradscope.rules._course import Blocks
from gradscope.rules._diagnosis import diagnose, diagnose_ranks, wanted
from gradscope.rules._history import SampleHistory, StepHistory
from gradscope.rules._judged import Seen, judgement, structures
from gradscope.rules._rule import PRESETS, Limits, Rule, Runs, Threshold
from gradscope.rules._samples import Depth, Sampled, Weights
from gradscope.rules._settings import FAIL_ON, RuleSettings
from gradscope.rules._severity import SEVERITIES, reaches, severity
from gradscope.rules._spike_causes import RECENT, mention, spike_cause, with_worst_first
from gradscope.rules._spike_samples import (
    AFTERMATH,
    MAY_STAY,
    are_unusual_copies,
    has_unusual_input,
    is_sure,
    is_unusual_constant,
    is_unusual_input,
    is_unusual_length,
    is_unusual_loss,
    is_unusual_text,
    stays_wrong,
)
from gradscope.rules._window import KEPT, StepWindows, Window

__all__ = [
    "AFTERMATH",
    "COMPARISONS",
    "FAIL_ON",
    "KEPT",
    "MAY_STAY",
    "PRESETS",
    "RECENT",
    "SEVERITIES",
    "Blocks",
    "Cause",
    "Depth",
    "Limits",
    "ReadRun",
    "Rule",
    "RuleSettings",
    "Runs",
    "SampleHistory",
    "Sampled",
    "Seen",
    "StepHistory",
    "StepWindows",
    "Threshold",
    "Weights",
    "Window",
    "are_unusual_copies",
    "diagnose",
    "diagnose_ranks",
    "documented",
    "explained",
    "explanations",
    "folded",
    "has_unusual_input",
    "is_exact",
    "is_sure",
    "is_unusual_constant",
    "is_unusual_input",
    "is_unusual_length",
    "is_unusual_loss",
    "is_unusual_text",
    "judgement",
    "lookup",
    "mention",
    "reaches",
    "rule_book",
    "severity",
    "spike_cause",
    "stays_wrong",
    "structures",
    "wanted",
    "with_worst_first",
]
