"""Rules over time on courses made by hand: what they must say, and what they must not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from gradscope.records.report import Finding
from gradscope.records.training import StepSample, TrainingStep
from gradscope.rules import SampleHistory, StepHistory
from gradscope.rules._book import entries
from rules.made import parameter, report, stats

ENTRIES = {entry.rule.code: entry for entry in entries()}
RNG = random.Random(0)


def over(code: str, steps: Iterable[TrainingStep], *, alone: bool = True) -> list[int]:
    """The steps of one optimizer at which a rule fires."""
    entry, history, found = ENTRIES[code], None, []
    for one in steps:
        if history is None:
            history = StepHistory(one, alone=alone)
        else:
            history.add(one, alone=alone)
        if list(entry.find_over_steps(history, entry.rule.limits())):
            found.append(one.step)
    return found


def looked(code: str, samples: Iterable[StepSample]) -> list[tuple[int, Finding]]:
    """Return a rule's findings in the samples of one model."""
    entry, history, found = ENTRIES[code], SampleHistory(), []
    for one in samples:
        history.add(one)
        for finding in entry.find_over_samples(history, entry.rule.limits()):
            found.append((one.step, finding))
    return found


def steps(count: int, **columns: Callable[[int], object]) -> Iterable[TrainingStep]:
    """So many steps with these columns, each a function of the step's number."""
    for number in range(1, count + 1):
        values = {name: column(number) for name, column in columns.items()}
        if "loss" in values:
            values["losses"] = (values.pop("loss"),)
        yield TrainingStep(number, "o", number, 0.0, 0.0, **values)


def noisy(value: float, share: float = 0.05) -> float:
    return value * math.exp(RNG.gauss(0, share))


# ------------------------------------------------------------------------- GS601, GS602


@pytest.mark.parametrize(
    ("course", "spikes"),
    [
        (lambda i: 2.0, []),
        (lambda i: noisy(2.0), []),
        (lambda i: noisy(2.0) + 3 * (i == 300), [300]),
        (lambda i: noisy(2.0) + 3 * (i == 20), []),  # no past yet
        (lambda i: 2.0 + 0.1 * (i == 300), [300]),  # it never moved before
        (lambda i: noisy(8 * i**-0.5), []),
        (lambda i: noisy(math.exp(i / 200)), []),  # it diverges slowly
        (lambda i: RNG.gauss(0, 1), []),
        (lambda i: RNG.gauss(0, 1) + 90 * (i == 300), [300]),
        (lambda i: -noisy(2.0), []),
    ],
)
def test_a_loss_spike(course, spikes):
    assert over("GS601", steps(400, loss=course))[: len(spikes) + 1] == spikes


def test_a_loss_that_leaps_to_stay():
    """It is a spike until the past knows it."""
    found = over("GS601", steps(600, loss=lambda i: noisy(2.0 if i < 300 else 4.0)))
    assert found[0] == 300
    assert found[-1] < 320


def test_sums_of_other_numbers_of_backwards_are_not_compared():
    """An epoch's last step has fewer backwards, and larger batches are more: neither is a spike."""

    def course(backwards: Callable[[int], int], spike: int = 0) -> list[TrainingStep]:
        return [
            replace(one, losses=(noisy(2.0) + 3 * (one.step == spike),) * backwards(one.step))
            for one in steps(400)
        ]

    assert over("GS601", course(lambda i: 1 if i % 10 else 8)) == []
    assert over("GS601", course(lambda i: 4 if i < 200 else 32)) == []
    assert over("GS601", course(lambda i: 4 if i % 10 else 2, spike=311)) == [311]


@pytest.mark.parametrize(
    ("course", "spikes"),
    [
        (lambda i: noisy(0.5), []),
        (lambda i: noisy(0.5) * (30 if i == 300 else 1), [300]),
        (lambda i: noisy(0.5) * (5 if i == 300 else 1), []),
        (lambda i: noisy(0.5, 1.0), []),
        (lambda i: 0.0, []),
        (lambda i: 1.0 * (i == 300), []),  # after no gradient at all
    ],
)
def test_a_gradient_spike(course, spikes):
    assert over("GS602", steps(400, gradient_norm=course)) == spikes


