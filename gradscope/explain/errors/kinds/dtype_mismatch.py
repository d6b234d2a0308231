"""Explains conflicting dtypes: the dtype of each tensor, and the tensor to cast."""

from __future__ import annotations

import re

import torch

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    Kind,
    Operand,
    first_explanation,
    method,
)
from gradscope.explain.shared.operations import Trait, by_function

_CASTS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16",
          "int64": "long"}  # fmt: skip


def explain(case: Case) -> Explanation | None:
    """Explain a dtype error: the dtypes that conflict, and the cast that resolves it."""
    explanations = (_overflow, _target, _ids, _layer, _bool, _index, _integers, _sides)
    return first_explanation(case, explanations)


def _overflow(case: Case) -> Explanation | None:
    """Explain a number beyond the range of a narrow dtype, such as a mask's -1e9 in float16."""
    if not re.search(r"converted to type .* without overflow", case.text):
        return None
    failed = case.failed
    narrow = ("float16", "bfloat16", "int8", "uint8", "int16")
    into = next((o for o in failed.operands if o.dtype in narrow), None)
    if into is None:
        return None
    name = into.text or "x"
    value = next(
        (v for v in failed.constants if isinstance(v, int | float) and v is not True), None
    )
    number = "a number" if value is None else f"{value:g}"
    if "int" in into.dtype:
        return Explanation(f"`{name}` is {into.dtype}, which cannot hold {number}.", None)
    last = torch.finfo(getattr(torch, into.dtype)).max
    fill = f"torch.finfo({name}.dtype).min" if name.isidentifier() else "float('-inf')"
    return Explanation(
        f"`{failed.function}` writes {number} into {into.label}, which is {into.dtype} and ends"
        f" at ±{last:g}.",
        f"fill with a value of the dtype: `{fill}`; or mask before the cast to {into.dtype}",
    )


def _target(case: Case) -> Explanation | None:
    failed = case.failed
    if not by_function(failed.function).has(Trait.LOSS) or len(failed.operands) < 2:
        return None
    output, target = failed.operands[:2]
    fact = f"the output is {output.dtype} {list(output.shape)}, the target {target.dtype}"
    fact += f" {list(target.shape)}."
    ids = by_function(failed.function).has(Trait.CLASSES)
    if ids and target.shape == output.shape and "float" not in target.dtype:
        return Explanation(
            fact,
            "give class ids instead of one-hot rows, `target.argmax(1)`, or probabilities as"
            " floats: `target.float()`",
        )
    if ids:
        return Explanation((fact, "class ids are integers."), "cast the class ids: `target.long()`")
    return Explanation(fact, f"cast the target: `target.{_CASTS.get(output.dtype, 'float')}()`")


def _ids(case: Case) -> Explanation | None:
    """Explain indices of a wrong dtype, passed to an Embedding or to a function with a table."""
    failed = case.failed
    if "'indices'" not in case.text or not failed.operands:
        return None
    given, x = failed.operands[0], failed.argument or "x"
    table = next((one for one in failed.operands[1:] if len(one.shape) == 2), None)
    count = getattr(failed.layer, "num_embeddings", table.shape[0] if table else None)
    name = failed.layer_name or (type(failed.layer).__name__ if failed.layer else failed.function)
    advice = _drawn(given, count, f"cast the ids: `{method(x, 'long()')}`")
    fact = f"{failed.title_of(given)} of `{name}` is {given.dtype}; indices must be int64."
    return Explanation(fact, advice)


def _drawn(ids: Operand, count: int | None, advice: str) -> str:
    """Return the advice, preceded by a source of valid ids if the input is random."""
    if count is None or ids.computed:
        return advice
    drawn = f"{{shape: {list(ids.shape)}, fill: randint({count})}}"
    return f"where the input is random, draw ids: `{drawn}`; else {advice}"


