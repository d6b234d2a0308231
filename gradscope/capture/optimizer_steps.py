"""Computes the last step of an optimizer from its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradscope.capture import one_pass
from gradscope.capture.one_pass import StepSums, Terms
from gradscope.capture.optimizer_formulas import Decay, Formula, decay_of, formula_of
from gradscope.capture.optimizer_moments import is_factored, kept_moments
from gradscope.capture.shards import is_plain_or_spread, local

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
        self._decays: dict[nn.Parameter, Decay | None] | None = None
        self._formulas: dict[nn.Parameter, Formula | None] | None = None
        infinite = getattr(optimizer, "found_inf", None)  # a fused one leaves out such a step
        self._made = not (isinstance(infinite, Tensor) and bool(infinite.item()))

    def decay(self, parameter: nn.Parameter) -> Decay | None:
        """Return the weight decay of a parameter; None if it is unknown."""
        if self._decays is None:
            self._decays = {
                p: decay
                for group, _ in self._groups
                for decay in [decay_of(self.optimizer, group)]
                for p in group["params"]
            }
        return self._decays.get(parameter)

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
        if self._formulas is None:
            self._formulas = {p: formula for g, formula in self._groups for p in g["params"]}
        return self._formulas.get(parameter)

    def before(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a weight, or its shard, before the step; None if it cannot be computed from the
        state.

        In half precision it cannot, because the step is rounded.
        """
        formula, weight = self._formula(parameter), local(parameter).detach()
        if formula is None or weight.dtype not in _EXACT or not self._tells(formula, parameter):
            return None
        (numbers,) = self._numbers(formula, [parameter])
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
        if before is None:
            return self._told(parameter, self._numbers_of(parameter), every=True)
        decay = self.decay(parameter)
        taken = decay.rate * decay.decay if decay is not None and decay.decoupled else 0.0
        first, second = kept_moments(self.optimizer, parameter)
        return one_pass.step(
            parameter,
            Terms(taken=taken),
            gradient=parameter.grad,
            first=first,
            second=second,
            before=before,
        )

    def _numbers_of(self, parameter: nn.Parameter) -> tuple[float, ...] | None:
        """Return the numbers of a parameter's state; None if they do not give its update."""
        formula = self._formula(parameter)
        if formula is None or not self._tells(formula, parameter):
            return None
        return self._numbers(formula, [parameter])[0]

    def _told(
        self, parameter: nn.Parameter, numbers: tuple[float, ...] | None, *, every: bool
    ) -> StepSums | None:
        """Return the sums of a step from the state alone; with ``every`` False only
        ``unrounded``."""
        formula = self._formula(parameter)
        terms = None if formula is None or numbers is None else formula.terms_of(numbers)
        if formula is None or terms is None:
            return None
        state = self.optimizer.state[parameter]
        first, second = (
            None if name is None else state[name] for name in (formula.first, formula.second)
        )
        if every:
            kept = kept_moments(self.optimizer, parameter)
            for own, one in zip((first, second), kept, strict=True):
                if own is not None and own is not one:
                    return None  # the update uses another moment than the figures
            first, second = kept
        gradient = parameter.grad if every or formula.gradient else None
        return one_pass.step(
            parameter, terms, gradient=gradient, first=first, second=second, every=every
        )

    def squares(self) -> tuple[float, int] | None:
        """Return the sum of squares of Δw over all parameters with a gradient, and the number of
        elements.

        Small parameters are packed, so that one call computes many. In half precision these are the
        updates before rounding. None if an update cannot be computed from the state.
        """
        found: list[Tensor] = []
        total, count = 0.0, 0
        for group, formula in self._groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if formula is None or not all(self._tells(formula, p) for p in parameters):
                return None
            count += sum(local(p).numel() for p in parameters)
            others = []
            numbers = self._numbers(formula, parameters)
            for p, own in zip(parameters, numbers, strict=True):
                sums = self._told(p, own, every=False)
                if sums is None:
                    others.append(p)
                else:
                    total += sums.unrounded
            for moved in self._moved(formula, others):
                squares = moved.square_().sum()
                if moved.is_cpu:
                    total += squares.item()
                else:
                    found.append(squares.double())
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
