"""Which rules a training run has shown enough for, and what the others wait for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could not be judged.

    Attributes:
        code: of the rule.
        unit: what there was too little of: "samples", "steps" with the metrics that it reads,
            "first-step" (a sample of step 1), "calls" (of compiled modules there are none), or
            "end" (gradscope ended the script before its end).
        needs: how many of them it needs, of each optimizer and model.
        seen: how many there were.
        help: the option of ``gradscope run`` that gives enough, or what else does.
    """

    code: str
    unit: str
    needs: int
    seen: int
    help: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The codes of the rules that could be judged, and the others.

    A rule that has nothing to look at is in neither: GS609 without a gradient scaler.
    """

    judged: tuple[str, ...] = ()
    not_judged: tuple[NotJudged, ...] = ()
