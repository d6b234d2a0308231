"""Explains ids and indices out of range: their values, the size of the table, and the place."""

from __future__ import annotations

import re

from torch import nn

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    Kind,
    Operand,
    first_explanation,
    method,
)


def explain(case: Case) -> Explanation | None:
    """Explain ids beyond the size of the table that they index."""
    return first_explanation(case, (_embedding, _one_hot, _index, _asserted))


def id_range(ids: Operand) -> str:
    """Return the lowest and the highest id, if known."""
    if ids.low is None or ids.high is None:
        return "ids"
    return f"{ids.low}" if ids.low == ids.high else f"{ids.low} to {ids.high}"


def _embedding(case: Case) -> Explanation | None:
    failed = case.failed
    if not failed.operands or not isinstance(failed.layer, nn.Embedding | nn.EmbeddingBag):
        return None
    ids, name = (
        failed.operands[0],
        failed.layer_name if failed.layer_name is not None else "the embedding",
    )
    count = failed.layer.num_embeddings
    written = failed.argument
    fact = (
        f"`{name}` has num_embeddings={count}, ids 0 to {count - 1};"
        f" {f'`{written}`' if written else 'the input'} {list(ids.shape)} has {id_range(ids)}."
    )
    if ids.low is not None and ids.low < 0:
        return Explanation(
            fact,
            f"{ids.low} marks padding or ignored labels: replace it before the embedding, for"
            f" example by `{method(written or 'ids', 'masked_fill(…)')}` if they are below 0",
        )
    more = "" if ids.high is None else f"num_embeddings={ids.high + 1} or more"
    return Explanation(
        fact,
        f"build `{name}` with {more or 'more embeddings'}, or keep the ids below {count}, for "
        "example by truncating the sequence, or with the model's own tokenizer",
    )


def _one_hot(case: Case) -> Explanation | None:
    failed = case.failed
    if "Class values must be" not in case.text or not failed.operands:
        return None
    ids = failed.operands[0]
    given = next((int(v) for v in failed.constants if isinstance(v, int)), None)
    count = "" if given is None else f"num_classes={given}, ids 0 to {given - 1}; "
    name = ids.text or "the ids"
    if ids.low is not None and ids.low < 0:
        return Explanation(
            f"`one_hot`: `{name}` has {id_range(ids)}.", "replace negative ids first"
        )
    return Explanation(
        f"`one_hot` has {count}`{name}` has {id_range(ids)}.",
        f"pass num_classes={(ids.high or 0) + 1}, or correct the ids",
    )


def _index(case: Case) -> Explanation | None:
    failed = case.failed
    patterns = (
        r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)",
        r"element is out of DATA bounds, id=(-?\d+)( )axis_dim=(\d+)",
    )
    found = next((m for p in patterns if (m := re.search(p, case.text))), None)
    if found is None or not failed.function:
        return None
    value, size = found[1], int(found[3])
    op = (
        failed.function.strip("_")
        if failed.function not in ("__getitem__", "__setitem__")
        else "an index"
    )
    of = failed.operands[0].label if failed.operands else "the tensor"
    ids = next((one for one in failed.operands[1:] if one.low is not None), None)
    has = f"; {ids.label} has {id_range(ids)}" if ids is not None else ""
    return Explanation(
        f"`{op}` asks for {value} of {of}, with {size} entries, 0 to {size - 1}{has}.",
        f"keep the index below {size}, or make that dimension longer",
    )


def _asserted(case: Case) -> Explanation | None:
    if "device-side assert" not in case.text:
        return None
    return Explanation(
        "on a GPU an id out of range stops the device, and the reported line may be too late.",
        "run it with `--device cpu` (`device: cpu`), which reports the value",
    )


_SIGN = (
    r"device-side assert triggered|index out of range in self|class values must be"
    r"|index -?\d+ is out of bounds|out of data bounds"
)
_ADVICE = "indices go from 0 to the size of the dimension minus one"
KIND = Kind({_SIGN: _ADVICE}, explain)
