"""Explains shapes that an operation or a loss cannot combine: both sides, and the fix."""

from __future__ import annotations

import math
import re

from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    Kind,
    Operand,
    factors,
    first_explanation,
    listed,
)
from gradscope.explain.errors.kinds import _layer_shapes
from gradscope.explain.shared.operations import Trait, by_function


def _classes(case: Case) -> Explanation | None:
    """Explain cross entropy and similar losses: classes at dimension 1, one target for each
    place."""
    sides = case.failed.sides
    if sides is None or not by_function(case.failed.function).has(Trait.CLASSES):
        return None
    output, target = sides
    fact = f"the output is {list(output.shape)}, the target {list(target.shape)}"
    o, t = output.shape, target.shape
    if len(o) > 2 and t == o[:-1] and t != (o[0], *o[2:]):
        return Explanation(
            f"{fact}: the classes must be at dimension 1, and {o[-1]} are last.",
            "move them: `output.transpose(1, 2)`, or flatten both:"
            f" `output.flatten(0, {len(o) - 2})` and `target.flatten()`",
        )
    if len(o) == 2 and len(t) == 2 and t[1] == 1:
        return Explanation(f"{fact}: class ids have one dimension.", "drop it: `target.squeeze(1)`")
    if o and t and o[0] != t[0]:
        return Explanation(
            f"{fact}: {o[0]} predictions, but {t[0]} targets.",
            _fewer(o[0], t[0])
            if len(o) == 2 and len(t) == 1
            else "flatten both sides or none: `output.view(-1, classes)` goes with"
            " `target.view(-1)`; for next words shift both by one",
        )
    return Explanation(f"{fact}.", "give one class id for each prediction: [N] for [N, C]")


def _fewer(rows: int, targets: int) -> str:
    flat = "`output.view(-1, classes)` goes with `target.view(-1)`"
    if rows % targets and targets % rows:
        return (
            f"give {rows} targets, one for each row, from the same samples in one batch; if rows"
            f" were flattened, {flat}, and for next words shift both by one"
        )
    return f"flatten both sides or none: {flat}; else give {rows} targets, one for each row"


def _compared(case: Case) -> Explanation | None:
    """Explain a loss that compares elements."""
    sides = case.failed.sides
    if sides is None or not re.search(r"[Tt]arget size|target and input", case.text):
        return None
    output, target = sides
    fact = f"the output is {list(output.shape)}, the target {list(target.shape)}."
    if output.shape == (*target.shape, 1):
        fix = "drop the output's last dimension: `output.squeeze(1)`; or `target.unsqueeze(1)`"
    elif target.shape == (*output.shape, 1):
        fix = "drop the target's last dimension: `target.squeeze(1)`"
    else:
        fix = "give both the same shape"
    return Explanation(fact, fix)


def _viewed(case: Case) -> Explanation | None:
    failed = case.failed
    if failed.layer is not None or not failed.operands:
        return None
    x = failed.operands[0]
    name = x.text or "x"
    if "view size is not compatible" in case.text:
        return Explanation(
            f"{x.label} is not contiguous, as after `transpose` or `permute`: no view of that shape"
            " exists.",
            f"use `{name}.reshape(…)`, or `{name}.contiguous().view(…)`",
        )
    found = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", case.text)
    if found is None:
        return None
    wanted = [int(n) for n in found[1].split(",")]
    known = math.prod([n for n in wanted if n >= 0])
    fact = f"{x.label} has {found[2]} elements, the shape {wanted} is of {known}"
    fact += f" · n: {found[2]} is not divisible by {known}." if -1 in wanted else "."
    parts = _split(x.shape, wanted)
    if parts is not None:
        full, kept = parts
        return Explanation(
            (
                fact,
                f"{factors(kept)} = {math.prod(kept)} is not the {full} of the last dimension:"
                f" {full} does not divide into {kept[0]}.",
            ),
            f"choose a number that divides {full}, such as {_divisors(full)}",
        )
    if -1 not in wanted and x.shape and wanted and x.shape[0] != wanted[0]:
        return Explanation(
            fact, f"take the batch from the tensor: `{name}.view({name}.size(0), -1)`"
        )
    return Explanation(fact, f"make the sizes multiply to {found[2]}, or leave one of them to `-1`")


def _split(shape: tuple[int, ...], wanted: list[int]) -> tuple[int, list[int]] | None:
    """Return the last dimension and the sizes to split it into, if the others stay."""
    same = len(shape) - 1
    if same < 1 or list(shape[:same]) != wanted[:same] or len(wanted) <= len(shape):
        return None
    kept = wanted[same:]
    return None if -1 in kept else (shape[-1], kept)


