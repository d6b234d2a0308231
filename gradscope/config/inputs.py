"""The form of ``input`` and ``target``: sources, and mappings and lists of them.

These checks need no file, model or tensor, so mistakes are reported together with those of other
keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gradscope.config.targets import MISSING, is_target, unwritten
from gradscope.config.words import Complaint, Path, describe, dotted, either, shorten, unknown_key
from gradscope.errors import did_you_mean

_LEAF: Final = ("dtype", "requires_grad", "batch")

#: Each kind of source, and the keys that may be beside it.
SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "shape": ("fill", *_LEAF),
    "image": ("transform", *_LEAF),
    "file": _LEAF,
    "text": ("batch",),
    "tokens": ("batch",),
    "values": _LEAF,
    "value": (),
}
#: Keys that a source may have in addition.
_BESIDE: Final = ("fill", *_LEAF, "transform")
_KEYS: Final = (*SOURCES, *_BESIDE)
TRANSFORM: Final = ("resize", "crop", "mean", "std", "grayscale", "invert")
_KINDS: Final = (
    "a source is `{shape: […]}`, `{image: PATH}`, `{file: PATH}`, `{text: …}`, `{tokens: […]}` or "
    "`{values: […]}`"
)


def is_source(value: Any) -> bool:
    """Return True for a source, or a non-empty list or mapping of sources only."""
    if isinstance(value, list):
        return bool(value) and all(map(is_source, value))
    if not isinstance(value, Mapping):
        return False
    return is_target(value) or any(key in SOURCES for key in value) or is_keywords(value)


def is_keywords(value: Any) -> bool:
    """Return True if a mapping holds keyword arguments: every value is a source.

    The names may be those of sources and their options, as in ``{image: {shape: …}}``.
    """
    if not isinstance(value, Mapping) or not all(map(is_source, value.values())):
        return False
    # A transform may be built, and is alone where pictures are named elsewhere.
    return bool(value) and not (set(value) == {"transform"} and is_target(value["transform"]))


def check_input(value: Any, path: Path = ("input",)) -> list[Complaint]:
    """Yield the mistakes in the form of ``input``."""
    if value is None or value == {}:
        return []
    if isinstance(value, list):
        if value and all(isinstance(item, int | float) for item in value):
            shape = ", ".join(shorten(str(item), 12) for item in value[:6])
            help = f"write `{{shape: [{shape}]}}` or `{{values: [{shape}]}}`"
            return [Complaint(path, f"`{dotted(path)}` is a list of numbers, not of sources", help)]
        return [c for index, item in enumerate(value) for c in check_input(item, (*path, index))]
    return _check_source(value, path)


def check_target(value: Any, path: Path = ("target",)) -> list[Complaint]:
    """Return complaints about the form of ``target``: numbers, a path, ``random``, sources."""
    if isinstance(value, list):
        return [c for index, item in enumerate(value) for c in check_target(item, (*path, index))]
    if isinstance(value, str) and len(path) > 1:
        help = "give a file as `target: FILE` or `{file: FILE}`"
        return [Complaint(path, f"`{dotted(path)}` is {describe(value)}, not a number", help)]
    if not isinstance(value, Mapping) or is_target(value):
        return []
    if any(key in SOURCES for key in value) and not is_keywords(value):
        return _check_source(value, path)
    return [c for key, item in value.items() for c in _check_part(key, item, path)]


def _check_part(key: str, item: Any, path: Path) -> list[Complaint]:
    if not isinstance(item, Mapping | list) and did_you_mean(key, SOURCES):
        return [unknown_key((*path, key), _KEYS)]
    return check_target(item, (*path, key))


def _check_source(value: Any, path: Path) -> list[Complaint]:
    if not isinstance(value, Mapping):
        return [_not_a_source(value, path)]
    if is_target(value):
        return []
    if is_keywords(value):
        return [c for key, item in value.items() for c in check_input(item, (*path, key))]
    if mixed := _mixed(value, path):
        return mixed
    kinds = [key for key in value if key in SOURCES]
    if not kinds:
        return _no_kind(value, path)
    if len(kinds) > 1:
        two = " and ".join(f"`{kind}`" for kind in kinds[:2])
        message = f"`{dotted(path)}` has {two}: a source is of one kind"
        return [Complaint((*path, kinds[1]), message, "keep one of the two", "key")]
    kind = kinds[0]
    found = [_beside(kind, (*path, key)) for key in value if key not in (kind, *SOURCES[kind])]
    return found + _check_parts(value, path)


def _mixed(value: Mapping[str, Any], path: Path) -> list[Complaint]:
    """Return complaints about values that are no sources, in a mapping of keyword arguments."""
    plain = {key: item for key, item in value.items() if not is_source(item)}
    # These may hold such mappings themselves.
    named = [key for key in value if key not in plain and key not in ("transform", "value")]
    if not named:
        return []
    note = f"`{shorten(named[0])}` is a source: so this mapping holds arguments by name"
    return [
        replace(
            complaint, notes=(note,), help=_instead(key, item, beside=named[0]) or complaint.help
        )
        for key, item in plain.items()
        for complaint in check_input(item, (*path, key)) or [_not_a_source(item, (*path, key))]
    ]


def _instead(key: str, value: Any, *, beside: str) -> str | None:
    """Return the advice for a source's key among arguments by name; None without advice."""
    if key in _BESIDE:
        return f"write it into the source: `{shorten(beside)}: {{…, {key}: …}}`"
    if key in SOURCES and not isinstance(value, Mapping):
        return f"an argument `{key}` has a source too: `{key}: {{{key}: …}}`"
    return None


