"""What is said of a birth: one sentence, where it spread, and the smallest fix."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gradscope.capture.stats import Measured, resolve
from gradscope.explain._births_levels import INF, KINDS, NAN
from gradscope.explain._births_origins import Origin
from gradscope.explain._values import Place
from gradscope.explain.frames import shown, source
from gradscope.records.answers import Birth

_ADVICE = "follow what went in back to where it grew so large, or became 0"
#: What a run is given goes by these names where there is one of each.
_ROLES = ("input", "target")


def births(origins: Iterable[Origin], parameters: Collection[str]) -> tuple[Birth, ...]:
    """The records of origins; ``parameters`` are the names of the model's."""
    listed = list(origins)
    measured: list[Measured] = [item for origin in listed for item in origin.inputs]
    done = resolve(measured)
    return tuple(
        Birth(
            kind=KINDS[origin.kind],
            phase=origin.phase,
            message=_message(origin),
            op=origin.op,
            name=origin.name or origin.place.module,
            call=origin.place.call,
            location=located(origin.place),
            reason=reason(origin),
            count=origin.told.count,
            inputs=tuple(done[id(item)] for item in origin.inputs),
            spread=compact(list(origin.spread), _home(origin), parameters),
            advice=origin.told.advice or _ADVICE,
        )
        for origin in listed
    )


def unseen(kind: int, phase: str, what: str) -> Birth:
    """Something is not finite, and no operation was seen to make it."""
    return Birth(
        kind=KINDS[kind],
        phase=phase,
        message=f"{what} is {_said(kind)}, and no operation that can be watched made it so:"
        " look at what runs compiled, or outside PyTorch.",
        spread=(what,),
    )


def located(place: Place) -> str | None:
    """``net.py:12``, where the line is known."""
    return f"{shown(place.file)}:{place.line}" if place.file else None


def reason(origin: Origin) -> str:
    """The arithmetic, with what the same function then made of it."""
    words = origin.told.counted
    if origin.and_then is None:
        return words
    return f"{words}, and {origin.and_then} is NaN"


def compact(names: list[str], module: str | None, parameters: Collection[str]) -> tuple[str, ...]:
    """Each parameter, and of the modules the outermost ones.

    Modules around the one that it was born in are left out: they hold it anyway.
    """
    parts = (module or "").split(".")
    around = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    modules = {name for name in names if name not in parameters} - around
    return tuple(
        name for name in names if name in parameters or (name in modules and not _in(name, modules))
    )


def _home(origin: Origin) -> str | None:
    """The module that it was born in, or that owns the parameter."""
    if origin.phase == "parameter" and origin.name:
        return origin.name.rpartition(".")[0]
    return origin.place.module


def _in(name: str, modules: Collection[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in modules)


def _said(kind: int) -> str:
    return "NaN" if kind == NAN else "infinite"


def _message(origin: Origin) -> str:
    what = "NaN" if origin.kind == NAN else "an infinity"
    name = f"`{origin.name}`"
    if origin.phase == "input" and origin.op is None:
        if origin.name is None:
            used = _at(origin.place)
            held = f"a tensor that was made before the run holds {what}: {origin.told.reason}"
            held += f"; it is first used{used}" if used else ""
        else:
            called = f"the {origin.name}" if origin.name in _ROLES else f"the input {name}"
            held = f"{called} holds {what} before the model runs: {origin.told.reason}"
        return f"{held}{_then(origin)}."
    if origin.phase == "parameter":
        return f"{name} holds {what} before the run: {origin.told.reason}{_then(origin)}."
    if origin.given:
        held = f"`{origin.op}`{_at(origin.place)} was given {origin.told.reason}, and it reached"
        stays = "the loss" if "loss" in origin.spread else "what stays"
        return f"{held} {stays}{_then(origin)}."
    of = "infinities" if origin.of_infinities else "finite numbers"
    words = reason(origin)
    if origin.phase == "step":
        made = f"`{origin.op}`{_at(origin.place)} made {what} of {of}"
        return f"{made}{f' in {name}' if origin.name else ''}: {words}{_then(origin)}."
    if origin.phase == "backward":
        where = _at(origin.place)
        of_what = f"of `{origin.function}`" if origin.function else "of what ran"
        back = f", the backward {of_what}{where}," if where else ""
        return f"`{origin.op}`{back} made {what} of {of}: {words}{_then(origin)}."
    return f"`{origin.op}`{_at(origin.place)} made {what} of {of}: {words}{_then(origin)}."


def _then(origin: Origin) -> str:
    turned = origin.turned
    if turned is None or origin.kind != INF:
        return ""
    lines = (turned.place.file, turned.place.line)
    same = lines == (origin.place.file, origin.place.line) and lines[0] is not None
    where = " on the same line" if same else _at(turned.place)
    return f"; `{turned.op}`{where} then made NaN of it ({turned.reason})"


def _at(place: Place) -> str:
    """Where an operation ran, with the line itself."""
    inside = (
        "" if place.module is None else f" in `{place.module}`" if place.module else " in the model"
    )
    if not (place.file and place.line):
        return inside
    line = source(place.file, place.line)
    return f" at {shown(place.file)}:{place.line}" + (f" (`{line}`)" if line else "") + inside
