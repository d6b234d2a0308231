"""Computes the scalar for backward from a model's output.

Built-in losses take the first floating output; the model's own loss and a user's loss take the
model's output. To add a named loss, add it to ``LOSSES`` in config/targets.py and to
``Criterion._on``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.loss import _Loss

from gradscope.config.targets import LOSSES
from gradscope.errors import ConfigError, ModelError, Place, did_you_mean, few
from gradscope.loading import outputs
from gradscope.loading.batches import MicroBatch

RANDOM = "random"


class Mismatch(ModelError):
    """An output and a target that do not match; ``kind`` is the kind of error."""

    def __init__(self, message: str, *, kind: str, help: str) -> None:
        super().__init__(message, help=help)
        self.kind = kind


class Draws:
    """Random targets from a separate generator: the global state stays unchanged, and equal outputs
    get equal targets in every step. ``part`` has the samples of a batch that the output belongs to;
    they get the same targets as in the full batch."""

    def __init__(self, seed: int, part: MicroBatch | None = None) -> None:
        self.seed = seed
        self.part = part
        self.notices: list[str] = []

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed % 2**64)

    def _full(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
        """Return the shape to draw, and the slice of this part."""
        part = self.part
        if part is None or not shape or shape[0] != part.stop - part.start:
            return shape, ...
        return (part.total, *shape[1:]), slice(part.start, part.stop)

    def classes(self, shape: tuple[int, ...], count: int, device: torch.device) -> Tensor:
        """Draw random class ids below ``count``."""
        shape, own = self._full(shape)
        ids = torch.randint(count, shape, generator=self._generator(), device="cpu")
        first = ids.flatten()[:8].tolist()
        words = str(first) if ids.ndim == 1 and ids.numel() <= 8 else f"{list(shape)} of {count}"
        self.notices.append(f"target: random classes {words if ids.ndim else ids.item()}")
        return ids[own].to(device)

    def values(self, like: Tensor) -> Tensor:
        """Draw random normal values of a tensor's shape."""
        shape, own = self._full(tuple(like.shape))
        drawn = torch.randn(shape, generator=self._generator(), device="cpu")
        self.notices.append(f"target: random values {list(shape)}")
        return drawn[own].to(like.device, like.dtype)


def as_tensor(target: Any, name: str, device: torch.device) -> Tensor:
    """Return the target on the output's device.

    Raises:
        ModelError: the target is nested, so only the user's own loss can read it.
    """
    try:
        tensor = target if isinstance(target, Tensor) else torch.as_tensor(target, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{name} compares with numbers; the target is a {type(target).__name__}",
            help="set `loss` to a `_target_` of your own, or `output` for the model's own loss",
        ) from error
    return tensor.to(device)


def class_shape(scores: Tensor, name: str) -> tuple[int, ...]:
    """Return the shape of class ids for scores ``[N, C, …]`` or ``[C]``.

    Raises:
        ModelError: the scores have no class dimension.
    """
    if scores.ndim == 0:
        raise ModelError(
            f"{name} expects scores [N, C]; the first floating output is one number",
            help="set `loss: sum`, or a `_target_` of your own",
        )
    return (*scores.shape[:1], *scores.shape[2:]) if scores.ndim > 1 else ()


def class_count(scores: Tensor) -> int:
    """Return the number of classes: the size of the scores' class dimension."""
    return scores.shape[1 if scores.ndim > 1 else 0]


def classes(scores: Tensor, target: Any, name: str, draws: Draws) -> Tensor:
    """Return class ids (or, for cross entropy, probabilities) for the scores.

    A single id counts for every row. The loss checks the range of ids.

    Raises:
        ModelError: the target has a wrong length, shape or type.
    """
    shape, count = class_shape(scores, name), class_count(scores)
    if target is None or target is RANDOM or isinstance(target, str):
        if count == 0:
            raise ModelError(f"{name} has no class to draw: the output is {list(scores.shape)}")
        return draws.classes(shape, count, scores.device)
    ids = as_tensor(target, name, scores.device)
    floating = ids.is_floating_point()
    if floating and ids.shape == scores.shape and name == "cross_entropy":
        return ids.to(scores.dtype)
    if floating or ids.is_complex() or ids.dtype is torch.bool:
        kind = str(ids.dtype).removeprefix("torch.")
        raise Mismatch(
            f"the target is {kind} {list(ids.shape)}; {name} expects class ids, integers",
            kind="dtype-mismatch",
            help="cast the class ids, `target.long()` (`dtype: int64`), or use `loss: mse` for"
            " values",
        )
    ids = _for_each(ids, shape)
    if tuple(ids.shape) != shape:
        raise _mismatch(ids, shape, scores)
    return ids.to(torch.int64)


