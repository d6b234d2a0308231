"""Reads the moments in an optimizer's state, and computes its last step from that state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradscope.capture import one_pass
from gradscope.capture.one_pass import StepSums, Terms
from gradscope.capture.optimizer_formulas import Decay, Formula, decay_of, formula_of
from gradscope.capture.shards import is_plain_or_spread, local
from gradscope.capture.stats import measure_all, resolve

#: The names in PyTorch's optimizers, and in most others.
_FIRST = ("exp_avg", "momentum_buffer")
_SECOND = ("exp_avg_sq", "square_avg", "sum", "variance")


@dataclass(frozen=True, slots=True)
class Moments:
    """The norms of the first and of the second moment of one parameter, without bias correction.

    ``spread`` is the standard deviation of the second moment's elements divided by their mean: 0 if
    all are equal, √(n − 1) if one of n has all of it. Bias correction does not change it.
    """

    first: float | None = None
    second: float | None = None
    spread: float | None = None


@torch.no_grad()
def moments(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, Moments]:
    """Return the moments of each parameter; None if the state has none, or has them in an unknown
    form."""
    states = {p: optimizer.state.get(p, {}) for p in parameters}
    kept = {p: kept_moments(optimizer, p) for p in parameters}
    first = {p: one for p, (one, _) in kept.items() if one is not None}
    second = {p: one for p, (_, one) in kept.items() if one is not None}
    measured = measure_all([*first.values(), *second.values()])
    done = resolve(measured)
    stats = [done[id(one)] for one in measured]
    firsts = dict(zip(first, stats, strict=False))
    seconds = dict(zip(second, stats[len(first) :], strict=True))
    found = {}
    for p, state in states.items():
        one, other = firsts.get(p), seconds.get(p)
        spread = None
        if other is not None and other.mean and other.std is not None:
            spread = other.std / other.mean
        found[p] = Moments(
            None if one is None else one.norm, None if other is None else other.norm, spread
        )
        if is_factored(optimizer, p):
            found[p] = _factored(state["row_var"], state["col_var"])
    return found


def spread_of(total: float, squares: float, count: int) -> float | None:
    """Return ``Moments.spread`` of elements with this sum and this sum of squares."""
    mean = total / count
    return math.sqrt(max(0.0, squares / count - mean * mean)) / mean if mean else None


def kept_moments(
    optimizer: Optimizer, parameter: nn.Parameter
) -> tuple[Tensor | None, Tensor | None]:
    """Return the first and the second moment of a parameter, as its optimizer keeps them."""
    state = optimizer.state.get(parameter, {})
    return _named(parameter, state, _FIRST), _named(parameter, state, _SECOND)


def is_factored(optimizer: Optimizer, parameter: nn.Parameter) -> bool:
    """Return True if the second moment of a parameter is a product of rows and columns."""
    state = optimizer.state.get(parameter, {})
    return isinstance(state.get("row_var"), Tensor) and isinstance(state.get("col_var"), Tensor)


def hidden_moments(optimizer: Optimizer | None) -> tuple[str, ...]:
    """Return a notice if an optimizer's moments are unknown, for example 8-bit states.

    Such a state has a value as large as the parameter that is not in plain floating-point numbers.
    """
    hidden = optimizer is not None and any(
        isinstance(one, Tensor)
        and 1 < one.numel() >= parameter.numel()
        and not (is_plain_or_spread(one) and one.is_floating_point())
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, Tensor) and isinstance(state, Mapping)
        for one in state.values()
    )
    if not hidden:
        return ()
    kind = type(optimizer).__name__
    return (f"m_norm and v_norm are unknown: {kind} keeps its state in a special format",)


def _named(
    parameter: nn.Parameter, state: Mapping[str, Any], names: Sequence[str]
) -> Tensor | None:
    """Return the state's tensor with one of these names and as many elements as the parameter."""
    one = next((state[name] for name in names if name in state), None)
    if (
        isinstance(one, Tensor)
        and is_plain_or_spread(one)
        and one.is_floating_point()
        and local(one).numel() == local(parameter).numel()
    ):
        return one
    return None


