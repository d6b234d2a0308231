"""Shapes that an operation or a loss cannot bring together: both sides, and what joins them."""

from __future__ import annotations

import re

from gradscope.explain.errors.explanation import Case, Explanation, first_explanation, listed
from gradscope.explain.errors.failed_operation import Operand
from gradscope.explain.errors.kind import Kind
from gradscope.explain.errors.kinds import _layer_shapes, _loss_shapes, _view_shapes
from gradscope.explain.shared.operations import Trait, by_function


def explain(case: Case) -> Explanation | None:
    """Which shapes conflict, where, and what to change."""
    return first_explanation(
        case,
        (
            _layer_shapes.explain,
            _broadcast,
            _joined,
            _matmul,
            _view_shapes.explain,
            _loss_shapes.explain,
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
            f"make `{held.text}` {want} long at that dimension, or take the part that is needed of"
            " it, as with a slice",
        )
    return Explanation(
        fact,
        "bring both to one size at that dimension, or make one of them 1 there, as with"
        " `unsqueeze`, to repeat it",
    )


def _skip(a: Operand, b: Operand) -> str:
    """A sum of a branch and what goes around it: the way around is to be brought to its size."""
    out, around = (b, a) if _is_shortcut(a, b) else (a, b)
    x = around.text or "the shortcut"
    if len(a.shape) != 4:
        project = f"`nn.Linear({around.shape[-1]}, {out.shape[-1]})`"
        by = f", as by {project}" if around.shape[:-1] == out.shape[:-1] else ""
        return (
            f"the way around is to change as the branch does: bring `{x}` from"
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
    """Whether ``a`` rather than ``b`` is what went around: it is larger or has fewer channels."""
    if re.search(r"identity|residual|short|skip", a.text or ""):
        return True
    if re.search(r"identity|residual|short|skip", b.text or ""):
        return False
    if len(a.shape) != 4:  # what went around has a name, the branch is often called in place
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
            f"`torch.cat` wants as many dimensions in each, and got {listed(parts)}.",
            "add the one that lacks with `unsqueeze`, or `flatten` the longer one",
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
_ADVICE = (
    "compare the shapes that meet here; what a layer's weights take, `gradscope layers MODEL` lists"
)
KIND = Kind({_SIGN: _ADVICE}, explain)
