"""One step of several processes: what it says of the whole is what one process says of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from running.parallel.cases import CASES, ROWS, TRUE, inspected, model
from training.ranks.launched import launched, side_by_side

import gradscope
from gradscope import plugins
from gradscope.comparison.reports import compare_reports
from gradscope.errors import GradscopeError
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.reporters.views import View

terminal = plugins.load("gradscope.reporters.report", "terminal")

SCRIPT = Path(__file__).parent / "cases.py"
BOTH = pytest.mark.parametrize(
    ("processes", "name"), [(count, name) for count, names in TRUE.items() for name in names]
)


@cache
def alone(network: str) -> Report:
    """Return the report of one process."""
    return inspected(network, "null")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of two and of four processes, after all cases."""
    folder = tmp_path_factory.mktemp("parallel")
    for processes in CASES:
        done = side_by_side(folder / str(processes), processes, SCRIPT)
        assert done.returncode == 0, done.stderr
    return folder


def report_of(ran: Path, processes: int, name: str, rank: int = 0) -> Report:
    return record_json.load(ran / str(processes) / f"{name}-{rank}.json", Report)


def told(ran: Path, name: str, rank: int = 0) -> str:
    return (ran / "2" / f"{name}-{rank}.txt").read_text(encoding="utf-8")


def close(number: float | None) -> object:
    return None if number is None else pytest.approx(number, rel=1e-6)


@pytest.mark.slow
@BOTH
def test_numbers_are_those_of_one_process(ran, processes, name):
    found, whole = report_of(ran, processes, name), alone(CASES[processes][name][0])
    assert found.loss == close(whole.loss)
    assert found.totals.gradient_norm == close(whole.totals.gradient_norm)
    assert found.totals.parameters == whole.totals.parameters
    assert [p.name for p in found.parameters] == [p.name for p in whole.parameters]
    for ours, theirs in zip(found.parameters, whole.parameters, strict=True):
        assert (ours.shape, ours.moved) == (theirs.shape, theirs.moved)
        assert ours.value.norm == close(theirs.value.norm), ours.name
        assert ours.update_ratio == close(theirs.update_ratio), ours.name
        assert (ours.gradient is None) == (theirs.gradient is None), ours.name
        if ours.gradient is not None and theirs.gradient is not None:
            assert ours.gradient.norm == close(theirs.gradient.norm), ours.name
            assert ours.gradient.zeros == theirs.gradient.zeros, ours.name
    for step, other in zip(found.history, whole.history, strict=True):
        assert (step.loss, step.gradient_norm) == (close(other.loss), close(other.gradient_norm))
        for part, one in zip(step.parameters, other.parameters, strict=True):
            assert part.gradient_norm == close(one.gradient_norm)
            assert part.update_ratio == close(one.update_ratio)


@pytest.mark.slow
@BOTH
def test_it_compares_with_the_report_of_one_process(ran, processes, name):
    found = compare_reports(
        alone(CASES[processes][name][0]), report_of(ran, processes, name), files=("one", "several")
    )
    assert found.findings == ()
    assert found.parameters
    assert (*found.only_a, *found.only_b) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRUE[2], "gpt-mixed"])
def test_every_process_is_given_the_same_report(ran, name):
    assert report_of(ran, 2, name, 0) == report_of(ran, 2, name, 1)


@pytest.mark.slow
def test_it_says_what_was_parallel(ran):
    run = report_of(ran, 4, "gpt-2d").parallel
    assert run is not None
    assert (run.kind, run.processes, run.axes, run.parts) == ("fsdp x tp", 4, {"dp": 2, "tp": 2}, 2)
    places = {one.name: one.placements for one in run.placements}
    assert places["blocks.0.up.weight"] == ("S(0)", "S(0)")
    assert places["blocks.0.norm1.weight"] == ("S(0)",)
    text = terminal.render(report_of(ran, 4, "gpt-2d"), View(width=150))
    assert "fsdp x tp over 4 processes (dp 2 x tp 2)" in text
    assert "calls: of rank 0 of 4" in text
    assert "norm_ranks" in text


@pytest.mark.slow
def test_calls_are_one_ranks_with_the_spread_over_all(ran):
    outputs = [one for call in report_of(ran, 2, "resnet-ddp").calls for one in call.outputs]
    for one in outputs:
        assert one.norm_ranks is not None and one.activation.norm is not None
        assert one.norm_ranks[0] <= one.activation.norm <= one.norm_ranks[1]
    assert any(one.norm_ranks[0] < one.norm_ranks[1] for one in outputs if one.norm_ranks)


@pytest.mark.slow
def test_mixed_precision_is_that_of_its_policy(ran):
    found, whole = report_of(ran, 2, "gpt-mixed"), alone("Gpt")
    assert found.totals.gradient_norm == pytest.approx(whole.totals.gradient_norm, rel=0.02)
    assert found.totals.gradient_norm != close(whole.totals.gradient_norm)


