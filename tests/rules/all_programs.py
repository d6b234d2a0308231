"""The full table: importing the parts fills it. A new part is one more import."""

from rules import (  # noqa: F401
    programs_data,
    programs_flow,
    programs_later,
    programs_loss,
    programs_numbers,
    programs_reach,
    programs_tuning,
    programs_units,
)
from rules.rule_programs import CASES

__all__ = ["CASES"]
