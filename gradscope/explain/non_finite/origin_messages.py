"""The message on an origin: one sentence, where it spread, and the smallest fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gradscope.capture.stats import Measured, resolve
from gradscope.explain.non_finite.levels import INF, KINDS, NAN
from gradscope.explain.non_finite.origins import ObservedOrigin
from gradscope.explain.shared.call_site import CallSite
from gradscope.records.answers import NonFiniteOrigin

_ADVICE = "trace its inputs back to where they became so large, or 0"
#: What a run is given goes by these names where there is one of each.
_ROLES = ("input", "target")


def records(
    origins: Iterable[ObservedOrigin], parameters: Collection[str]
) -> tuple[NonFiniteOrigin, ...]:
    """The records of origins; ``parameters`` are the names of the model's."""
    listed = list(origins)
    measured: list[Measured] = [item for origin in listed for item in origin.inputs]
    done = resolve(measured)
    return tuple(
        NonFiniteOrigin(
            kind=KINDS[origin.kind],
            phase=origin.phase,
            message=_message(origin),
            op=origin.op,
            name=origin.name or origin.site.module,
            call=origin.site.call,
            location=origin.site.location,
            reason=reason(origin),
            count=origin.reason.count,
            inputs=tuple(done[id(item)] for item in origin.inputs),
            spread=compact(list(origin.spread), _home(origin), parameters),
            advice=origin.reason.advice or _ADVICE,
        )
        for origin in listed
    )


def unseen(kind: int, phase: str, what: str) -> NonFiniteOrigin:
    """A tensor has NaN or Inf, and no traced operation made it."""
    return NonFiniteOrigin(
        kind=KINDS[kind],
        phase=phase,
        message=f"{what} is {_kind_text(kind)}, but no traced operation made it:"
        " check compiled code and code outside PyTorch.",
        spread=(what,),
    )


def reason(origin: ObservedOrigin) -> str:
    """The arithmetic, with what the same function then made of it."""
    text = origin.reason.counted
    if origin.and_then is None:
        return text
    return f"{text}, and {origin.and_then} is NaN"


def compact(names: list[str], module: str | None, parameters: Collection[str]) -> tuple[str, ...]:
    """Each parameter, and of the modules the outermost ones.

    Modules around the one that made it are left out: they contain it anyway.
    """
    parts = (module or "").split(".")
    around = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    modules = {name for name in names if name not in parameters} - around
    return tuple(
        name for name in names if name in parameters or (name in modules and not _in(name, modules))
    )


def _home(origin: ObservedOrigin) -> str | None:
    """The module that made it, or that owns the parameter."""
    if origin.phase == "parameter" and origin.name:
        return origin.name.rpartition(".")[0]
    return origin.site.module


def _in(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in modules)


def _kind_text(kind: int) -> str:
    return "NaN" if kind == NAN else "infinite"


def _message(origin: ObservedOrigin) -> str:
    what = "NaN" if origin.kind == NAN else "Inf"
    name = f"`{origin.name}`"
    if origin.phase == "input" and origin.op is None:
        if origin.name is None:
            used = _at(origin.site)
            text = f"a tensor made before the run has {what}: {origin.reason.text}"
            text += f"; it is first used{used}" if used else ""
        else:
            called = f"the {origin.name}" if origin.name in _ROLES else f"the input {name}"
            text = f"{called} has {what} before the model runs: {origin.reason.text}"
        return f"{text}{_then(origin)}."
    if origin.phase == "parameter":
        return f"{name} has {what} before the run: {origin.reason.text}{_then(origin)}."
    if origin.deliberate:
        text = f"`{origin.op}`{_at(origin.site)} got {origin.reason.text}, which reached"
        reached = "the loss" if "loss" in origin.spread else "a result"
        return f"{text} {reached}{_then(origin)}."
    of = "Inf" if origin.of_infinities else "finite numbers"
    text = reason(origin)
    if origin.phase == "step":
        made = f"`{origin.op}`{_at(origin.site)} made {what} from {of}"
        return f"{made}{f' in {name}' if origin.name else ''}: {text}{_then(origin)}."
    if origin.phase == "backward":
        where = _at(origin.site)
        of_what = f"of `{origin.function}`" if origin.function else "of the operation"
        back = f", the backward {of_what}{where}," if where else ""
        return f"`{origin.op}`{back} made {what} from {of}: {text}{_then(origin)}."
    return f"`{origin.op}`{_at(origin.site)} made {what} from {of}: {text}{_then(origin)}."


def _then(origin: ObservedOrigin) -> str:
    became_nan = origin.became_nan
    if became_nan is None or origin.kind != INF:
        return ""
    lines = (became_nan.site.file, became_nan.site.line)
    same = lines == (origin.site.file, origin.site.line) and lines[0] is not None
    where = " on the same line" if same else _at(became_nan.site)
    return f"; `{became_nan.op}`{where} then made NaN from it ({became_nan.reason})"


def _at(site: CallSite) -> str:
    """Where an operation ran, with the line itself."""
    return site.at_code + (" in the model" if site.module == "" else site.within)
