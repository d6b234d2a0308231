"""``--fold``: what looks the same in a row is one row, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from gradscope import plugins
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.reporters.views import View

RUN = RunInfo("net", "cpu", "float32", "train", 0, 1, "sum")


def stats(norm: float, *shape: int) -> TensorStats:
    return TensorStats(shape, "float32", 1, norm, 0.0, 1.0, -1.0, 1.0, 0, 0, 0)


def call(name: str, norm: float = 1.0, *, number: int = 0, size: int = 4, **more) -> ModuleCall:
    kind = more.pop("type", "Linear")
    out = TensorRecord("", stats(norm, 2, size), stats(norm / 2, 2, size), "AddmmBackward0", True)
    return ModuleCall(name, kind, number, 0, outputs=(out,), saved_bytes=8, **more)


def parameter(name: str, norm: float = 1.0, size: int = 4) -> ParameterStats:
    return ParameterStats(name, (size,), True, stats(norm, size), stats(norm, size))


def rows(calls: list[ModuleCall], **view) -> list[str]:
    """The labels of the table of calls."""
    report = Report("ok", RUN, calls=tuple(calls))
    text = plugins.load("gradscope.reporters.report", "terminal").render(
        report, View(fold=True, table="calls", columns=("norm",), **view)
    )
    body = text.split("─\n")[1].split("\n\n")[0]
    legend = ("×n", "¹")
    return [re.sub(r"  .*", "", line) for line in body.splitlines() if not line.startswith(legend)]


def stack(n: int, part: str = "h.{}", **more) -> list[ModuleCall]:
    """``n`` equal blocks of two layers."""
    names = [part.format(i) + below for i in range(n) for below in ("", ".fc")]
    return [call(name, 1.0 + i, **more) for i, name in enumerate(names)]


FOLDS: dict[str, tuple[Callable[[], list[ModuleCall]], list[str]]] = {
    "twelve blocks": (lambda: stack(12), ["h.0…11 ×12", "h.0…11.fc ×12"]),
    "numbers inside a name": (
        lambda: stack(3, "encoder_layer_{}"),
        ["encoder_layer_0…2 ×3", "encoder_layer_0…2.fc ×3"],
    ),
    "numbers of several digits": (
        lambda: [call(f"conv{i}_x") for i in (9, 10, 11)],
        ["conv9…11_x ×3"],
    ),
    "blocks in blocks": (
        lambda: [call(f"stage.{i}.block.{j}") for i in range(2) for j in range(3)],
        ["stage.0…1.block.0…2 ×6"],
    ),
    "fed by other operations": (
        lambda: [fed("h.0", "MaxPool2DWithIndicesBackward0"), fed("h.1", "ReluBackward0")],
        ["h.0…1 ×2"],
    ),
    "one module again": (
        lambda: [call("cell", number=i) for i in range(5)],
        ["cell #0…4 ×5"],
    ),
    "the model itself again": (
        lambda: [call(n, number=i) for i in range(3) for n in ("", "lin")],
        ["(root) #0…2 ×3", "lin #0…2 ×3"],
    ),
    "a module with children again": (
        lambda: [call(n, number=i) for i in range(3) for n in ("cell", "cell.lin")],
        ["cell #0…2 ×3", "cell.lin #0…2 ×3"],
    ),
    "the last differs": (
        lambda: [*stack(3), call("h.3", size=8), call("h.3.fc")],
        ["h.0…2 ×3", "h.0…2.fc ×3", "h.3", "h.3.fc"],
    ),
    "a stranger in between": (
        lambda: [*stack(2), call("x"), call("h.2"), call("h.2.fc"), call("h.3"), call("h.3.fc")],
        ["h.0…1 ×2", "h.0…1.fc ×2", "x", "h.2…3 ×2", "h.2…3.fc ×2"],
    ),
}


def fed(name: str, grad_fn: str) -> ModuleCall:
    return replace(call(name), inputs=(TensorRecord("0", stats(1.0, 2, 4), None, grad_fn, True),))


KEPT: dict[str, list[ModuleCall]] = {
    "another type": [call("h.0"), call("h.1", type="Conv2d")],
    "another shape": [call("h.0"), call("h.1", size=8)],
    "another mode": [call("h.0"), call("h.1", training=False)],
    "another operation": [
        call("h.0"),
        replace(call("h.1"), outputs=(replace(call("h.1").outputs[0], grad_fn="MmBackward0"),)),
    ],
    "a note": [call("h.0"), call("h.1", notes=("no-grad",))],
    "no number": [call("query"), call("key"), call("value")],
    "another parent": [call("a.0"), call("b.0")],
    "one without a gradient": [
        call("h.0"),
        replace(call("h.1"), outputs=(replace(call("h.1").outputs[0], gradient=None),)),
    ],
    "one more layer below": [
        call("h.0"),
        call("h.0.fc"),
        call("h.1"),
        call("h.1.fc"),
        call("h.1.x"),
    ],
    "calls that are not the next": [call("cell"), call("cell", number=2)],
}


@pytest.mark.parametrize("name", FOLDS)
def test_equal_blocks_are_one(name: str) -> None:
    calls, expected = FOLDS[name]
    assert rows(calls()) == expected


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name: str) -> None:
    calls = KEPT[name]
    assert not any("×" in row for row in rows(calls))
    assert len(rows(calls)) == len(calls)


def test_every_call_is_counted_once() -> None:
    for calls, _ in FOLDS.values():
        made = calls()
        counts = [
            int(found[1]) if (found := re.search(r"×(\d+)", row)) else 1 for row in rows(made)
        ]
        assert sum(counts) == len(made)


def test_a_cell_spans_its_values() -> None:
    report = Report("ok", RUN, calls=(call("h.0", 3.0), call("h.1", 1.0), call("h.2", 2.0)))
    text = plugins.load("gradscope.reporters.report", "terminal").render(report, View(fold=True))
    line = next(line for line in text.splitlines() if "×3" in line)
    assert "1.000…3.000" in line and "0.5000…1.500" in line and "[2, 4]" in line


def test_what_is_not_finite_shows_in_the_span() -> None:
    broken = call("h.1")
    out = broken.outputs[0]
    nan = TensorStats((2, 4), "float32", 8, nan=8, inf=0, zeros=0)
    broken = replace(broken, outputs=(replace(out, activation=nan),))
    report = Report("ok", RUN, calls=(call("h.0"), broken))
    text = plugins.load("gradscope.reporters.report", "terminal").render(report, View(fold=True))
    line = next(line for line in text.splitlines() if "×2" in line)
    assert "1.000, nan" in line and "0…8 nan" in line


def test_sorting_and_the_top_count_folded_rows() -> None:
    calls = [*stack(3), call("last", 100.0)]
    assert rows(calls, sort="norm", top=2) == ["last", "h.0…2.fc ×3"]
    assert rows(calls, sort="norm:asc", top=1) == ["h.0…2 ×3"]


def test_parameters_fold_too() -> None:
    owned = tuple(parameter(f"h.{i}.{n}", 1.0 + i) for i in range(3) for n in ("weight", "bias"))
    report = Report("ok", RUN, parameters=(*owned, parameter("head.weight", size=9)))
    text = plugins.load("gradscope.reporters.report", "terminal").render(
        report, View(fold=True, table="parameters")
    )
    assert "h.0…2.weight ×3" in text and "h.0…2.bias ×3" in text and "head.weight " in text
    assert "1.000…3.000" in text


def test_records_for_machines_stay_whole() -> None:
    report = Report("ok", RUN, calls=tuple(stack(12)))
    for format in ("csv", "json"):
        reporter = plugins.load("gradscope.reporters.report", format)
        assert reporter.render(report, View(fold=True)) == reporter.render(report, View())


def test_ten_thousand_rows() -> None:
    assert rows(stack(5000)) == ["h.0…4999 ×5000", "h.0…4999.fc ×5000"]
