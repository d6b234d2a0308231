"""Saved reports compared: errors against the exact ones, faults at their place, honest pairs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradscope
from gradscope.comparison.compared_files import REPORTS
from gradscope.comparison.reports import compare_reports
from gradscope.errors import ConfigError, OptionError
from gradscope.records import json as record_json
from gradscope.records.diff import CallDiff, DiffReport
from gradscope.records.full_samples import SKETCH_WIDTH
from gradscope.records.report import Report

#: Five times the documented deviation of an error, which is half of its square's.
CLOSE = 5 * math.sqrt(2 / SKETCH_WIDTH) / 2


class Convolutions(nn.Module):
    """A residual block with all that falls to one side or the other: ReLUs and a max pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(x))))
        return self.head((x + self.block(x)).mean((2, 3)))


class Attention(nn.Module):
    """An encoder layer over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x)).mean(1))


class Chain(nn.Module):
    """Layers that are not square, a LayerNorm, and code of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 20), nn.LayerNorm(20), nn.Tanh(), nn.Linear(20, 9)
        )
        self.head = nn.Linear(9, 4)
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x) * self.gain)


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...], str]] = {
    "convolutions": (Convolutions, (4, 3, 12, 12), "block.0"),
    "attention": (Attention, (4, 5, 6), "layer.linear1"),
    "chain": (Chain, (4, 12), "layers.0"),
}


