"""Findings of a run: each told once, with the steps in which it held, whatever is fed in."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
from rules.made import call, facts, parameter, report, stack, stats

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.json import to_data
from gradscope.records.report import Report
from gradscope.records.tensors import NONE, NormNames, ParameterNorms, packed
from gradscope.records.training import StepSample, TrainingFinding, TrainingStep
from gradscope.rules import RuleSettings
from gradscope.training.findings import MOST_RANGES, RunFindings, StepRanges

HEALTHY = stack(1.0, 1.0, 1.0, 1.0)
VANISHING = stack(1e-9, 1e-9, 1.0, 1.0)
DEAD = stack(1.0, 0.0, 1.0, 1.0)
LOST = stack(1.0, None, 1.0, 1.0)


def only(*codes: str) -> RunFindings:
    return RunFindings(RuleSettings.of(select=codes))


def held(found: Report, *idle: str, **more: object) -> Report:
    """The report with the optimizer's parameters marked, all but ``idle``."""
    parameters = tuple(
        replace(p, in_optimizer=p.name not in idle, **more) for p in found.parameters
    )
    return replace(found, parameters=parameters)


def sample(step: int, found: Report, model: int = 0, **more: object) -> StepSample:
    return StepSample(step, model, found, **more)


def step(number: int, **more: object) -> TrainingStep:
    values = {"optimizer": "optimizer", "optimizer_step": number, "time": 0.0, "seconds": 0.0}
    values |= {"losses": (1 + number % 7 / 10,), "gradient_norm": 1 + number % 5 / 10}
    values |= {"clipped_norm": values["gradient_norm"], "learning_rates": (0.1,)}
    return TrainingStep(number, **{**values, **more})


def spans(found: tuple[TrainingFinding, ...]) -> list[tuple[str, tuple[tuple[int, int], ...]]]:
    return [(one.finding.code, one.steps) for one in found]


# ------------------------------------------------------------------------- places


def test_a_rule_over_samples_names_the_line_of_the_optimizer() -> None:
    found = only("GS620")
    found.optimizer_at = {"optimizer": "train.py:13"}.get
    weights = tuple(parameter(f"{n}.weight", update_ratio=9.0) for n in range(3))
    moved = held(report(parameters=weights, run={"optimizer": "Adam"}))
    (one,) = found.sample(sample(1, moved, optimizer="optimizer"))
    assert one.finding.location == "train.py:13"


# ------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([(1, 1), (3, 3)], ((1, 1), (3, 3))),
        ([(1, 1), (2, 2)], ((1, 2),)),
        ([(3, 3), (1, 1)], ((1, 1), (3, 3))),
        ([(1, 4), (2, 3)], ((1, 4),)),
        ([(1, 2), (6, 9), (2, 6)], ((1, 9),)),
        ([(5, 6), (1, 2), (9, 9), (3, 8)], ((1, 9),)),
        ([(5, 6), (5, 6)], ((5, 6),)),
    ],
)
def test_intervals_are_a_set_of_steps(added, expected):
    for order in itertools.permutations(added):
        intervals = StepRanges()
        for first, last in order:
            intervals.add(first, last)
        assert intervals.all() == expected
        assert intervals.count == sum(last - first + 1 for first, last in expected)


def test_intervals_as_a_set_does_it():
    rng, intervals, steps = random.Random(0), StepRanges(), set()
    for _ in range(60):
        first = rng.randrange(200)
        last = first + rng.randrange(6)
        more = intervals.add(first, last)
        before, steps = steps, steps | set(range(first, last + 1))
        apart = not before & set(range(first - 1, last + 2))
        assert more == apart
        assert intervals.count == len(steps)


def test_no_more_intervals_than_can_be_read():
    intervals = StepRanges()
    for number in range(10_000):
        intervals.add(number * 3, number * 3)
    assert len(intervals.all()) == MOST_RANGES
    assert intervals.all()[0][0] == 0
    assert intervals.all()[-1][1] == 29_997


# ------------------------------------------------------------------------- samples


