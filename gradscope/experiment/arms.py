"""The arms of an experiment: the change of each, and its requirements on the script; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradscope.errors import OptionError, did_you_mean
from gradscope.records.experiment import PLAIN, RATE, SEED, SHIFTED

#: Factors of the learning rate.
FACTORS = (0.01, 0.1, 10.0, 100.0)


@dataclass(frozen=True, slots=True)
class Arm:
    """One short training.

    Attributes:
        name: its name on the command line.
        what: the change in words.
        file: the file in ``interventions/`` that makes it; "" if nothing changes.
        factor: the factor of the learning rate, or the positions to shift.
        needs: the field of ``Facts`` that must be true, because the arm removes that feature.
        lacking: the missing feature in words.
        late: True if it runs only if the other arms find no use of the inputs.
    """

    name: str
    what: str
    file: str = ""
    factor: float | None = None
    needs: str | None = None
    lacking: str = ""
    late: bool = False

    @property
    def is_rate(self) -> bool:
        """True if it changes the learning rate."""
        return self.file == RATE


#: Models are found, batches repeated and rates multiplied at an optimizer's step.
_STEPPED: dict[str, Any] = {"needs": "optimizer", "lacking": "no optimizer makes the steps"}
AS_IT_IS = Arm(PLAIN, "nothing")
OTHER_SEED = Arm(SEED, "the seed", "other-seed")
ARMS = (
    AS_IT_IS,
    OTHER_SEED,
    Arm("one-batch", "every step gets the first batch", "one-batch", **_STEPPED),
    Arm("no-input", "the input is replaced by its mean", "no-input", **_STEPPED),
    Arm("mismatched", "inputs are shifted against their targets", "mismatched", **_STEPPED),
    *(
        Arm(f"{RATE}-x{factor:g}", f"learning rate × {factor:g}", RATE, factor, **_STEPPED)
        for factor in FACTORS
    ),
    Arm(
        *("no-clipping", "gradients are not clipped", "no-clipping"),
        needs="clipping",
        lacking="clipping changed no gradient",
    ),
    Arm(
        *("no-weight-decay", "weight decay is 0", "no-weight-decay"),
        needs="weight_decay",
        lacking="no optimizer has weight decay",
    ),
    Arm(
        *("no-dropout", "dropout is off", "no-dropout"),
        needs="dropout",
        lacking="the model has no dropout",
    ),
    Arm(
        *("float32", "autocast is off", "float32"),
        needs="autocast",
        lacking="the model does not run under autocast",
    ),
    Arm(
        *("no-schedule", "the learning rate keeps the optimizer's first value", "no-schedule"),
        needs="schedule",
        lacking="the learning rate does not change",
    ),
    Arm(
        *(SHIFTED[0], "each position gets the target of the one before it"),
        *("shifted-targets", 1.0),
        late=True,
    ),
    Arm(
        *(SHIFTED[1], "each position gets the target of the one after it"),
        *("shifted-targets", -1.0),
        late=True,
    ),
)
BY_NAME = {arm.name: arm for arm in ARMS}
#: Choices: an arm, or all arms that change the learning rate.
NAMES = (*BY_NAME, RATE)


def chosen(names: Sequence[str]) -> tuple[Arm, ...]:
    """Return these arms and the two with which all others are compared; without names, all arms.

    Raises:
        OptionError: a name is unknown.
    """
    for name in names:
        if name not in NAMES:
            raise OptionError(
                f"there is no arm `{name}`",
                help=did_you_mean(name, NAMES) or f"one of {', '.join(NAMES)}",
            )
    if not names:
        return ARMS
    always = (AS_IT_IS, OTHER_SEED)
    return tuple(
        arm for arm in ARMS if arm in always or arm.name in names or {arm.file} & set(names)
    )
