"""The change of a weight by a step of PyTorch's optimizers, from the optimizer's state after it.

Each optimizer has one function here. All updates have the form Δw = −(slope · (g + λw) + shift),
element by element; the function returns ``slope`` and ``shift``. ``g`` is the gradient, ``λw`` the
weight decay that the optimizer adds to it. ``slope`` and ``shift`` follow from the state. Δw
follows from this equation and the weight after the step, so no copy of the earlier weight is
needed. Sources: ``torch.optim``, the function ``_single_tensor_*`` of each file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _default_to_fused_or_foreach

from gradscope.capture.one_pass import Terms

#: Slope and shift; None if there is none.
Parts = tuple[Tensor | float | None, Tensor | None]
Group = Mapping[str, Any]
Numbers = Sequence[float]
Tensors = Sequence[Tensor]
#: Takes the values of ``Formula.numbers`` and ``Formula.state``, and the gradient.
Compute = Callable[[Numbers, Tensors, Tensor | None], Parts]


@dataclass(frozen=True, slots=True)
class Decay:
    """The weight decay of a parameter group.

    Attributes:
        decay: λ.
        rate: if ``decoupled``, the learning rate that multiplies it.
        decoupled: True if the step subtracts ``rate · λ · w`` from the weight, in addition to the
            gradient's part. Otherwise λw is added to the gradient.
    """

    decay: float
    rate: float
    decoupled: bool


@dataclass(frozen=True, slots=True)
class Formula:
    """The update of one parameter group.

    Attributes:
        compute: computes slope and shift.
        decay: the group's weight decay.
        gradient: True if it reads the gradient.
        state: the tensors of a parameter's state that ``compute`` takes.
        numbers: the numbers of its state that ``compute`` takes.
        sign: −1 if the optimizer maximizes.
        added: after the step, ``.grad`` is the gradient plus ``added`` times the first tensor of
            the state, because the optimizer writes into it.
        terms: computes the update's ``Terms`` from ``numbers``, if it has that form.
        first, second: the names of m and v in the state.
    """

    compute: Compute
    decay: Decay
    gradient: bool
    state: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    sign: float = 1.0
    added: float = 0.0
    terms: Callable[[Numbers], Terms] | None = None
    first: str | None = None
    second: str | None = None

    @property
    def weight(self) -> bool:
        """True if the update depends on the weight."""
        return bool(self.decay.decay) and (self.decay.decoupled or self.gradient)

    @property
    def solvable(self) -> bool:
        """True if the weight before the step can be computed from the one after it."""
        return not (self.decay.decoupled and self.decay.rate * self.decay.decay == 1.0)

    def terms_of(self, numbers: Numbers) -> Terms | None:
        """Return all terms of the update, with weight decay; None if it has another form."""
        if self.terms is None:
            return None
        own, decay = self.terms(numbers)._replace(sign=self.sign), self.decay
        if decay.decoupled:
            return own._replace(taken=decay.rate * decay.decay)
        return own._replace(decay=decay.decay if self.gradient else 0.0)

    def update(
        self,
        numbers: Numbers,
        state: Tensors,
        gradient: Tensor | None,
        weight: Tensor | None,
    ) -> Tensor:
        """Return −Δw; all tensors have the same shape.

        Args:
            numbers, state: the values of the attributes ``numbers`` and ``state``, after the
                step.
            gradient: the gradient that the optimizer got; None if it is not read.
            weight: the weight after the step; None if it is not read.
        """
        decay, decoupled = self.decay.decay, self.decay.decoupled
        if gradient is not None and self.sign < 0:
            gradient = -gradient
        slope, moved = self.compute(numbers, state, gradient)
        if slope is not None:
            assert gradient is not None
            if decay and not decoupled:
                assert weight is not None
                # The weight before the step is the one after it less Δw: this is solved for Δw.
                slope = slope / (1 - slope * decay)
                moved = None if moved is None else moved * (1 + slope * decay)
                gradient = gradient.add(weight, alpha=decay)
            pulled = gradient * slope
            moved = pulled if moved is None else moved.add_(pulled)
        assert moved is not None
        if decay and decoupled:
            assert weight is not None
            taken = self.decay.rate * decay
            moved = moved.add(weight, alpha=taken).div_(1 - taken)
        return moved


def formula_of(optimizer: Optimizer, group: Group) -> Formula | None:
    """Return the formula of an optimizer's update for one of its groups; None if unknown."""
    make = _MAKERS.get(_step_of(optimizer))
    made = None if make is None else make(group)
    return made if made is not None and made.solvable else None