def test_told_once_after_three_samples_and_with_all_its_steps():
    found = only("GS101")
    given = [found.sample(sample(number, VANISHING)) for number in (1, 11, 21, 31)]
    assert [spans(one) for one in given] == [
        [], [], [("GS101", ((1, 21),))], [("GS101", ((1, 31),))],
    ]  # fmt: skip
    assert found.sample(sample(41, HEALTHY)) == ()
    assert spans(found.all()) == [("GS101", ((1, 31),))]


def test_a_gap_parts_the_intervals():
    found = only("GS101")
    for number in range(1, 100, 10):
        found.sample(sample(number, HEALTHY if number == 41 else VANISHING))
    assert spans(found.all()) == [("GS101", ((1, 31), (51, 91)))]


def test_two_samples_are_nothing():
    found = only("GS101")
    for number in range(1, 100, 10):
        found.sample(sample(number, HEALTHY if number % 30 == 1 else VANISHING))
    assert found.all() == ()


def test_what_comes_and_goes_must_hold_longer_each_time():
    found = only("GS101")
    number = 0
    for streak in (2, 2, 2, 12):
        for kind in [VANISHING] * streak + [HEALTHY]:
            number += 1
            found.sample(sample(number, kind))
    assert found.all() == ()
    for _ in range(3 * 16):
        number += 1
        found.sample(sample(number, VANISHING))
    ((_, steps),) = spans(found.all())
    assert steps == ((number - 47, number),)


def test_the_place_may_wander_where_a_rule_speaks_of_the_model():
    found = only("GS101")
    for number in range(1, 9):
        far = stack(*[1e-9] * (1 + number % 3), 1.0, 1.0, 1.0)
        found.sample(sample(number, far))
    (one,) = found.all()
    assert one.steps == ((1, 8),)
    assert one.finding.name == "l1"  # that of the first step


def test_of_several_models_each_has_its_own():
    found = only("GS101")
    for number in range(1, 9):
        for model in (0, 1):
            found.sample(sample(number, VANISHING if model or number > 4 else HEALTHY, model))
    assert {(one.model, one.steps) for one in found.all()} == {(0, ((5, 8),)), (1, ((1, 8),))}


def test_the_first_step_alone_speaks_of_the_first_loss():
    far = report(loss=40.0, run={"loss": "cross_entropy"}, calls=(call("", 0),))
    for first, codes in ((1, ["GS506"]), (2, [])):
        found = only("GS506")
        for number in range(first, first + 5):
            found.sample(sample(number, far))
        assert [one.finding.code for one in found.all()] == codes


def test_the_first_loss_of_an_accumulating_step_is_that_of_a_backward():
    """Four backwards of a fresh network, each of which guesses: their sum is no finding."""
    guessing = math.log(4)
    for loss, codes in ((4 * guessing, []), (4 * 9 * guessing, ["GS506"])):
        run = {"loss": "cross_entropy", "repeats": 4}
        found = only("GS506")
        found.sample(sample(1, report(loss=loss, run=run, calls=(call("", 0),))))
        assert [one.finding.code for one in found.all()] == codes


# ------------------------------------------------------------------------- whose parameters


def test_a_gradient_is_missing_only_where_the_optimizer_holds_it():
    """Of a GAN in one module: every second step is the other one's."""
    found = only("GS4")
    halves = (
        held(stack(None, None, 1.0), "l0.weight", "l1.weight"),
        held(stack(1.0, 1.0, None), "l2.weight"),
    )
    for number in range(1, 60):
        found.sample(sample(number, halves[number % 2], optimizer="DG"[number % 2]))
    assert found.all() == ()


def test_a_gradient_that_was_there_once_is_not_missing():
    """Tasks that take turns; every later sample happens to see the same one."""
    found = only("GS401")
    for number in (1, 2, 3, *range(10, 500, 10)):
        found.sample(sample(number, held(HEALTHY if number == 2 else LOST)))
    assert found.all() == ()


