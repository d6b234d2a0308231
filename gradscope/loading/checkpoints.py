"""Loads a file of weights into a model, in full or not at all; wrappers and prefixes are removed if
necessary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradscope.errors import ConfigError, Place, few, message_of
from gradscope.images.files import shown
from gradscope.loading.sources.tensor_files import read, require_values

WRAPPERS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.", "model.")


def load(model: nn.Module, path: Path, place: Place | None = None) -> list[str]:
    """Load a file into a model, in full or not; return notices on adjustments.

    Raises:
        ConfigError: the file cannot be read, holds no weights, or does not fit the model.
    """
    content = read(path, place)
    if not isinstance(content, Mapping) or not _holds(content):
        held = type(content).__name__
        raise ConfigError(
            f"{shown(path)} holds no weights by name, but a {held}",
            place=place,
            help=_where_they_are(path, content),
        )
    wanted = model.state_dict(keep_vars=True)
    undone, state = _best(content, wanted)
    notices = [f"checkpoint: {undone} undone"] if undone else []
    if wanted and all(t.is_meta for t in wanted.values() if isinstance(t, Tensor)):
        _require_fit(state, wanted, path, place)
        return [*notices, "checkpoint: fits; not loaded, the meta device has no values"]
    require_values(state.values(), path, place)
    filled = _fill_aliases(state, wanted, path, place)
    if filled:
        notices.append(
            f"checkpoint: {', '.join(filled)} taken from the name that shares the tensor"
        )
    _load_full(model, state, wanted, path, place)
    cast = {
        f"{value.dtype}"
        for name, value in state.items()
        if isinstance(value, Tensor) and name in wanted and value.dtype != wanted[name].dtype
    }
    if cast:
        notices.append(f"checkpoint: {', '.join(sorted(cast))} values cast to the model's dtype")
    return notices


def _where_they_are(path: Path, content: Any) -> str:
    """Return the advice for weights under an unusual key."""
    parts = content.items() if isinstance(content, Mapping) else ()
    keys = [key for key, part in parts if isinstance(part, Mapping) and _holds(part)]
    if not keys:
        return "save a state dict: torch.save(model.state_dict(), 'weights.pt')"
    held = " and ".join(f"`{key}`" for key in keys)
    return (
        f"{held} in it {'does' if len(keys) == 1 else 'do'}: save that alone, "
        f"torch.save(torch.load({str(path)!r})[{keys[0]!r}], 'weights.pt')"
    )


def _holds(content: Mapping[Any, Any]) -> bool:
    return next(_weights(content), None) is not None


def _weights(content: Mapping[Any, Any], depth: int = 2) -> Iterator[Tensor]:
    for name, value in content.items():
        if isinstance(value, Tensor):
            yield value
        elif depth and name in WRAPPERS and isinstance(value, Mapping):
            yield from _weights(value, depth - 1)


def _best(content: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the best-fitting reading of a file; if several fit equally, the one with the fewest
    changes."""

    def fit(candidate: tuple[str, dict[str, Any]]) -> tuple[int, int, int]:
        state = candidate[1]
        common = [name for name in state if name in wanted]
        same = sum(_shape(state[name]) == _shape(wanted[name]) for name in common)
        return same, len(common), -sum(isinstance(v, Tensor) for v in state.values())

    return max(_readings(content), key=fit)  # max keeps the first of equals


