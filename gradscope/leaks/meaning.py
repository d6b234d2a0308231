"""Role of each tensor in a batch (tokens, values, mask, labels), and the meaning of its axes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gradscope.errors import OptionError
from gradscope.loading.batches import Batch
from gradscope.nesting import find, replaced

#: Roles of tensors in a batch.
TOKENS, VALUES, MASK, LENGTHS = "tokens", "values", "mask", "lengths"
LABELS, DOCUMENTS, POSITIONS, CONSTANT = "labels", "documents", "positions", "constant"
#: Roles: positions to predict, which must not be read; the number of positions that attend to one
#: another.
HIDDEN, PREFIX = "hidden", "prefix"

#: The role that a name gives a tensor; the first that fits.
_NAMED: tuple[tuple[str, str], ...] = (
    (LABELS, r"(?:.*_)?(?:labels?|targets?|lm_labels)|y|answer|ground_truth"),
    (HIDDEN, r"(?:.*_)?masked(?:_.*)?|mask_(?:time_|feature_)?(?:indices|index|positions?)"),
    (PREFIX, r"prefix(?:_?(?:len|length)s?)?"),
    (DOCUMENTS, r".*(?:doc|document|segment|seq|sequence|sample|pack)s?_?(?:ids?|idx|index)s?"),
    (DOCUMENTS, r"(?:documents?|docs?|segments?)(?:_mask)?|seq_idx"),
    (LENGTHS, r".*(?:lengths?|lens?)"),
    (POSITIONS, r".*(?:positions?|position_ids|pos_ids|pos|cache_position)"),
    (POSITIONS, r"token_type_ids"),
    (MASK, r".*(?:mask|keep|valid|padding|pad)s?(?:_.*)?"),
)
#: Names of what an encoder takes beside a decoder: the decoder's own inputs are causal.
_DECODER = re.compile(r"(?:decoder|dec|tgt|target_in|y_in)(?:_|\b)")


@dataclass(frozen=True, slots=True)
class Given:
    """One tensor of the batch.

    Attributes:
        path: its path in (args, kwargs), as ``find`` gives it.
        name: the name of its argument.
        role: its role in the batch.
        batch, time: these dimensions of it; None: it has none.
        keep: for a mask, the value of unmasked entries.
    """

    path: str
    name: str
    tensor: torch.Tensor
    role: str
    batch: int | None = None
    time: int | None = None
    keep: Any = None


@dataclass(frozen=True, slots=True)
class Meaning:
    """Holds the role of each tensor of a batch: tokens, mask, labels, values, …

    Attributes:
        positions: entries along the time axis; None: there is none.
        samples: entries along the batch axis; None: there is none.
        decoder: True if the batch has inputs of both an encoder and a decoder.
    """

    batch: Batch
    given: tuple[Given, ...]
    positions: int | None
    samples: int | None
    decoder: bool = False

    def of(self, *roles: str) -> list[Given]:
        """Return the tensors with one of these roles."""
        return [one for one in self.given if one.role in roles]

    @property
    def sources(self) -> list[Given]:
        """Return the tensors that the model reads as content: tokens and values."""
        return self.of(TOKENS, VALUES)

    @property
    def sequences(self) -> list[Given]:
        """Return sources with a time axis; of an encoder and a decoder, the decoder's."""
        found = [one for one in self.sources if one.time is not None]
        own = [one for one in found if _DECODER.match(one.name)]
        return own if self.decoder and own else found

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Batch:
        """Return the batch with these tensors in place of its own, by their paths."""
        new = {id(one.tensor): tensors[one.path] for one in self.given if one.path in tensors}
        args, kwargs = replaced(
            (self.batch.args, self.batch.kwargs), torch.Tensor, lambda t: new.get(id(t), t)
        )
        return Batch(args, kwargs)


def read_meaning(
    model: nn.Module,
    called: Callable[..., Any],
    batch: Batch,
    axes: Mapping[str, int],
) -> Meaning:
    """Infer the role of each tensor from its name, dtype and shape, and the user's options.

    Args:
        model: the model.
        called: the function that is called with the batch.
        batch: the tensors.
        axes: the dimensions of ``time`` and ``batch`` that the user gave.

    Raises:
        OptionError: an axis that no tensor has.
    """
    batch = _apart(batch)
    names = _names(called, batch)
    found: list[Given] = []
    for path, tensor in find((batch.args, batch.kwargs), torch.Tensor):
        name = names.get(path, path.split(".", 1)[-1])
        found.append(_given(path, name, tensor, axes))
    sources = [one for one in found if one.role in (TOKENS, VALUES)]
    timed = [one for one in sources if one.time is not None]
    decoder = any(map(_is_decoder, sources)) and not all(map(_is_decoder, sources))
    main = next((one for one in timed if not decoder or _is_decoder(one)), None)
    positions = None if main is None or main.time is None else main.tensor.size(main.time)
    first = main or next(iter(sources), None)
    samples = None if first is None or first.batch is None else first.tensor.size(first.batch)
    if "time" in axes and main is None:
        raise OptionError(
            f"no input has a dimension {axes['time']}, which `--axis time={axes['time']}` names",
            help="count the dimensions of the input from 0",
        )
    given = [_settled(one, positions, samples, axes, found) for one in found]
    return Meaning(batch, tuple(given), positions, samples, decoder)


