"""A script under gradscope does what it does without: every byte, every weight."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope.api.reading import read_history
from gradscope.runfile.reader import RunFile
from training.corpus import ALL, EVERYTHING, Ran, Script, during, observed, plain

SCRIPTS = [script.param for script in ALL]
#: What a script can see of gradscope all the same.
NOTICES = {"looks_at_itself-hooks": "the hooks on the models it trains are in their lists of hooks"}
BY_DEFAULT = [script.param for script in ALL if script.by_default]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_notices_nothing(script: Script, runs: Path, request: pytest.FixtureRequest):
    if script.name in NOTICES:
        request.applymarker(pytest.mark.xfail(reason=NOTICES[script.name], strict=True))
    _compare(plain(script, runs), observed(script, runs, *EVERYTHING))


@pytest.mark.slow
@pytest.mark.parametrize("script", BY_DEFAULT)
def test_nor_where_few_steps_are_sampled(script: Script, runs: Path):
    _compare(plain(script, runs), observed(script, runs))


@pytest.mark.slow
def test_nor_where_its_model_is_compiled_with_probes(runs: Path):
    """Without fusion not even the rounding differs; the script prints its graphs and breaks."""
    script = next(one for one in ALL if one.name == "compiled")
    under = observed(script, runs, "--every", "2", "--compiled")
    _compare(plain(script, runs), under)
    with RunFile.open(under.out) as recorded:
        history = read_history(recorded, calls=True)
    probed = {(call.model, call.name) for call in history.calls}
    assert len(history.models) == 3  # one for each way to compile
    for model in history.models:
        names = {name for of, name in probed if of == model.id}
        assert {"embed", "blocks.0.c_fc", "head"} <= names, model.name


def _compare(without: Ran, under: Ran) -> None:
    assert under.stdout.decode() == without.stdout.decode()
    assert comparable(during(under.stderr)) == comparable(without.stderr)
    assert under.code == without.code
    assert differences(weights(under), weights(without)) == []
    assert without.stdout, "a script that says nothing shows nothing"
    # Harmless because it was not there is no merit.
    assert b"gradscope: error:" not in under.stderr, under.stderr.decode()
    with RunFile.open(under.out) as recorded:
        assert recorded.run.steps > 0


#: What differs between two plain runs too: the time and the process in PyTorch's log.
_LOGGED = re.compile(r"^([A-Z]\d{4}) [\d:.]+ +\d+ ", re.MULTILINE)
#: How PyTorch itself calls a module: another way where there is a hook.
_CALLS = re.compile(
    r'^  File ".*/torch/nn/modules/module\.py", line .*\n(?:    .*\n)+', re.MULTILINE
)


def comparable(stderr: bytes) -> str:
    """Return the stderr of a run, without PyTorch's lines that never repeat."""
    return _CALLS.sub("", _LOGGED.sub(r"\1 ", stderr.decode()))


def weights(ran: Ran) -> Any:
    return torch.load(ran.weights, weights_only=False)


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Return the places where two saved objects differ, in any bit of a tensor."""
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype
        # As bytes: a NaN is not equal to itself, and -0.0 is equal to 0.0.
        same = same and one.numpy().tobytes() == other.numpy().tobytes()
        return [] if same else [place]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{place}: keys"]
        return [d for key in one for d in differences(one[key], other[key], f"{place}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{place}: lengths"]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}[{i}]")]
    return [] if one == other else [place]


def test_a_bit_that_differs_is_seen():
    base = {"a": [torch.tensor([1.0, float("nan"), 0.0])], "b": {"c": 1}}
    assert differences(base, {"a": [base["a"][0].clone()], "b": {"c": 1}}) == []
    assert differences(base, {"a": [torch.tensor([1.0, float("nan"), -0.0])], "b": {"c": 1}})
    assert differences(base, {"a": base["a"], "b": {"c": 2}})
    assert differences(base, {"a": [base["a"][0].double()], "b": {"c": 1}})
    assert differences(base, {"a": [], "b": {"c": 1}})
    assert differences(base, {"b": {"c": 1}})


def test_what_is_gradscopes_begins_with_its_name():
    assert during(b"a\ngradscope: 3 steps\nb\n") == b"a\n"
    assert during(b"a: gradscope: 3\nb") == b"a: gradscope: 3\nb"


def test_only_pytorchs_own_lines_are_left_out():
    head = 'Traceback (most recent call last):\n  File "a.py", line 3, in forward\n    f(x)\n'
    inside = '  File "/x/torch/nn/modules/module.py", line 9, in _call_impl\n    g()\n     ^^\n'
    last = '  File "a.py", line 4, in f\n    h(x)\nIndexError: 3\n'
    assert comparable((head + inside + inside + last).encode()) == head + last
    logged = b"W1122 14:20:24.841000 21329 torch/a.py:3] text\n"
    assert comparable(logged) == "W1122 torch/a.py:3] text\n"
    assert comparable(b"step 1 14:20\n") == "step 1 14:20\n"
