"""Paths to tensors in nested arguments and results."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch

from gradscope.capture.calls import call_tensors
from gradscope.nesting import find, replaced

Pair = namedtuple("Pair", "first second")


@dataclass
class Result:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    name: str = "x"


def paths(tree):
    return [path for path, _ in find(tree, torch.Tensor)]


def test_paths():
    a = torch.ones(1)
    assert paths(a) == [""]
    assert paths((a, [a, {"x": a}], None, 3, "word")) == ["0", "1.0", "1.1.x"]
    assert paths(OrderedDict(loss=a, out=(a, a))) == ["loss", "out.0", "out.1"]
    assert paths(Pair(a, [a])) == ["first", "second.0"]
    assert paths(Result(a, (a, a))) == ["logits", "hidden.0", "hidden.1"]


def test_a_call_numbers_its_arguments_and_names_its_keywords():
    a = torch.ones(1)
    assert [p for p, _ in call_tensors((a, [a]), {"mask": a})] == ["0", "1.0", "mask"]


def test_a_list_that_holds_itself_ends():
    loop = [torch.ones(1)]
    loop.append(loop)
    assert paths(loop) == ["0"]


def test_a_list_in_two_places_is_met_twice():
    shared = [torch.ones(1)]
    assert paths({"a": shared, "b": shared}) == ["a.0", "b.0"]


def test_nesting_deeper_than_the_recursion_limit():
    deep = torch.ones(1)
    for _ in range(2000):
        deep = [deep]
    assert len(paths(deep)) == 1


def test_mapping_keeps_the_nesting_and_what_is_shared():
    a, b = torch.ones(1), torch.zeros(1)
    tree = {"x": (a, a), "y": [Pair(b, 3)], "z": "word"}
    mapped = replaced(tree, torch.Tensor, lambda t: t + 1)
    assert mapped["x"][0] is mapped["x"][1]
    assert mapped["y"][0] == Pair(torch.ones(1), 3)
    assert mapped["z"] == "word"
    assert torch.equal(a, torch.ones(1))
