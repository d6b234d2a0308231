"""Finds attention, routing and residual blocks in the calls of one recorder."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gradscope.capture.calls import Call, CallStack, call_tensors, in_backward
from gradscope.capture.graph import Edge, edge_of
from gradscope.capture.hooks import raised_by_a_handler
from gradscope.capture.measurements import version
from gradscope.capture.shards import PLAIN
from gradscope.capture.transformer import residual
from gradscope.capture.transformer.attention import (
    Measured,
    heads_of,
    is_product,
    of_queries,
    of_scores,
)
from gradscope.capture.transformer.experts import Holders, Routing, is_distribution, routing
from gradscope.capture.transformer.patches import observe_functions
from gradscope.errors import first_line
from gradscope.nesting import find
from gradscope.records.transformer import MEASURES, AttentionCall, ExpertCall, ResidualCall

#: Number of enclosing modules to search for the experts.
_LEVELS = 3
_Figures = TypeVar("_Figures")


@dataclass(frozen=True, slots=True)
class TransformerCalls:
    """The finished records of the calls of attention, experts and blocks."""

    attention: tuple[AttentionCall, ...] = ()
    experts: tuple[ExpertCall, ...] = ()
    residual: tuple[ResidualCall, ...] = ()


@dataclass(slots=True)
class _Block:
    """A running block: its input, and the input's autograd edge."""

    given: Tensor
    version: int
    edge: Edge | None


#: A block's call, its container, True if its graph adds its input (None without a graph), its
#: dtype, and its input.
_BlockCall = tuple[Call, nn.Module, bool | None, str, Tensor]


@dataclass(slots=True)
class _Taken:
    """Measurements so far, still on the devices."""

    attention: list[tuple[Call, str, int, Measured]] = field(default_factory=list)
    routings: list[tuple[Call, int, Routing]] = field(default_factory=list)
    blocks: list[_BlockCall] = field(default_factory=list)


