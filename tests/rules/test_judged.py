"""Rules with enough samples in a run: they declare when they can first report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace

import pytest

from gradscope.records.answers import NotJudged
from gradscope.records.report import Report
from gradscope.records.training import StepSample, TrainedModel, TrainingStep
from gradscope.records.transformer import AttentionCall, ResidualCall
from gradscope.rules import RuleSettings, Seen, judgement, structures
from gradscope.rules._book import Entry, entries
from gradscope.training.findings import RunFindings
from rules.made import parameter, report, stack, stats

ENTRIES = {entry.rule.code: entry for entry in entries()}
NAMES = {field.name for field in fields(TrainingStep)}


def observed_of(*codes: str, ranks: bool = False) -> Seen:
    return Seen(RuleSettings.of(select=codes), ranks)


def step(number: int, optimizer: str = "o", **more: object) -> TrainingStep:
    return TrainingStep(number, optimizer, number, 0.0, 0.0, **more)


def lacking(seen: Seen) -> dict[str, NotJudged]:
    return {one.code: one for one in judgement(seen).not_judged}


def test_a_script_that_was_ended_cannot_be_judged_by_what_it_does_at_its_end() -> None:
    seen = Seen(RuleSettings.of(select=["GS801", "GS810", "GS812"]))
    assert judgement(seen).judged == ("GS801", "GS810", "GS812")
    seen.cut = True
    assert judgement(seen).judged == ("GS801",)
    assert {one.help for one in lacking(seen).values()} == {"run the script to its end"}
    assert list(lacking(seen)) == ["GS810", "GS812"]


# ------------------------------------------------------------------------- what is declared


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_a_rule_declares_what_its_functions_read(entry: Entry) -> None:
    runs = entry.rule.runs
    if runs is None or entry.find_over_ranks is not None:
        assert entry.find_over_steps is entry.find_over_samples is None
        return
    assert runs.over_steps == (entry.find_over_steps is not None)
    assert runs.over_samples == bool(entry.find_over_samples or entry.in_runs)
    assert set(runs.metrics) <= {*NAMES, "loss"}
    assert runs.loop == (entry.find_in_loop is not None)
    if runs.loop:
        return
    limits = entry.rule.limits()
    assert runs.steps_needed(limits) >= 1
    assert runs.samples_needed(limits) >= (not runs.metrics)


#: By rule: the steps of a run that has the fault from its beginning, or at its last step.
FROM_THE_START: dict[str, Callable[[int, bool], TrainingStep]] = {
    "GS301": lambda i, last: step(i, losses=(None,), nonfinite="nan"),
    "GS601": lambda i, last: step(i, losses=(99.0 if last else 2.0,)),
    "GS602": lambda i, last: step(i, gradient_norm=99.0 if last else 1.0),
    "GS603": lambda i, last: step(i, losses=(2.0,)),
    "GS608": lambda i, last: step(i, learning_rates=(0.0,)),
    "GS615": lambda i, last: step(
        i, update_rms=9.0 if last else 1.0, clipped_norm=1.0, learning_rates=(0.1,)
    ),
    "GS616": lambda i, last: step(i, learning_rates=(0.1 * 1.04 ** max(0, i - 17),)),
    "GS617": lambda i, last: step(
        i, update_rms=1.0 if i <= 32 else 0.01, clipped_norm=1.0, learning_rates=(0.1,)
    ),
    "GS609": lambda i, last: step(i, loss_scale=0.5),
    "GS621": lambda i, last: step(
        i,
        losses=(None if last else 1e3**i,),
        nonfinite="inf" if last else None,
        clipped_norm=1e3**i,
        learning_rates=(0.1,),
    ),
}


@pytest.mark.parametrize("code", FROM_THE_START)
def test_a_rule_over_steps_speaks_as_soon_as_it_can_be_judged(code: str) -> None:
    rule, make = ENTRIES[code].rule, FROM_THE_START[code]
    assert rule.runs is not None
    needed = rule.runs.steps_needed(rule.limits())
    for length, speaks in ((needed - 1, False), (needed, True)):
        found, seen = RunFindings(RuleSettings.of(select=[code])), observed_of(code)
        for number in range(1, length + 1):
            one = make(number, number == length)
            found.step(one)
            seen.add_step(one)
        assert bool(found.all()) is speaks
        if code == "GS602":  # which is over samples too
            assert seen.steps(rule.runs.metrics) == length
        else:
            assert judgement(seen).judged == ((code,) if speaks else ())


def moving(*ratios: float) -> tuple:
    weights = (replace(parameter(f"l{i}.weight"), in_optimizer=True) for i in range(len(ratios)))
    pairs = zip(weights, ratios, strict=True)
    return tuple(replace(one, update_ratio=ratio, moved=True) for one, ratio in pairs)


def of_size(*norms: float, of: str) -> tuple:
    made = [replace(parameter(f"l{i}.weight"), in_optimizer=True) for i in range(len(norms))]
    return tuple(replace(one, **{of: stats(rms=x)}) for one, x in zip(made, norms, strict=True))


def in_bfloat16(*norms: float) -> tuple:
    made = of_size(*norms, of="gradient")
    return tuple(replace(p, value=replace(p.value, dtype="bfloat16")) for p in made)


def heads(logit: float, evenness: float, loss: float = 1.0) -> Report:
    attention = AttentionCall(
        *("a", 0, "softmax", 4, 4, 8, (logit,), (evenness,), (evenness,), (evenness,)),
        *((0.2,), (0.0,), (0.0,), (0.0,)),
    )
    return replace(report(), attention=(attention,), loss=loss)


def adding(*shares: float) -> Report:
    numbers = enumerate(shares)
    blocks = (ResidualCall(f"b.{i}", 0, "float32", 1, 3, 4, 4, x, 1) for i, x in numbers)
    return replace(report(), residual=tuple(blocks))


#: By rule: the samples of such a run.
SAMPLES: dict[str, Callable[[int, bool], object]] = {
    "GS101": lambda i, last: stack(1e-9, 1e-9, 1.0, 1.0),
    "GS205": lambda i, last: heads(2.0 if i == 1 else 900.0, 0.5),
    "GS206": lambda i, last: heads(2.0, 0.9 if i == 1 else 1e-4),
    "GS207": lambda i, last: heads(2.0, 1.0, loss=3.0 if i == 1 else 1.0),
    "GS209": lambda i, last: adding(0.3, 0.0, 0.3),
    "GS304": lambda i, last: report(parameters=in_bfloat16(1.0, 1.0)),
    "GS602": lambda i, last: report(
        parameters=of_size(1e3 if last else 1.0, 1.0, 1.0, of="gradient")
    ),
    "GS604": lambda i, last: report(parameters=of_size(2.0**i, of="value")),
    "GS605": lambda i, last: report(parameters=moving(1e-3 if i == 1 else 1e-9, 1e-3, 1e-3, 1e-3)),
    "GS620": lambda i, last: report(parameters=moving(9.0, 9.0), run={"optimizer": "Adam"}),
    "GS606": lambda i, last: report(
        parameters=of_size(1e-3, of="gradient"), run={"optimizer": "Adam"}
    ),
}


@pytest.mark.parametrize("code", SAMPLES)
def test_a_rule_over_samples_speaks_as_soon_as_it_can_be_judged(code: str) -> None:
    rule, make = ENTRIES[code].rule, SAMPLES[code]
    assert rule.runs is not None
    needed = rule.runs.samples_needed(rule.limits())
    for length, speaks in ((needed - 1, False), (needed, True)):
        found, seen = RunFindings(RuleSettings.of(select=[code])), observed_of(code)
        for number in range(1, length + 1):
            one = make(number, number == length)
            held = replace(  # as a run's samples have it
                one, parameters=tuple(replace(p, in_optimizer=True) for p in one.parameters)
            )
            found.sample(
                StepSample(number, 0, held, optimizer="o", settings={"eps": 1.0, "lr": 1e-9})
            )
            seen.add_sample(number, 0, "o", structures(held))
        assert bool(found.all()) is speaks, code
        assert judgement(seen).judged == ((code,) if speaks else ())


def test_every_rule_over_time_is_among_these() -> None:
    over_time = {c for c, one in ENTRIES.items() if one.find_over_steps or one.find_over_samples}
    assert over_time <= {*FROM_THE_START, *SAMPLES}


# ------------------------------------------------------------------------- what was seen


def fill(seen: Seen, steps: Iterable[TrainingStep], samples: int = 0, first: int = 1) -> Seen:
    for one in steps:
        seen.add_step(one)
    for number in range(first, first + samples):
        seen.add_sample(number, 0, "o")
    return seen


def test_the_optimizer_that_has_the_fewest_decides() -> None:
    seen = fill(observed_of("GS601"), (step(n, losses=(1.0,)) for n in range(1, 50)))
    assert judgement(seen).judged == ("GS601",)
    fill(seen, (step(n, "other", losses=(1.0,)) for n in range(1, 10)))
    assert lacking(seen)["GS601"] == NotJudged("GS601", "steps", 33, 9, "a run of 33 steps or more")


def test_the_model_that_has_the_fewest_samples_decides() -> None:
    seen = fill(observed_of("GS104"), (step(n) for n in range(1, 61)), samples=6)
    assert judgement(seen).judged == ("GS104",)
    seen.add_sample(9, 1, "o")
    assert lacking(seen)["GS104"] == NotJudged("GS104", "samples", 3, 1, "--every 20")


def test_a_rule_of_the_loop_can_be_judged_without_a_sample() -> None:
    seen = fill(observed_of("GS401", "GS801"), (step(n) for n in range(1, 61)))
    assert judgement(seen).judged == ("GS401", "GS801")


def test_sums_of_as_many_backwards_are_counted_together() -> None:
    steps = [step(n, losses=(1.0,) * (1 + n % 3)) for n in range(1, 91)]
    assert lacking(fill(observed_of("GS601"), steps))["GS601"].seen == 30


def test_a_rule_without_anything_to_look_at_is_in_neither() -> None:
    seen = fill(observed_of("GS609", "GS601"), (step(n) for n in range(1, 90)))
    found = judgement(seen)
    assert found.judged == found.not_judged == ()


def test_one_interval_gives_enough_for_all() -> None:
    seen = fill(
        observed_of("GS104", "GS603", "GS605"), (step(n, losses=(1.0,)) for n in range(1, 161)), 2
    )
    helps = {code: one.help for code, one in lacking(seen).items()}
    assert helps == {
        "GS104": "--every 10",
        "GS605": "--every 10",
        "GS603": "a run of 1,026 steps or more",
    }


def test_a_longer_run_is_the_only_way_to_more_steps() -> None:
    seen = fill(observed_of("GS605"), (step(n) for n in range(1, 5)), samples=4)
    assert lacking(seen)["GS605"].help == "a run of 16 steps or more"


def test_the_first_step_must_be_sampled() -> None:
    seen = fill(observed_of("GS506"), (step(n) for n in range(1, 90)), samples=8, first=2)
    assert lacking(seen)["GS506"] == NotJudged("GS506", "first-step", 1, 0, "--first 1")
    seen.add_sample(1, 0, "o")
    assert judgement(seen).judged == ("GS506",)


@pytest.mark.parametrize(("compiled", "judged"), [(None, 3), ("parts", 1)])
def test_of_compiled_modules_there_are_no_calls(compiled: str | None, judged: int) -> None:
    seen = fill(observed_of("GS104", "GS101", "GS505"), (step(n) for n in range(1, 90)), samples=8)
    seen.add_model(TrainedModel(0, "m", "Net", 1, 1, 1, compiled=compiled))
    assert len(judgement(seen).judged) == judged
    assert {one.unit for one in lacking(seen).values()} <= {"calls"}


def test_a_rule_about_a_structure_judges_the_models_that_have_it() -> None:
    seen = fill(observed_of("GS207", "GS208", "GS209"), (step(n) for n in range(1, 90)), samples=40)
    found = judgement(seen)
    assert found.judged == found.not_judged == ()
    for number in range(1, 5):
        seen.add_sample(number, 1, "o", structures(heads(1.0, 0.5)))
    assert judgement(seen).judged == ()
    assert [(c, one.needs, one.seen) for c, one in lacking(seen).items()] == [("GS207", 20, 4)]


def test_without_calls_nobody_knows_what_structure_a_model_has() -> None:
    seen = fill(observed_of("GS207"), [step(1)], samples=1)
    seen.add_model(TrainedModel(0, "m", "Net", 1, 1, 1, compiled="parts"))
    assert lacking(seen)["GS207"].unit == "calls"


@pytest.mark.parametrize("ranks", [False, True])
def test_rules_over_ranks_read_the_files_of_several(ranks: bool) -> None:
    seen = fill(observed_of("GS7"), [step(1)], samples=1)
    assert len(judgement(replace(seen, ranks=ranks)).judged) == 7 * ranks
    assert lacking(seen) == {}


def test_rules_that_were_left_out_are_in_neither() -> None:
    seen = Seen(RuleSettings.of(ignore=["GS1", "GS4"]))
    found = judgement(fill(seen, (step(n) for n in range(1, 9)), samples=8))
    every = {*found.judged, *(one.code for one in found.not_judged)}
    assert not any(code.startswith(("GS1", "GS4")) for code in every)
    assert {"GS203", "GS303"} <= set(found.judged)