def decay_of(optimizer: Optimizer, group: Group) -> Decay | None:
    """Return the weight decay of a group; None if it is unknown how this optimizer applies it.

    Optimizers outside PyTorch are known if they have no decay, or if their name contains AdamW,
    Lion or Muon, which decouple it.
    """
    found = group.get("weight_decay")
    if not isinstance(found, int | float | Tensor) or isinstance(found, bool):
        return None
    decay, rate = float(found), _number(group, "lr")
    step = _step_of(optimizer)
    if not decay or step in _COUPLED:
        return Decay(decay, rate, bool(group.get("decoupled_weight_decay")))
    name = type(optimizer).__name__.lower()
    if step in _DECOUPLED or any(word in name for word in ("adamw", "lion", "muon")):
        return Decay(decay, rate, decoupled=True)
    return None


def _step_of(optimizer: Optimizer) -> str:
    """Return the name of the ``torch.optim`` class whose step an optimizer uses; "" if it is
    another one."""
    step = type(optimizer).step
    module, name = getattr(step, "__module__", ""), getattr(step, "__qualname__", "")
    return name.removesuffix(".step") if module.startswith("torch.optim.") else ""


def _number(group: Group, name: str) -> float:
    value = group.get(name, 0.0)
    return float(value) if isinstance(value, int | float | Tensor) else math.nan


def _betas(group: Group) -> tuple[float, float]:
    first, second = group["betas"]
    return float(first), float(second)


def _made(
    group: Group,
    compute: Compute,
    *,
    gradient: bool = False,
    state: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
) -> Formula:
    decay = _number(group, "weight_decay")  # 0 where a group has none
    decoupled = bool(group.get("decoupled_weight_decay"))
    sign = -1.0 if group.get("maximize") else 1.0
    return Formula(
        compute, Decay(decay, _number(group, "lr"), decoupled), gradient, state, numbers, sign
    )


def _rational(
    group: Group,
    terms: Callable[[Numbers], Terms],
    *,
    first: str | None = None,
    second: str | None = None,
    gradient: bool = False,
    numbers: tuple[str, ...] = (),
) -> Formula:
    """Make the formula of an update with these terms; ``first`` and ``second`` name its moments."""
    names = tuple(name for name in (first, second) if name is not None)

    def compute(values: Numbers, state: Tensors, gradient: Tensor | None) -> Parts:
        own = terms(values)
        size = None if second is None else state[-1].sqrt().mul_(own.scale).add_(own.eps)
        slope: Tensor | float | None = None
        if own.slope or first is None:
            slope = own.slope if size is None else own.slope / size
        if first is None:
            return slope, None
        moment = state[0] * own.shift
        return slope, moment if size is None else moment.div_(size)

    made = _made(group, compute, gradient=gradient, state=names, numbers=numbers)
    return replace(made, terms=terms, first=first, second=second)


def _sgd(group: Group) -> Formula:
    rate, momentum = _number(group, "lr"), _number(group, "momentum")
    alone = _rational(group, lambda numbers: Terms(slope=rate), gradient=True)
    if not momentum:
        return alone
    if not group.get("nesterov"):
        return _with_momentum(group)
    if _is_foreach(group) and not group.get("weight_decay") and not group.get("maximize"):
        # This implementation adds the momentum to `.grad` in place.
        return replace(alone, terms=None, state=("momentum_buffer",), added=momentum)
    return _rational(
        group,
        lambda numbers: Terms(slope=rate, shift=rate * momentum),
        first="momentum_buffer",
        gradient=True,
    )


def _is_foreach(group: Group) -> bool:
    """Return True if PyTorch chooses ``torch._foreach_*`` for the group's step."""
    if group.get("foreach") is not None or group.get("fused") is not None:
        return bool(group.get("foreach"))
    parameters = [p for p in group["params"] if p.grad is not None]
    return _default_to_fused_or_foreach(parameters, differentiable=False)[1]


def _with_momentum(group: Group) -> Formula:
    """Return the formula of a step that is the momentum times the learning rate."""
    rate = _number(group, "lr")
    return _rational(group, lambda numbers: Terms(shift=rate), first="momentum_buffer")


def _adam(group: Group) -> Formula:
    rate, eps, (first, second) = _number(group, "lr"), _number(group, "eps"), _betas(group)

    def terms(numbers: Numbers) -> Terms:
        (step,) = numbers
        unbiased = math.sqrt(1 - second**step)
        return Terms(shift=rate * unbiased / (1 - first**step), scale=1.0, eps=eps * unbiased)

    over = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    return _rational(group, terms, first="exp_avg", second=over, numbers=("step",))


