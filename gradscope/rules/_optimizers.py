"""The effect of a gradient's size on the step, by class of optimizer."""

from __future__ import annotations

from collections.abc import Mapping

#: Beside those with Adam in their name.
_SCALE_FREE = (
    *("rmsprop", "adagrad", "adadelta", "adafactor", "lion", "lamb", "lars", "rprop"),
    *("sophia", "muon", "shampoo", "soap", "signsgd", "prodigy", "novograd"),
)


def divides(kind: str | None) -> bool:
    """Whether it divides by the root of a second moment plus epsilon."""
    name = (kind or "").lower()
    return "adam" in name or name == "rmsprop"


def is_decoupled(kind: str | None, settings: Mapping[str, float]) -> bool:
    """Whether its weight decay shrinks the weights themselves, beside the gradient's step."""
    name = (kind or "").lower()
    return any(one in name for one in ("adamw", "lion", "muon", "nadamw")) or bool(
        settings.get("decoupled_weight_decay")
    )


def is_scale_free(kind: str | None) -> bool:
    """Whether its step is as long however large the gradients are, as long as all are."""
    name = (kind or "").lower()
    return "adam" in name or any(one in name for one in _SCALE_FREE)