def _divisors(full: int) -> str:
    found = [n for n in range(1, full + 1) if full % n == 0][:6]
    return ", ".join(map(str, found))


def _expanded(case: Case) -> Explanation | None:
    failed = case.failed
    found = re.search(
        r"expanded size of the tensor \((-?\d+)\) must match the existing size \((\d+)\) at"
        r" non-singleton dimension (\d+).*Target sizes: (\[.*?\])",
        case.text,
    )
    if found is None or not failed.operands:
        return None
    x = failed.operands[0]
    return Explanation(
        f"{x.label} cannot become {found[4]}: only dimensions of 1 expand, and dimension {found[3]}"
        f" must be {found[1]} and has {found[2]}.",
        f"ask for {found[2]} there, or make `{x.text or 'it'}` {found[1]} long; if it is a table"
        " of positions, the input is longer than the table",
    )


def _dimension(case: Case) -> Explanation | None:
    failed = case.failed
    found = re.search(r"Dimension out of range .*but got (-?\d+)", case.text)
    if found is None or not failed.operands:
        return None
    x = failed.operands[0]
    count = len(x.shape)
    last = f"0 to {count - 1}" if count > 1 else "0"
    return Explanation(
        f"`{failed.function}` asks for dimension {found[1]} of {x.label}, which has"
        f" dimensions {last}.",
        "count from the end, `-1` for the last, or keep the missing dimension",
    )


def explain(case: Case) -> Explanation | None:
    """Explain a shape error: the shapes that conflict, the place, and the change to make."""
    return first_explanation(
        case,
        (
            _layer_shapes.explain,
            _broadcast,
            _joined,
            _matmul,
            _viewed,
            _expanded,
            _dimension,
            _classes,
            _compared,
            _any,
        ),
    )


def _broadcast(case: Case) -> Explanation | None:
    found = re.search(r"tensor a \((\d+)\) must match .* b \((\d+)\) at non-singleton", case.text)
    sides = case.failed.sides
    if found is None or sides is None:
        return None
    a, b = sides
    axis = int(case.text.rpartition("dimension ")[2].split()[0].strip("."))
    fact = f"{a.label} and {b.label} differ at dimension {axis}: {found[1]} and {found[2]}."
    op = by_function(case.failed.called or case.failed.function).name
    same = len(a.shape) == len(b.shape)
    held = b if b.held else a if a.held else None
    branches = same and len(a.shape) > 1 and held is None and a.shape[0] == b.shape[0]
    if op in ("add", "sub") and branches:
        return Explanation(fact, _skip(a, b))
    if held is not None:
        other = a if held is b else b
        back = axis - max(len(a.shape), len(b.shape))
        want = other.shape[back] if -back <= len(other.shape) else "?"
        return Explanation(
            fact,
            f"make `{held.text}` {want} long at that dimension, or take a slice of it",
        )
    return Explanation(
        fact,
        "bring both to one size at that dimension, or make one of them 1 there, as with"
        " `unsqueeze`, to repeat it",
    )


def _skip(a: Operand, b: Operand) -> str:
    """Explain a sum of a branch and its shortcut: the shortcut must get the branch's size."""
    out, around = (b, a) if _is_shortcut(a, b) else (a, b)
    x = around.text or "the shortcut"
    if len(a.shape) != 4:
        project = f"`nn.Linear({around.shape[-1]}, {out.shape[-1]})`"
        by = f", as by {project}" if around.shape[:-1] == out.shape[:-1] else ""
        return (
            f"the shortcut must change its shape as the branch does: bring `{x}` from"
            f" {list(around.shape)} to {list(out.shape)} before the sum{by}"
        )
    c_in, c_out = around.shape[1], out.shape[1]
    stride = max(1, round(around.shape[-1] / max(1, out.shape[-1])))
    words = []
    if c_in != c_out:
        words.append(f"channels, {c_in} to {c_out}")
    if around.shape[2:] != out.shape[2:]:
        words.append("size" if stride == 1 else f"stride of {stride}")
    if stride == 1 and around.shape[2:] != out.shape[2:]:
        return (
            f"a convolution of the branch changes the size: give it `padding`, or crop `{x}` to"
            f" {list(out.shape[2:])}"
        )
    more = f", stride={stride}" if stride > 1 else ""
    return (
        f"give `{x}` the branch's {' and '.join(words)} by a 1×1 convolution before the sum:"
        f" `nn.Conv2d({c_in}, {c_out}, 1{more})`"
    )