def _factored(rows: Tensor, columns: Tensor) -> Moments:
    """Return Adafactor's second moment: ``rows @ columns`` over the mean of the rows."""
    rows, columns = local(rows).double(), local(columns).double()
    mean = rows.mean(dim=-2, keepdim=True)
    inner = (columns / mean.clamp(min=torch.finfo(torch.float64).tiny)).reshape(
        *columns.shape[:-2], -1
    )
    outer = rows.reshape(*rows.shape[:-2], -1)
    count = outer.shape[-1] * inner.shape[-1] * math.prod(rows.shape[:-2])
    total = (outer.sum(-1) * inner.sum(-1)).sum().item()
    squares = (outer.square().sum(-1) * inner.square().sum(-1)).sum().item()
    return Moments(None, math.sqrt(squares), spread_of(total, squares, count))


#: Elements to compute at a time; on the CPU they stay in the cache.
BLOCK, _DEVICE_BLOCK = 1 << 16, 1 << 24
_EXACT = (torch.float32, torch.float64)


class LastStep:
    """The last step of an optimizer, computed from its state.

    Args:
        optimizer: the optimizer; its gradients must still be those of the step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._groups = [(group, formula_of(optimizer, group)) for group in optimizer.param_groups]
        # By the parameter's id: the hash of a tensor is a call of Python's.
        self._terms: dict[int, tuple[Formula | None, Decay | None]] | None = None
        self._known: dict[int, tuple[float, ...] | None] = {}
        # By the formula's id and the numbers: most parameters of a group share them.
        self._updates: dict[tuple[int, tuple[float, ...]], Terms | None] = {}
        self._moments: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        self._unrounded: dict[int, float] = {}
        infinite = getattr(optimizer, "found_inf", None)  # a fused one leaves out such a step
        self._made = not (isinstance(infinite, Tensor) and bool(infinite.item()))

    def decay(self, parameter: nn.Parameter) -> Decay | None:
        """Return the weight decay of a parameter; None if it is unknown."""
        return self._of(parameter)[1]

    def moments(self, parameter: nn.Parameter) -> tuple[Tensor | None, Tensor | None]:
        """Return what ``kept_moments`` finds."""
        found = self._moments.get(id(parameter))
        if found is None:
            found = self._moments[id(parameter)] = kept_moments(self.optimizer, parameter)
        return found

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """Return the gradient, or its shard, as the optimizer got it; None if it is not a plain
        tensor."""
        gradient, formula = parameter.grad, self._formula(parameter)
        if gradient is None or not is_plain_or_spread(gradient) or not _is_plain(local(gradient)):
            return None
        gradient = local(gradient).detach()
        if formula is None or not formula.added:
            return gradient
        buffer = local(self.optimizer.state[parameter][formula.state[0]])
        return torch.sub(gradient, buffer, alpha=formula.added)

    def _formula(self, parameter: nn.Parameter) -> Formula | None:
        return self._of(parameter)[0]

    def _of(self, parameter: nn.Parameter) -> tuple[Formula | None, Decay | None]:
        if self._terms is None:
            self._terms = {}
            for group, formula in self._groups:
                terms = formula, decay_of(self.optimizer, group)
                self._terms.update((id(p), terms) for p in group["params"])
        return self._terms.get(id(parameter), (None, None))

    def before(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a weight, or its shard, before the step; None if it cannot be computed from the
        state.

        In half precision it cannot, because the step is rounded.
        """
        formula, weight = self._formula(parameter), local(parameter).detach()
        numbers = self._numbers_of(parameter)
        if formula is None or numbers is None or weight.dtype not in _EXACT:
            return None
        state, gradient, own = self._operands(formula, parameter)
        moved = formula.update(numbers, state, gradient, own)
        return moved.view(weight.shape).add_(weight)

    def sums(self, parameter: nn.Parameter, before: Tensor | None) -> StepSums | None:
        """Return the sums of a parameter's step by one compiled read; None if that is not possible.

        The first and the second moment are those that ``kept_moments`` finds.

        Args:
            parameter: the parameter after the step.
            before: its copy from before the step; None: compute it from the state.
        """
        formula = self._formula(parameter)
        if is_factored(self.optimizer, parameter) or (formula is not None and formula.added):
            return None
        terms = self._kept_terms(parameter)
        if terms is None and before is None:
            return None
        decay = self.decay(parameter)
        taken = decay.rate * decay.decay if decay is not None and decay.decoupled else 0.0
        matches = terms is not None and (before is None or terms.taken == taken)
        if terms is None or not matches:
            terms = Terms(taken=taken)
        first, second = self.moments(parameter)
        sums = one_pass.step(
            parameter, terms, gradient=parameter.grad, first=first, second=second, before=before
        )
        if matches and sums is not None and sums.unrounded:
            self._unrounded[id(parameter)] = sums.unrounded
        return sums

    def _kept_terms(self, parameter: nn.Parameter) -> Terms | None:
        """Return the terms of an update that uses the moments that ``kept_moments`` finds, and no
        others."""
        formula, numbers = self._formula(parameter), self._numbers_of(parameter)
        if formula is None or numbers is None:
            return None
        terms = self._terms_of(formula, numbers)
        if terms is None:
            return None
        state = self.optimizer.state.get(parameter, {})
        names = formula.first, formula.second
        kept = zip(names, self.moments(parameter), strict=True)
        return terms if all(name is None or state[name] is one for name, one in kept) else None

    def _terms_of(self, formula: Formula, numbers: tuple[float, ...]) -> Terms | None:
        key = id(formula), numbers
        if key not in self._updates:
            self._updates[key] = formula.terms_of(numbers)
        return self._updates[key]

    def _numbers_of(self, parameter: nn.Parameter) -> tuple[float, ...] | None:
        """Return the numbers of a parameter's state; None if they do not give its update."""
        if not self._known:
            for group, formula in self._groups:
                self._know(formula, group["params"])
        return self._known.get(id(parameter))

    def _know(self, formula: Formula | None, parameters: Sequence[nn.Parameter]) -> None:
        """Read the numbers of a group's parameters together."""
        tell = [] if formula is None else [p for p in parameters if self._tells(formula, p)]
        self._known.update((id(p), None) for p in parameters)
        if formula is not None:
            numbers = self._numbers(formula, tell)
            self._known.update((id(p), own) for p, own in zip(tell, numbers, strict=True))

    def _squares(self, formula: Formula, parameter: nn.Parameter) -> float | None:
        """Return the sum of squares of Δw by one compiled read; None if that is not possible."""
        found = self._unrounded.get(id(parameter))
        if found is not None:
            return found
        numbers = self._numbers_of(parameter)
        terms = None if numbers is None else self._terms_of(formula, numbers)
        if terms is None:
            return None
        state = self.optimizer.state.get(parameter, {})
        first, second = (
            None if name is None else state[name] for name in (formula.first, formula.second)
        )
        gradient = parameter.grad if formula.gradient else None
        sums = one_pass.step(
            parameter, terms, gradient=gradient, first=first, second=second, every=False
        )
        return None if sums is None else sums.unrounded

    def squares(self) -> tuple[float, int] | None:
        """Return the sum of squares of Δw over all parameters with a gradient, and the number of
        elements.

        Small parameters are packed, so that one call computes many. In half precision these are the
        updates before rounding. None if an update cannot be computed from the state. Updates that
        ``sums`` has computed from the state are not read again.
        """
        found: list[Tensor] = []
        total, count = 0.0, 0
        for group, formula in self._groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if formula is None or any(self._numbers_of(p) is None for p in parameters):
                return None
            count += sum(local(p).numel() for p in parameters)
            others = []
            for p in parameters:
                squares = self._squares(formula, p)
                if squares is None:
                    others.append(p)
                else:
                    total += squares
            for moved in self._moved(formula, others):
                block = moved.square_().sum()
                if moved.is_cpu:
                    total += block.item()
                else:
                    found.append(block.double())
        if found:
            total += sum(torch.stack([one.to(found[0].device) for one in found]).tolist())
        return (total, count) if count else None

    def _moved(self, formula: Formula, parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
        """Yield −Δw of these parameters, flat, block by block."""
        alike: dict[tuple[torch.device, torch.dtype, tuple[float, ...]], list[nn.Parameter]] = {}
        for p, numbers in zip(parameters, self._numbers(formula, parameters), strict=True):
            alike.setdefault((p.device, p.dtype, numbers), []).append(p)
        for (device, _, numbers), several in alike.items():
            size = BLOCK if device.type == "cpu" else _DEVICE_BLOCK
            for pack in _packs(several, size):
                operands = [self._operands(formula, p) for p in pack]
                state, gradient, weight = (
                    [torch.cat(one) if len(pack) > 1 else one[0] for one in zip(*s, strict=True)]
                    for s in (
                        [o[0] for o in operands],
                        [[o[1]] for o in operands if o[1] is not None],
                        [[o[2]] for o in operands if o[2] is not None],
                    )
                )
                blocks = [torch.split(one, size) for one in (*state, *gradient, *weight)]
                for parts in zip(*blocks, strict=True):
                    own, others = parts[: len(state)], iter(parts[len(state) :])
                    yield formula.update(
                        numbers,
                        own,
                        next(others) if gradient else None,
                        next(others) if weight else None,
                    )

    def _tells(self, formula: Formula, parameter: nn.Parameter) -> bool:
        """Return True if all inputs of the formula exist, as plain numbers."""
        gradient, weight = parameter.grad, local(parameter)
        if not self._made or gradient is None or not _is_plain(weight):
            return False
        state = self.optimizer.state.get(parameter, {})
        read = [state.get(name) for name in formula.state]
        read += [gradient] if formula.gradient else []
        return all(name in state for name in formula.numbers) and all(
            isinstance(one, Tensor)
            and is_plain_or_spread(one)
            and _is_plain(local(one))
            and local(one).numel() == weight.numel()
            for one in read
        )

    def _numbers(
        self, formula: Formula, parameters: Sequence[nn.Parameter]
    ) -> list[tuple[float, ...]]:
        """Return the numbers of each parameter's state, in one transfer: some may be on a
        device."""
        columns = []
        for name in formula.numbers:
            of = [self.optimizer.state[p][name] for p in parameters]
            tensors = [one.detach().reshape(()) for one in of if isinstance(one, Tensor)]
            alike = {(one.device, one.dtype) for one in tensors}
            if len(tensors) == len(of) and len(alike) == 1:
                columns.append(torch.stack(tensors).tolist())
            else:
                columns.append([float(one) for one in of])
        return list(zip(*columns, strict=True)) if columns else [()] * len(parameters)

    def _operands(
        self, formula: Formula, parameter: nn.Parameter
    ) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        """Return state, gradient and weight as flat tensors, if the formula reads them."""
        state = self.optimizer.state.get(parameter, {})
        return (
            [flat(state[name]) for name in formula.state],
            flat(parameter.grad) if formula.gradient and parameter.grad is not None else None,
            flat(parameter) if formula.weight else None,
        )


def _packs(parameters: Sequence[nn.Parameter], size: int) -> Iterator[list[nn.Parameter]]:
    """Yield groups of parameters to compute together: up to a number of elements, or one alone."""
    pack: list[nn.Parameter] = []
    count = 0
    for parameter in parameters:
        own = local(parameter).numel()
        if pack and count + own > size:
            yield pack
            pack, count = [], 0
        pack.append(parameter)
        count += own
    if pack:
        yield pack


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.is_floating_point()
        and tensor.device.type != "meta"
    )


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float32 or better."""
    return tensor if tensor.dtype in _EXACT else tensor.float()


def flat(tensor: Tensor) -> Tensor:
    return wide(local(tensor).detach().reshape(-1))
