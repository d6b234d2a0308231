"""The truth that reports are compared with: a twin run by other means, float64 reductions of it.

Needs torch alone and nothing of the package under test. No hooks and no walk of the graph: every
tensor that enters or leaves a module's call passes through two clones of its own. The first one is
never written to, so it keeps the value as it was, and ``torch.autograd.grad`` with respect to it
is the gradient through that call alone (an input) or of the value as returned (an output). The
second one is passed on, so an in-place operation that follows spoils nothing. Modules that
work in place are reported not to, and what the caller would see of that is written back to its
tensor.

Known limit: a returned view no longer shares memory with the call's input.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from truth.containers import rebuilt


@dataclasses.dataclass
class Token:
    """One value of one tensor object of the original run, known by the edge it first had."""

    edge: Any
    grad_fn: str | None


@dataclasses.dataclass
class Slot:
    """A tensor at one place of a call: ``record`` holds its value; both gradients come later."""

    path: str
    record: Tensor
    token: Token
    gradient: Tensor | None = None  # through this call alone
    total: Tensor | None = None  # of the tensor, over all its consumers


@dataclasses.dataclass
class Call:
    """One execution of one module's forward."""

    name: str
    aliases: list[str]
    type: str
    call: int
    inputs: list[Slot]
    outputs: list[Slot]
    training: bool

    def passed_through(self, slot: Slot) -> bool:
        """Return True if the call returned this input untouched."""
        return any(out.token is slot.token for out in self.outputs)

    def shared(self, slot: Slot) -> bool:
        """Return True if several of the call's inputs are the same tensor."""
        return sum(other.token is slot.token for other in self.inputs) > 1


@dataclasses.dataclass
class Truth:
    """Everything the twin's step showed."""

    loss: Tensor
    calls: list[Call]
    parameters: dict[str, tuple[Tensor, Tensor | None]]
    parameter_aliases: dict[str, list[str]]


def observe(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Tensor],
    *,
    seed: int = 0,
    autocast: torch.dtype | None = None,
) -> Truth:
    """One forward and backward of a twin of ``model``; the model itself is left alone."""
    twin = copy.deepcopy(model)
    recorder = _Recorder(twin)
    cast = torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext()
    with recorder.installed(), _without_checkpoints():
        torch.manual_seed(seed)
        with cast:
            value = loss(twin(*args, **kwargs))
    parameters = dict(twin.named_parameters())
    gradients = _gradients(value, recorder.calls, parameters)
    return Truth(
        value.detach(),
        recorder.calls,
        {name: (p.detach(), gradients.get(name)) for name, p in parameters.items()},
        _aliases(twin.named_parameters, parameters),
    )