def _is_shortcut(a: Operand, b: Operand) -> bool:
    """Return True if ``a`` is the shortcut of the two: it is larger or has fewer channels."""
    if re.search(r"identity|residual|short|skip", a.text or ""):
        return True
    if re.search(r"identity|residual|short|skip", b.text or ""):
        return False
    if len(a.shape) != 4:  # the shortcut has a name, the branch is often an expression
        return (a.text or "").isidentifier() and not (b.text or "").isidentifier()
    return a.shape[-1] > b.shape[-1] or (a.shape[-1] == b.shape[-1] and a.shape[1] < b.shape[1])


def _joined(case: Case) -> Explanation | None:
    failed = case.failed
    if failed.sides is None:
        return None
    parts = failed.operands
    first = parts[0]
    if "stack expects" in case.text:
        return Explanation(
            f"`torch.stack` wants one shape, and got {listed(parts)}.",
            "pad them to one length first (`torch.nn.utils.rnn.pad_sequence`, `F.pad`), or join"
            " them by `torch.cat`",
        )
    found = re.search(r"except in dimension (\d+).* got size (\d+)", case.text)
    if "same number of dimensions" in case.text:
        return Explanation(
            f"`torch.cat` needs tensors with equally many dimensions, but got {listed(parts)}.",
            "add the missing dimension with `unsqueeze`, or `flatten` the longer one",
        )
    if found is None:
        return None
    axis = int(found[1])
    pairs = (
        (one, i)
        for one in parts
        for i, n in enumerate(one.shape)
        if i != axis and n != first.shape[i]
    )
    odd, at = next(pairs, (parts[-1], axis))
    fact = (
        f"joined along dimension {axis}, {first.label} and {odd.label} must agree in the others,"
        f" and differ at dimension {at}: {first.shape[at]} and {odd.shape[at]}."
    )
    if len(first.shape) == 4 and at > 1:
        a, b = first.text or "a", odd.text or "b"
        return Explanation(
            fact,
            f"bring one to the other's size: `F.interpolate({a}, size={b}.shape[2:])`, or pad the"
            " images to a multiple of the strides",
        )
    return Explanation(fact, "bring both to one size there, or join along that dimension")


def _matmul(case: Case) -> Explanation | None:
    sides = case.failed.sides
    patterns = r"shapes cannot be multiplied|first two dimensions of batch2|size mismatch"
    if sides is None or not re.search(patterns, case.text):
        return None
    a, b = sides
    if case.failed.function == "scaled_dot_product_attention":
        return Explanation(
            f"the query {a.label} and the key {b.label} must agree in the last dimension:"
            f" {a.shape[-1]} and {b.shape[-1]}.",
            "project both to one width",
        )
    if not by_function(case.failed.function).has(Trait.MATMUL):
        return None
    if not a.shape or not b.shape:
        return None
    rows = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    fact = (
        f"{a.label} @ {b.label}: the {a.shape[-1]} columns of the left meet the {rows} rows of the"
        " right."
    )
    right = b.text or "the right side"
    if len(b.shape) > 1 and b.shape[-1] == a.shape[-1]:
        return Explanation(fact, f"transpose the right side: `{right}.transpose(-2, -1)`")
    if len(a.shape) > 1 and a.shape[-2] == rows:
        return Explanation(fact, f"transpose the left side: `{a.text or 'x'}.transpose(-2, -1)`")
    return Explanation(fact, "make the last dimension of the left the last but one of the right")


def _any(case: Case) -> Explanation | None:
    failed = case.failed
    if not failed.operands:
        return None
    who = f"`{failed.layer_name}`" if failed.layer_name else f"`{failed.called or failed.function}`"
    return Explanation(f"{who} got {listed(failed.operands)}.")


_SIGN = (
    r"shapes? cannot be multiplied|size mismatch|must match the (size|existing size)"
    r"|sizes of tensors must match|shape '.*' is invalid|mismatch in shape|given groups="
    r"|to have \d+ channels|expected input batch_size|target size|normalized_shape"
    r"|input.size\(-1\) must be equal|expected \d+d|not broadcastable|dimension out of range"
    r"|should contain \d+ elements|kernel size can't be greater|inconsistent tensor size"
    r"|expected .*dimension|view size is not compatible|stack expects each|same number of dim"
    r"|expected hidden|first two dimensions of|expecting embedding dimension|multi-target not"
    r"|einsum\(\): |expanded size|divisible by num_groups|output size is too small|number of"
    r" dimensions in the tensor input|shape of the mask|padding length should|key_padded_mask"
    r"|expected input with shape|attn_mask.*should be|inconsistent input_size"
)
_ADVICE = "compare these shapes; `gradscope layers MODEL` lists the weight shapes of each layer"
KIND = Kind({_SIGN: _ADVICE}, explain)