def _layer(case: Case) -> Explanation | None:
    failed = case.failed
    if failed.layer is None or not failed.operands:
        return None
    given = failed.operands[0]
    weight = next(((n, p) for n, p in failed.layer.named_parameters(recurse=False)), None)
    if weight is None:
        return None
    name = failed.layer_name if failed.layer_name is not None else type(failed.layer).__name__
    wanted = str(weight[1].dtype).removeprefix("torch.")
    who = failed.title_of(given)
    x = failed.argument or "x"
    if given.dtype == wanted:
        return None
    fact = f"`{name}.{weight[0]}` is {wanted}, {who} {given.dtype}."
    cast = f"{_CASTS.get(wanted, 'float')}()"
    if given.dtype == "uint8":
        return Explanation(fact, f"scale the pixels to floats: `{method(x, 'float()')} / 255`")
    if "int" in given.dtype:
        return Explanation(
            fact, f"cast it, `{method(x, cast)}`; ids need `nn.Embedding` before `{name}`"
        )
    if wanted in ("float16", "bfloat16") and given.dtype == "float32":
        return Explanation(
            fact,
            f"keep the model in one dtype: cast all or nothing; to mix, keep `{name}` in float32"
            " under `torch.autocast`",
        )
    return Explanation(fact, f"cast the input: `{method(x, cast)}`")


def _bool(case: Case) -> Explanation | None:
    if "bool tensor" not in case.text:
        return None
    masks = [one for one in case.failed.operands if one.dtype == "bool"]
    if not masks:
        return None
    name = masks[0].text or "mask"
    return Explanation(
        f"`{name}` {list(masks[0].shape)} is bool, and has no `-`.",
        f"invert it: `~{name}`; or count with it: `{name}.float()`",
    )


def _index(case: Case) -> Explanation | None:
    failed = case.failed
    if re.search("used as indices|for index$", case.text):
        odd = next((one for one in failed.operands[1:] if "float" in one.dtype), None)
        if odd is None:
            return None
        read = failed.operands[0].shape
        dim = next((one for one in failed.constants if type(one) is int), 0)
        count = read[dim] if -len(read) <= dim < len(read) else None
        cast = f"cast it: `{method(odd.text or 'x', 'long()')}`"
        return Explanation(f"the index {odd.label} is {odd.dtype}.", _drawn(odd, count, cast))
    if re.search(r"source and destination dtypes match|self.dtype to be equal to src", case.text):
        if len(failed.operands) < 2:
            return None
        into, values = failed.operands[0], failed.operands[-1]
        return Explanation(
            f"`{into.text or 'the target'}` is {into.dtype}, the values written by index are"
            f" {values.dtype}.",
            "use one dtype for both: `torch.zeros(…, dtype=values.dtype)`, or"
            f" `.to({into.text or 'x'}.dtype)` on the values",
        )
    return None


def _integers(case: Case) -> Explanation | None:
    """Explain an operation that has no meaning for integers."""
    failed = case.failed
    if not re.search(r"not implemented for '|could not infer output", case.text):
        return None
    odd = next((one for one in failed.operands if "int" in one.dtype or one.dtype == "bool"), None)
    if odd is None:
        return None
    name = odd.text or "x"
    return Explanation(
        f"`{failed.function}` got {odd.label}, which is {odd.dtype}.",
        f"cast it first: `{method(name, 'float()')}`",
    )


def _sides(case: Case) -> Explanation | None:
    failed = case.failed
    if len({one.dtype for one in failed.operands}) < 2:
        return None
    fact = ", ".join(f"{failed.title_of(one)} is {one.dtype}" for one in failed.operands)
    first, odd = (
        failed.operands[0],
        next(o for o in failed.operands if o.dtype != failed.operands[0].dtype),
    )
    return Explanation(
        f"{fact}.", f"cast one of them: `{odd.text or 'y'}.to({first.text or 'x'}.dtype)`"
    )


_SIGN = (
    r"expected scalar type|same dtype|input type .* should be the same|expected .*scalar types?"
    r"|expected floating point type|not implemented for '(long|int|half|bfloat16|bool|byte)"
    r"|found dtype|dtype mismatch|only tensors of floating point|expected target dtype"
    r"|to have one of the following scalar types|expected dtype int.* for index"
    r"|bool tensors? is not supported|could not infer"
    r" output dtype|dtypes match|self.dtype to be equal|used as indices must be"
    r"|can't be cast to the desired output type|converted to type .* without overflow"
)
_ADVICE = "give the input or target the dtype that the layer expects: `input.dtype=…`, `dtype=…`"
KIND = Kind({_SIGN: _ADVICE}, explain)
