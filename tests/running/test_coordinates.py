"""A coordinate check against a plain loop, and its slopes against theory.

Theory, in powers of the width n, for learning rates so small that a change is linear in them:

- standard parametrisation (variance ∝ 1/fan_in) keeps activations at n⁰ at initialisation;
- SGD: the gradient of hidden coordinates is n^-½, so that input weights change their output by
  n^-½, hidden weights by n^½ (n coordinates add up), and output weights by n;
- Adam: each weight moves by the learning rate. Input weights change their output by n⁰, hidden
  weights by n, and what hidden changes do to the output adds up to n^1.5. Attention scores over √d
  change by n^1.5, and with them all that follows;
- µP for Adam (arXiv:2203.03466, table 3) has a learning rate ∝ 1/n for hidden weights, an output
  divided by n and scores over d: every change is n⁰.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from running import scaled_models
from torch.nn import functional as F

import gradscope
from gradscope.errors import ModelError, OptionError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(scaled_models.__file__, tmp_path / "scaled_models.py")
    return tmp_path


INPUTS = {
    "MLP": "input.shape=[1,8]",
    "CNN": "input.shape=[1,3,6,6]",
    "Transformer": "input={tokens: [[1, 2, 3]]}",
}
ADAM = "optimizer={_target_: ./scaled_models.py:adam, lr: 1e-7}"
SGD = "optimizer={_target_: sgd, lr: 1e-7}"


#: As large as tests have time for: a convolution has more to do.
WIDTHS = {"MLP": (128, 384, 1024), "CNN": (64, 192, 512), "Transformer": (128, 384, 1024)}


def checked(name: str, *overrides: str, widths=None, **options):
    options = {"steps": 2, "seeds": 4, "dtype": "float64", **options}
    return gradscope.coord_check(
        f"./scaled_models.py:{name}",
        {"width": widths or WIDTHS[name]},
        overrides=[INPUTS[name], "target=[1]", *overrides],
        **options,
    )


def test_the_sizes_are_those_of_a_plain_loop():
    x = torch.tensor([[0.5, -1, 2, 0, 1, -0.3, 0.2, 1.5]], dtype=torch.float64)
    values = f"input={{values: {x.tolist()}}}"
    optimizer = "optimizer={_target_: ./scaled_models.py:adam, lr: 0.01}"
    report = checked("MLP", values, optimizer, "model.mup=true", widths=(8, 16), seeds=2)
    assert [one.name for one in report.layers] == ["fc1", "fc2", "fc3", "head"]
    assert [one.output for one in report.layers] == [False, False, False, True]
    for w, width in enumerate((8, 16)):
        for seed in range(2):
            torch.manual_seed(seed)
            model = scaled_models.MLP(width, mup=True).double()
            steps = scaled_models.adam(model, 0.01)
            first = None
            for step in range(3):
                a = model.fc1(x)
                b = model.fc2(a.relu())
                c = model.fc3(b.relu())
                d = model.head(c.relu() / width)
                first = first or [a, b, c, d]
                for one, now, before in zip(report.layers, (a, b, c, d), first, strict=True):
                    size, change = ((t**2).mean().sqrt().item() for t in (now, now - before))
                    assert one.activations[step][w][seed] == pytest.approx(size, rel=1e-12)
                    assert one.changes[step][w][seed] == pytest.approx(change, rel=1e-12, abs=1e-15)
                steps.zero_grad()
                F.cross_entropy(d, torch.tensor([1])).backward()
                steps.step()


#: Of each layer, at initialisation and of its change.
STANDARD = {
    "MLP": {"fc1": (0, 0), "fc2": (0, 1), "fc3": (0, 1), "head": (0, 1.5)},
    "CNN": {"conv1": (0, 0), "conv2": (0, 1), "head": (0, 1.5)},
    "Transformer": {
        "embedding": (0, 0),
        **dict.fromkeys(("query", "key", "value"), (0, 1)),
        **dict.fromkeys(("project", "up", "down", "head"), (0, 1.5)),
    },
}
BY_SGD = {
    "MLP": {"fc1": (0, -0.5), "fc2": (0, 0.5), "fc3": (0, 0.5), "head": (0, 1)},
    "CNN": {"conv1": (0, -0.5), "conv2": (0, 0.5), "head": (0, 1)},
}
#: What a finite width adds to an exponent: terms of lower order, smaller by a root of the width.
FINITE = 0.05


def agrees(slope, theory: float) -> bool:
    return slope is None or slope.low - FINITE < theory < slope.high + FINITE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer", "theory"),
    [
        *((name, ADAM, theory) for name, theory in STANDARD.items()),
        *((name, SGD, theory) for name, theory in BY_SGD.items()),
    ],
    ids=[*STANDARD, *(f"{name} by SGD" for name in BY_SGD)],
)
def test_slopes_in_standard_parametrisation_are_those_of_theory(name, optimizer, theory):
    report = checked(name, optimizer)
    assert {one.name for one in report.layers} == set(theory)
    for one in report.layers:
        initial, change = theory[one.name]
        assert agrees(one.initial, initial), (one.name, one.initial)
        assert agrees(one.change, change), (one.name, one.change)
        assert (one.verdict == "stable") <= (change == 0), one
        assert (one.verdict == "grows") <= (change > 0), one
        assert (one.verdict == "vanishes") <= (change < 0), one
    assert report.status == "findings"


@pytest.mark.slow
@pytest.mark.parametrize("name", STANDARD)
def test_slopes_in_mup_are_zero(name):
    report = checked(name, ADAM, "model.mup=true")
    assert report.status == "ok"
    assert {one.verdict for one in report.layers} == {"stable"}
    for one in report.layers:
        assert agrees(one.change, 0), (one.name, one.change)
        assert one.output or agrees(one.initial, 0), (one.name, one.initial)


def test_a_scale_that_changes_nothing_is_refused(folder):
    with pytest.raises(OptionError, match="parameters at two widths"):
        gradscope.coord_check(
            "./scaled_models.py:MLP",
            {"optimizer.lr": [0.1, 0.2]},
            overrides=[INPUTS["MLP"], "model.width=8", "optimizer=sgd", "target=[1]"],
        )


def test_a_model_that_raises_at_a_width_says_at_which():
    with pytest.raises(ModelError, match="forward raised") as caught:
        checked("Transformer", ADAM, widths=(8, 10), seeds=2, steps=1)
    assert "at model.width = 10, seed 0" in caught.value.problems[0].notes
    assert caught.value.report.status == "failed"


def test_all_widths_and_seeds_have_one_batch_and_another_seed_has_another():
    found = checked("MLP", ADAM, widths=(8, 16), seeds=2, steps=1, layers=["fc1"])
    again = checked("MLP", ADAM, widths=(8, 16), seeds=2, steps=1, layers=["fc1"])
    assert found.layers[0].activations == again.layers[0].activations
    assert [one.name for one in found.layers] == ["fc1", ""]  # the model's own output stays