def _apart(batch: Batch) -> Batch:
    """Split a tensor that is at two places into two, so that each place can be changed alone."""
    seen: set[int] = set()

    def own(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if id(item) in seen:
                item = item.detach().clone()
            seen.add(id(item))
        return item

    return Batch(tuple(map(own, batch.args)), {k: own(v) for k, v in batch.kwargs.items()})


def _names(called: Callable[..., Any], batch: Batch) -> dict[str, str]:
    """Return the argument's name of each positional tensor."""
    try:
        parameters = list(inspect.signature(getattr(called, "forward", called)).parameters)
    except (TypeError, ValueError):
        parameters = []
    names = {f"0.{i}": name for i, name in enumerate(parameters[: len(batch.args)])}
    return {**names, **{f"1.{name}": name for name in batch.kwargs}}


def _is_decoder(one: Given) -> bool:
    return bool(_DECODER.match(one.name))


def role_named(name: str, tensor: torch.Tensor) -> str | None:
    """Return the role that an argument's name gives a tensor; None: it is tokens or values, or
    unknown."""
    integer = not (tensor.is_floating_point() or tensor.is_complex())
    for role, pattern in _NAMED:
        fits = integer or role not in (LENGTHS, DOCUMENTS)
        if fits and re.fullmatch(pattern, name.lower()):
            if role == DOCUMENTS and tensor.dim() == 0:
                continue
            return role
    return None


def _given(path: str, name: str, tensor: torch.Tensor, axes: Mapping[str, int]) -> Given:
    """Return a tensor's role by its name and dtype, and its axes if they are known without other
    tensors."""
    integer = not (tensor.is_floating_point() or tensor.is_complex())
    role = role_named(name, tensor)
    if role is not None:
        return Given(path, name, tensor, role)
    if tensor.dtype == torch.bool:
        return Given(path, name, tensor, MASK)
    if tensor.dim() == 0:
        return Given(path, name, tensor, CONSTANT)
    time = axes.get("time")
    if time is None:
        time = 1 if (tensor.dim() == 2 if integer else tensor.dim() == 3) else None
    elif time >= tensor.dim() or time < -tensor.dim():
        time = None
    else:
        time %= tensor.dim()
    batch: int | None = axes.get("batch", 1 if time == 0 else 0)
    if batch is not None and (batch >= tensor.dim() or batch == time):
        batch = None
    return Given(path, name, tensor, TOKENS if integer else VALUES, batch, time)


def _settled(
    one: Given,
    positions: int | None,
    samples: int | None,
    axes: Mapping[str, int],
    every: Sequence[Given],
) -> Given:
    """Return a tensor that is not a source with its axes, found by the sources' sizes."""
    if one.role in (TOKENS, VALUES):
        return one
    shape = tuple(one.tensor.shape)
    main = next((o for o in every if o.role in (TOKENS, VALUES)), None)
    first = 0 if main is None or main.batch is None else main.batch
    batch = first if len(shape) > first and shape[first] == samples else None
    square = len(shape) >= 2 and shape[-1] == shape[-2] == positions
    if (
        square
        and len(shape) == 2
        and one.role == MASK
        and not (batch == 0 and samples != positions)
    ):
        return replace(one, role=CONSTANT)
    order = [axes["time"]] if "time" in axes and shape else []
    order += [1, 0, len(shape) - 1] if shape else []
    time = next((d for d in order if d < len(shape) and d != batch and shape[d] == positions), None)
    if one.role == LABELS:  # of a sequence that need not be the input's
        time = next((d for d in (1, 0) if d < len(shape) and d != batch), None)
        return replace(one, batch=batch, time=time if len(shape) > 1 else None)
    one = replace(one, batch=batch, time=time)
    if one.role == HIDDEN:
        if time is None:
            return replace(one, role=CONSTANT)
        return replace(one, keep=False if one.tensor.dtype == torch.bool else 0)
    if one.role == MASK:
        if square or (len(shape) > 2 and time is None) or time is None:
            return replace(one, role=CONSTANT)  # of pairs of positions, or of something else
        return replace(one, keep=_kept_value(one))
    return one


def _kept_value(mask: Given) -> Any:
    """Return the value of unmasked entries: from the given mask, else by its name."""
    tensor = mask.tensor
    assert mask.time is not None
    one: Any = False if tensor.dtype == torch.bool else 0
    first = values_of(tensor.select(mask.time, 0))
    last = values_of(tensor.select(mask.time, -1))
    values = values_of(tensor)
    if len(values) == 1 and values[0] in (0, 1):
        return values[0]
    if len(values) == 2:
        if len(first) == 1 and (len(last) == 2 or first != last):  # padded on the right
            return first[0]
        if len(last) == 1 and len(first) == 2:  # on the left
            return last[0]
    ignored = "pad" in mask.name.lower() or "ignore" in mask.name.lower()
    return one if ignored else type(one)(True)


def values_of(tensor: torch.Tensor) -> list[Any]:
    """Return the distinct values in a tensor, sorted."""
    return sorted(set(tensor.reshape(-1).tolist()))
