"""The corpus of planted leaks: the axis, the first call, the line; twins and look-alikes silent."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import gradscope
from gradscope.records.leaks import AxisResult, LeaksReport
from leaks.corpus import Honest, Program, built, honest, programs

#: Where the first call is missed: a state that an earlier step left wrong is found where it is
#: read.
CALL_MISSED = {"cache_conv_state_short", "cache_drops_newest"}
#: Where the line is missed.
LINE_MISSED = CALL_MISSED


def judged(model: nn.Module, program: Program | Honest) -> LeaksReport:
    options: dict[str, Any] = dict(program.options)
    return gradscope.leaks(
        model,
        program.inputs(),
        causal=options.get("causal"),
        axes=options.get("axis"),
        padding=options.get("padding"),
    )


def leaking(report: LeaksReport) -> dict[str, AxisResult]:
    return {one.axis: one for one in report.leaks}


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_a_planted_leak_is_named(program: Program) -> None:
    found = leaking(judged(built(program.leaky), program))
    assert program.axis in found
    assert set(found) <= {program.axis, *program.also}
    leak = found[program.axis]
    assert (leak.layer == program.call) == (program.name not in CALL_MISSED)
    named = leak.source is not None and leak.source.line in program.lines
    assert named == (program.name not in LINE_MISSED)


@pytest.mark.slow
@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_its_mended_twin_is_not(program: Program) -> None:
    report = judged(built(program.mended), program)
    assert leaking(report) == {}
    verdicts = {one.axis: one.verdict for one in report.axes}
    assert verdicts[program.axis] in ("clean", "by-design")
    assert report.backwards <= 2


@pytest.mark.parametrize("program", honest(), ids=lambda program: program.name)
def test_a_look_alike_is_not(program: Honest) -> None:
    assert leaking(judged(built(program.model), program)) == {}


def test_few_are_missed() -> None:
    assert len(CALL_MISSED) <= 0.05 * len(programs())
    assert len(LINE_MISSED) <= 0.10 * len(programs())
