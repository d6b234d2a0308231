"""YAML 1.2: what a word means, which text is refused and where, and that nothing else comes out."""

from __future__ import annotations

import math

import pytest

from gradscope.config.words import Text
from gradscope.config.yaml12 import parse, scalar
from gradscope.errors import ConfigError


def load(body: str):
    document = parse(Text.of_file("m.yaml", body), body)
    if document.problems:
        raise ConfigError(*document.problems)
    return document.data


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("+5", 5),
        ("-0", 0),
        ("0o17", 15),
        ("012", 12),
        ("0x1F", 31),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("1:20", "1:20"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2001-01-01", "2001-01-01"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("=", "="),
        ("<<", "<<"),
        ("1e999", math.inf),
        ("torchvision:resnet18", "torchvision:resnet18"),
    ],
)
def test_a_word_means_what_yaml_1_2_says(word, value):
    loaded = load(f"key: {word}")["key"]
    assert loaded == value
    assert type(loaded) is type(value)
    assert scalar(word) == value


def test_nan_is_a_number():
    assert math.isnan(load("a: .nan")["a"])
    assert math.isnan(scalar(".NaN"))


@pytest.mark.parametrize(
    ("body", "data"),
    [
        ("a: '1e-3'", {"a": "1e-3"}),
        ("a: !!str 12", {"a": "12"}),
        ("a: !!float 1", {"a": 1.0}),
        ('{"a":1,"b":[true]}', {"a": 1, "b": [True]}),
        ("%YAML 1.2\n---\na: 1\n...\n", {"a": 1}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
        ("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}", {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}),
        ("a: {<<: [{p: 1}, {p: 2, q: 2}]}", {"a": {"p": 1, "q": 2}}),
        ("# nothing", None),
        ("", None),
    ],
)
def test_what_passes(body, data):
    assert load(body) == data


@pytest.mark.parametrize(
    ("body", "message", "line", "column"),
    [
        ("a: 1\nb: 2\na: 3", "duplicate key `a`", 3, 1),
        ("a: {b: 1, 'b': 2}", "duplicate key `b`", 1, 11),
        ("a: {<<: {}, <<: {}}", "duplicate key `<<`", 1, 13),
        ("a:\n\tb: 1", "not YAML: a tab where YAML allows none", 2, 1),
        ("a: b: c", "not YAML: a second `: ` in one value, or an indent that fits", 1, 5),
        ("a: 'x", "not YAML: a quote is never closed", 1, 6),
        ("a: [1, 2", "not YAML: expected ',' or ']', but got the end of the text", 1, 9),
        ("a:\n  b: 1\n c: 2", "not YAML: the indent fits none of the lines above", 3, 2),
        ("a: 1\n---\nb: 2", "not YAML: a second document starts here", 2, 1),
        ("a: @x", "not YAML: found character '@' that cannot start any token", 1, 4),
        ("a: [**]", "not YAML: expected alphabetic or numeric character, but found '*'", 1, 6),
        ("a: [*conv]", "not YAML: found undefined alias 'conv'", 1, 5),
        ("a: [!fc.* ]", "unknown tag `!fc.*`", 1, 5),
        ("a: !!python/object:os.system x", "unknown tag `!!python/object:os.system`", 1, 4),
        ("a: !!python/object/apply:os.system [x]", "unknown tag `!!python/object/apply", 1, 4),
        ("a: !!set {x}", "unknown tag `!!set`", 1, 4),
        ("a: !!binary aGk=", "unknown tag `!!binary`", 1, 4),
        ("a: !!int x", 'the text "x" is not of the type `!!int`', 1, 4),
        ("&a [*a]", "not YAML: `*a` is inside the value that it repeats", 1, 5),
        ("a: &a {b: *a}", "not YAML: `*a` is inside the value that it repeats", 1, 11),
        ("a\0b: 1", "not YAML: a NUL byte", 1, 2),
        ("a: 1\nb: \x1b[31m", "not YAML: the control character U+001B", 2, 4),
        ('a: "\\0"', "a text with a NUL or half a character in it", 1, 4),
        ('a: "\\ud800"', "a text with a NUL or half a character in it", 1, 4),
        ('a: "\\UFFFFFFFF"', "not YAML: ", 1, 7),
        ("%YAML " + "9" * 5000 + ".1\n---\na: 1", "not YAML: ", 1, 7),
        ("a: " + "9" * 5000, "a number of more than 1000 digits", 1, 4),
        ("a: 0x" + "f" * 5000, "a number of more than 1000 digits", 1, 4),
        ("1: x", "a key must be text, found the number 1", 1, 1),
        ("true: x", "a key must be text, found `true`", 1, 1),
        ("~: x", "a key must be text, found nothing (null)", 1, 1),
        ("[a]: x", "a key must be text, found a list", 1, 1),
        ("? {a: 1}\n: x", "a key must be text, found a mapping", 1, 3),
        ("<<: 1", "`<<` merges mappings only", 1, 5),
        ("a: &x 1\nb: &x 2", "not YAML: the anchor's name is taken", 2, 4),
        ("[" * 10_000, "not YAML: nested deeper than 100", 1, 101),
        ("{a: " * 10_000, "not YAML: nested deeper than 100", 1, 398),
        ("- " * 10_000, "not YAML: nested deeper than 100", 1, 201),
    ],
)
def test_what_fails_and_where(body, message, line, column):
    with pytest.raises(ConfigError) as caught:
        load(body)
    problem = caught.value.problems[0]
    assert problem.message.startswith(message)
    assert (problem.place.file, problem.place.line, problem.place.column) == (
        "m.yaml",
        line,
        column,
    )
    assert "\x1b" not in caught.value.render()


def _laughs(levels: int, width: int) -> str:
    lines = ["a0: &a0 [x, x]"]
    repeats = ["*a{0}"] * width
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join(repeats).format(level - 1)}]")
    return "\n".join(lines)


def test_aliases_that_expand_to_billions_are_counted_and_not_expanded():
    with pytest.raises(ConfigError, match="more than 200000 values, aliases expanded"):
        load(_laughs(60, 9))


def test_aliases_that_nest_without_end_are_refused():
    with pytest.raises(ConfigError, match="nested deeper than 100, aliases expanded"):
        load(_laughs(500, 1))


def test_merges_of_merges_are_counted_too():
    keys = ", ".join(f"k{i}: 1" for i in range(1000))
    with pytest.raises(ConfigError, match="more than 200000 values"):
        load(f"b: &b {{{keys}}}\nc: {{<<: [{', '.join(['*b'] * 1000)}]}}")


def test_all_duplicates_are_named_at_once_with_both_places():
    with pytest.raises(ConfigError) as caught:
        load("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert [p.message for p in caught.value.problems] == ["duplicate key `a`", "duplicate key `c`"]
    assert caught.value.problems[0].notes == ("`a` was first given at line 1, column 1",)


def test_a_pattern_without_quotes_is_told_to_take_them():
    for body in ("layers: [**]", "layers: [*norm]", "freeze: [!fc.**]", "freeze: [a, !b ]"):
        with pytest.raises(ConfigError) as caught:
            load(body)
        assert "in quotes" in caught.value.problems[0].help