def _nadam(group: Group) -> Formula:
    rate, eps, (first, second) = _number(group, "lr"), _number(group, "eps"), _betas(group)
    slower = _number(group, "momentum_decay")

    def terms(numbers: Numbers) -> Terms:
        step, product = numbers
        mu, later = (first * (1 - 0.5 * 0.96 ** (n * slower)) for n in (step, step + 1))
        return Terms(
            slope=rate * (1 - mu) / (1 - product),
            shift=rate * later / (1 - product * later),
            scale=1 / math.sqrt(1 - second**step),
            eps=eps,
        )

    return _rational(
        group,
        terms,
        first="exp_avg",
        second="exp_avg_sq",
        gradient=True,
        numbers=("step", "mu_product"),
    )


def _radam(group: Group) -> Formula:
    rate, eps, (first, second) = _number(group, "lr"), _number(group, "eps"), _betas(group)

    def terms(numbers: Numbers) -> Terms:
        (step,) = numbers
        unbiased = 1 - second**step
        longest = 2 / (1 - second) - 1
        length = longest - 2 * step * second**step / unbiased
        own = rate / (1 - first**step)
        if length <= 5.0:
            return Terms(shift=own)
        rectified = (length - 4) * (length - 2) * longest
        rectified /= (longest - 4) * (longest - 2) * length
        return Terms(shift=own * math.sqrt(unbiased * rectified), scale=1.0, eps=eps)

    return _rational(group, terms, first="exp_avg", second="exp_avg_sq", numbers=("step",))


def _adamax(group: Group) -> Formula:
    rate, (first, _) = _number(group, "lr"), _betas(group)

    def compute(numbers: Numbers, state: Tensors, gradient: Tensor | None) -> Parts:
        return None, (state[0] / state[1]).mul_(rate / (1 - first ** numbers[0]))

    return _made(group, compute, state=("exp_avg", "exp_inf"), numbers=("step",))


def _adagrad(group: Group) -> Formula:
    rate, eps, slower = (_number(group, name) for name in ("lr", "eps", "lr_decay"))

    def terms(numbers: Numbers) -> Terms:
        return Terms(slope=rate / (1 + (numbers[0] - 1) * slower), scale=1.0, eps=eps)

    return _rational(group, terms, second="sum", gradient=True, numbers=("step",))


def _adadelta(group: Group) -> Formula | None:
    if _number(group, "weight_decay"):
        return None  # no closed form: its update depends on the value that it adds to the state
    rate, rho, eps = (_number(group, name) for name in ("lr", "rho", "eps"))

    def compute(numbers: Numbers, state: Tensors, gradient: Tensor | None) -> Parts:
        # The accumulated squares hold this update δ already, δ² = r(a + ε) with r = g²/(v + ε) and
        # a as before the step; a follows from ρa + (1 − ρ)δ².
        assert gradient is not None
        squares, updates = state
        size = squares + eps
        ratio = gradient.square().div_(size)
        before = (updates + rho * eps).div_(ratio.mul_(1 - rho).add_(rho))
        return None, before.div_(size).sqrt_().mul_(gradient).mul_(rate)

    return _made(group, compute, gradient=True, state=("square_avg", "acc_delta"))


def _rmsprop(group: Group) -> Formula:
    rate, eps = _number(group, "lr"), _number(group, "eps")
    if _number(group, "momentum") > 0:
        return _with_momentum(group)
    if not group.get("centered"):
        own = Terms(slope=rate, scale=1.0, eps=eps)
        return _rational(group, lambda numbers: own, second="square_avg", gradient=True)

    def compute(numbers: Numbers, state: Tensors, gradient: Tensor | None) -> Parts:
        size = state[0].addcmul(state[1], state[1], value=-1)
        return size.sqrt_().add_(eps).reciprocal_().mul_(rate), None

    return _made(group, compute, gradient=True, state=("square_avg", "grad_avg"))


def _rprop(group: Group) -> Formula:
    return _made(
        group,
        lambda numbers, state, gradient: (None, state[0].sign() * state[1]),
        state=("prev", "step_size"),
    )


_MAKERS: dict[str, Callable[[Group], Formula | None]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": lambda group: _adam({**group, "decoupled_weight_decay": True}),
    "NAdam": _nadam,
    "RAdam": _radam,
    "Adamax": _adamax,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "RMSprop": _rmsprop,
    "Rprop": _rprop,
}
#: Optimizers that add λw to the gradient, unless ``decoupled_weight_decay`` is set.
_COUPLED = {"SGD", "Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"}
_DECOUPLED = {"AdamW", "Adafactor", "Muon"}
