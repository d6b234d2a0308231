"""The rules of the loop: what they find in whole programs, where, and that the twins are silent."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gradscope.records.loop import LoopOptimizer, LoopRecord, LoopScheduler
from gradscope.records.loop_figures import LoopBatches, LoopWeights
from gradscope.records.training import StepSample, TrainingFinding, TrainingRecord
from gradscope.rules import RuleSettings, folded
from gradscope.rules._book import entries
from gradscope.training import discovery, models
from gradscope.training.findings import RunFindings
from gradscope.training.observer import Observer
from gradscope.training.sample_schedule import Schedule
from rules import (
    data_programs,
    loop_programs,
    loss_programs,
    objective_programs,
    term_programs,
    token_programs,
    wiring_programs,
)
from rules.loop_programs import source_of

_ROOMS = (
    loop_programs,
    loss_programs,
    data_programs,
    token_programs,
    term_programs,
    wiring_programs,
    objective_programs,
)
BROKEN = {name: one for room in _ROOMS for name, one in room.BROKEN.items()}
HEALTHY = {name: one for room in _ROOMS for name, one in room.HEALTHY.items()}
CODES = [entry.rule.code for entry in entries() if entry.find_in_loop is not None]
SETTINGS = RuleSettings.of(select=CODES)

_first = {program.code: name for name, program in reversed(BROKEN.items())}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    """The quick tests take a program of each rule."""
    marks = [] if name in _first.values() else [pytest.mark.slow]
    if "optim.Muon" in BROKEN[name].source(broken=True) and not hasattr(torch.optim, "Muon"):
        marks.append(pytest.mark.skip(reason="no Muon in this torch"))
    return marks


PROGRAMS = [pytest.param(name, marks=_marks(name)) for name in BROKEN]


def raised(error: BaseException) -> None:
    raise error


def findings(
    source: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[TrainingFinding, ...]:
    """Return the loop rules' findings in a program that runs to its end under observation."""
    file = folder / "train.py"
    file.write_text(source)
    main = ModuleType("__main__")
    main.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(folder)
    found = RunFindings(SETTINGS)
    given: list[tuple[TrainingFinding, ...]] = []

    def judge(record: LoopRecord) -> None:
        given.append(found.loop(record))

    def write(*records: TrainingRecord) -> None:
        for one in records:
            if isinstance(one, StepSample):
                found.sample(one)

    # The search for models goes over all objects but these. A test before may have left a model.
    gc.collect()
    gc.freeze()
    observer = Observer(write, lambda *_: None, judge, Schedule(), failed=raised)
    observer.start()
    try:
        exec(compile(source, str(file), "exec"), vars(main))
        judge(observer.loop())
    finally:
        observer.stop()
        vars(main).clear()  # models are found wherever they are: none is left for the next test
        gc.collect()
    return found.all()


_ANEW = """\
{begin}import copy
for step in range(9):
    inputs, labels = batch(step)
    {made}
    optimizer = torch.optim.SGD({of}.parameters(), lr=0.1)
    optimizer.zero_grad()
    F.cross_entropy({of}(inputs), labels).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "of", "most"),
    [("pass", "net", 2), ("fast = copy.deepcopy(net)", "fast", 12)],
    ids=["of one model", "of a copy"],
)
def test_optimizers_made_anew_search_the_heap_once(
    made: str, of: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All objects are searched for the first, and where a model may be new."""
    searches, search = [], discovery.outermost_modules
    monkeypatch.setattr(
        models, "outermost_modules", lambda *known: (searches.append(1), search(*known))[1]
    )
    findings(_ANEW.format(begin=source_of(""), made=made, of=of), tmp_path, monkeypatch)
    assert len(searches) <= most
    assert most == 2 or len(searches) >= 9


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_broken_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = BROKEN[name]
    causes = folded(findings(program.source(broken=True), tmp_path, monkeypatch))
    assert [one.finding.code for one in causes] == [program.code]  # all else is a symptom of it
    one = causes[0].finding
    for words in program.words:
        assert words in one.finding.message
    if program.name is not None:
        assert one.finding.name == program.name
    line = program.line()
    if line is not None:
        assert one.finding.location == f"train.py:{line}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_its_mended_twin(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(BROKEN[name].source(broken=False), tmp_path, monkeypatch)
    assert [(one.finding.code, one.finding.message) for one in found] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_what_only_looks_like_a_mistake(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(source_of(HEALTHY[name]), tmp_path, monkeypatch)
    assert [(one.finding.code, one.finding.message) for one in found] == []


@pytest.mark.parametrize(
    ("size", "ratio", "words", "location"),
    [
        (104.0, 0.5, "The inputs are not normalized: their root mean square is 104", "train.py:9"),
        (1.0, 0.5, "each moves the median weight by 0.5000 times its norm", "train.py:3"),
        (1.0, 0.001, "nothing of the input reaches it.", "train.py:9"),
    ],
)
def test_why_an_output_ignores_the_input(
    size: float, ratio: float, words: str, location: str
) -> None:
    weights = LoopWeights(
        *(0, "opt", 9, 1.0, 2.0),
        ratio=ratio, rms=0.1, decay=0.0, rate=0.1, weight_decay=0.0, steps=40,
    )  # fmt: skip
    loop = LoopRecord(
        steps=40,
        optimizers=(LoopOptimizer("opt", "Adam", "train.py:3", 40, 2),),
        batches=(LoopBatches(0, 9, outputs=9, constant=9, location="train.py:9", size=size),),
        weights=(weights,),
    )
    entry = next(entry for entry in entries() if entry.rule.code == "GS513")
    assert entry.find_in_loop is not None
    (one,) = entry.find_in_loop(loop, entry.rule.limits())
    assert one.finding.location == location
    assert words in one.finding.message


def test_every_rule_of_the_loop_has_a_broken_program() -> None:
    assert {program.code for program in BROKEN.values()} == set(CODES)


def test_a_scheduler_of_a_script_that_was_cut_short_has_two_epochs_time() -> None:
    """A scheduler that steps once an epoch makes no step in the first."""

    def found(steps: int, loader: int, *, cut: bool = True) -> list[TrainingFinding]:
        optimizer = LoopOptimizer("opt", "SGD", None, steps, 2)
        scheduler = LoopScheduler("sched", "StepLR", "train.py:3", "opt", 0)
        loop = LoopRecord(
            *(steps, steps),
            optimizers=(optimizer,),
            schedulers=(scheduler,),
            loader=loader,
            ended=True,
            cut=cut,
        )
        return list(RunFindings(RuleSettings.of(select=["GS812"])).loop(loop))

    assert found(50, 100) == found(50, 26) == found(50, 0) == []
    assert [one.code for one in found(50, 25)] == ["GS812"]
    assert [one.code for one in found(50, 100, cut=False)] == ["GS812"]
