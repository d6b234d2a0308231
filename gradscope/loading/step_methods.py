"""Calls of a step: the method used instead of ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from gradscope.errors import ConfigError, Place, did_you_mean
from gradscope.loading.batches import Batch

#: Methods' names for the number of a batch, and other arguments that are 0 with one data loader and
#: one optimizer.
_INDEX = ("batch_idx", "batch_nb", "batch_index")
_FIRST = ("dataloader_idx", "optimizer_idx")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class StepMethod:
    """A method of the model that a step calls instead of forward.

    Attributes:
        name: its name in the class.
        takes: the number of its required arguments, without batch numbers.
        as_one: True if it takes the batch as one argument, as Lightning's steps do.
        numbers: the argument for the number of the batch, and other arguments that get 0.
        own_target: True if the config names a loss; the method then does not get the target.
    """

    name: str
    takes: int
    as_one: bool
    numbers: tuple[str, ...] = ()
    own_target: bool = False

    @property
    def notices(self) -> list[str]:
        """Says in a sentence which method a step calls."""
        how = ", with the batch as one argument" if self.as_one else ""
        return [f"call: {self.name} instead of forward{how}"]

    def batches(
        self, given: Callable[[], Iterator[Batch]], target: Any = None
    ) -> Callable[[], Iterator[Batch]]:
        """Return the same batches in the method's form; ``target`` is used if a batch has none."""

        def entered() -> Iterator[Batch]:
            for number, batch in enumerate(given()):
                yield self._entered(batch, target if batch.target is None else batch.target, number)

        return entered

    def _entered(self, batch: Batch, target: Any, number: int) -> Batch:
        extra = {name: number if name in _INDEX else 0 for name in self.numbers}
        wanted = None if self.own_target and not self.as_one else target
        left = target if wanted is None else None
        if self.as_one or (self.takes == 1 and not batch.kwargs and len(batch.args) > 1):
            inputs = batch.args[0] if len(batch.args) == 1 else batch.args or batch.kwargs
            return Batch((inputs if wanted is None else (inputs, wanted),), extra, left)
        room = self.takes > len(batch.args) + len(batch.kwargs)
        if wanted is not None and room:
            return Batch((*batch.args, wanted), {**batch.kwargs, **extra})
        return Batch(batch.args, {**batch.kwargs, **extra}, target)


def step_method(
    model: nn.Module, name: str | None, place: Place | None = None, *, own_target: bool = False
) -> StepMethod | None:
    """Return the method of that name; None for forward.

    Raises:
        ConfigError: the model has no such method; the message suggests the closest.
    """
    if name is None or name == "forward":
        return None
    method = getattr(model, name, None)
    if not inspect.ismethod(method):
        plain = set(dir(nn.Module))
        own = [n for n in dir(type(model)) if n not in plain and not n.startswith("_")]
        own = [n for n in own if inspect.isfunction(getattr(type(model), n, None))]
        listed = ", ".join(f"`{n}`" for n in own[:8])
        raise ConfigError(
            f"`{type(model).__name__}` has no method `{name}` to call",
            place=place,
            help=did_you_mean(name, own)
            or (f"it has {listed}" if own else "leave `call` out: `forward` is called then"),
        )
    parameters = inspect.signature(method).parameters
    numbers = tuple(n for n in parameters if n in (*_INDEX, *_FIRST))
    needed = [
        p.name
        for p in parameters.values()
        if p.kind in _POSITIONAL and p.default is p.empty and p.name not in numbers
    ]
    as_one = len(needed) == 1 and (bool(numbers) or needed[0] == "batch")
    return StepMethod(name, len(needed), as_one, numbers, own_target)


def check_given(found: StepMethod | None, inputs: Any, target: Any, place: Place | None) -> None:
    """Refuse to infer a batch for a method, because no layer shows its content.

    Raises:
        ConfigError: the config has no input, or a target that must be drawn after the output is
            known.
    """
    if found is not None and not found.own_target and isinstance(target, str):
        raise ConfigError(
            f"`target: {target}` is drawn once there is an output, and `{found.name}` takes the "
            "target before",
            place=place,
            help="name its values, or a source: `target: {shape: [4], fill: randint(10)}`",
        )
    if found is not None and found.as_one and inputs is None:
        raise ConfigError(
            f"what `{found.name}` takes as its batch cannot be inferred",
            place=place,
            help="name `input`, and `target` where the batch is (inputs, target); a list of "
            "sources is a batch of several parts",
        )
