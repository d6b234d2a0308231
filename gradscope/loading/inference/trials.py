"""The input of a user's own model: what its layers suggest, tried on copies of the model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import itertools
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.errors import message_of
from gradscope.loading.inference.inferred import Inferred
from gradscope.loading.inference.shapes import Source, sources
from gradscope.loading.seeds import seed_everything
from gradscope.loading.sources.context import Context
from gradscope.loading.sources.grammar import plan_call
from gradscope.nesting import find

#: Calls of forward before the user has to name the input.
_MOST = 24

#: A layer and its name.
Layer = tuple[str, nn.Module]


@dataclass
class Trial:
    """One call of forward: what it got, what it raised, and which layer refused which argument.

    Where no copy of the model could be made, there was no call.
    """

    given: Mapping[str, Source]
    copied: bool = False
    error: BaseException | None = None
    refused: dict[str, Layer] = field(default_factory=dict)

    @property
    def settles(self) -> bool:
        """Whether no other input is worth a trial: this one fits, or no input would."""
        return self.error is None or (self.copied and _is_a_bug(self.error))

    def __str__(self) -> str:
        shapes = " and ".join(str(source["shape"]) for source in self.given.values())
        if self.error is None:
            return f"{shapes} fits"
        lines = message_of(self.error).strip().splitlines()
        raised = f"raised {type(self.error).__name__}{f': {lines[0]}' if lines else ''}"
        if not self.copied:
            return f"no input was tried: a copy of the model {raised}"
        return f"with {shapes} forward {raised}"


def fitting(
    context: Context, names: Sequence[str], first: Layer, rows: int
) -> Inferred | list[Trial]:
    """The input that forward takes, or the trials, which all failed.

    Each argument gets what the ``first`` layer takes. Where a layer refuses an argument, that
    argument gets what this layer takes from then on.

    Args:
        context: the surroundings, with the model.
        names: the arguments of forward; one empty name is the only one, by position.
        first: the first layer that says what it takes.
        rows: samples in the batch.
    """
    layers = dict.fromkeys(names, first)
    known: set[str] = set()
    trials: list[Trial] = []
    trying = _combined(layers, rows)
    while len(trials) < _MOST and (given := next(trying, None)) is not None:
        trial = _tried(context, given)
        trials.append(trial)
        if trial.settles:
            return _inferred(given, layers)
        if not trial.copied:
            break
        new = {name: layer for name, layer in trial.refused.items() if name not in known}
        known |= new.keys()
        if any(layers[name][0] != layer[0] for name, layer in new.items()):
            layers |= new
            trying = _combined(layers, rows)
    return trials


def _combined(layers: Mapping[str, Layer], rows: int) -> Iterator[dict[str, Source]]:
    """What to give to each argument, the likeliest first; those of one layer get the same."""
    names = list(dict.fromkeys(name for name, _ in layers.values()))
    each = {name: sources(layer, rows) for name, layer in layers.values()}
    ranks = itertools.product(*(range(len(each[name])) for name in names))
    for chosen in sorted(ranks, key=sum):
        of = {name: each[name][rank] for name, rank in zip(names, chosen, strict=True)}
        yield {argument: of[name] for argument, (name, _) in layers.items()}


def _tried(context: Context, given: Mapping[str, Source]) -> Trial:
    """A call of forward on a copy of the model.

    It is made on the CPU: a GPU is lost to the process by an index that is out of range.
    """
    trial = Trial(given)
    arguments: dict[int, str] = {}
    modules: dict[nn.Module, str] = {}
    try:
        with warnings.catch_warnings(action="ignore"), _unheard():
            model = copy.deepcopy(context.model)
            trial.copied = True
            if context.device.type != "meta":
                model = model.cpu()
                context = dataclasses.replace(context, device=torch.device("cpu"))
            modules = {module: name for name, module in model.named_modules()}
            seed_everything(0)
            args, kwargs = plan_call(as_input(given), context)()
            tensors: list[Tensor] = [*args, *kwargs.values()]
            arguments = {_memory(t): name for name, t in zip(given, tensors, strict=True)}
            model(*args, **kwargs)
    except (Exception, SystemExit, GeneratorExit) as error:  # the user's code raises anything
        trial.refused = _refused(error, arguments, modules)
        trial.error = error.with_traceback(None)  # its frames would keep the copy
    return trial


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """What forward prints, the run prints again."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _memory(tensor: Tensor) -> int:
    """The same number for a tensor and for its views."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def _refused(
    error: BaseException, arguments: Mapping[int, str], modules: Mapping[nn.Module, str]
) -> dict[str, Layer]:
    """The innermost layer that was running, for each argument that it had as its input."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer = frame.f_locals.get("self")
        if isinstance(layer, nn.Module) and layer in modules and sources(layer, 1):
            inputs = [value for key, value in frame.f_locals.items() if key != "self"]
            had = [arguments.get(_memory(tensor)) for _, tensor in find(inputs, Tensor)]
            return {name: (modules[layer], layer) for name in had if name is not None}
    return {}


def _is_a_bug(error: BaseException) -> bool:
    """Whether no input would keep a model from raising this."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, nn.Module)
    return isinstance(error, (NameError, ImportError, NotImplementedError))


def as_input(given: Mapping[str, Source]) -> Any:
    """What a config would say: the source itself, or the sources by the names of arguments."""
    return given[""] if "" in given else dict(given)


def _inferred(given: Mapping[str, Source], layers: Mapping[str, Layer]) -> Inferred:
    words = [
        f"{name} {source.get('fill', 'randn')} {source['shape']}".strip()
        for name, source in given.items()
    ]
    from_ = {name or "the first layer": type(layer).__name__ for name, layer in layers.values()}
    origin = " and ".join(f"{name}, {kind}" for name, kind in from_.items())
    return Inferred(as_input(given), ", ".join(words), origin)
