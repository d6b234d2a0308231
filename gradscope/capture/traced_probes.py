"""Reads tensors inside compiled modules, by an operator that the compiler traces with the module.

``torch.ops.gradscope.observe`` reads a tensor and returns nothing. In a graph it is one more node.
It breaks no graph and needs no recompilation. While its flag is off, it costs one call. A hook on
each module applies it to inputs, outputs and output gradients. The same hook runs in modules that
are not compiled.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from gradscope.capture.hooks import OwnHook, TracedHook, hook_calls
from gradscope.capture.names import written_class
from gradscope.capture.parameters import parameter_count
from gradscope.capture.stats import Measured, resolve
from gradscope.patterns import Named
from gradscope.records.modules import ModuleCall
from gradscope.records.tensors import TensorRecord, TensorStats

#: The kinds of tensors: an input, an output, an output that gets a gradient, and that gradient.
INPUT, OUTPUT, DIFFERENTIABLE, GRADIENT = range(4)
#: Added to the kind inside a graph.
COMPILED = 4

_COMPILER: Any = torch.compiler  # it has no types, nor have the other two
_JIT: Any = torch.jit
_OPERATORS: Any = torch.library.Library
_LIBRARY = _OPERATORS("gradscope", "FRAGMENT")
# The schema declares a write to `order`, but nothing is written. This keeps the node in the graph,
# and all nodes in order: with one tensor for forward and one for backward, which are two graphs. A
# CUDA graph would replay kernels without calling the operator: the tag keeps it out.
_LIBRARY.define(
    "observe(Tensor x, Tensor probe, Tensor(a!) order, str path, int kind) -> ()",
    tags=(torch.Tag.cudagraph_unsafe,),
)


@dataclass(eq=False)
class Probe:
    """The probe of one module.

    Attributes:
        module: the module.
        see: called with the probe, the tensor, its path and its kind.
        tensor: identifies the probe in a graph by its address. A number would be a constant of the
            graph, so equal blocks could not share their compiled code.
    """

    module: weakref.ref[nn.Module]
    see: Callable[[Probe, Tensor, str, int], None]
    tensor: Tensor
    forward: Tensor
    backward: Tensor
    hooks: list[OwnHook] = field(default_factory=list)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook."""
        if _is_observed():
            record = _observe_all if torch.compiler.is_compiling() else _untraced()[0]
            record(self, args, kwargs)

    def after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Forward hook. Returns the output in containers of the same type."""
        if not _is_observed():
            return None
        observed = _observed if torch.compiler.is_compiling() else _untraced()[1]
        return observed(self, output, "")

    def follow(self) -> None:
        """Move the tensors to the device of the module, which is then traced again anyway."""
        module = self.module()
        if module is not None and (device := _device_of(module)) != self.tensor.device:
            del _probes[self.tensor.data_ptr()]
            self.tensor, self.forward, self.backward = _tensors_at(device)
            _probes[self.tensor.data_ptr()] = self

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()


#: All probes, by the address of their tensor.
_probes: weakref.WeakValueDictionary[int, Probe] = weakref.WeakValueDictionary()
#: Number of active owners. The operator reads this flag first.
_listening: set[int] = set()
#: True while modules are called, and traced, without probes.
_absent = False


def add_probe(module: nn.Module, see: Callable[[Probe, Tensor, str, int], None]) -> Probe:
    """Add hooks to a module before it is traced. After a removal the compiler traces it again."""
    _run_as_written()
    kind = type(module)
    if kind.__module__.startswith(("torch.nn.", "torch.ao.")):
        # If the compiler gave up on the caller, it would try to compile each of these functions.
        _skip_frames(kind.forward.__code__)
    see = _COMPILER.disable(see)
    probe = Probe(weakref.ref(module), see, *_tensors_at(_device_of(module)))
    _probes[probe.tensor.data_ptr()] = probe
    probe.hooks = hook_calls(module, probe.before, probe.after, kind=TracedHook)
    return probe


def _device_of(module: nn.Module) -> torch.device:
    """Return the device of a probe's tensors. Tensors on the device `meta` have no address."""
    found = next((p.device for p in module.parameters()), torch.device("cpu"))
    return torch.device("cpu") if found.type == "meta" else found


