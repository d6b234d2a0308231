"""Each planted leak leaks as it says, its twin does not, and look-alikes do not either.

Found without gradscope, by changing inputs (``brute_force.py``), so that the corpus can judge it.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType

import pytest
import torch
from torch import nn

from leaks.brute_force import effects
from leaks.corpus import AXES, Honest, Program, built, honest, programs

#: Below is rounding, above is a leak.
NOISE, LEAK = 1e-6, 1e-4


def leaking(model: nn.Module, program: Program | Honest) -> set[str]:
    """The axes that leak; a change between rounding and leak would be neither, and fails."""
    found = effects(model, program.inputs(), program.options)
    assert not {axis: x for axis, x in found.items() if NOISE < x < LEAK}
    return {axis for axis, change in found.items() if change >= LEAK}


@pytest.mark.slow
@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_planted(program: Program) -> None:
    assert program.axis in AXES
    assert leaking(built(program.leaky), program) == {program.axis, *program.also}
    assert leaking(built(program.mended), program) == set()

    run, owners = ran(program, program.leaky)
    assert program.lines, "no line is marked"
    assert program.lines <= run, "a line that is marked does not run"
    assert not program.lines & ran(program, program.mended)[0], "the twin runs a line of the fault"
    assert owners == {owner(built(program.leaky), program.call)}


@pytest.mark.parametrize("program", honest(), ids=lambda program: program.name)
def test_honest(program: Honest) -> None:
    assert leaking(built(program.model), program) == set()


def test_enough() -> None:
    assert len(programs()) >= 44
    assert len(honest()) >= 12
    assert {program.axis for program in programs()} == AXES


def owner(model: nn.Module, call: str) -> str:
    """The module whose code is the program's: one of torch's own has no lines there."""
    while call and type(model.get_submodule(call)).__module__.startswith("torch."):
        call = call.rpartition(".")[0]
    return call


def ran(program: Program, kind: type[nn.Module]) -> tuple[set[int], set[str]]:
    """The lines of the program's file that a model runs, and whose forward runs those marked.

    Of modules alike the first counts: the leak is there already.
    """
    lines, owners, path = set(), [], str(program.path)
    model, inputs = built(kind), program.inputs()
    names = {id(module): name for name, module in model.named_modules()}

    def trace(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code.co_filename != path:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
            if frame.f_lineno in program.lines:
                owners.append(names[id(frame.f_locals["self"])])
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with torch.no_grad():
            if "use_cache" in inspect.signature(model.forward).parameters:
                inputs["use_cache"] = True
            model(**inputs)
    finally:
        sys.settrace(before)
    return lines, set(owners[:1])