def weights(*norms: float, of: str = "gradient", **more: object) -> tuple:
    """Weights whose gradient, value or update has these norms."""
    found = []
    for i, norm in enumerate(norms):
        one = replace(parameter(f"l{i}.weight"), in_optimizer=True, moved=True, update_ratio=1e-3)
        if of == "update":
            one = replace(one, update_ratio=norm, moved=norm > 0)
        else:
            one = replace(one, **{of: stats(norm=norm)})
        found.append(replace(one, **more))
    return tuple(found)


def samples(count: int, of: Callable[[int], tuple], **more: object) -> Iterable[StepSample]:
    run = {"optimizer": more.pop("optimizer", "AdamW")}
    for number in range(1, count + 1):
        yield StepSample(10 * number, 0, report(parameters=of(number), run=run), **more)


def test_one_layers_gradient_leaps():
    def at(i: int, leap: float) -> tuple:
        return weights(noisy(1.0) * (leap if i == 20 else 1), *(noisy(1.0) for _ in range(4)))

    ((step, finding),) = looked("GS602", samples(30, lambda i: at(i, 100)))
    assert (step, finding.name) == (200, "l0.weight")
    assert looked("GS602", samples(30, lambda i: at(i, 10))) == []


def test_all_layers_leap_together():
    """The total tells that."""
    found = samples(30, lambda i: weights(*[noisy(100.0 if i == 20 else 1.0) for _ in range(5)]))
    assert looked("GS602", found) == []


# ------------------------------------------------------------------------- GS603


@pytest.mark.parametrize(
    "course",
    [
        lambda i: noisy(2.3 * math.exp(-i / 50) + 0.2),  # learned at once, and flat since
        lambda i: noisy(2.3 * i**-0.05),  # slow, and it falls
        lambda i: noisy(2.3 * (1 - i / 30_000), 0.02),
        lambda i: noisy(2.3, 1.0),
        lambda i: RNG.gauss(0, 1),
        lambda i: -noisy(2.3),
        lambda i: 0.0,
        lambda i: None,
    ],
)
def test_no_plateau(course):
    assert over("GS603", steps(6000, loss=course)) == []


def test_a_plateau():
    found = over("GS603", steps(2000, loss=lambda i: noisy(2.3)))
    assert len(found) > 500
    assert found[0] > 1000
    assert over("GS603", steps(2000, loss=lambda i: noisy(2.3)), alone=False) == []
    assert over("GS603", steps(900, loss=lambda i: noisy(2.3))) == []


# ------------------------------------------------------------------------- GS604


def grown(course: Callable[[int], float]) -> list[int]:
    return [s for s, _ in looked("GS604", samples(60, lambda i: weights(course(i), of="value")))]


def test_weights_that_drift():
    assert grown(lambda i: 4 * 1.1**i)[0] < 400
    assert grown(lambda i: 4.0 + 10 * i)[0] < 200
    assert grown(lambda i: 4 * i**0.5) == []
    assert grown(lambda i: 0.1 * i) == []  # a LoRA's B, from zero to its size
    assert grown(lambda i: noisy(400.0 if i > 1 else 4.0)) == []  # it leapt once, long ago
    assert grown(lambda i: 4 * 1.1 ** min(i, 30))[-1] <= 310  # and has ended


# ------------------------------------------------------------------------- GS605


def stalled(first: Callable[[int], float], rest: Callable[[int], float], **more: object) -> set:
    def at(i: int) -> tuple:
        one, *others = weights(first(i), *[rest(i)] * 4, of="update")
        return (replace(one, **more) if i > 20 else one, *others)

    return {finding.name for _, finding in looked("GS605", samples(60, at))}


def test_a_layer_that_stalls():
    assert stalled(lambda i: 1e-3 if i < 21 else 1e-8, lambda i: noisy(1e-3)) == {"l0.weight"}
    assert stalled(lambda i: 1e-3 if i < 21 else 0.0, lambda i: noisy(1e-3)) == {"l0.weight"}
    # A schedule slows all of them.
    assert stalled(lambda i: 1e-3 * 0.8**i, lambda i: 1e-3 * 0.8**i) == set()
    # Frozen on purpose.
    assert stalled(lambda i: 1e-3 * (i < 21), lambda i: noisy(1e-3), requires_grad=False) == set()
    # It rested before: an expert, or a task's head.
    assert stalled(lambda i: 1e-3 * (i < 21 and i != 2), lambda i: noisy(1e-3)) == set()
    # It slows down more than the others.
    assert stalled(lambda i: 1e-3 * 0.9**i, lambda i: noisy(1e-3)) == set()
    # Its gradient is exactly zero: GS103's.
    zero = stats(rms=0.0)
    assert stalled(lambda i: 1e-3 * (i < 21), lambda i: noisy(1e-3), gradient=zero) == set()


