"""The form of input and target: sources, keyword arguments, positional arguments, and mistakes."""

from __future__ import annotations

import pytest

from gradscope.config.inputs import is_keywords, is_source
from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError

SHAPE = {"shape": [1]}


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        SHAPE,
        {"shape": []},
        {"shape": 5},
        {"shape": [2, 3], "fill": "ones", "dtype": "int64", "requires_grad": True, "batch": 2},
        {"image": "a.png", "transform": {"resize": 3, "crop": [2, 2], "invert": True}},
        {"image": ["a.png", "b*.png"], "transform": {"_target_": "t.T"}},
        {"file": "x.npy"},
        {"text": ["a", "b"]},
        {"tokens": [[1, 2]]},
        {"values": 3},
        {"value": None},
        {"_target_": "./data.py:batches"},
        [SHAPE, {"values": [1.5]}],
        {"x": SHAPE, "y": {"file": "x.pt"}},
        {"shape": SHAPE, "image": {"image": "a.png"}},
        {"images": [SHAPE, SHAPE], "targets": [{"boxes": {"values": [[0, 0, 1, 1]]}}]},
    ],
)
def test_inputs_that_pass(value):
    assert read({"model": "demo", "input": value}).config.input == value


@pytest.mark.parametrize(
    ("value", "message", "help"),
    [
        ({"shpe": [1]}, "unknown key `shpe` in `input`", "did you mean `shape`?"),
        ({"img": "a.png"}, "unknown key `img` in `input`", "did you mean `image`?"),
        ({"shape": [1], "fil": 1}, "unknown key `fil` in `input`", "did you mean `fill`?"),
        (
            {"shape": [1], "transform": {}},
            "`transform` does not go with `shape`",
            "beside it go fill, dtype, requires_grad, batch",
        ),
        (
            {"shape": [1], "image": "a"},
            "`input` has `shape` and `image`: a source is of one kind",
            "keep one of the two",
        ),
        ({"x": SHAPE, "y": 3}, "`input.y` expects a source, found the number 3", "did you mean"),
        ({"x": SHAPE, "y": "a.png"}, "`input.y` expects a source", "did you mean `{image: a.png}`"),
        ({"fill": "ones"}, "`input` has `fill` and no kind of source", "a source is"),
        ([2, 3], "`input` is a list of numbers, not of sources", "write `{shape: [2, 3]}` or"),
        ([SHAPE, 3], "`input.1` expects a source, found the number 3", "did you mean"),
        ("photo.jpg", '`input` expects a source, found the text "photo.jpg"', "did you mean"),
        ({"shape": ["x"]}, "`input.shape` expects a list of sizes, as in [2, 3, 8, 8]", None),
        ({"shape": [-1]}, "`input.shape` expects a list of sizes", None),
        ({"file": 3}, "`input.file` expects the path of a file, found the number 3", None),
        ({"shape": [1], "batch": 0}, "`input.batch` expects an integer from 1", None),
        ({"shape": [1], "requires_grad": "yes"}, "`input.requires_grad` expects true or", None),
        ({"shape": [1], "dtype": 32}, "`input.dtype` expects the name of a dtype", None),
        (
            {"image": "a", "transform": {"resise": 1}},
            "unknown key `resise` in `input.transform`",
            "did you mean `resize`?",
        ),
        (
            {"transform": {"resise": 1}},
            "unknown key `resise` in `input.transform`",
            "did you mean `resize`?",
        ),
        (
            {"image": SHAPE, "mask": 3},
            "`input.mask` expects a source, found the number 3",
            "did you mean `{values: 3}`?",
        ),
        (
            {"image": "a.png", "mask": SHAPE},
            '`input.image` expects a source, found the text "a.png"',
            "an argument `image` has a source too: `image: {image: …}`",
        ),
        (
            {"x": SHAPE, "dtype": "int64"},
            '`input.dtype` expects a source, found the text "int64"',
            "write it into the source: `x: {…, dtype: …}`",
        ),
        (
            {"batch": SHAPE, "index": 3},
            "`input.index` expects a source, found the number 3",
            "did you mean `{values: 3}`?",
        ),
        ({"x": {"shape": "???"}}, "`input.x.shape` has no value yet", "write one in place of"),
        ({"batch": 0}, "`input.batch` expects an integer from 1", None),
        ({"x": {"shpe": [1]}}, "unknown key `shpe` in `input.x`", "did you mean `shape`?"),
        ({"class_path": "a.B", "x": 1}, "unknown key `x` in `input`", "put it into `init_args`"),
    ],
)
def test_inputs_that_fail(value, message, help):
    with pytest.raises(ConfigError) as caught:
        read({"model": "demo", "input": value})
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert (problem.help or "").startswith(help or "")


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [3, 7],
        [[0.5], [1]],
        "random",
        "labels.npy",
        {"file": "labels.npy"},
        {"values": [1]},
        [{"boxes": {"values": [[0, 0, 1, 1]]}, "labels": {"values": [1]}}],
    ],
)
def test_targets_that_pass(value):
    assert read({"model": "demo", "target": value}).config.target == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"flie": "x.npy"}, "unknown key `flie` in `target`"),
        ({"file": "x.npy", "bach": 3}, "unknown key `bach` in `target`"),
        ([3, "cat"], '`target.1` is the text "cat", not a number'),
    ],
)
def test_targets_that_fail(value, message):
    with pytest.raises(ConfigError) as caught:
        read({"model": "demo", "target": value})
    assert caught.value.problems[0].message == message


def test_a_mapping_is_keywords_only_if_every_value_is_a_source():
    assert is_keywords({"shape": SHAPE})
    assert is_keywords({"x": [SHAPE, SHAPE]})
    assert not is_keywords({"x": SHAPE, "y": [1]})
    assert not is_keywords({"shape": [1]})
    assert not is_keywords({"transform": {"_target_": "t.T"}})  # which pictures get
    assert is_source({"x": {"y": SHAPE}})
    assert not is_source([])
