"""Explains in-place errors: the tensor, the operation that saved it, the one that wrote to it, and
the fix."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from torch.autograd.graph import Node

from gradscope.capture.graph import saved_tensors
from gradscope.errors import message_of
from gradscope.explain.errors.explanation import Case, Explanation, Kind, first_explanation, line
from gradscope.explain.errors.step_tracer import ErrorTracer, Event, SavedTensor, Write
from gradscope.explain.shared.operations import by_function, node_name

_VERSIONS = re.compile(
    r"\[(?:[\w.]+ )?\[?([\d, ]*)\]?\].* is at version (\d+); expected version (\d+)"
)
#: Operations with a sign in Python.
_SIGNED = ("add", "sub", "mul", "div", "pow")
_RESULTS = ("result", "output")


def explain(case: Case) -> Explanation | None:
    """Explain an in-place modification that backward, or the operation itself, refused."""
    return first_explanation(case, (_found_in_backward, _leaf, _view))


def _found_in_backward(case: Case) -> Explanation | None:
    tracer, fact = case.tracer, _VERSIONS.search(case.text)
    if tracer is None or tracer.failing is None or fact is None:
        return None
    now, then = int(fact[2]), int(fact[3])
    for node in tracer.failing.nodes:
        for kept in tracer.kept.get(node, ()):
            writes = _between(tracer.writes.get(kept.memory, ()), then, now)
            if writes and kept.version == then:
                return _explained(tracer, tracer.made[node], type(node).__name__, kept, writes)
    return _unseen(tracer, [int(n) for n in fact[1].split(",") if n.strip()], then, now)


def _between(writes: Sequence[Write], then: int, now: int) -> list[Write]:
    """Return the writes that took a tensor from one version to another, each version once."""
    found = {w.after: w for w in reversed(writes) if then < w.after <= now}
    return [found[after] for after in sorted(found)] if now in found else []


def _unseen(tracer: ErrorTracer, shape: list[int], then: int, now: int) -> Explanation | None:
    """Explain a write to a tensor whose saver was not traced, as in a user's function."""
    size = math.prod(shape)
    fits = [
        found
        for writes in tracer.writes.values()
        if (found := _between(writes, then, now)) and math.prod(found[0].event.full) == size
    ]
    if len(fits) != 1:
        return None
    wrote = fits[0][0].event
    node = (
        next((n for n in tracer.failing.nodes if _is_broken(n)), None) if tracer.failing else None
    )
    saver = tracer.made.get(node) if node is not None else None
    who = node_name(node) if node is not None else ""
    name = f"`{wrote.target}` {shape}" if wrote.target else f"a tensor of {shape}"
    by = f"`{who}`" if who else "an operation"
    sentences: tuple[str, ...]
    if saver is not None and saver == wrote:
        sentences = (
            f"`{wrote.op}`{wrote.site.within}{wrote.site.at} needs the old {name} for its"
            f" backward, but wrote to it: version {fits[0][0].after}.",
        )
    else:
        sentences = (
            f"{by} saved {name} at version {then}.",
            f"`{_called(wrote)}`{wrote.site.within}{wrote.site.at} then wrote to it: version"
            f" {fits[0][0].after}.",
        )
    advice = _advice(wrote, wrote.target, None)
    return Explanation(sentences, advice, line("mutated", wrote.site), wrote.site)


def _is_broken(node: Node) -> bool:
    try:
        saved_tensors(node)
    except RuntimeError as error:
        return "modified by an inplace" in message_of(error)
    return False


def _explained(
    tracer: ErrorTracer, saver: Event, node: str, kept: SavedTensor, writes: list[Write]
) -> Explanation:
    wrote, owner = writes[0].event, tracer.owner(kept)
    op = saver.op.strip("_") or node.removesuffix("0").removesuffix("Backward")
    what, into = _tensor(kept, writes[0], owner)
    own = "its own result, " if kept.name in _RESULTS else ""
    saved = f"`{op}`{saver.site.within}{saver.site.at} saved {own}{what} at version"
    more = f", and {len(writes) - 1} more after it" if len(writes) > 1 else ""
    who = f"`{wrote.doer}.step()`" if wrote.doer else f"`{_called(wrote)}`"
    by = wrote.site.within if wrote.site.module != saver.site.module else ""
    wrong = f"{who}{by}{wrote.site.at} then wrote to {into}: version {writes[0].after}{more}."
    return Explanation(
        (f"{saved} {kept.version}.", wrong),
        _advice(wrote, owner or wrote.target, owner),
        (*line("saved", saver.site), *line("mutated", wrote.site)),
        wrote.site,
    )


def _tensor(kept: SavedTensor, write: Write, owner: str | None) -> tuple[str, str]:
    """Return the saved tensor in words, and the tensor that was written to."""
    full, name = write.event.full, write.event.target
    saved = list(kept.shape)
    if owner:  # a weight is saved as it is multiplied with: transposed
        return f"`{owner}` {list(full) or saved}", "it"
    if name is None:
        return (
            f"a tensor of {saved}",
            "it" if write.shape == kept.shape else f"{list(write.shape)} of it",
        )
    part = f"{list(write.shape)} of it" if write.shape != full else "it"
    if full == kept.shape:
        return f"`{name}` {saved}", part
    if math.prod(full) == math.prod(kept.shape):
        return f"{saved}, of which `{name}` is a view,", f"`{name}` {list(full)}"
    return f"a part {saved} of `{name}`", f"`{name}` {list(full)}"


