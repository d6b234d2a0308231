"""The verdict on a run: six lines at the most, at any width, and what each of them says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from reporters.golden import WIDTHS, check
from reporters.run_samples import SAMPLES, causes, small

from gradscope import plugins
from gradscope.records.answers import Judgement, NonFiniteOrigin, NotJudged
from gradscope.records.training import RunHistory, TrainingFinding, TrainingRun
from gradscope.reporters.run.findings import answers
from gradscope.reporters.verdict import UNSEEN, Verdict, cost_in_words, summary
from gradscope.reporters.views import TextView
from gradscope.typeset.console import paragraphs, printed

NONE = Judgement(("GS101", "GS301"), (NotJudged("GS605", "samples", 16, 9, "--every 3"),))


def verdict(history: RunHistory, findings: Sequence[TrainingFinding] | None = None) -> Verdict:
    samples = {model.id: history.sampled for model in history.models}
    return Verdict(
        history.run,
        history.findings if findings is None else findings,
        history.models,
        len(history.sampled),
        samples,
        history.judgement,
    )


def only(code: str) -> TrainingFinding:
    return next(one for one in causes().findings if one.code == code)


def said(*findings: TrainingFinding) -> list[str]:
    return list(map(str, verdict(causes(), findings).lines()))


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width(width: str) -> None:
    of = verdict(causes())
    lines = [of.steps(), *of.lines(), of.more_about("run.db")]
    assert len(lines) == 6
    text = printed(paragraphs(lines, WIDTHS[width]), width=WIDTHS[width], color=False)
    check(f"training/causes.verdict.{width}.txt", text)


def test_at_the_end_of_a_run() -> None:
    check("training/causes.summary.txt", summary(verdict(causes()), "runs/my run.db"))


@pytest.mark.parametrize("name", SAMPLES)
def test_six_lines_at_the_most(name: str) -> None:
    history = SAMPLES[name]()
    for found in (history.findings, (), history.findings[-1:]):
        text = summary(verdict(history, found), "run.db")
        assert 1 < len(text.splitlines()) <= 6
        assert text.replace("\n", "").isprintable()
        assert all(line.startswith("gradscope: ") for line in text.splitlines())


def test_of_several_processes_each_line_names_the_rank() -> None:
    of = causes()
    run = replace(of.run, rank=1, world_size=2)
    text = summary(replace(verdict(of), run=run), "runs")
    assert all(line.startswith("gradscope: rank 1: ") for line in text.splitlines())


def test_what_was_not_observed_and_what_failed_have_lines_of_their_own() -> None:
    lines = summary(
        verdict(causes()), "run.db", failure="it broke", unobserved=("other processes",)
    ).splitlines()
    assert lines[1] == "gradscope: other processes"
    assert lines[-2:] == ["gradscope: error: it broke", lines[-1]]
    assert len(lines) == 8
    assert summary(Verdict(TrainingRun("train.py", 0.0)), None) == ("gradscope: no step so far\n")


def test_that_calls_inside_compiled_models_are_missing() -> None:
    history = small()
    models = tuple(replace(model, compiled="parts") for model in history.models)
    of = replace(verdict(history), models=models)
    assert summary(of, None).splitlines()[1] == f"gradscope: {UNSEEN}"
    probed = replace(of, run=replace(of.run, options={"compiled": True}))
    assert UNSEEN not in summary(probed, None)
    assert UNSEEN not in summary(verdict(history), None)


def test_how_sure_a_sampled_rule_is() -> None:
    frozen = only("GS403")
    assert said(frozen)[1] == "  in 7 of 9 samples"
    assert said(replace(frozen, steps=((1, 3), (55, 60))))[1] == "  in 4 of 9 samples"
    # Of a model without samples nobody can count them.
    assert said(replace(frozen, model=7))[1] == "  in steps 3–60"
    located = replace(frozen, finding=replace(frozen.finding, location="train.py:7"))
    assert said(located)[1] == "  at train.py:7, in 7 of 9 samples"


@pytest.mark.parametrize(
    ("message", "steps", "expected"),
    [
        ("it is so in all 60 steps.", ((1, 60),), "at train.py:31"),
        ("it is so in 40 of 60 steps.", ((1, 60),), "at train.py:31"),
        ("it is so in the only step.", ((1, 1),), "at train.py:31"),
        ("it is so.", ((1, 60),), "at train.py:31, in all 60 steps"),
        ("it is so.", ((10, 60),), "at train.py:31, since step 10 of 60"),
        ("it is so.", ((61, 61),), "at train.py:31, in step 61"),
        ("it is so.", ((10, 20),), "at train.py:31, in steps 10–20 of 60"),
        ("it is so.", ((1, 4), (50, 60)), "at train.py:31, in steps 1–4, 50–60 of 60"),
    ],
)
def test_how_sure_a_fact_of_every_step_is(
    message: str, steps: tuple[tuple[int, int], ...], expected: str
) -> None:
    rate = only("GS806")
    found = replace(rate, finding=replace(rate.finding, message=message), steps=steps)
    assert said(found)[1] == f"  {expected}"


def test_what_follows_and_what_else_there_is() -> None:
    (rate, update, frozen, bias) = map(only, ("GS806", "GS104", "GS403", "GS505"))
    assert "follow" not in "".join(said(rate))
    assert said(rate, update)[-1] == "1 finding follows from it: GS104"
    assert said(frozen, bias)[-1] == "1 more finding: GS505 bias-before-batchnorm"
    twice = replace(bias, finding=replace(bias.finding, name="conv2.bias"))
    assert said(frozen, bias, twice)[-1] == "2 more findings: GS505 bias-before-batchnorm ×2"
    assert said(*causes().findings)[-1] == (
        "4 findings follow from it: GS104, GS605 ×3; 3 more findings: GS403 frozen-but-moving, "
        "GS605 stalled-layer, GS505 bias-before-batchnorm"
    )


def test_what_is_only_worth_knowing_is_no_problem() -> None:
    history = replace(causes(), judgement=NONE)
    first, second, *_, last = map(str, verdict(history, [only("GS505")]).lines())
    assert first == (
        "no error or warning found; 2 rules could be judged, 1 rule needs more samples (--every 3)"
    )
    assert second == (
        "info[GS505] netD.conv1.bias: the batch norm behind it, `bn1`, subtracts it again. "
        "(in 9 of 9 samples)"
    )
    assert last.startswith("if the loss does not fall: `gradscope experiment train.py` tries ")


def test_where_nothing_is_found_the_experiment_is_the_next_command() -> None:
    of = verdict(replace(causes(), judgement=NONE), [])
    assert "`gradscope experiment train.py`" in str(list(of.lines())[-1])
    for run in (replace(of.run, exit="3"), replace(of.run, world_size=2)):
        assert "experiment" not in "".join(map(str, replace(of, run=run).lines()))


def test_the_place_names_the_model_where_that_tells_more() -> None:
    assert said(only("GS403"))[0].startswith("warning[GS403] netD.bn1: ")
    one = replace(causes(), models=causes().models[1:])
    assert next(verdict(one, [only("GS403")]).lines()).lead == "warning[GS403] bn1:"
    whole = replace(only("GS403"), finding=replace(only("GS403").finding, name=""))
    assert next(verdict(one, [whole]).lines()).lead == "warning[GS403] netD:"
    assert next(verdict(one, [replace(whole, model=None)]).lines()).lead == "warning[GS403]:"


def test_the_next_command() -> None:
    of = verdict(causes())
    assert str(of.more_about("a b.db")) == "recorded in a b.db: `gradscope why 'a b.db'`"
    assert str(replace(of, findings=()).more_about("run.db")) == (
        "recorded in run.db: `gradscope show run.db`"
    )
    late = replace(only("GS806"), steps=((44, 60),), origin=NonFiniteOrigin("nan", "forward", "x"))
    run = replace(of.run, arguments=("--lr", "0 1"))
    assert str(replace(of, run=run, findings=(late,)).more_about("run.db")).endswith(
        "; every operation of step 44: `gradscope run --deep 43:44 train.py --lr '0 1'`"
    )


@pytest.mark.parametrize(
    ("cost", "took", "words"),
    [
        (None, None, ""),
        (0.016, None, "1.6 % of the time"),
        (0.016, 0.2, "1.6 % of the time (0.20 s)"),
        (0.016, 34.26, "1.6 % of the time (34.30 s)"),
        (0.02, 3600.0, "2.0 % of the time (60 min)"),
        (1.2, 3.0, "all of the time (3.00 s)"),
    ],
)
def test_the_cost(cost: float | None, took: float | None, words: str) -> None:
    assert cost_in_words(replace(small().run, cost=cost, cost_seconds=took)) == words


def test_an_ended_run_says_by_what() -> None:
    run = replace(causes().run, cut="--steps 60")
    assert str(Verdict(run, sampled=9).steps()) == (
        "60 steps (ended by `--steps 60`), 9 sampled; cost 1.6 % of the time (0.20 s)"
    )


@pytest.mark.parametrize("patterns", [(), ("netG.fc1.weight",)])
@pytest.mark.parametrize("format", ["terminal", "markdown", "json"])
def test_answers_have_symptoms_under_their_cause(format: str, patterns: tuple[str, ...]) -> None:
    """All of them where nobody asks for a layer, else that layer's, each in full."""
    module = plugins.load("gradscope.reporters.answers", format)
    text = module.render(answers(causes(), patterns=patterns), TextView(width=100))
    named = "named" if patterns else "all"
    check(f"training/causes.why-{named}{module.suffix}", text)


def test_the_line_that_made_a_layer_stands_beside_the_one_that_is_at_fault() -> None:
    found = causes().findings[0]
    for location, made in (("train.py:31", "net.py:12"), (None, "net.py:12"), ("a.py:1", "a.py:1")):
        one = replace(found, finding=replace(found.finding, location=location, made=made))
        (answer, *_) = answers(replace(causes(), findings=(one,))).answers
        shown = "is made at net.py:12"
        assert answer.location == (location or made)
        assert (shown in answer.message) == (location == "train.py:31")
        assert (shown in " ".join(said(one))) == (made == "net.py:12")