def _tensors_at(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    tensor, forward, backward = torch.zeros(3, 1, device=device).unbind()
    return tensor.clone(), forward.clone(), backward.clone()


@functools.cache
def _untraced() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Run the hooks outside a graph, even if the compiler waits for the next frame, as it does in
    the hooks of the module that it compiles."""
    return _COMPILER.disable(_observe_all), _COMPILER.disable(_observed)


@functools.cache
def _run_as_written() -> None:
    """Run these functions eagerly outside a graph, never compiled separately; a graph may inline
    them."""
    written = [Probe.before, Probe.after, TracedHook.__call__, _observe, _traced, _tap]
    written += [_WithGradient.forward, _WithGradient.backward, _is_observed, _graph, _observe_each]
    codes = [function.__code__ for function in (*written, _observe_all, _observed)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        _skip_frames(code)
    _untraced()


def _skip_frames(code: CodeType) -> None:
    from torch._dynamo import eval_frame  # takes a second: only where modules are compiled

    eval_frame.skip_code(code)


def listen(owner: object, *, on: bool) -> None:
    """Turn the operator on or off for an owner of probes."""
    (_listening.add if on else _listening.discard)(id(owner))


@contextmanager
def without_probes() -> Iterator[None]:
    """Call modules in the block without probes.

    The first such block compiles compiled modules again; their code with probes stays valid.
    """
    global _absent
    before, _absent = _absent, True
    try:
        yield
    finally:
        _absent = before


def _observe(x: Tensor, probe: Tensor, order: Tensor, path: str, kind: int) -> None:
    if _listening:
        found = _probes.get(probe.data_ptr())
        if found is not None:
            found.see(found, x, path, kind)


def _traced(x: Tensor, probe: Tensor, order: Tensor, path: str, kind: int) -> None:
    """Return nothing: the fake implementation for tracing."""


_LIBRARY.impl("observe", _observe, "CompositeExplicitAutograd")
_LIBRARY.impl("observe", torch.library.fallthrough_kernel, "Autograd")
torch.library.register_fake("gradscope::observe", _traced, lib=_LIBRARY)
_OPERATOR = torch.ops.gradscope.observe.default


class _WithGradient(torch.autograd.Function):
    """An identity with the same memory; in backward the operator reads the gradient.

    A view of the input would not allow a following in-place operation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, order: Tensor, path: str, kind: int) -> Tensor:
        ctx.arguments = probe, order, path, kind
        if kind >= COMPILED:
            _save_unchecked(order)
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _OPERATOR(gradients[0], *ctx.arguments)
        return gradients[0], None, None, None, None


def _save_unchecked(order: Tensor) -> None:
    """Have AOTAutograd save a tensor for backward without a check of its version.

    The operator's declared write to it in one graph's backward becomes a copy with the backend
    aot_eager, which would make the backward of the next graph fail. PyTorch sets the same mark for
    tensors that an autograd function keeps on its ``ctx``; torch 2.8 has no such mark.
    """
    from torch.fx.experimental import proxy_tensor  # the compiler has imported it

    proxies = getattr(proxy_tensor, "_get_proxies", None)
    for proxy in () if proxies is None else proxies(order):
        proxy.node.meta["saved_tensor_with_no_vc_check"] = True


def _tap(
    x: Tensor, probe: Tensor, forward: Tensor, backward: Tensor, path: str, graph: int
) -> Tensor:
    if torch._C._functorch.maybe_current_level() is not None:  # inside `torch.func`
        return x
    _OPERATOR(x, probe, forward, path, DIFFERENTIABLE + graph)
    return _WithGradient.apply(x, probe, backward, path, GRADIENT + graph)  # type: ignore[no-any-return]


# The compiler treats it as one operation, and traces its parts with the backward.
_COMPILER.allow_in_graph(_tap)


def _is_observed() -> bool:
    """Return True if a call may belong to the training, and is not traced for another purpose."""
    return (
        not _absent
        and torch.is_grad_enabled()
        # Not `is_exporting()`: in torch 2.8 it is True in every compiled graph.
        and not torch.compiler._is_exporting_flag
        and not _JIT.is_tracing()
        and not torch._C._are_functorch_transforms_active()
    )


def _graph() -> int:
    return COMPILED if torch.compiler.is_compiling() else 0


