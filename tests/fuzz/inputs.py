"""Command lines and files that are nearly right, each as hypothesis makes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
#: Configs that run in a moment.
CONFIGS = ("simplenet", "training-steps", "autocast")


@dataclass(frozen=True)
class Attempt:
    """A command, and the files that lie where it runs."""

    kind: str
    words: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)


_NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 10**12, 10**400]),
    st.floats(),
    st.sampled_from([1e308, -0.0, 5e-324]),
)
_WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "demo",
            "**",
            "re:(a+)+$",
            "type:Conv2d",
            "!",
            "../x",
            "/dev/null",
            "\x1b[2J",
            "\u202e",
        ]
    ),
)
_LEAVES = st.one_of(st.none(), st.booleans(), _NUMBERS, _WORDS)
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.sampled_from(
    [
        *("model", "weights", "checkpoint", "replace", "freeze", "mode", "input", "input.shape"),
        *("input.values", "input.fill", "input.batch", "input.dtype", "target", "loss", "backward"),
        *("backward.repeats", "layers", "interventions", "optimizer", "steps", "device", "dtype"),
        *("autocast", "seed", "call", "rules", "classes"),
    ]
)


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where everything in a tree lies, itself first."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    inner = parts if isinstance(tree, (dict, list)) else ()
    return [path, *(found for key, part in inner for found in _paths(part, (*path, key)))]


def _changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = _changed(tree[path[0]], path[1:], value)
    return copy


@st.composite
def configs(draw: st.DrawFn) -> Attempt:
    """A config of the project's in which a value or two are something else."""
    name = draw(st.sampled_from(CONFIGS))
    tree = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(_paths(tree)))
        tree = _changed(tree, path, draw(VALUES))
    text = yaml.safe_dump(tree, allow_unicode=draw(st.booleans()), sort_keys=False)
    return Attempt("config", ("inspect", "c.yaml"), {"c.yaml": text})


@st.composite
def texts(draw: st.DrawFn) -> Attempt:
    """A config whose text is cut, doubled or broken somewhere."""
    name = draw(st.sampled_from(CONFIGS))
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    put = draw(
        st.one_of(st.text(max_size=8), st.sampled_from(["&a", "*a", "!!", "<<: ", "\t", "- "]))
    )
    return Attempt("text", ("inspect", "c.yaml"), {"c.yaml": text[:start] + put + text[end:]})


@st.composite
def overrides(draw: st.DrawFn) -> Attempt:
    """``key=value`` with any value for a key that there is."""
    value = json.dumps(draw(VALUES))
    return Attempt("override", ("inspect", "demo", f"{draw(_KEYS)}={value}"))


@st.composite
def options(draw: st.DrawFn) -> Attempt:
    """Options with words that they may not take."""
    names = ["-l", "--exclude", "--device", "--dtype", "--seed", "-f", "--sort", "--top"]
    names += ["--columns", "--depth", "--bar", "--chain", "--width", "--color", "--steps"]
    word = draw(st.one_of(_WORDS, _NUMBERS.map(str))).replace("\0", "")
    return Attempt("option", ("inspect", "demo", draw(st.sampled_from(names)), word))


@st.composite
def records(draw: st.DrawFn, saved: str) -> Attempt:
    """A saved report in which a value or two are something else."""
    tree = json.loads(saved)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(_paths(tree)))
        tree = _changed(tree, path, draw(VALUES))
    format = draw(st.sampled_from(["terminal", "json", "csv", "markdown", "github", "sarif"]))
    return Attempt("record", ("show", "r.json", "-f", format), {"r.json": json.dumps(tree)})


@st.composite
def names(draw: st.DrawFn) -> Attempt:
    """Models by names that nobody has."""
    word = draw(st.text(min_size=1, max_size=20)).replace("\0", "")
    spec = draw(st.sampled_from(["{}", "torchvision:{}", "timm:{}", "./{}.py:Net", "hf:./{}"]))
    command = draw(st.sampled_from(["inspect", "why", "layers", "check", "graph"]))
    return Attempt("name", (command, "--", spec.format(word)))


def attempts(saved: str) -> st.SearchStrategy[Attempt]:
    """Any of them; ``saved`` is a report to break."""
    return st.one_of(configs(), texts(), overrides(), options(), names(), records(saved))