class TransformerParts:
    """Attention, experts and the residual stream of a model.

    It has no reference to its recorder, so that the model is freed with its last reference.

    Attributes:
        paused: True if no call is recorded.

    Args:
        model: the model.
        probes: the parts to record, from ``records.transformer.PROBES``.
        calls: the recorder's calls, by index.
        stack: the recorder's running calls.
        guard: wraps the patches, so that they never raise.
    """

    def __init__(
        self,
        model: nn.Module,
        probes: Collection[str],
        *,
        calls: Sequence[Call],
        stack: CallStack,
        guard: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._probes = frozenset(probes)
        self.paused = False
        self._calls, self._stack, self._guard = calls, stack, guard
        self._blocks = residual.repeated_blocks(model) if "residual" in self._probes else {}
        self._running: dict[int, _Block] = {}
        self._routers: dict[nn.Module, Routing] = {}  # by the expert's module
        self._holders = Holders()
        self._counts: Counter[tuple[int, str]] = Counter()
        self._taken = _Taken()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe the functions until the block ends."""
        with ExitStack() as patches:
            if self._probes & {"attention", "experts"}:
                observe_functions(patches, self._guard(self._called))
            try:
                yield
            finally:
                self._running.clear()
                self._routers.clear()

    # ---------------------------------------------------------------- calls of modules

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the start of a module's call."""
        module = call.module
        if module in self._routers:
            given = residual.stream(call_tensors(args, kwargs))
            if given is not None:
                self._routers[module].add(given)
        if module in self._blocks and call.selected:
            given = residual.stream(call_tensors(args, kwargs))
            if given is not None and _readable(given):
                edge = edge_of(given) if given.requires_grad else None
                self._running[call.index] = _Block(given, version(given), edge)

    def after(self, call: Call, output: Any) -> None:
        """Note the end of a block's call."""
        block = self._running.pop(call.index, None)
        if block is None:
            return
        made = residual.stream(find(output, Tensor))
        if made is None or made.shape != block.given.shape or not _readable(made):
            return
        adds = residual.adds_to(made, block.edge)
        if adds is False:
            return
        kept = block.given if version(block.given) == block.version else None
        figures = _measured(call, lambda: residual.figures(made, kept))
        if figures is None:
            return
        dtype = str(made.dtype).removeprefix("torch.")
        self._taken.blocks.append((call, self._blocks[call.module], adds, dtype, figures))

    # ---------------------------------------------------------------- functions

    def _called(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if name not in ("softmax", "scaled_dot_product_attention"):
            if "experts" in self._probes:
                self._chose(name, args, kwargs, result)
        elif "attention" in self._probes:
            self._attended(name, args, kwargs)

    def _attended(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else next((kwargs[k] for k in ("query", "input") if k in kwargs), 0)
        if not isinstance(given, Tensor) or not _readable(given) or given.dim() < 2:
            return
        call = self._call()
        if call is None or not call.selected:
            return
        if name == "softmax":
            dim = args[1] if len(args) > 1 else kwargs.get("dim")
            if not isinstance(dim, int) or not is_product(given):
                return
            measured = _measured(call, lambda: of_scores(given, dim, heads_of(call.module)))
        else:
            measured = _measured(call, lambda: _of_call(args, kwargs, heads_of(call.module)))
        if measured is not None:
            self._taken.attention.append((call, name, self._part(call, "attention"), measured))

    def _chose(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = args[0] if args else kwargs.get("input")
        chosen = getattr(result, "indices", result if name == "argmax" else None)
        if (
            not isinstance(given, Tensor)
            or not isinstance(chosen, Tensor)
            or not _readable(given)
            or not given.is_floating_point()
            or given.dim() < 2
            or not _over_last(name, args, kwargs, given.dim())
            or given.shape[-1] < 2
        ):
            return
        call = self._call()
        if call is None:
            return
        if name != "topk" and not is_distribution(given):
            return
        if name == "topk" and chosen.shape[:-1] != given.shape[:-1]:
            return
        held = self._holder(call, given.shape[-1])
        if held is None:
            return
        holder, experts = held
        if not holder.selected:
            return
        found = _measured(holder, lambda: routing(given.detach(), chosen, experts))
        if found is None:
            return
        self._routers.update(dict.fromkeys(experts, found))
        self._taken.routings.append((holder, self._part(holder, "experts"), found))

    def _call(self) -> Call | None:
        """Return the call that runs the function; None in a recomputation, or during tracing."""
        if (
            in_backward()
            or torch.compiler.is_dynamo_compiling()
            or torch.compiler._is_compiling_flag
            or torch._C._get_tracing_state()
        ):
            return None
        return None if self.paused else self._stack.innermost(sys._getframe(1))

    def _holder(self, call: Call, count: int) -> tuple[Call, tuple[nn.Module, ...]] | None:
        """Return the nearest enclosing call whose module holds that many experts."""
        for _ in range(_LEVELS):
            experts = self._holders.experts(call.module, count)
            if experts is not None:
                return call, experts
            if call.parent < 0:
                return None
            call = self._calls[call.parent]
        return None

    def _part(self, call: Call, table: str) -> int:
        """Return the number of this part within the call."""
        number = self._counts[call.index, table]
        self._counts[call.index, table] += 1
        return number

    # ---------------------------------------------------------------- records

    def take(self) -> TransformerCalls:
        """Return the records since the last request."""
        taken, self._taken = self._taken, _Taken()
        blocks = _innermost(taken.blocks)
        figures = [
            *(measured.figures for *_, measured in taken.attention),
            *(torch.cat([one.counts, one.entropy[None]]) for *_, one in taken.routings),
            *(one[-1] for one in blocks),
        ]
        numbers = iter(_read(figures))
        attention = [_attention(*one, next(numbers)) for one in taken.attention]
        experts = [_experts(*one, next(numbers)) for one in taken.routings]
        residuals = [_residual(call, dtype, next(numbers)) for call, _, _, dtype, _ in blocks]
        return TransformerCalls(tuple(attention), tuple(experts), tuple(residuals))


def _innermost(blocks: Sequence[_BlockCall]) -> list[_BlockCall]:
    """Return the blocks of containers in which a block adds to its input, without outer stages that
    hold such blocks."""
    add = {container for _, container, adds, *_ in blocks if adds}
    found = [one for one in blocks if one[1] in add]
    names = {call.named.name for call, *_ in found}
    around = {name[:i] for name in names for i, letter in enumerate(name) if letter == "."}
    return [one for one in found if one[0].named.name not in around]


def _of_call(args: tuple[Any, ...], kwargs: dict[str, Any], heads: int | None) -> Measured:
    """Measure attention from the arguments of ``scaled_dot_product_attention``."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**kwargs, **dict(zip(names, args, strict=False))}
    mask = given.get("attn_mask")
    return of_queries(
        given["query"].detach(),
        given["key"].detach(),
        mask=None if mask is None else mask.detach(),
        causal=bool(given.get("is_causal", False)),
        scale=given.get("scale"),
        grouped=bool(given.get("enable_gqa", False)),
        heads=heads,
    )


def _over_last(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], axes: int) -> bool:
    """Return True if a choice is along the last axis."""
    place = 2 if name == "topk" else 1
    dim = args[place] if len(args) > place else kwargs.get("dim", -1 if name == "topk" else None)
    return isinstance(dim, int) and dim % axes == axes - 1


def _readable(tensor: Tensor) -> bool:
    """Return True for a plain tensor with numbers in it."""
    return (
        type(tensor) in PLAIN
        and tensor.device.type != "meta"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _measured(call: Call, compute: Callable[[], _Figures]) -> _Figures | None:
    """Return the result of ``compute``; None, with a note, if it fails."""
    try:
        with _without_gradient():
            return compute()
    except Exception as error:
        if raised_by_a_handler(error):
            raise
        message = first_line(error)
        call.note(f"unmeasured: {message}")
        return None


@contextmanager
def _without_gradient() -> Iterator[None]:
    """Disable gradients and autocast in the block."""
    kinds = {"cpu", torch._C._get_accelerator().type}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _read(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """Read the numbers of each, with one wait per device."""
    read: dict[int, list[Any]] = {}
    devices = {tensor.device for tensor in tensors}
    for device in devices:
        own = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        with torch.no_grad():
            flat = torch.cat([tensors[i].flatten() for i in own]).tolist()
        start = 0
        for i in own:
            size = tensors[i].numel()
            read[i] = flat[start : start + size]
            start += size
    return [read[i] for i in range(len(tensors))]


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None


def _attention(
    call: Call, op: str, part: int, measured: Measured, numbers: list[float]
) -> AttentionCall:
    heads = measured.figures.shape[1]
    rows = (tuple(map(_known, numbers[i : i + heads])) for i in range(0, len(numbers), heads))
    measures: dict[str, Any] = dict(zip(MEASURES["attention"], rows, strict=True))
    sizes = (measured.queries, measured.keys, measured.rows)
    return AttentionCall(call.named.name, call.number, op, *sizes, part=part, **measures)


def _residual(call: Call, dtype: str, numbers: list[float]) -> ResidualCall:
    measures: dict[str, Any] = dict(zip(MEASURES["residual"], map(_known, numbers), strict=True))
    return ResidualCall(call.named.name, call.number, dtype, **measures)


def _experts(call: Call, part: int, found: Routing, numbers: list[float]) -> ExpertCall:
    *counts, entropy = numbers
    every = sum(counts)
    share = tuple(count / every for count in counts) if every else (None,) * len(counts)
    spread = -sum(one * math.log(one) for one in share if one)
    return ExpertCall(
        *(call.named.name, call.number, found.top_k, found.tokens, share),
        effective=math.exp(spread) if every else None,
        entropy=_known(entropy),
        dropped=found.dropped,
        part=part,
    )