# ------------------------------------------------------------------------- GS606


@pytest.mark.parametrize(
    ("norm", "eps", "optimizer", "fires"),
    [
        (1e-6, 1e-3, "Adam", True),
        (1e-6, 1e-3, "FusedAdam", True),
        (1e-6, 1e-3, "RMSprop", True),
        (1e-6, 1e-3, "Adadelta", False),
        (1e-6, 1e-3, "SGD", False),
        (1e-6, 1e-8, "Adam", False),
        (1e-3, 1e-3, "Adam", False),
        (0.0, 1e-3, "Adam", False),
    ],
)
def test_an_epsilon_that_outweighs(norm, eps, optimizer, fires):
    found = samples(
        10, lambda i: weights(norm, norm, norm), settings={"eps": eps}, optimizer=optimizer
    )
    assert bool(looked("GS606", found)) == fires


def test_epsilon_and_what_was_clipped():
    clipped = {f"l{i}.weight": 1e-6 for i in range(3)}
    found = samples(10, lambda i: weights(1.0, 1.0, 1.0), settings={"eps": 1e-4}, clipped=clipped)
    assert looked("GS606", found)
    assert looked("GS606", samples(10, lambda i: weights(1.0, 1.0), settings={"eps": 1e-4})) == []


def test_a_gradient_that_is_small_for_once():
    """The second moment remembers what it was."""
    found = samples(30, lambda i: weights(*[1e-8 if i == 20 else 1.0] * 3), settings={"eps": 1e-8})
    assert looked("GS606", found) == []


# ------------------------------------------------------------------------- GS608


@pytest.mark.parametrize(
    ("rates", "fires"),
    [
        (lambda i: (0.1,), []),
        (lambda i: (max(0.0, 1 - i / 100),), [*range(100, 201)]),
        (lambda i: (0.5 + 0.5 * math.cos(math.pi * i / 200),), [200]),
        (lambda i: (0.0, 0.1), []),  # a group that is frozen
        (lambda i: (0.1 if i < 150 else 1e-5,), []),
        (lambda i: (0.0,) if i < 4 else (0.1,), [1, 2, 3]),
        (lambda i: (), []),
    ],
)
def test_learning_rates(rates, fires):
    assert over("GS608", steps(200, learning_rates=rates)) == fires


# ------------------------------------------------------------------------- GS609


