"""Where a graph starts if not at the loss: the word for it, the output it means, and that again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from gradscope.capture.calls import Call
from gradscope.capture.hooks import hooked, named_modules
from gradscope.errors import LayerError, OptionError, did_you_mean
from gradscope.loading import Workload, seed_everything
from gradscope.nesting import find
from gradscope.patterns import Named
from gradscope.records.graph import GraphCall
from gradscope.running.plain import autocast
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
    def said(self) -> str:
        """As the user wrote it."""
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
            f"`{word}` names no output for the graph to start from",
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
                f"there is no layer `{name}` for the graph to start from",
                help=close or f"`{LOSS}`, `{OUTPUT}`, or a layer that `gradscope layers` lists",
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
            said = f"{module} was not called in this forward"
        elif root.call is not None and root.call not in ran:
            times = "once" if len(ran) == 1 else f"{count(len(ran))} times"
            said = f"{module} ran {times}: there is no call #{root.call}"
        else:
            said = f"what `{root.said}` returned has no graph: nothing in it requires a gradient"
        raise OptionError(said, help="`--root` takes an output that requires a gradient")
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
    said = f"`{root.name or OUTPUT}` returned nothing with a graph at `{root.path}`"
    raise OptionError(said, help=help)


def sum_again(
    workload: Workload, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Seeded forward once more, and the sum of the output that was chosen before.

    Raises:
        RuntimeError: this forward did not come to it.
    """
    entered = 0
    running: list[int] = []
    sums: list[torch.Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal entered
        running.append(entered)
        entered += 1

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if running.pop() == root.call:
            # At once: somebody may write into it later.
            sums.extend(t.sum() for path, t in find(output, torch.Tensor) if path == root.path)

    modules = named_modules(workload.model)
    with hooked([m for m, named in modules.items() if named.name == root.name], before, after):
        seed_everything(workload.seed)
        with autocast(workload):
            workload.model(*args, **kwargs)
    if not sums:
        raise RuntimeError(f"`{root.said}` was not computed again")
    return sums[0]