def _beside(kind: str, path: Path) -> Complaint:
    allowed = SOURCES[kind]
    if path[-1] in _KEYS:
        help = f"beside it go {', '.join(allowed)}" if allowed else "nothing goes beside it"
        return Complaint(path, f"`{path[-1]}` does not go with `{kind}`", help, "key")
    help = f"beside `{kind}` go {', '.join(allowed)}" if allowed else "nothing goes beside it"
    return unknown_key(path, [*allowed, *SOURCES], help=help)


def _no_kind(value: Mapping[str, Any], path: Path) -> list[Complaint]:
    """Return the complaint about a mapping without a kind: a mistyped word, or arguments that are
    no sources."""
    mistyped = [
        unknown_key((*path, key), _KEYS)
        for key, item in value.items()
        if key not in _KEYS and not isinstance(item, Mapping) and did_you_mean(key.lower(), _KEYS)
    ]
    if mistyped:
        return mistyped
    modifiers = [key for key in value if key in _KEYS]
    if not path[1:] and set(value) <= {"batch", "requires_grad", "transform"}:
        # Wishes about the input that is inferred, or about pictures that are named elsewhere.
        return _check_parts(value, path)
    if modifiers:
        names = either(f"`{key}`" for key in modifiers)
        return [Complaint(path, f"`{dotted(path)}` has {names} and no kind of source", _KINDS)]
    return [
        complaint
        for key, item in value.items()
        if not is_source(item)
        for complaint in check_input(item, (*path, key)) or [_not_a_source(item, (*path, key))]
    ]


def _not_a_source(value: Any, path: Path) -> Complaint:
    help = _KINDS
    if isinstance(value, str) and value:
        end = value.lower().rpartition(".")[2]
        kind = "image" if end in ("png", "jpg", "jpeg", "gif", "bmp", "webp", "tif") else "text"
        kind = "file" if end in ("npy", "npz", "pt", "pth", "safetensors") else kind
        help = f"did you mean `{{{kind}: {shorten(value)}}}`?"
    elif isinstance(value, int | float):
        help = f"did you mean `{{values: {shorten(str(value).lower())}}}`?"
    return Complaint(path, f"`{dotted(path)}` expects a source, found {describe(value)}", help)


def _check_parts(value: Mapping[str, Any], path: Path) -> list[Complaint]:
    found: list[Complaint] = []

    def expect(key: str, fits: bool, words: str) -> None:
        if key in value and value[key] == MISSING and key != "text":
            found.append(unwritten((*path, key)))
        elif key in value and not fits:
            message = f"`{dotted((*path, key))}` expects {words}, found {describe(value[key])}"
            found.append(Complaint((*path, key), message))

    shape = value.get("shape")
    sizes = shape if isinstance(shape, list) else [shape]
    expect("shape", all(_is_size(size) for size in sizes), "a list of sizes, as in [2, 3, 8, 8]")
    for key in ("image", "text"):
        words = "a path, a pattern or a list of these" if key == "image" else "text or a list of it"
        items = value.get(key)
        texts = items if isinstance(items, list) and items else [items]
        expect(key, all(isinstance(text, str) for text in texts), words)
    expect("file", isinstance(value.get("file"), str), "the path of a file")
    batch = value.get("batch")
    expect("batch", batch is None or (_is_size(batch) and batch > 0), "an integer from 1")
    expect("requires_grad", isinstance(value.get("requires_grad"), bool), "true or false")
    dtype = value.get("dtype")
    expect("dtype", dtype is None or isinstance(dtype, str), "the name of a dtype, as in float32")
    transform = value.get("transform")
    expect("transform", transform is None or isinstance(transform, Mapping), "a mapping")
    if isinstance(transform, Mapping) and not is_target(transform):
        unknown = [key for key in transform if key not in TRANSFORM]
        found += [unknown_key((*path, "transform", key), TRANSFORM) for key in unknown]
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
