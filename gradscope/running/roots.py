"""The start of a graph other than the loss: its word, and the output that it means."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from gradscope.capture.calls import Call
from gradscope.capture.hooks import hooked
from gradscope.capture.names import named_modules
from gradscope.errors import LayerError, OptionError, did_you_mean
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.graph import GraphCall
from gradscope.running.step import Observer, Step
from gradscope.typeset.numbers import count

LOSS, OUTPUT = "loss", "output"

#: A module's name, the number of its call, the place in what it returned.
_ROOT = re.compile(r"(?P<name>[^#:]*)(#(?P<call>[0-9]+))?(:(?P<path>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Root:
    """Where the graph starts, if not at the loss: an output of a module's call."""

    name: str
    call: int | None = None  # None: the last
    path: str | None = None  # None: the first tensor that has a graph

    @property
    def word(self) -> str:
        """As the user writes it."""
        number = "" if self.call is None else f"#{self.call}"
        return f"{self.name or OUTPUT}{number}" + ("" if self.path is None else f":{self.path}")


def root_of(word: str | None, model: nn.Module) -> Root | None:
    """What ``--root`` names: ``fc``, ``cell#2``, ``encoder:0``, ``output:logits``; None: the loss.

    Raises:
        OptionError: it has not this form.
        LayerError: no module of that name; the closest names are offered.
    """
    if word is None or word == LOSS:
        return None
    match = _ROOT.fullmatch(word) if isinstance(word, str) else None
    if match is None:
        raise OptionError(
            f"`{word}` is not an output that a graph can start from",
            help="write a layer, then `#` and the number of its call, then `:` and a place in what"
            " it returned, the last two where needed: `fc`, `cell#2`, `encoder:0`, `cell#2:hidden`",
        )
    name = match["name"]
    names = {n: named.name for named in named_modules(model).values() for n in _all(named)}
    if name not in names:
        if name == OUTPUT:
            name = ""
        else:
            close = did_you_mean(name, [n for n in names if n], count=3)
            raise LayerError(
                f"there is no layer `{name}`",
                help=close
                or f"`{LOSS}`, `{OUTPUT}`, or a layer that `gradscope layers MODEL` lists",
            )
    call = None if match["call"] is None else int(match["call"])
    return Root(names.get(name, name), call, match["path"])


def _all(named: Named) -> tuple[str, ...]:
    return (named.name, *named.aliases)


def chosen(
    root: Root,
    outputs: Sequence[tuple[Call, str, GradientEdge]],
    calls: Sequence[GraphCall],
) -> tuple[Root, GradientEdge]:
    """The output that ``--root`` asks for, with its call and its place, and where it enters.

    Args:
        root: what was asked for.
        outputs: those of the module that have a graph.
        calls: every call of the run.

    Raises:
        OptionError: there is none.
    """
    found = [o for o in outputs if root.call in (None, o[0].number)]
    if not found:
        ran = [call.call for call in calls if call.name == root.name]
        module = f"`{root.name}`" if root.name else "the model"
        if not ran:
            message = f"{module} was not called in this forward"
        elif root.call is not None and root.call not in ran:
            times = "once" if len(ran) == 1 else f"{count(len(ran))} times"
            message = f"{module} ran {times}: it has no call #{root.call}"
        else:
            message = f"the output of `{root.word}` has no graph: it requires no gradient"
        raise OptionError(message, help="give `--root` an output that requires a gradient")
    latest = max(call.number for call, _, _ in found)
    last = [(path, edge) for call, path, edge in found if call.number == latest]
    for path, edge in last:
        if root.path in (None, path):
            return Root(root.name, latest, path), edge
    assert root.path is not None
    paths = [path for path, _ in last if path]
    help = "it returned one tensor, which has no places: leave `:` and what follows out"
    if paths:
        places = ", ".join(f"`{path}`" for path in paths)
        help = did_you_mean(root.path, paths) or f"its places with a graph are {places}"
    message = f"`{root.name or OUTPUT}` returned nothing with a graph at `{root.path}`"
    raise OptionError(message, help=help)


@dataclass(kw_only=True)
class RootSum(Observer):
    """In the place of the loss: the sum of the output that was chosen before."""

    output: Root
    _sum: torch.Tensor | None = None

    @contextmanager
    def around_forward(self, step: Step) -> Iterator[None]:
        entered = itertools.count()
        running: list[int] = []

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            running.append(next(entered))

        def after(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            if running.pop() == self.output.call:
                for path, tensor in find(output, torch.Tensor):
                    if path == self.output.path and self._sum is None:
                        # At once: somebody may write into it later.
                        self._sum = tensor.sum()

        modules = named_modules(step.workload.model)
        with hooked([m for m, n in modules.items() if n.name == self.output.name], before, after):
            yield
        self._sum = None

    def root(self, step: Step, output: Any) -> torch.Tensor:
        if self._sum is None:
            raise RuntimeError(f"`{self.output.word}` was not computed in the second run")
        return self._sum