def _observe_all(probe: Probe, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pass a call's arguments to the operator."""
    for number, value in enumerate(args):
        _observe_each(probe, value, str(number))
    for name, value in kwargs.items():
        _observe_each(probe, value, name)


def _observe_each(probe: Probe, value: Any, path: str) -> None:
    """Pass each tensor in plain containers to the operator."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        _OPERATOR(value, probe.tensor, probe.forward, path, INPUT + _graph())
    elif kind is tuple or kind is list:
        for number, part in enumerate(value):
            _observe_each(probe, part, f"{path}.{number}")


def _observed(probe: Probe, value: Any, path: str) -> Any:
    """Return a module's output with each of its tensors observed."""
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter:
        tensor, order = probe.tensor, probe.forward
        if value.requires_grad:
            return _tap(value, tensor, order, probe.backward, path, _graph())
        _OPERATOR(value, tensor, order, path, OUTPUT + _graph())
        return value
    start = f"{path}." if path else ""
    if kind is list or kind is tuple:
        parts = [_observed(probe, part, f"{start}{n}") for n, part in enumerate(value)]
        return parts if kind is list else tuple(parts)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*[_observed(probe, getattr(value, n), f"{start}{n}") for n in value._fields])
    if kind is dict:
        return {name: _observed(probe, part, f"{start}{name}") for name, part in value.items()}
    return value


#: The note of a call that was recorded by a probe.
NOTE = "compiled"


@dataclass(slots=True, eq=False)
class Event:
    """An event of a probe: ``kind`` as in ``traced_probes``, without ``COMPILED``. ``found`` has
    the tensor's statistics, or only the sum of its elements in a step that is only checked for NaN.
    """

    probe: Probe
    path: str
    kind: int
    compiled: bool
    found: Measured | Tensor


@dataclass(slots=True, eq=False)
class TracedCall:
    """One call of a module: its events by their paths."""

    module: nn.Module
    inputs: dict[str, Event] = field(default_factory=dict)
    outputs: dict[str, Event] = field(default_factory=dict)
    gradients: dict[str, Event] = field(default_factory=dict)

    @property
    def first(self) -> Event:
        """The first event of the call."""
        return next(iter((self.inputs or self.outputs).values()))


def calls_of(events: Sequence[Event], names: Mapping[nn.Module, Named]) -> list[TracedCall]:
    """Return the calls of some modules in the order in which they began.

    The gradients of a module's calls arrive in the reverse order of the calls.
    """
    found: list[TracedCall] = []
    latest: dict[Probe, TracedCall] = {}
    waiting: dict[tuple[Probe, str], list[TracedCall]] = {}
    for event in events:
        probe, path, module = event.probe, event.path, event.probe.module()
        if module is None or module not in names:
            continue
        if event.kind == GRADIENT:
            calls = waiting.get((probe, path))
            if calls:
                calls.pop().gradients[path] = event
            continue
        call, given = latest.get(probe), event.kind == INPUT
        if call is None or (call.outputs and given) or path in _part(call, given=given):
            call = latest[probe] = TracedCall(module)
            found.append(call)
        _part(call, given=given)[path] = event
        if event.kind == DIFFERENTIABLE:
            waiting.setdefault((probe, path), []).append(call)
    return found


def _part(call: TracedCall, *, given: bool) -> dict[str, Event]:
    return call.inputs if given else call.outputs


def finished(
    calls: Sequence[TracedCall], names: Mapping[nn.Module, Named]
) -> tuple[ModuleCall, ...]:
    """Return the records of calls whose tensors were measured, with new numbers."""
    parts = [part for call in calls for part in (call.inputs, call.outputs, call.gradients)]
    measured = [e.found for part in parts for e in part.values() if not isinstance(e.found, Tensor)]
    done = resolve(measured)
    counts: dict[nn.Module, int] = {}
    records = []
    for order, call in enumerate(calls):
        module, named = call.module, names[call.module]
        number = counts[module] = counts.get(module, -1) + 1
        records.append(
            ModuleCall(
                name=named.name,
                type=written_class(module).__name__,
                call=number,
                order=order,
                aliases=named.aliases,
                training=module.training,
                notes=(NOTE,),
                inputs=tuple(_record(event, None, done) for event in call.inputs.values()),
                outputs=tuple(
                    _record(event, call.gradients.get(path), done)
                    for path, event in call.outputs.items()
                ),
                parameters=parameter_count(module),
            )
        )
    return tuple(records)


def _record(event: Event, gradient: Event | None, done: Mapping[int, TensorStats]) -> TensorRecord:
    given = None if gradient is None else done[id(gradient.found)]
    if gradient is not None and gradient.compiled and event.path and given is not None:
        # If a call has several results, a compiled backward has gradients of zeros for unused ones.
        given = None if given.zeros == given.numel else given
    return TensorRecord(
        event.path,
        done[id(event.found)],
        given,
        requires_grad=event.kind == DIFFERENTIABLE,
    )