def given_classes(scores: Tensor, target: Any, name: str) -> Tensor:
    """Return the user's class ids unchecked, for the user's own loss.

    A single id counts for every row, as in ``classes``.
    """
    return _for_each(as_tensor(target, name, scores.device), class_shape(scores, name))


def _for_each(ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    return ids.expand(shape) if ids.ndim == 0 and shape else ids


def _mismatch(ids: Tensor, shape: tuple[int, ...], scores: Tensor) -> Mismatch:
    help = f"give class ids of shape {list(shape)}"
    if ids.ndim == 1 and len(shape) == 1:
        sentence = f"the target is {list(ids.shape)}, but the batch needs {list(shape)} class ids"
        help = f"give {shape[0]} class ids, one for each row of the output"
    else:
        sentence = (
            f"the target is {list(ids.shape)}; scores {list(scores.shape)} go with class ids "
            f"{list(shape)}"
        )
    places = tuple(scores.shape[:-1])
    if len(places) > 1 and tuple(ids.shape) in (places, (math.prod(places),)):
        sentence = (
            f"the target is {list(ids.shape)}; the scores {list(scores.shape)} need the classes at "
            f"dimension 1, but the {scores.shape[-1]} classes are last"
        )
        help = (
            "move them in the model, `logits.movedim(-1, 1)`, or flatten both: a loss of your own "
            f"compares `logits.flatten(0, {len(places) - 1})` with `target.flatten()`"
        )
    if len(shape) > 0 and tuple(ids.shape) == (shape[0], 1, *shape[1:]):
        help = "drop its dimension of one: `target.squeeze(1)`"
    return Mismatch(sentence, kind="shape-mismatch", help=help)


def values(output: Tensor, target: Any, name: str, draws: Draws) -> Tensor:
    """Return values in the output's shape and dtype; a single number counts for all of them.

    Raises:
        ModelError: there is no target, or it has another shape, which would broadcast silently.
    """
    shape = list(output.shape)
    if isinstance(target, str):
        if name != "bce_with_logits":
            return draws.values(output)
        return draws.classes(tuple(shape), 2, output.device).to(output.dtype)
    if target is None:
        raise ModelError(
            f"{name} has no target to compare the output {shape} with",
            help="give `target` values, a file, or `random`",
        )
    wanted = as_tensor(target, name, output.device).to(output.dtype)
    if wanted.numel() == 1:
        return wanted.reshape(()).expand(output.shape)
    if _squeezed(wanted) == _squeezed(output):
        return wanted.reshape(output.shape)
    raise Mismatch(
        f"the target is {list(wanted.shape)} and the output {shape}: {name} compares like shapes",
        kind="shape-mismatch",
        help=f"give a target of shape {shape}",
    )


def _squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


#: Losses of torch that compare with class ids.
_CLASSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll",
    "cross_entropy": "cross_entropy",
    "nll_loss": "nll",
}


def resolve(
    config_loss: str | Mapping[str, Any] | None,
    instantiate: Callable[[Mapping[str, Any], str], Any],
    place: Callable[[str], Place | None] = lambda key: None,
) -> str | Callable[..., Any] | None:
    """Return the config's ``loss`` in the form for Criterion: a name, a callable, or None.

    Raises:
        ConfigError: an unknown name, or a ``_target_`` that cannot be called.
    """
    if config_loss is None or config_loss in LOSSES:
        return config_loss
    if isinstance(config_loss, str):
        if "." in config_loss or ":" in config_loss:
            help = f"a loss of your own is written `loss: {{_target_: {config_loss}}}`"
        else:
            close = did_you_mean(config_loss, LOSSES)
            help = close or f"one of {', '.join(LOSSES)}, or a `_target_`"
        raise ConfigError(f"unknown loss `{config_loss}`", place=place("loss"), help=help)
    made = instantiate(config_loss, "loss")
    if not callable(made):
        raise ConfigError(
            f"the loss is a {type(made).__name__}, which cannot be called",
            place=place("loss"),
            help="name a function or a class whose objects take (output, target)",
        )
    return made  # type: ignore[no-any-return]


