"""Where a model's inputs come from: one file per kind of source, one for their grammar.

A source is planned once (everything wrong with it is reported then) and built as often as needed:
each build gives fresh leaf tensors, so that no run sees what an earlier one did to its inputs.
"""

from gradscope.loading.sources.context import Build, Context
from gradscope.loading.sources.grammar import plan_call, plan_target

__all__ = ["Build", "Context", "plan_call", "plan_target"]