def _readings(content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a file's content as it is, then without wrappers and prefixes, fewest changes first."""
    levels: list[tuple[str, Mapping[str, Any]]] = [("", content)]
    for _ in range(2):
        levels += [
            (f"{message} and the wrapper `{key}`".removeprefix(" and "), inner[key])
            for message, inner in levels
            for key in WRAPPERS
            if isinstance(inner.get(key), Mapping)
        ]
    seen: list[int] = []
    for message, inner in levels:
        if id(inner) in seen:
            continue
        seen.append(id(inner))
        kept = {str(k): v for k, v in inner.items() if _belongs(str(k), v)}
        yield message, kept
        stripped: list[tuple[str, dict[str, Any]]] = [(message, kept)]
        for _ in range(2):
            stripped = [
                (f"{before} and the prefix `{prefix}`".removeprefix(" and "), _without(s, prefix))
                for before, s in stripped
                for prefix in PREFIXES
                if any(prefix in name for name in s)
            ]
            yield from stripped


def _belongs(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) or name.endswith("_extra_state")


def _without(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the keys without a leading prefix; ``_orig_mod.`` of torch.compile is removed
    anywhere."""
    if prefix == "_orig_mod.":
        return {name.replace(prefix, ""): value for name, value in state.items()}
    return {name.removeprefix(prefix): value for name, value in state.items()}


def _shape(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, Tensor) or is_lazy(value):
        return None
    return tuple(value.shape)


def _fill_aliases(
    state: dict[str, Any], wanted: Mapping[str, Any], path: Path, place: Place | None
) -> list[str]:
    """Give each name of a shared tensor the value that one of them has: safetensors keeps one."""
    groups: dict[int, list[str]] = {}
    for name, value in wanted.items():
        groups.setdefault(id(value), []).append(name)
    filled = []
    for names in groups.values():
        present = [name for name in names if name in state]
        if not present or len(names) == 1:
            continue
        first = present[0]
        for name in present[1:]:
            if not _equal(state[first], state[name]):
                raise ConfigError(
                    f"{shown(path)} has different values for `{first}` and `{name}`, "
                    "which are one tensor in the model",
                    place=place,
                    help="the file comes from a model that does not tie them",
                )
        missing = [name for name in names if name not in state]
        state.update(dict.fromkeys(missing, state[first]))
        filled += [f"`{name}`" for name in missing]
    return filled


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    # NaN beside NaN is no difference.
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _load_full(
    model: nn.Module,
    state: dict[str, Any],
    wanted: Mapping[str, Any],
    path: Path,
    place: Place | None,
) -> None:
    """Load; on a mismatch, restore the old weights and report it.

    Only loading can tell, because modules may rename old keys.
    """
    before = {
        name: value.detach().clone()
        for name, value in wanted.items()
        if isinstance(value, Tensor) and not is_lazy(value)
    }
    try:
        model.load_state_dict(state, strict=True)
    except Exception as error:  # RuntimeError for misfits; modules' own hooks raise anything
        with torch.no_grad():
            for name, value in before.items():
                wanted[name].copy_(value)
        _require_fit(state, wanted, path, place)
        lines = message_of(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"{shown(path)} does not fit the model: {' '.join(line.strip() for line in lines[:3])}",
            place=place,
        ) from error


def _require_fit(
    state: Mapping[str, Any], wanted: Mapping[str, Any], path: Path, place: Place | None
) -> None:
    """Raise with counts, first names and both shapes, unless names and shapes are the same."""
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    shapes = [
        f"`{name}`: {_listed(state[name])} in the file, {_listed(wanted[name])} in the model"
        for name in wanted
        if name in state and None is not _shape(wanted[name]) != _shape(state[name])
    ]
    if not (missing or unexpected or shapes):
        return
    counts = f"{len(missing)} missing, {len(unexpected)} unexpected, {len(shapes)} of another shape"
    notes = []
    if missing:
        notes.append(f"missing from the file: {few(missing, '`')}")
    if unexpected:
        notes.append(f"unknown to the model: {few(unexpected, '`')}")
    notes += shapes[:3] + ([f"and {len(shapes) - 3} more"] if len(shapes) > 3 else [])
    help = "`replace` is applied before the checkpoint: use it to give layers the file's shapes"
    if not shapes:
        help = "the file is from another model, or from a part of one"
    raise ConfigError(
        f"{shown(path)} does not fit the model, nothing was loaded: "
        f"of {len(wanted)} names {counts}",
        place=place,
        help=help,
        notes=notes,
    )


def _listed(value: Any) -> str:
    shape = _shape(value)
    return str(list(shape)) if shape is not None else "no tensor"