class Criterion:
    """Computes the loss from ``(output, target)``, and remembers its choice.

    After the first call, ``name`` is the loss that was used, ``notices`` has the inferred settings,
    and ``inferred`` is True if the loss was inferred. ``without_graph`` names the numbers in the
    output that could be the model's own loss if they had a graph. ``parts`` has the losses whose
    sum the last loss was, if there are several; their reader clears them. The batch's target wins
    over the constructor's. Random targets never touch the global generators. With an external
    gradient and no named loss, the first floating output is returned unchanged.
    """

    def __init__(
        self,
        spec: str | Callable[..., Any] | None,
        target: Any = None,
        *,
        seed: int,
        external_gradient: bool = False,
    ) -> None:
        self.spec = spec
        self.target = target
        self.seed = seed
        self.external_gradient = external_gradient
        self.name = spec if isinstance(spec, str) else _called(spec) if spec else "inferred"
        self.inferred = False
        self.drawn = False  # whether the target is one of random numbers
        self.without_graph: tuple[str, ...] = ()
        self.parts: Mapping[str, Tensor] = {}
        self.part: MicroBatch | None = None  # the samples that the next output is of, if not all
        self.notices: list[str] = []

    def __call__(self, output: Any, target: Any = None) -> Tensor:
        """Return the loss; None as the target means the constructor's.

        Raises:
            ModelError: the loss cannot be computed from this output and target.
        """
        draws, self.parts = Draws(self.seed, self.part), {}
        target = self.target if target is None else target
        if self.spec is None:
            loss = self._inferred(output, target, draws)
        elif isinstance(self.spec, str):
            loss = self._named(self.spec, output, target, draws)
        else:
            loss = self._users(self.spec, output, target, draws)
        for notice in draws.notices:
            self._say(notice)
        self.drawn = self.drawn or bool(draws.notices)
        return loss

    def _say(self, notice: str) -> None:
        first = self.part is None or self.part.start == 0  # facts on one hold for the others
        if first and notice not in self.notices:
            self.notices.append(notice)

    def _inferred(self, output: Any, target: Any, draws: Draws) -> Tensor:
        if self.external_gradient:
            return self._as_it_is(output)
        self.inferred = True
        own = outputs.own_loss(output)
        if own is not None:
            self.name = own.name
            self.without_graph = own.cut
            self.parts = own.parts
            self._say(f"loss: {own.name} ({own.why})")
            return own.tensor
        self.without_graph = tuple(outputs.without_graph(output))
        path, tensor = _first(output, "no loss")
        if self.without_graph and not tensor.requires_grad:
            path, tensor = outputs.first_floating(output, with_graph=True) or (path, tensor)
        words = f"the first floating output{f' `{path}`' if path else ''} is {list(tensor.shape)}"
        parts = outputs.parts(output)
        words += f"; not in it: {few(parts, '`', 4)}" if parts else ""
        if self.without_graph:
            words += f"; without a graph: {few(self.without_graph, '`', 4)}"
        scored = tensor.ndim == 2 or (tensor.ndim > 2 and _wants_dense(tensor, target))
        if scored and tensor.shape[1] >= 2:
            self.name = "cross_entropy"
        else:
            self.name = "sum"
            words = f"a stand-in: {words}"
            if target is not None:
                self._say("target: not used by the sum; set `loss` to compare with it")
        self._say(f"loss: {self.name} ({words})")
        return self._on(self.name, tensor, target, draws)

    def _as_it_is(self, output: Any) -> Tensor:
        numbers = (t for _, t in outputs.tensors(output) if t.is_floating_point() or t.is_complex())
        tensor = next(numbers, None)
        self.name = "external gradient"
        return _first(output, "no gradient")[1] if tensor is None else tensor

    def _named(self, name: str, output: Any, target: Any, draws: Draws) -> Tensor:
        if name != "output":
            return self._on(name, _first(output, f"no {name}")[1], target, draws)
        own = outputs.own_loss(output)
        if own is None:
            cut = outputs.without_graph(output).items()
            number = next((found for _, found in cut if isinstance(found, Tensor)), None)
            if number is not None:  # backward says what cut it
                return number
            names = "".join(f", and `{name}`, a plain number" for name, _ in cut)
            raise ModelError(
                f"the output has no loss: it holds {outputs.describe(output)}{names}",
                help="give the model its labels in `input`, or name another `loss`"
                if not cut
                else "return the loss itself, without `.item()`",
            )
        self.parts = own.parts
        if own.name not in ("output", "output.loss"):
            self._say(f"loss: {own.name} ({own.why})")
        return own.tensor

    def _on(self, name: str, tensor: Tensor, target: Any, draws: Draws) -> Tensor:
        if name in ("sum", "mean"):
            return tensor.sum() if name == "sum" else tensor.mean()
        if name == "logit":
            return _logit(tensor, target, draws)
        if name in ("cross_entropy", "nll"):
            ids = classes(tensor, target, name, draws)
            return (
                F.cross_entropy(tensor, ids) if name == "cross_entropy" else F.nll_loss(tensor, ids)
            )
        wanted = values(tensor, target, name, draws)
        compare = F.mse_loss if name == "mse" else F.binary_cross_entropy_with_logits
        return compare(tensor, wanted)

    def _users(self, loss: Callable[..., Any], output: Any, target: Any, draws: Draws) -> Tensor:
        if _of_torch(loss):
            output = _first(output, f"no {self.name}")[1]
        wants = _CLASSES.get(self.name) if _of_torch(loss) else None
        if wants:
            if target is None or isinstance(target, str):
                target = classes(output, target, wants, draws)
            else:  # values refused in training are refused here too
                target = given_classes(output, target, wants)
        elif isinstance(target, str):
            tensor = _first(output, f"no {self.name}")[1]
            scored = tensor.ndim == 2 and not _of_torch(loss)
            make = classes if scored else values
            target = make(tensor, target, self.name, draws)
        result = loss(output) if target is None else loss(output, target)
        return result if isinstance(result, Tensor) else self._of_several(result)

    def _of_several(self, result: Any) -> Tensor:
        """Return the loss among the values that a loss returned, read like a model's output."""
        own = outputs.own_loss(result)
        if own is None:
            raise ModelError(
                f"the loss {self.name} returned a {type(result).__name__}, not a tensor",
                help="return a tensor that is computed from the output, without `.item()`, or a "
                "mapping of such numbers",
            )
        if own.left:
            raise ModelError(
                f"the loss {self.name} returned several numbers, and none includes the others",
                help="return their sum, or a mapping of them: `{'name': …, 'other': …}`",
            )
        self.parts = own.parts
        self.without_graph = tuple(name.removeprefix("output.") for name in own.cut)
        found = own.why.removeprefix("the model's own: ")
        words = "the `loss`" if own.name == "output.loss" else found
        self._say(f"loss: {self.name} (of what it returned {words})")
        return own.tensor