def test_frozen_for_the_other_ones_step():
    """pix2pix freezes its judge, batch norms and all, while the generator trains."""
    norm = facts("d.norm", "d.norm.weight", kinds=("BatchNorm2d", "_BatchNorm"),
                 written=("d.norm.running_mean",))  # fmt: skip
    modules = (facts(""), facts("d"), norm, facts("g", "g.weight"))

    def at(frozen: bool) -> Report:
        judge = parameter("d.norm.weight", shape=(4,), requires_grad=not frozen)
        both = replace(judge, in_optimizer=not frozen), parameter("g.weight", in_optimizer=frozen)
        return report(parameters=both, modules=modules)

    found = only("GS403")
    for number in range(1, 40):
        found.sample(sample(number, at(number % 2 == 0), optimizer="dg"[number % 2]))
    assert found.all() == ()
    found = only("GS403")
    for number in range(1, 5):
        found.sample(sample(number, at(True)))
    assert spans(found.all()) == [("GS403", ((1, 4),))]


def test_a_bias_whose_gradient_cancels_is_nothing():
    bias = replace(parameter("l0.bias", 0.0, shape=(4,)), in_optimizer=True)
    found = only("GS103")
    for number in range(1, 20):
        found.sample(sample(number, report(parameters=(bias, parameter("l0.weight")))))
    assert found.all() == ()


# ------------------------------------------------------------------------- steps


def test_a_spike_is_an_interval_of_its_own():
    found = only("GS601")
    given = []
    for number in range(1, 401):
        high = number in (200, 300)
        given += found.step(step(number, losses=(50.0,)) if high else step(number))
    assert [one.steps for one in given] == [((200, 200),), ((200, 200), (300, 300))]
    (one,) = found.all()
    assert one.steps == given[-1].steps
    assert "step 200" in one.finding.message


def test_a_spike_of_the_gradient_names_the_parameter_with_the_most_of_it():
    found = only("GS602")
    found.norms(NormNames(1, 0, ("small.weight", "large.weight", "unused.weight")))
    for number in range(1, 101):
        norms = (50.0, 400.0) if number == 100 else (1e-6 * (1 + number % 3), 1.0)
        if number != 50:  # a step whose gradients were not read
            found.norms(ParameterNorms(number, 1, number, packed([*norms, NONE])))
        found.step(step(number, gradient_norm=math.hypot(*norms)))
    (one,) = found.all()
    assert one.steps == ((100, 100),)
    said = "The largest part of it is that of `large.weight`: 400.0, after a median of 1.000."
    assert one.finding.message.endswith(said)


def test_a_spike_without_norms_of_parameters_is_told_all_the_same():
    found = only("GS602")
    for number in range(1, 101):
        found.step(step(number, gradient_norm=400.0 if number == 100 else 1.0))
    (one,) = found.all()
    assert "largest part" not in one.finding.message


def test_what_holds_at_each_step_is_given_out_now_and_then():
    found, given = only("GS608"), []
    for number in range(1, 2001):
        rate = 0.1 if number <= 100 or number > 1900 else 0.0
        given.append(found.step(step(number, learning_rates=(rate,))))
    told = [number + 1 for number, some in enumerate(given) if some]
    assert told[0] == 150  # fifty steps in a row, from the 101st on
    assert given[149][0].steps == ((101, 150),)
    assert told[-1] == 1901
    assert given[1900][0].steps == ((101, 1900),)
    assert len(told) < 40


def test_what_was_given_out_is_the_whole():
    """The last that was given out for each finding is at most 64 steps behind."""
    found, last = only("GS601", "GS608", "GS609"), {}
    for number in range(1, 1500):
        more: dict[str, object] = {}
        if 400 < number < 600:
            more = {"learning_rates": (0.0,)}
        if number % 333 == 0:
            more["losses"] = (99.0,)
        if number > 700:
            more["loss_scale"] = 0.5
        for one in found.step(step(number, **more)):
            last[one.key] = one
    whole = {one.key: one for one in found.all()}
    assert last.keys() == whole.keys()
    assert {one.finding.code for one in whole.values()} == {"GS601", "GS608", "GS609"}
    for key, one in whole.items():
        assert one.finding == last[key].finding
        assert one.steps[:-1] == last[key].steps[:-1]
        assert 0 <= one.steps[-1][1] - last[key].steps[-1][1] < 64


