"""One tensor, reduced to numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import SPARSE

#: A number as a record keeps it. Non-finite entries of ``TensorStats.values`` are the strings
#: "nan", "inf" and "-inf", complex ones are ``(real, imaginary)``: JSON has no token for them.
Value = float | str | tuple[float | str, float | str]


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One tensor reduced to numbers.

    ``norm`` is L2, ``std`` is the population's; both and ``mean``, ``min``, ``max`` are taken over
    the finite elements. ``zeros``, ``nan`` and ``inf`` count elements. A number that does not exist
    (the mean of an empty tensor, anything on the ``meta`` device) is None.
    """

    shape: tuple[int, ...]
    dtype: str
    numel: int
    norm: float | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: int | None = None
    nan: int | None = None
    inf: int | None = None
    values: tuple[Value, ...] | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """An input or output of a call, with its values at the time of the call, and its gradient.

    ``path`` is its place in the arguments or the result: ``""`` for a bare tensor, else ``0``,
    ``last_hidden_state``, ``1.boxes``. ``gradient`` is None if none arrived. ``norm_ranks`` and
    ``gradient_ranks`` are the smallest and the largest norm over several processes.
    """

    path: str
    activation: TensorStats
    gradient: TensorStats | None = None
    grad_fn: str | None = None
    requires_grad: bool = False
    norm_ranks: tuple[float, float] | None = field(default=None, metadata=SPARSE)
    gradient_ranks: tuple[float, float] | None = field(default=None, metadata=SPARSE)

    @property
    def grad(self) -> TensorStats | None:
        """``gradient``, by PyTorch's word."""
        return self.gradient
