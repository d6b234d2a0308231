"""Features of a script that an arm can remove, noted in the run *as it is*."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gradscope.records.training import RunHistory, TrainingStep

#: Norms that differ by no more are those of the same gradients.
_SAME = 1e-4


@dataclass(frozen=True, slots=True)
class Facts:
    """Features of a script.

    Attributes:
        optimizer: True if an optimizer makes its steps.
        clipping: True if clipping changed a gradient.
        schedule: True if a learning rate changed.
        autocast: True if a model ran under autocast.
        weight_decay, dropout: True if an optimizer or a module has it.
        draws: True if it draws from a distribution of ``torch.distributions``, as in
            reinforcement learning.
        losses: the optimizers that each have a separate loss.
    """

    optimizer: bool = False
    clipping: bool = False
    schedule: bool = False
    autocast: bool = False
    weight_decay: bool = False
    dropout: bool = False
    draws: bool = False
    losses: tuple[str, ...] = ()

    @classmethod
    def of(cls, history: RunHistory, notes: dict[str, Any]) -> Facts:
        """Collect the facts from the run of *as it is* and its notes."""
        rates: dict[str, set[tuple[float, ...]]] = {}
        for step in history.steps:
            rates.setdefault(step.optimizer, set()).add(step.learning_rates)
        return cls(
            optimizer=any(step.optimizer for step in history.steps),
            clipping=any(map(_is_clipped, history.steps)),
            schedule=any(len(each) > 1 for each in rates.values()),
            autocast=any(model.autocast for model in history.models),
            weight_decay=bool(notes.get("weight_decay")),
            dropout=bool(notes.get("dropout")),
            draws=bool(notes.get("draws")),
            losses=losses_of(history.steps),
        )


def losses_of(steps: Sequence[TrainingStep]) -> tuple[str, ...]:
    """Return the optimizers with a backward before their steps, in the order of the first one."""
    return tuple(dict.fromkeys(step.optimizer for step in steps if step.losses))


def _is_clipped(step: TrainingStep) -> bool:
    before, after = step.gradient_norm, step.clipped_norm
    return before is not None and after is not None and after < before * (1 - _SAME)


def note_facts(patches: ExitStack, notes: dict[str, Any]) -> None:
    """Note facts that are not in the run's file, while the script runs as it is."""
    import torch
    import torch.nn.functional as F

    from gradscope.capture.hooks import hook_optimizers, replace
    from gradscope.experiment.interventions.no_dropout import FUNCTIONS, dropout_of
    from gradscope.training.discovery import outermost_modules
    from gradscope.training.loop.draws import distributions

    searched = False

    def step_begins(optimizer: Any, *_: Any) -> None:
        nonlocal searched
        if not searched:
            searched = True
            modules = [one for model in outermost_modules() for one in model.modules()]
            notes["dropout"] = max([notes.get("dropout", 0.0), *map(dropout_of, modules)])
        decays = [group.get("weight_decay") or 0.0 for group in optimizer.param_groups]
        notes["weight_decay"] = max(notes.get("weight_decay", 0.0), *map(float, decays))

    def sampled(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            notes["draws"] = True
            return original(self, *args, **kwargs)

        return sample

    def called(original: Any) -> Any:
        @functools.wraps(original)
        def dropout(input: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(input, *args, **kwargs)
            names = ("p", "training")
            given = {**dict(zip(names, original.__defaults__, strict=False)), **kwargs}
            given.update(zip(names, args, strict=False))
            if given["training"]:
                notes["dropout"] = max(notes.get("dropout", 0.0), float(given["p"]))
            return original(input, *args, **kwargs)

        return dropout

    for handle in hook_optimizers(step_begins, lambda *_: None):
        patches.callback(handle.remove)
    for name in FUNCTIONS:
        replace(patches, F, name, called)
    for distribution in distributions():
        if "sample" in vars(distribution):
            replace(patches, distribution, "sample", sampled)