def test_each_optimizer_has_its_own_past():
    """One's usual loss would be a spike in the other's."""
    found = only("GS6")
    for number in range(1, 400):
        large = number % 2
        found.step(step(number, optimizer="ab"[large], losses=(1 + 99 * large,)))
    assert found.all() == ()
    found.step(step(400, optimizer="a", losses=(100.0,)))
    ((_, steps),) = spans(found.all())
    assert steps == ((400, 400),)
    assert found.all()[0].finding.name == "a"


def test_steps_of_two_optimizers_in_turn_are_one_interval():
    found = only("GS608")
    for number in range(1, 301):
        rate = 0.1 if number < 101 or number % 2 else 0.0
        found.step(step(number, optimizer="ab"[number % 2], learning_rates=(rate,)))
    ((_, steps),) = spans(found.all())
    assert steps == ((102, 300),)


def test_steps_that_are_all_skipped_from_the_first_one_on():
    found, scale = only("GS6"), 65536.0
    for number in range(1, 60):
        found.skipped(step(number, loss_scale=scale, losses=(), gradient_norm=None))
        scale /= 2
    ((code, steps),) = spans(found.all())
    assert (code, steps) == ("GS609", ((18, 59),))


def test_a_skipped_step_adds_nothing_to_the_past():
    """Its loss and its gradient are those that overflowed."""
    often, never, given = only("GS6"), only("GS6"), []
    for number in range(1, 400):
        if number % 2:
            given += often.step(step(number))
            never.step(step(number))
        else:
            given += often.skipped(step(number, losses=(1e9,), gradient_norm=1e9))
    assert given == []
    for found in (often, never):
        found.step(step(401, losses=(50.0,)))
    assert often.all() == never.all()
    assert [code for code, _ in spans(often.all())] == ["GS601"]


# ------------------------------------------------------------------------- NaN


def test_the_first_nan_of_the_run_is_told_with_its_origin():
    found = only("GS301")
    origin = NonFiniteOrigin("nan", "forward", "`log` of 0 gave -inf", name="head", count=1)
    (one,) = found.add_origins(900, [origin], model=0)
    assert (one.origin, one.model, one.steps) == (origin, 0, ((900, 900),))
    found.step(step(900, nonfinite="nan"))
    found.sample(sample(900, replace(HEALTHY, loss_nonfinite="nan")))
    for number in (901, 902):
        found.step(step(number, nonfinite="nan"))
    assert found.add_origins(901, [origin]) == ()
    (one,) = found.all()
    assert (one.steps, one.origin, one.finding.severity) == (((900, 902),), origin, "error")
    assert only("GS1").add_origins(900, [origin]) == ()
    assert only("GS301").add_origins(900, []) == ()


def test_a_nan_that_nobody_located():
    found = only("GS301")
    for number in range(1, 10):
        found.step(step(number, nonfinite="inf" if number == 4 else None))
    (one,) = found.all()
    assert one.steps == ((4, 4),)
    assert "step 4" in one.finding.message


def test_the_worst_severity_stays():
    grave = replace(HEALTHY, loss_nonfinite="nan")
    mild = replace(HEALTHY, non_finite=(NonFiniteOrigin("nan", "forward", "a NaN that is masked"),))
    for order in ((mild, grave), (grave, mild)):
        found = only("GS301")
        for number, kind in enumerate(order, 1):
            found.sample(sample(number, kind))
        (one,) = found.all()
        assert one.finding.severity == "error"
        assert one.steps == ((1, 2),)


# ------------------------------------------------------------------------- whatever comes


def test_the_worst_comes_first():
    found = RunFindings(RuleSettings())
    for number in range(1, 60):
        found.step(step(number, learning_rates=(0.0,), nonfinite="nan" if number > 9 else None))
        found.sample(sample(number, held(LOST)))
    levels = [one.finding.severity for one in found.all()]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert len({one.key for one in found.all()}) == len(levels)


def test_looking_less_often_finds_no_other_steps():
    """A finding in every tenth sample also held when each was sampled."""
    often, seldom = only("GS101"), only("GS101")
    for number in range(1, 400):
        kind = VANISHING if 100 <= number < 300 else HEALTHY
        often.sample(sample(number, kind))
        if number % 10 == 0:
            seldom.sample(sample(number, kind))
    assert spans(often.all()) == [("GS101", ((100, 299),))]
    assert spans(seldom.all()) == [("GS101", ((100, 290),))]