def built(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    kind, shape, _ = MODELS[name]
    torch.manual_seed(seed)
    return kind(), torch.randn(shape)


def saved(model: nn.Module, x: Any, *, sketch: bool = True) -> Report:
    return gradscope.inspect(model, x, target=torch.tensor([0, 1, 2, 3]), sketch=sketch)


def compared(a: nn.Module, b: nn.Module, x: Any, *, sketch: bool = True) -> DiffReport:
    return compare_reports(saved(a, x, sketch=sketch), saved(b, x, sketch=sketch))


class Scaled(torch.autograd.Function):
    """The same forward; backward is off by 1 %."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.01


def changed(layer: nn.Module, how: str) -> None:
    forward = layer.forward
    if how == "backward":
        layer.forward = lambda x: Scaled.apply(forward(x))
    else:
        layer.forward = lambda x: forward(x).bfloat16().to(x.dtype)


FOUND = {
    "a rounding to bfloat16": ("bfloat16", "GD101", True),
    "a backward, from sketches": ("backward", "GD102", True),
    "a backward, from norms": ("backward", "GD102", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("how", "code", "sketch"), FOUND.values(), ids=FOUND)
def test_a_fault_is_found_at_its_place(name, how, code, sketch):
    a, x = built(name)
    b = copy.deepcopy(a)
    place = MODELS[name][2]
    changed(b.get_submodule(place), how)
    report = compared(a, b, x, sketch=sketch)
    assert [(finding.code, finding.name) for finding in report.findings] == [(code, place)]


def in_pairs(one: DiffReport, other: DiffReport) -> list[tuple[CallDiff, CallDiff]]:
    """The rows of the same output."""
    rows = {(row.name, row.call, row.path): row for row in other.calls}
    assert len(rows) == len(one.calls)
    return [(row, rows[row.name, row.call, row.path]) for row in one.calls]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_errors_are_the_exact_ones(name):
    """Against the same two runs in one process, which compare tensors in float64."""
    a, x = built(name)
    b = copy.deepcopy(a)
    changed(b.get_submodule(MODELS[name][2]), "bfloat16")
    exact = gradscope.diff(a, b, x, target=torch.tensor([0, 1, 2, 3]))
    estimated = compared(a, b, x)
    pairs = []
    for one, other in in_pairs(exact, estimated):
        pairs += [(one.activation, other.activation), (one.gradient, other.gradient)]
    for one, other in zip(exact.parameters, estimated.parameters, strict=True):
        pairs.append((one.gradient, other.gradient))
    seen = 0
    for one, other in pairs:
        if one is None or other is None or (one.error or 0) < 1e-4 or (one.noise or 0) > 1e-3:
            continue  # rounding is not the same in two runs with hooks and without
        seen += 1
        assert other.error == pytest.approx(one.error, rel=CLOSE)
        assert 1 - other.cosine == pytest.approx(1 - one.cosine, rel=3 * CLOSE, abs=1e-6)
    assert seen > 8


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_statistics_bound_the_error_from_below(name):
    a, x = built(name)
    b = copy.deepcopy(a)
    changed(b.get_submodule(MODELS[name][2]), "bfloat16")
    exact = gradscope.diff(a, b, x, target=torch.tensor([0, 1, 2, 3]))
    bounded = compared(a, b, x, sketch=False)
    for one, other in in_pairs(exact, bounded):
        assert other.activation.error <= one.activation.error * 1.001 + 2e-5
        assert other.activation.largest <= one.activation.largest * 1.001 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("sketch", [True, False], ids=["sketches", "statistics"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_in_float64_is_no_fault(name, seed, sketch):
    a, x = built(name, seed)
    one = saved(a, x, sketch=sketch)
    other = saved(copy.deepcopy(a).double(), x.double(), sketch=sketch)
    report = compare_reports(one, other)
    assert (report.status, report.findings) == ("ok", ())
    assert all(row.activation.error is not None for row in report.calls)


def test_a_model_s_own_code_is_its_place():
    a, x = built("chain")
    b = copy.deepcopy(a)
    b.gain = 1.001
    (found,) = compared(a, b, x).findings
    assert (found.code, found.name) == ("GD101", "")
    assert "passes to `head`" in found.message


@pytest.mark.slow
def test_other_weights_and_another_batch_are_said():
    a, x = built("chain")
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.head.weight.mul_(1.1)
    assert "its `weight` differs from A's" in compared(a, b, x).findings[0].message
    other = compare_reports(saved(a, x), saved(a, x + 1))
    assert other.findings[0].cause == "batch"


def test_samples_in_another_order_are_compared_without_sketches():
    a, x = built("chain")
    one, order = saved(a, x), torch.tensor([2, 0, 3, 1])

    def in_order(model: nn.Module) -> DiffReport:
        other = gradscope.inspect(model, x[order], target=order, sketch=True)
        return compare_reports(one, other)

    report = in_order(a)
    assert (report.measured, report.findings) == ("statistics", ())
    assert "batch: the same numbers in another order" in report.notices[0]
    b = copy.deepcopy(a)
    b.layers[1].eps = 0.1
    found = in_order(b).findings[0]
    assert (found.code, found.name) == ("GD101", "layers.1")


def test_another_loss_is_a_place():
    a, x = built("chain")
    other = gradscope.inspect(a, x, loss="sum", sketch=True)
    (found,) = compare_reports(saved(a, x), other).findings
    assert (found.code, found.cause) == ("GD102", "loss")


class Port(nn.Module):
    """The chain under other names."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.body, self.last = of.layers, of.head

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


@pytest.mark.slow
@pytest.mark.parametrize("match", [(), ("layers.**=body.**", "head=last")])
def test_a_port_is_matched(match):
    a, x = built("chain")
    report = compare_reports(saved(a, x), saved(Port(copy.deepcopy(a)), x), match)
    assert (report.status, report.only_a, report.only_b) == ("ok", (), ())
    assert {row.name: row.name_b for row in report.parameters}["head.weight"] == "last.weight"


def test_what_is_not_finite_in_one_alone_diverges():
    a, x = built("chain")
    b = copy.deepcopy(a)
    forward = b.layers[0].forward
    b.layers[0].forward = lambda x: forward(x) * torch.tensor([math.nan, *[1.0] * 19])
    for sketch in (True, False):
        found = compared(a, b, x, sketch=sketch).findings[0]
        assert (found.name, found.value) == ("layers.0", None)
        assert "NaN or Inf" in found.message


@pytest.mark.slow
def test_a_gradient_that_does_not_come_diverges():
    a, x = built("chain")
    b = copy.deepcopy(a)
    forward = b.layers[3].forward
    b.layers[3].forward = lambda x: forward(x.detach())
    for sketch in (True, False):
        (found,) = compared(a, b, x, sketch=sketch).findings
        assert (found.code, found.name) == ("GD102", "layers.3")


class Pair(nn.Module):
    """Attention in two ways, one of which returns its weights too, and they are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(12, 12)
        self.weights = True

    def forward(self, x: Tensor) -> Any:
        scores = self.value(x)
        return (scores * 1.0, scores.sigmoid()) if self.weights else (scores * 1.0, None)


class Reader(nn.Module):
    """Takes what there is of both."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.head = Pair(), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        found, weights = self.pair(x)
        return self.head(found if weights is None else found + 0.0 * weights)


def test_an_output_that_the_other_has_not_is_no_missing_gradient():
    torch.manual_seed(0)
    a, x = Reader(), torch.randn(4, 12)
    b = copy.deepcopy(a)
    b.pair.weights = False
    for sketch in (True, False):
        assert compared(a, b, x, sketch=sketch).findings == ()


def test_two_models_have_nothing_in_common():
    with pytest.raises(OptionError, match="no layer in common"):
        compare_reports(saved(*built("chain")), saved(nn.Bilinear(6, 6, 4), [torch.ones(4, 6)] * 2))


def test_a_report_of_nothing_is_refused():
    report = saved(*built("chain"))
    with pytest.raises(OptionError, match="`B` holds no calls and no parameters"):
        compare_reports(report, replace(report, calls=(), parameters=()))


def test_a_file_beside_itself_is_said(tmp_path):
    file = tmp_path / "one.json"
    file.write_text(record_json.dumps(saved(*built("chain"))), encoding="utf-8")
    report = REPORTS.compared([str(file), f"{tmp_path}/./one.json"])
    assert (report.notices[0], report.findings) == ("A and B are one file", ())


def test_a_run_that_failed_is_refused():
    report = saved(*built("chain"))
    with pytest.raises(OptionError, match="failed"):
        compare_reports(report, replace(report, status="failed"))


def test_a_damaged_sketch_is_named():
    report = saved(*built("chain"))
    for numbers in ("", "AAAA", "no base64", report.sketches[3].numbers[:-12]):
        damaged = [replace(one, numbers=numbers) for one in report.sketches]
        with pytest.raises(ConfigError, match="is damaged"):
            compare_reports(report, replace(report, sketches=tuple(damaged)))


def test_sketches_of_one_alone_are_not_used():
    a, x = built("chain")
    report = compare_reports(saved(a, x), saved(a, x, sketch=False), files=("a.json", "b.json"))
    assert report.measured == "statistics"
    assert report.notices[0].startswith("b.json: without sketches")


def test_sketching_changes_nothing(unchanged):
    a, x = built("convolutions")
    with unchanged(a):
        report = saved(a, x)
    plain = saved(a, x, sketch=False)
    assert report.parameters == plain.parameters
    assert not plain.sketches
    assert {s.kind for s in report.sketches} == {
        *("input", "output", "grad_input", "grad_output"),
        *("value", "gradient"),
    }


def test_sketches_are_of_the_chosen_layers():
    model, x = built("chain")
    report = gradscope.inspect(model, x, loss="sum", layers=["head"], sketch=True)
    assert {one.name for one in report.sketches} == {"head"}