class _Recorder:
    """Stands before ``Module.__call__`` and clones what goes in and comes out."""

    def __init__(self, twin: nn.Module) -> None:
        first = dict(twin.named_modules())
        self.aliases = _aliases(twin.named_modules, first)
        self.names = {id(module): name for name, module in first.items()}
        self.counts = dict.fromkeys(first, 0)
        self.calls: list[Call] = []
        self.tokens: dict[tuple[int, int], Token] = {}
        self.alive: list[Tensor] = []  # an id is only good for as long as its object lives
        self.in_place = set()
        for name, module in first.items():
            if getattr(module, "inplace", False) is True:
                module.inplace = False
                self.in_place.add(name)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in self.names:
                return original(module, *args, **kwargs)
            return self.call(original, module, args, kwargs)

        nn.Module.__call__ = call
        try:
            yield
        finally:
            nn.Module.__call__ = original

    def call(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        name = self.names[id(module)]
        record = Call(
            name,
            self.aliases[name],
            type(module).__name__,
            self.counts[name],
            [],
            [],
            module.training,
        )
        self.counts[name] += 1
        self.calls.append(record)
        given: dict[int, tuple[Tensor, Tensor, int]] = {}
        shared: dict[int, tuple[Tensor, Tensor]] = {}

        def enter(tensor: Tensor, path: str) -> Tensor:
            token = self.token(tensor)
            if id(token) not in shared:  # what an Identity returned is another clone of the same
                shared[id(token)] = self.clones(tensor, token)
                passed = shared[id(token)][1]
                given[id(passed)] = (tensor, passed, _version(passed))
            record.inputs.append(Slot(path, shared[id(token)][0], token))
            return shared[id(token)][1]

        args = tuple(rebuilt(value, str(i), enter) for i, value in enumerate(args))
        kwargs = {key: rebuilt(value, key, enter) for key, value in kwargs.items()}
        result = original(module, *args, **kwargs)
        self.write_back(name, given, result)
        left: dict[int, tuple[Tensor, Tensor]] = {}

        def leave(tensor: Tensor, path: str) -> Tensor:
            token = self.token(tensor)
            if id(tensor) not in left:
                left[id(tensor)] = self.clones(tensor, token)
            record.outputs.append(Slot(path, left[id(tensor)][0], token))
            return left[id(tensor)][1]

        return rebuilt(result, "", leave)

    def clones(self, tensor: Tensor, token: Token) -> tuple[Tensor, Tensor]:
        """The one to keep and the one to pass on, which stands for the same original object."""
        kept = tensor.clone()
        passed = kept.clone()
        self.tokens[id(passed), _version(passed)] = token
        self.alive.append(passed)
        return kept, passed

    def token(self, tensor: Tensor) -> Token:
        key = (id(tensor), _version(tensor))
        if key not in self.tokens:
            edge = _edge(tensor) if tensor.requires_grad else None
            fn = tensor.grad_fn.name() if tensor.grad_fn is not None else None
            self.tokens[key] = Token(edge, fn)
            self.alive.append(tensor)
        return self.tokens[key]

    def write_back(self, name: str, given: Any, result: Any) -> None:
        """Apply the call's in-place writes to its argument to the caller's tensor."""
        for tensor, passed, version in given.values():
            written = passed if _version(passed) != version else None
            if name in self.in_place and isinstance(result, Tensor) and result is not passed:
                written = result
            if written is not None:
                token = self.token(written)
                tensor.copy_(written)
                if tensor._is_view() and tensor.grad_fn is not None:
                    token.grad_fn = tensor.grad_fn.name()  # torch makes the view's node anew
                self.tokens[id(tensor), _version(tensor)] = token


def _gradients(
    loss: Tensor, calls: list[Call], parameters: dict[str, nn.Parameter]
) -> dict[str, Tensor | None]:
    """Fills the slots' gradients and returns the parameters', all from one ``autograd.grad``."""
    wanted: list[Any] = []
    places: list[tuple[Any, str]] = []
    for call in calls:
        for slot in (*call.inputs, *call.outputs):
            if slot.record.requires_grad:
                wanted.append(slot.record)
                places.append((slot, "gradient"))
            if slot.token.edge is not None:
                wanted.append(slot.token.edge)
                places.append((slot, "total"))
    named = [(name, p) for name, p in parameters.items() if p.requires_grad]
    found = torch.autograd.grad(loss, [*wanted, *(p for _, p in named)], allow_unused=True)
    for (slot, attribute), gradient in zip(places, found, strict=False):
        setattr(slot, attribute, gradient)
    return {name: g for (name, _), g in zip(named, found[len(places) :], strict=True)}


def _aliases(walk: Callable[..., Any], first: Mapping[str, Any]) -> dict[str, list[str]]:
    names = {id(item): name for name, item in first.items()}
    others: dict[str, list[str]] = {name: [] for name in first}
    for name, item in walk(remove_duplicate=False):
        if name != names[id(item)]:
            others[names[id(item)]].append(name)
    return others


def _edge(tensor: Tensor) -> Any:
    try:
        return torch.autograd.graph.get_gradient_edge(tensor)
    except AssertionError:  # a view in a custom Function's forward: no history, no leaf
        return None


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def _without_checkpoints() -> Iterator[None]:
    original = torch.utils.checkpoint.checkpoint
    own = {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state"}

    def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **{k: v for k, v in kwargs.items() if k not in own})

    torch.utils.checkpoint.checkpoint = plain
    try:
        yield
    finally:
        torch.utils.checkpoint.checkpoint = original