def test_order_does_not_matter_to_the_steps():
    """A sample may come before its step's step metrics, and a late one after others."""
    found = only("GS101")
    for number in (5, 3, 4, 1, 2):
        found.sample(sample(number, VANISHING))
    assert spans(found.all()) == [("GS101", ((1, 5),))]


ODD = (None, 0.0, -1.0, 1e-320, 1e300, -1e300, math.nan, math.inf, -math.inf)


def test_hostile_numbers_raise_nothing_and_are_no_json_trouble():
    rng, found = random.Random(1), RunFindings(RuleSettings())
    for number in range(1, 3000):
        norm, clipped, loss, scale = (rng.choice((*ODD, 1.0, 1.0, 2.0)) for _ in range(4))
        rates = tuple(rng.choice((*ODD[1:], 0.1)) for _ in range(rng.randrange(3)))
        found.step(
            step(
                number, losses=(loss,) * rng.randrange(3), gradient_norm=norm,
                clipped_norm=clipped, loss_scale=scale, learning_rates=rates,
            )
        )  # fmt: skip
        if number % 10 == 0:
            odd = [rng.choice((*ODD, 1.0, 2.0)) for _ in range(6)]
            weights = tuple(
                replace(
                    parameter(f"l{i}.weight", value=stats(norm=odd[i])),
                    gradient=stats(norm=odd[i + 1]), update_ratio=odd[i + 2], moved=None,
                )
                for i in range(4)
            )  # fmt: skip
            looked = report(parameters=weights, run={"optimizer": "AdamW"})
            settings = {"eps": rng.choice((1e-8, *ODD[1:]))}
            clips = {"l0.weight": odd[3], "l1.weight": odd[4]}
            found.sample(sample(number, looked, settings=settings, clipped=clips))
    for one in found.all():
        json.dumps(to_data(one), allow_nan=False)


def test_odd_numbers_between_are_left_out_of_the_past():
    found = only("GS601", "GS602")
    for number in range(1, 300):
        odd = ODD[number // 3 % len(ODD)] if number % 3 == 0 else 1 + number % 5 / 10
        if odd in (0.0, -1.0, 1e-320, -1e300, 1e300):
            odd = None
        found.step(step(number, losses=(odd,), gradient_norm=odd))
    assert found.all() == ()
    found.step(step(300, losses=(60.0,), gradient_norm=60.0))
    assert [one.finding.code for one in found.all()] == ["GS601", "GS602"]


def test_a_record_is_plain_data():
    found = only("GS101")
    for number in range(1, 9):
        found.sample(sample(number, VANISHING))
    (one,) = found.all()
    assert to_data(one)["steps"] == [[1, 8]]


# ------------------------------------------------------------------------- noise


def noise(kind: str, rng: random.Random) -> float:
    """Losses as trainings have them that are nearly done, or that learn from rewards."""
    if kind == "log-normal":
        return math.exp(rng.gauss(0, 1.5))
    if kind == "exponential":
        return rng.expovariate(1)
    if kind == "learned but for some":
        return 0.01 * math.exp(rng.gauss(0, 1)) if rng.random() < 0.9 else rng.expovariate(1)
    tail = math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3)
    return rng.gauss(0, 1) / tail  # Student's t, of both signs


@pytest.mark.parametrize(
    "kind", ["log-normal", "exponential", "learned but for some", "both signs"]
)
def test_long_tails_are_no_spikes(kind):
    for seed in range(3):
        rng, found = random.Random(seed), only("GS601", "GS602")
        for number in range(1, 1500):
            value = noise(kind, rng)
            found.step(step(number, losses=(value,), gradient_norm=abs(value) + 1e-6))
        assert found.all() == ()


def test_noise_does_not_hide_a_spike():
    rng, found = random.Random(0), only("GS601")
    for number in range(1, 1500):
        value = 3 * math.exp(rng.gauss(0, 0.03))
        found.step(step(number, losses=(value * (1.8 if number == 1000 else 1),)))
    assert spans(found.all()) == [("GS601", ((1000, 1000),))]