def _first(output: Any, what: str) -> tuple[str, Tensor]:
    found = outputs.first_floating(output)
    if found is None:
        raise ModelError(
            f"{what} can be made of the output: it holds {outputs.describe(output)}, and a loss is "
            "made of real floating numbers",
            help="set `loss` to a `_target_` that makes a real number of it",
        )
    return found


def _wants_dense(scores: Tensor, target: Any) -> bool:
    """Return True if the target holds a class for each place of ``[N, C, …]``."""
    if isinstance(target, str):
        return True
    if not isinstance(target, Tensor) or target.is_floating_point():
        return False
    return target.shape == (*scores.shape[:1], *scores.shape[2:])


def _logit(scores: Tensor, target: Any, draws: Draws) -> Tensor:
    """Return the target class's score, summed over the batch; without a target, the highest
    score."""
    dim = 1 if scores.ndim > 1 else 0
    shape = class_shape(scores, "logit")
    if target is None:
        ids = scores.detach().argmax(dim)
    else:
        if isinstance(target, Tensor) and target.ndim == 1 and len(shape) > 1:
            target = target.reshape(-1, *[1] * (len(shape) - 1)).expand(-1, *shape[1:])
        ids = classes(scores, target, "logit", draws)
    return scores.gather(dim, ids.unsqueeze(dim)).sum()


def _called(loss: Callable[..., Any]) -> str:
    """Return a loss's name: the name of its function or class."""
    inner = loss.func if isinstance(loss, functools.partial) else loss
    return str(getattr(inner, "__name__", type(inner).__name__))


def _of_torch(loss: Callable[..., Any]) -> bool:
    """Return True for a loss of torch, which takes a tensor and not a model's full output."""
    if isinstance(loss, _Loss):
        return type(loss).__module__.startswith("torch.")
    inner = loss.func if isinstance(loss, functools.partial) else loss
    return str(getattr(inner, "__module__", None)).startswith("torch")
