"""Cuts a JSON document to a number of tokens: the worst entries stay longest, and it lists what was
left out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

#: Least number of characters per token: names and numbers in JSON have about three.
_CHARACTERS: Final = 3
#: Nothing shorter can be a document.
LEAST_TOKENS: Final = 200
#: Length of an answer to an agent, unless another number is asked for.
TOKENS: Final = 8_000

_SEVERITIES: Final = {"error": 0, "warning": 1, "info": 2}
#: Keys in the order in which they are dropped: the reader needs the first one least.
_DISPENSABLE: Final = (
    *("config", "versions", "ranks", "modules", "judged", "not_judged", "values", "history"),
    *("events", "norms", "links", "chains", "activity", "attention", "experts", "residual"),
    *("state", "signals", "without", "others", "mixing", "notes", "notices", "evidence"),
    *("nodes", "calls", "step_metrics", "parameters", "models"),
)
#: Series within rows; each row also has their summary.
_INSIDE: Final = ("activations", "changes", "losses")
#: Largest lengths of tables and series, tried in turn: with the series within rows, then without
#: them.
_LENGTHS: Final = ((256, 64, 16), (16, 4, 1))
_LONGEST_TEXT: Final = 400
#: Keys of the worst finding or answer that stay if nothing else fits, and the length of their
#: texts.
_BRIEF: Final = ("code", "name", "severity", "state", "cause", "message", "advice", "location")
_SHORTEST_TEXT: Final = 100
_LEFT_OUT: Final = "left_out"
#: Lists that the reader came for.
_FOUND: Final = ("findings", "answers", "layers", "arms", "samples", "rules")
#: The result in words.
_RESULT: Final = ("status", "step", "cause", "message", "advice")


def shortened(text: str, tokens: int) -> str:
    """Return the document with the worst first, cut until it fits.

    Findings are sorted by severity, and rows named by a finding come before others. A series keeps
    its first, its last and evenly spaced steps. ``left_out`` has the number of entries that each
    list lost.

    Args:
        text: the JSON text.
        tokens: the largest number of tokens, at three characters each.
    """
    most = max(tokens, LEAST_TOKENS) * _CHARACTERS
    data = _worst_first(json.loads(text))
    found = _text(data)
    shorter = _shorter(data)
    while len(found) > most:
        data = next(shorter, None)
        if data is None:
            return _text({_LEFT_OUT: "everything: it does not fit"})
        found = _text(data)
    return found


def _text(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _worst_first(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    named = [one.get("name") for one in _entries(data, "findings") + _entries(data, "answers")]
    ordered = {}
    for key, value in data.items():
        if key == "models" and isinstance(value, list):  # of a check, each with its findings
            value = [_worst_first(one) for one in value]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = sorted(value, key=lambda one: _badness(one, named))  # stable
        ordered[key] = value
    return ordered


def _entries(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = data.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _badness(one: dict[str, Any], named: list[Any]) -> tuple[int, int]:
    severities = [str(found.get("severity")) for found in (one, *_entries(one, "findings"))]
    severity = min(_SEVERITIES.get(word, len(_SEVERITIES)) for word in severities)
    name = str(one.get("name", ""))
    known = name in named or name.rpartition(".")[0] in named
    return severity, 0 if known else 1


def _shorter(data: Any) -> Iterator[Any]:
    """Yield the document in shorter and shorter forms."""
    before, after = _LENGTHS
    for length in before:
        yield (data := _cut(data, length))
    yield (data := _without_series(data))
    for length in after:
        yield (data := _cut(data, length))
    for key in _DISPENSABLE:
        if isinstance(data, dict) and key in data and not _found_in(data.get(key)):
            left = {name: value for name, value in data.items() if name != key}
            before = data.get(_LEFT_OUT, {})
            lost = {name: n for name, n in before.items() if not name.startswith(f"{key}.")}
            yield (data := {**left, _LEFT_OUT: {**lost, key: "all"}})
    yield (data := _cut(data, 1, texts=True))
    if isinstance(data, dict):
        result = _kept(data, _RESULT, _LONGEST_TEXT)
        first = {key: found for key in _FOUND if (found := _worst(data, key))}
        yield {**result, **first, _LEFT_OUT: "everything else"}
        result = _kept(data, _RESULT, _SHORTEST_TEXT)
        brief = {
            key: [_kept(one, _BRIEF, _SHORTEST_TEXT) for one in found]
            for key, found in [*first.items()][:1]
        }
        yield {**result, **brief, _LEFT_OUT: "everything else"}
        yield {**(brief or result), _LEFT_OUT: "everything else"}


def _found_in(value: Any) -> bool:
    """Return True for a list of models if one has findings."""
    rows = value if isinstance(value, list) else []
    return any(isinstance(one, dict) and _entries(one, "findings") for one in rows)


def _worst(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the first finding or answer; for a check, that of the worst model."""
    models = _entries(data, "models")
    return (_entries(data, key) or [one for model in models for one in _entries(model, key)])[:1]


def _kept(one: dict[str, Any], keys: tuple[str, ...], longest: int) -> dict[str, Any]:
    """Return these of its values, with each text cut to a length."""
    return {key: _shown(one[key], longest) for key in keys if one.get(key) is not None}


def _without_series(data: Any) -> Any:
    """Return the document without the series inside its rows."""
    if not isinstance(data, dict):
        return data
    lost = {
        f"{table}.{key}": "all"
        for table in _FOUND
        for row in _entries(data, table)
        for key in _INSIDE
        if row.get(key)
    }
    if not lost:
        return data
    shorter = {
        table: [{k: v for k, v in row.items() if k not in _INSIDE} for row in _entries(data, table)]
        for table in {name.partition(".")[0] for name in lost}
    }
    before = data.get(_LEFT_OUT, {})
    left = {name: n for name, n in before.items() if name not in lost}
    return {**data, **shorter, _LEFT_OUT: {**left, **lost}}


def _shown(value: Any, longest: int) -> Any:
    """Cut a text to a length; return anything else unchanged."""
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}…"
    return value


def _cut(data: Any, length: int, *, texts: bool = False) -> Any:
    """Cut the document's lists to a length."""
    lost: dict[str, int] = {}
    cut = _cut_inside(data, length, "", lost, texts)
    if lost and isinstance(cut, dict):
        before = cut.get(_LEFT_OUT, {})
        counts = {key: n + before.get(key, 0) for key, n in lost.items()}
        cut[_LEFT_OUT] = {**before, **counts}
    return cut


def _cut_inside(data: Any, length: int, place: str, lost: dict[str, int], texts: bool) -> Any:
    if isinstance(data, dict):
        return {
            key: value
            if key == _LEFT_OUT
            else _cut_inside(value, length, f"{place}.{key}".lstrip("."), lost, texts)
            for key, value in data.items()
        }
    if isinstance(data, list):
        # Findings and answers are what the reader came for.
        most = 4 * length if place in _FOUND else length
        if len(data) > most:
            rows = bool(data) and isinstance(data[0], dict)
            lost[place] = max(lost.get(place, 0), len(data) - most)
            data = data[:most] if rows else _spaced(data, most)
        return [_cut_inside(one, length, place, lost, texts) for one in data]
    return _shown(data, _LONGEST_TEXT) if texts else data


def _spaced(series: list[Any], most: int) -> list[Any]:
    """Return the places to keep in all series of one length: the last, and if there is room, the
    first."""
    if most == 1:
        return series[-1:]
    last = len(series) - 1
    return [series[math.floor(i * last / (most - 1))] for i in range(most)]
