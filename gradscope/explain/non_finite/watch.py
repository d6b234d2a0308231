"""The second run: each operation of PyTorch's core, of forward, backward and the optimizer's step,
and whether it made something that is not finite out of what is better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gradscope.capture.stats import Measured, measure
from gradscope.explain.non_finite.arithmetic import words
from gradscope.explain.non_finite.context import Scene
from gradscope.explain.non_finite.derivatives import function_of
from gradscope.explain.non_finite.elements import fresh
from gradscope.explain.non_finite.external_tensors import Given
from gradscope.explain.non_finite.functions import Names
from gradscope.explain.non_finite.levels import FINITE, INF, NAN, level, level_of_number
from gradscope.explain.non_finite.node_places import Made
from gradscope.explain.non_finite.origins import Origin, Origins, Turned
from gradscope.explain.non_finite.reasons import Seen, Told
from gradscope.explain.non_finite.schemas import LEAVING, Operation, described, entries, tensors_in
from gradscope.explain.shared.frames import shown
from gradscope.explain.shared.module_calls import Executing

_COPIED = 1 << 20  # elements up to which what is about to be overwritten is kept for one operation
_INPUTS = 4


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows NaN and infinities while it is active.

    Args:
        model: names the modules.
        last: the code of the function that starts the run: the frames around it are not the user's.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, last: CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = Names()
        self.executing = Executing(model, last)
        self.origins = Origins()
        self.scene = Scene(model, self.executing, self.names, Made())
        self.given = Given(model, self.origins)
        self._root = model
        self._left = 0  # origins of the numbers that Python was given

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """What is computed inside is ours, not the run's."""
        before, self.names.asleep = self.names.asleep, True
        try:
            with torch.no_grad():
                yield
        finally:
            self.names.asleep = before

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module's forward begins; the model's own arguments come from outside."""
        self.executing.enter(module, args, kwargs)
        if module is self._root:
            with self.quiet():
                self.given.called(args, kwargs)

    def leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """What a module gives is something that stays, where it is NaN."""
        if self.scene.stage == "forward":
            with self.quiet():
                self.given.returned(self.executing.name_of(module), module is self._root, output)
        self.executing.leave(module, args, kwargs, output)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, then look at what it made."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or self.names.asleep:
            return func(*args, **kwargs)
        self.scene.passing()
        operation = described(func)
        if operation.idle and operation.name != LEAVING:
            return func(*args, **kwargs)
        given = operation.bind(args, kwargs)
        self.names.asleep = True  # without ``quiet``: here autograd is done already
        try:
            before = {id(t): level(t) for n in operation.updated for t in tensors_in(given[n])}
            kept = self._kept(operation, given)
            result = func(*args, **kwargs)
            self._decided(operation, given)
            for index, one in entries(operation, given):
                for out, written in _outputs(operation, one, result, index):
                    self._look(operation, one, out, written, before, kept)
        finally:
            self.names.asleep = False
        return result

    def _kept(self, operation: Operation, given: dict[str, Any]) -> dict[str, torch.Tensor]:
        """What is about to be updated, for the words; not where it is large or one of many."""
        if operation.many or not operation.pointwise:
            return {}
        tensors = {n: given[n] for n in operation.updated if isinstance(given[n], torch.Tensor)}
        small = {n: t for n, t in tensors.items() if t.numel() <= _COPIED}
        return {n: t.detach().clone() for n, t in small.items() if t.is_floating_point()}

    def _look(
        self,
        operation: Operation,
        given: dict[str, Any],
        out: torch.Tensor,
        written: bool,
        before: dict[int, int],
        kept: dict[str, torch.Tensor],
    ) -> None:
        """Whether one result was born here, or only carries on what came in."""
        worst = level(out)
        if worst == FINITE:
            return
        came, mask = self._came(operation, given, before)
        gone = [n for n in operation.written if n not in kept and "running" not in n]
        known = {n: v for n, v in given.items() if n not in gone} | kept
        seen = Seen(operation.name, known, out, worst, operation.pointwise)
        made = all(not origin.given for origin in self.origins.members(mask))
        if came == FINITE:
            mask = self._born(seen)
        elif worst > came and not (mask and made):
            mask = self._born(seen, came)
        elif worst > came:
            self._turned(seen, mask)
        elif operation.pointwise and not gone and fresh(seen):
            mask |= self._born(seen)
        self.origins.put(out, mask, whole=not (written and operation.updated))

    def _came(
        self, operation: Operation, given: dict[str, Any], before: dict[int, int]
    ) -> tuple[int, int]:
        """The worst of what went in, and its origins."""
        worst, mask = FINITE, 0
        for name, value in given.items():
            if name in operation.written and name not in operation.updated:
                continue
            for tensor in tensors_in(value):
                found = before[id(tensor)] if name in operation.updated else level(tensor)
                if found:
                    worst = max(worst, found)
                    mask |= self.origins.of(tensor) or self._foreign(tensor, found)
            found = level_of_number(value)
            if found:
                worst = max(worst, found)
                mask |= self._left or self._on_purpose(value, found)
        return worst, mask

    def _foreign(self, tensor: torch.Tensor, found: int) -> int:
        mask = self.given.outside(tensor, found, self.scene.place())
        self.origins.put(tensor, mask, whole=True)
        return mask

    def _on_purpose(self, value: float, found: int) -> int:
        """A NaN or an infinity written in the source, such as the -inf of a mask."""
        scene = self.scene.now()
        told = Told(f"{value} in the source", "a large finite number in its place stays finite")
        return self.origins.add(
            Origin(found, scene.phase, scene.op, scene.place, told, given=True, name=scene.name)
        )

    def _born(self, seen: Seen, came: int = FINITE) -> int:
        """A new origin: this operation made it."""
        scene = self.scene.now(seen.name, seen.out)
        if scene.node is not None:
            function = function_of(scene.node).lower()
            if same := self.origins.born_in(scene.made_by, function, scene.place):
                return same  # the slope of what was not finite in forward is not finite either
        told = words(seen)
        forward: tuple[torch.Tensor, ...] = ()
        if scene.node is not None:
            told, forward = self.scene.slope(scene.node, told)
        shown_first = [*forward, *seen.tensors()][:_INPUTS]
        measured: list[Measured] = [measure(t) for t in shown_first]
        return self.origins.add(
            Origin(
                seen.kind,
                scene.phase,
                scene.op,
                scene.place,
                told,
                group=scene.group,
                name=scene.name,
                inputs=tuple(measured),
                of_infinities=came == INF,
                function=scene.function,
            )
        )

    def _turned(self, seen: Seen, mask: int) -> None:
        """An operation made NaN of infinities that were born before."""
        scene = self.scene.now(seen.name, seen.out)
        told = words(seen)
        for origin in self.origins.members(mask):
            if origin.kind == NAN:
                continue
            if origin.group is not None and origin.group == scene.group:
                origin.kind = NAN  # of the same function: that is what it gives
                origin.and_then = told.reason
            elif origin.turned is None:
                origin.turned = Turned(scene.op, scene.place, told.reason)

    def _decided(self, operation: Operation, given: dict[str, Any]) -> None:
        """A NaN that Python reads, or that a choice was made by."""
        if operation.name == LEAVING:
            for tensor in tensors_in(given["self"]):
                if level(tensor):
                    self._left |= self.origins.of(tensor)
        elif operation.decides and self.scene.stage == "forward":
            compared = given.get("self")
            if isinstance(compared, torch.Tensor) and level(compared) == NAN:
                mask = self.origins.of(compared)
                place = self.scene.place()
                at = f" at {shown(place.file)}:{place.line}" if place.file else ""
                self.origins.spread(mask, f"{operation.name}{at}")
                self.origins.reach(mask)


def _outputs(
    operation: Operation, given: dict[str, Any], result: Any, index: int
) -> Iterator[tuple[torch.Tensor, bool]]:
    """The results of an operation, or of one entry of it, and whether each is an argument."""
    written = [t for n in operation.written for t in tensors_in(given.get(n))]
    yield from ((tensor, True) for tensor in written)
    if operation.many and isinstance(result, list | tuple):
        result = result[index] if index < len(result) else None
    for tensor in tensors_in(result):
        if not any(tensor is argument for argument in written):
            yield tensor, False