def _called(wrote: Event) -> str:
    return "x[…] = …" if wrote.op == "__setitem__" else wrote.op


def _advice(wrote: Event, name: str | None, owner: str | None) -> str:
    x = name or "x"
    site = wrote.site
    code = site.code
    if wrote.doer:
        return (
            "call `step()` only after the last backward through these weights, or run forward"
            " again after it and use the new loss"
        )
    if owner is not None:
        copy = f"`{owner}.clone()`"
        if "embedding" in wrote.op:
            return (
                f"`max_norm` shortens rows of `{owner}` in place at each lookup: do the lookup "
                f"before its other uses, or use a copy there: {copy}"
            )
        return (
            f"change `{owner}` before its first use or after backward; if it must change in"
            f" between, use a copy: {copy}"
        )
    if wrote.op == "__setitem__" or re.search(r"\w\[.*\]\s*[-+*/]+=", code):
        if re.match(r"\w+\[.*\+ 1\]", code):
            return f"collect the parts in a list and join them: `{x} = torch.stack(parts)`"
        return (
            f"write into a copy, `{x} = {x}.clone()` before the assignment, or choose with"
            " `torch.where`; `torch.stack` joins parts"
        )
    return _rewritten(wrote, x, code.partition("  #")[0].strip())


def _rewritten(wrote: Event, x: str, code: str) -> str:
    """Return the writing line, rewritten without the in-place operation."""
    augmented = re.match(r"(\w[\w.]*)\s*([-+*/]|\*\*)=\s*(.+)", code)
    if augmented and by_function(wrote.op).name in _SIGNED:
        return f"write `{augmented[1]} = {augmented[1]} {augmented[2]} {augmented[3]}`"
    if wrote.switch:
        return f"build `{wrote.site.module}` without `inplace=True`"
    for word in ("inplace=True", "out="):
        if word in code:
            return f"drop `{word}` in `{code}`, and use its result"
    if re.match(rf"{re.escape(x)}\.{wrote.op}\(", code):
        return f"write `{x} = {x}.{wrote.op[:-1]}(…)` for `{wrote.op}(…)`"
    if wrote.op.endswith("_") and not wrote.op.startswith("__"):
        return f"write `{wrote.op[:-1]}(…)` for `{wrote.op}(…)`: it returns a new tensor"
    return f"give it a copy: `{x}.clone()`"


def _leaf(case: Case) -> Explanation | None:
    if "leaf Variable" not in case.text or not case.failed.operands:
        return None
    failed = case.failed
    target = failed.operands[0]
    name = target.text or "a leaf"
    view = "a view of " if "a view of" in case.text else ""
    if failed.called == "[]" or failed.function == "__setitem__":
        fix = f"write under `torch.no_grad()`, or into a copy: `{name}.clone()`"
        return Explanation(
            f"{view or 'the leaf '}`{name}` {list(target.shape)}, a parameter (a leaf), is written"
            " in place.",
            fix,
        )
    value = "the result"
    if failed.called.endswith("=") and len(failed.arguments) > 1:
        value = f"`{name} {failed.called.removesuffix('=')} {failed.arguments[1]}`"
    fix = f"use {value} as a new tensor; to change the parameter, write under `torch.no_grad()`"
    if view:
        fact = f"`{name}` {list(target.shape)} is a view of a parameter (a leaf) that requires a"
        return Explanation(f"{fact} gradient, and is written to in place.", fix)
    return Explanation(
        f"`{name}` {list(target.shape)} is a leaf that requires a gradient: backward cannot"
        " separate its value before the write from the one after.",
        fix,
    )


def _view(case: Case) -> Explanation | None:
    if "is a view and is being modified inplace" not in case.text or not case.failed.operands:
        return None
    failed = case.failed
    target = failed.operands[0]
    x = target.text or "x"
    if "returns multiple views" in case.text:
        why = "one of several views that one operation returned"
    elif "no_grad" in case.text:
        why = "a view made under `torch.no_grad()`"
    else:
        why = "a view through which autograd cannot follow a write"
    sign = failed.called.removesuffix("=")
    fix = f"write `{x} = {x} {sign} {failed.arguments[1]}`" if failed.called.endswith("=") and len(
        failed.arguments) > 1 else f"write to a copy: `{x} = {x}.clone()` before it"  # fmt: skip
    return Explanation(f"`{x}` {list(target.shape)} is {why}: no write in place may follow.", fix)


_SIGN = (
    r"modified by an inplace operation|being modified inplace|used in an in-place operation"
    r"|leaf variable .* in-place"
)
_ADVICE = (
    "replace the in-place operation (`x += y`, `inplace=True`, `x[i] = y`) by one that returns"
    " a new tensor"
)
KIND = Kind({_SIGN: _ADVICE}, explain)