@pytest.mark.slow
def test_what_makes_no_whole_has_no_number_and_says_why(ran):
    found = report_of(ran, 2, "unused")
    assert found.parallel is not None
    assert set(found.parallel.not_reduced) == {"used.weight", "used.bias"}
    assert found.totals.gradient_norm is None
    (why,) = [note for note in found.run.notices if "no global norms" in note]
    assert "waited for `idle.weight`, `idle.bias`" in why
    assert "find_unused_parameters" in why
    assert [note for note in found.run.notices if "no full sample" in note]
    (loss,) = [
        n for n in report_of(ran, 2, "half-a-head").run.notices if n.startswith("loss: from")
    ]
    assert "colwise without rowwise" in loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tied", "`head.weight` is also `embed.weight`"),
        ("no-such-layer", "did you mean `head`?"),
        ("a-norm", "`blocks.0.norm1` is a LayerNorm, which cannot be rowwise"),
        ("mesh", "the mesh dp 2 x tp 2 needs 4 processes, and there are 2"),
    ],
)
def test_what_cannot_be_spread_is_refused_by_each(ran, name, words):
    assert words in told(ran, name, 0)
    assert words in told(ran, name, 1)


@pytest.mark.slow
def test_all_end_when_one_raises(ran):
    """That they end at all is what the fixture waited for."""
    for rank in (0, 1):
        assert "forward raised in the model: ValueError: no such luck" in told(ran, "raises", rank)
        assert "in rank 1 of 2" in told(ran, "raises", rank)


@pytest.mark.slow
def test_the_command_writes_one_report_and_ends_as_one(tmp_path):
    words = ["-m", "gradscope", "inspect", *ROWS, "device=cpu", "parallel.ddp=true"]
    words += ["--allow", "nets.*"]
    written = ("-o", "r.json", "--fail-on", "warning")
    done = side_by_side(tmp_path, 2, *words, model("Unused"), *written)
    assert done.returncode == 1
    report = record_json.load(tmp_path / "r.json", Report)
    assert "GS402" in {finding.code for finding in report.findings}
    failed = launched(tmp_path, 2, *words, model("Raises"), "-o", "f.json")
    assert "error: forward raised in the model: ValueError: no such luck" in failed.stderr
    assert "exitcode  : 3" in failed.stderr
    partial = record_json.load(tmp_path / "f.json", Report)
    assert partial.status == "failed"
    assert partial.error is not None and partial.error.message == "no such luck"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_the_others_what_they_recorded(tmp_path):
    words = ["-m", "gradscope", "inspect", *ROWS, "device=cpu", "parallel.ddp=true"]
    words += ["--allow", "nets.*", model("Killed"), "-o", "r.json"]
    done = side_by_side(tmp_path, 2, *words)  # as a launcher does, it ends the other
    assert done.returncode == 1
    partial = record_json.load(tmp_path / "r.json", Report)
    assert partial.status == "failed"
    assert any("rank 0 of 2 only" in notice for notice in partial.run.notices)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def refused(*words: str, entry=gradscope.inspect) -> str:
    with pytest.raises(GradscopeError) as caught:
        entry("demo", overrides=list(words))
    return caught.value.render()


def test_alone_it_says_how_to_start_several(nobody):
    text = refused("parallel.ddp=true")
    assert "`parallel` needs several processes, and there is only one" in text
    assert "torchrun --nproc-per-node 2 -m gradscope inspect demo" in text


def test_other_entries_refuse_it(nobody):
    for entry in (gradscope.check, gradscope.why):
        assert "`parallel` is for `inspect` only" in refused("parallel.ddp=true", entry=entry)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["parallel={}"], "has none of ddp, fsdp and tp"),
        (["parallel={ddp: true, fsdp: true}"], "has ddp and fsdp"),
        (["parallel={ddp: true, tp: {a: colwise}}"], "has ddp and tp"),
        (["parallel={fsdp: true, tp: {a: colwise}}"], "how many processes are for each?"),
        (["parallel={fsdp: true, mesh: {tp: 2}}"], "`parallel.mesh.tp` is unused"),
        (["parallel={tp: {a: columnwise}}"], "did you mean `colwise`?"),
        (["parallel={tp: {'re:(': colwise}}"], "is not a regular expression"),
        (["parallel.fsdp.unit=a"], "did you mean `units`?"),
        (["parallel.ddp=true", "accumulate=2"], "`accumulate` and `parallel` do not go together"),
        (["parallel.ddp=true", "backward.repeats=2"], "`backward` and `parallel` do not"),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_runs(words, said):
    assert said in refused(*words)