@pytest.mark.parametrize(
    ("scale", "fires"),
    [
        (lambda i: None, False),
        (lambda i: 65536.0, False),
        (lambda i: 65536.0 / 2 ** min(i, 12), False),  # it finds its scale
        (lambda i: 65536.0 / 2 ** min(i, 20), True),
        (lambda i: 1024.0 * 2 ** (i // 100 % 2), False),
        (lambda i: 1024.0 * 2 ** (i // 4 % 2), True),
        (lambda i: 1.0, False),
    ],
)
def test_loss_scales(scale, fires):
    assert bool(over("GS609", steps(400, loss_scale=scale))) == fires


# ------------------------------------------------------------------------- GS620


@pytest.mark.parametrize(
    ("ratios", "more", "fires"),
    [
        ((9.0, 8.0, 0.1), {}, True),  # times the root of four inputs
        ((9.0, 7.0, 0.1), {}, False),
        ((9.0,), {}, False),  # a new head
        ((9.0, 9.0, 9.0), {"value": stats(rms=1e-2)}, False),  # they begin near zero
        ((9.0, 9.0, 9.0), {"shape": (4, 2, 2)}, False),  # of unknown axes
    ],
)
def test_the_first_update(ratios, more, fires):
    found = looked(
        "GS620",
        (
            replace(one, settings={"lr": 0.1})
            for one in samples(3, lambda i: weights(*ratios, of="update", **more))
        ),
    )
    assert [step for step, _ in found] == [10] * fires
    if fires:
        said = "the update of step 10 at a learning rate of 0.1 changes the median of 3 weights by "
        assert found[0][1].message.startswith(said + "8.000 times its norm")
        assert found[0][1].value == 16


# ------------------------------------------------------------------------- GS621


def _diverging(**changed):
    """Six steps: loss and gradient grow by 100 at each, and the last has an Inf."""
    columns = {
        "loss": lambda i: None if i == 6 else 100.0**i,
        "clipped_norm": lambda i: 100.0**i,
        "nonfinite": lambda i: "inf" if i == 6 else None,
        "learning_rates": lambda i: (0.1,),
    }
    return steps(6, **columns | changed)


@pytest.mark.parametrize(
    ("changed", "fires"),
    [
        ({}, True),
        ({"nonfinite": lambda i: None}, False),  # no NaN or Inf yet
        ({"loss": lambda i: None if i == 6 else 2.0}, False),  # an operation made the Inf
        ({"loss": lambda i: None if i == 6 else -(100.0**i)}, False),  # a loss without a bound
        ({"clipped_norm": lambda i: 1.0}, False),
        ({"learning_rates": lambda i: (0.1 * i,)}, False),  # the ramp is the cause
        ({"loss": lambda i: None if i == 6 else 1.1**i}, False),
    ],
)
def test_diverging_steps(changed, fires):
    found = over("GS621", _diverging(**changed))
    assert found == [6] * fires


def test_only_the_first_inf_is_a_divergence():
    later = {"nonfinite": lambda i: "inf" if i >= 5 else None}
    later |= {"loss": lambda i: None if i >= 5 else 100.0**i}
    later |= {"clipped_norm": lambda i: None if i >= 5 else 100.0**i}
    assert over("GS621", _diverging(**later)) == [5]


def test_a_bad_batch_in_a_training_that_went_well_is_no_divergence():
    """Its gradient ruins the weights: loss and gradient grow at the next steps too."""
    late = {
        "loss": lambda i: None if i == 40 else 100.0 ** max(0, i - 35),
        "clipped_norm": lambda i: 100.0 ** max(0, i - 35),
        "nonfinite": lambda i: "inf" if i == 40 else None,
        "learning_rates": lambda i: (0.1,),
    }
    assert over("GS621", steps(40, **late)) == []


@pytest.mark.parametrize(("read", "found"), [(range(1, 401), [400]), (range(1, 401, 3), [])])
def test_an_update_after_gradients_that_were_not_read(read: range, found: list[int]):
    """Momentum adds their gradients to the update: a jump of these is no fault of the optimizer."""
    columns = {
        "update_rms": lambda i: 0.9 if i == 400 else noisy(0.1),
        "clipped_norm": lambda i: noisy(1.0),
    }
    thinned = {k: lambda i, c=c: c(i) if i in read else None for k, c in columns.items()}
    made = steps(400, loss=lambda i: 1.0, learning_rates=lambda i: (0.1,), **thinned)
    assert over("GS615", made) == found


# ------------------------------------------------------------------------- histories


def test_a_history_does_not_grow():
    history = None
    columns = {"loss": lambda i: noisy(2.0), "gradient_norm": lambda i: 1.0}
    columns |= {"loss_scale": lambda i: 2.0}
    for one in steps(9000, **columns):
        if history is None:
            history = StepHistory(one)
        else:
            history.add(one)
        kept = (history.loss.values, history.gradient.values)
        assert all(len(values) <= 128 for values in (*kept, history.scales))
        assert len(history.blocks._blocks) <= 64
    course = history.blocks.course
    assert course.steps >= 9000 * 0.4
    assert course.first == pytest.approx(2.0, rel=0.1)
    assert course.last == pytest.approx(2.0, rel=0.01)


def test_the_course_is_that_of_all_losses():
    """Blocks that were joined have the mean and the spread of what is in them."""
    values = [RNG.gauss(5, 1) for _ in range(5000)]
    history = None
    for one in steps(5000, loss=lambda i: values[i - 1]):
        if history is None:
            history = StepHistory(one)
        else:
            history.add(one)
    course = history.blocks.course
    late = values[course.since - 1 : course.since - 1 + course.steps]
    half = len(late) // 2
    assert course.middle == pytest.approx(sum(late[:half]) / half)
    assert course.last == pytest.approx(sum(late[half:]) / half)
    assert course.first == pytest.approx(sum(values[:16]) / 16)
    assert course.spread == pytest.approx(1, rel=0.05)
    assert course.error == pytest.approx(math.sqrt(2 / half), rel=0.6)
