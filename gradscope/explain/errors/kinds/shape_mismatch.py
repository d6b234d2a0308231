"""Shapes that an operation or a loss cannot bring together: both sides, and what joins them."""

from __future__ import annotations

import re

from gradscope.explain.errors.explanation import Case, Told, listed, told
from gradscope.explain.errors.failed_operation import Meeting, Operand
from gradscope.explain.errors.kinds import _layers, _losses, _views

_SUMS = ("+", "+=", "-", "-=", "add", "add_", "__iadd__", "sub")
_PRODUCTS = ("@", "matmul", "rmatmul", "mm", "bmm", "mv", "addmm", "baddbmm", "linear", "dot")


def explain(case: Case) -> Told | None:
    """Which shapes met, where, and what to change."""
    return told(
        case,
        (
            _layers.explain,
            _broadcast,
            _joined,
            _matmul,
            _views.explain,
            _losses.explain,
            _any,
        ),
    )


def _two(met: Meeting | None) -> tuple[Operand, Operand] | None:
    if met is None or met.layer is not None or len(met.operands) < 2:
        return None
    return met.operands[0], met.operands[1]


def _broadcast(case: Case) -> Told | None:
    found = re.search(r"tensor a \((\d+)\) must match .* b \((\d+)\) at non-singleton", case.text)
    sides = _two(case.met)
    if found is None or sides is None or case.met is None:
        return None
    a, b = sides
    axis = int(case.text.rpartition("dimension ")[2].split()[0].strip("."))
    said = f"{a.said} and {b.said} differ at dimension {axis}: {found[1]} and {found[2]}."
    op = case.met.called or case.met.op
    same = len(a.shape) == len(b.shape)
    held = b if b.held else a if a.held else None
    branches = same and len(a.shape) > 1 and held is None and a.shape[0] == b.shape[0]
    if op in _SUMS and branches:
        return Told((said,), _skip(a, b))
    if held is not None:
        other = a if held is b else b
        back = axis - max(len(a.shape), len(b.shape))
        want = other.shape[back] if -back <= len(other.shape) else "?"
        return Told(
            (said,),
            f"make `{held.text}` {want} long at that dimension, or take the part that is needed of"
            " it, as with a slice",
        )
    return Told(
        (said,),
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


def _joined(case: Case) -> Told | None:
    met = case.met
    if met is None or met.layer is not None or len(met.operands) < 2:
        return None
    parts = met.operands
    first = parts[0]
    if "stack expects" in case.text:
        return Told(
            (f"`torch.stack` wants one shape, and got {listed(parts)}.",),
            "pad them to one length first (`torch.nn.utils.rnn.pad_sequence`, `F.pad`), or join"
            " them by `torch.cat`",
        )
    found = re.search(r"except in dimension (\d+).* got size (\d+)", case.text)
    if "same number of dimensions" in case.text:
        return Told(
            (f"`torch.cat` wants as many dimensions in each, and got {listed(parts)}.",),
            "add the one that lacks with `unsqueeze`, or `flatten` the longer one",
        )
    if found is None:
        return None
    axis = int(found[1])
    pairs = (
        (one, i) for one in parts for i, n in enumerate(one.shape)
        if i != axis and n != first.shape[i]
    )  # fmt: skip
    odd, at = next(pairs, (parts[-1], axis))
    said = (
        f"joined along dimension {axis}, {first.said} and {odd.said} must agree in the others, and"
        f" differ at dimension {at}: {first.shape[at]} and {odd.shape[at]}."
    )
    if len(first.shape) == 4 and at > 1:
        a, b = first.text or "a", odd.text or "b"
        return Told(
            (said,),
            f"bring one to the other's size: `F.interpolate({a}, size={b}.shape[2:])`, or pad the"
            " images to a multiple of the strides",
        )
    return Told((said,), "bring both to one size there, or join along that dimension")


def _matmul(case: Case) -> Told | None:
    sides = _two(case.met)
    patterns = r"shapes cannot be multiplied|first two dimensions of batch2|size mismatch"
    if sides is None or case.met is None or not re.search(patterns, case.text):
        return None
    a, b = sides
    if case.met.op == "scaled_dot_product_attention":
        return Told(
            (f"the query {a.said} and the key {b.said} must agree in the last dimension:"
             f" {a.shape[-1]} and {b.shape[-1]}.",),
            "project both to one width",
        )  # fmt: skip
    if case.met.op.strip("_") not in _PRODUCTS:
        return None
    if not a.shape or not b.shape:
        return None
    rows = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    said = (
        f"{a.said} @ {b.said}: the {a.shape[-1]} columns of the left meet the {rows} rows of the"
        " right."
    )
    right = b.text or "the right side"
    if len(b.shape) > 1 and b.shape[-1] == a.shape[-1]:
        return Told((said,), f"transpose the right side: `{right}.transpose(-2, -1)`")
    if len(a.shape) > 1 and a.shape[-2] == rows:
        return Told((said,), f"transpose the left side: `{a.text or 'x'}.transpose(-2, -1)`")
    return Told((said,), "make the last dimension of the left the last but one of the right")


def _any(case: Case) -> Told | None:
    met = case.met
    if met is None or not met.operands:
        return None
    who = f"`{met.name}`" if met.name else f"`{met.called or met.op}`"
    return Told((f"{who} got {listed(met.operands)}.",))
