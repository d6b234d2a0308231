"""Values that a key may not take, and where in a tree they are put."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63) - 1, 10**7, 10**12, 10**400]),
    st.floats(),
    st.sampled_from([1e308, 1e19, -0.0, 5e-324]),
)
#: Words that mean something to the shell, a terminal, a pattern, a path, Python or a library.
MEANING = [
    *("", "demo", "**", "*.*", "!", "~", "-", "--", "..", ".", "/", "../x", "null", "DEFAULT"),
    *("re:(a+)+$", "re:(.*)*x", "re:[", "re:\\", "type:Conv2d", "type:", "[", "${env:HOME}"),
    *("/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/self/environ", "/etc"),
    *("\x1b[2J", "\u202e", "\x00", "\ud800", "a" * 5000, "*a" * 20, "randint(0)", "nan", "1e999"),
    *("randint(99999999999999999999)", "randn", "os.system", "__class__", "torch.load", "{}"),
]
WORDS = st.one_of(st.text(max_size=20), st.sampled_from(MEANING))
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
#: What a command line can carry.
ARGUMENTS = st.one_of(WORDS, NUMBERS.map(str)).map(
    lambda word: word.replace("\0", "").encode("utf-8", "replace").decode()
)


def paths(tree: Any) -> list[tuple[Any, ...]]:
    """Return the paths of all items in a tree of mappings and lists, the root first."""
    found, waiting = [], [((), tree)]
    while waiting:
        path, part = waiting.pop()
        found.append(path)
        inner = part.items() if isinstance(part, dict) else ()
        inner = enumerate(part) if isinstance(part, list) else inner
        waiting += [((*path, key), value) for key, value in inner]
    return found


def changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of the tree in which something else stands at ``path``."""
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = changed(tree[path[0]], path[1:], value)
    return copy


@st.composite
def trees(draw: st.DrawFn, tree: Any) -> Any:
    """A tree in which a value or two are something else, gone, or under another name."""
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(paths(tree)))
        how = draw(st.sampled_from(["value", "value", "value", "gone", "named", "deep"]))
        if how == "value" or not path:
            tree = changed(tree, path, draw(VALUES))
            continue
        *above, last = path
        parent = tree
        for key in above:
            parent = parent[key]
        if how == "deep":
            deep: Any = parent[last]
            for _ in range(draw(st.sampled_from([1, 60, 300]))):
                deep = [deep]
            tree = changed(tree, path, deep)
        elif isinstance(parent, list):
            tree = changed(tree, tuple(above), parent[:last] + parent[last + 1 :])
        else:
            name = draw(WORDS)
            kept = {
                (name if how == "named" and key == last else key): value
                for key, value in parent.items()
                if how == "named" or key != last
            }
            tree = changed(tree, tuple(above), kept)
    return tree


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that are cut, overwritten, doubled or grown somewhere, most often near the start."""
    for _ in range(draw(st.integers(1, 3))):
        end = draw(st.sampled_from([min(64, len(data)), min(512, len(data)), len(data)]))
        start = draw(st.integers(0, max(end - 1, 0)))
        how = draw(st.sampled_from(["cut", "byte", "byte", "many", "insert", "drop", "double"]))
        some = draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8)))
        if how == "cut":
            data = data[:start]
        elif how == "byte":
            data = data[:start] + some[:1] + data[start + 1 :]
        elif how == "many":
            data = data[:start] + some + data[start + len(some) :]
        elif how == "insert":
            data = data[:start] + some + data[start:]
        elif how == "drop":
            data = data[:start] + data[start + len(some) :]
        else:
            data = data[:end] + data[start:]
    return data
