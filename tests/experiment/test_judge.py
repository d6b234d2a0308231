"""The verdict on curves that are known: which cause they show, and that healthy ones show none."""

from __future__ import annotations

import math

import pytest

from gradscope.errors import OptionError
from gradscope.experiment.arms import ARMS, AS_IT_IS, chosen
from gradscope.experiment.comparison import Arms, Curve, Dependence
from gradscope.experiment.judge import gains_nothing, judge
from gradscope.records.experiment import CAUSES

STEPS = 100


def falling(start: float, end: float, rate: float = 20.0, phase: float = 0.0) -> Curve:
    """A loss that goes from start to end, with a scatter of a hundredth of the start."""
    values = (
        end + (start - end) * math.exp(-step / rate) + 0.01 * start * math.sin(7 * step + phase)
        for step in range(STEPS)
    )
    return Curve(tuple(values))


def level(loss: float, phase: float = 0.0) -> Curve:
    return falling(loss, loss, phase=phase)


#: A test of the pairs finds nothing, and would have; finds it; finds nothing, and could not.
NONE = Dependence(1.0, planted=20.0, discrete=False)
FOUND = Dependence(40.0, planted=20.0, discrete=False)
TOKENS = Dependence(1.0, planted=20.0, discrete=True)
FEW = Dependence(1.0, planted=3.0, discrete=False)
LOST = Curve((2.3, *[None] * (STEPS - 1)))
HEALTHY = {
    "as-it-is": falling(2.3, 0.5),
    "other-seed": falling(2.3, 0.52, phase=1),
    "one-batch": falling(2.3, 0.01),
    "no-input": falling(2.35, 2.28),
    "mismatched": falling(2.35, 2.32),
    "learning-rate-x0.01": level(2.3),
    "learning-rate-x0.1": falling(2.3, 1.6, 60),
    "learning-rate-x10": falling(2.3, 0.2, 10),
    "learning-rate-x100": LOST,
    "no-dropout": falling(2.3, 0.3),
}
IDLE = {name: level(2.3, phase) for phase, name in enumerate(HEALTHY)}
CASES = {
    "learning rate too low": (
        {**IDLE, "learning-rate-x100": falling(2.3, 0.3), "one-batch": falling(2.3, 2.2, 300)},
        "learning-rate",
        "too low: × 100",
    ),
    "learning rate too high": (
        {**IDLE, "as-it-is": LOST, "other-seed": LOST, "learning-rate-x0.01": falling(2.3, 0.2)},
        "learning-rate",
        "too high: × 0.01",
    ),
    "a part holds it back, and a learning rate helps a little": (
        {**IDLE, "no-clipping": falling(2.3, 0.3), "learning-rate-x100": falling(2.3, 0.6)},
        "regularisation",
        "clipping",
    ),
    "a schedule that ends too early": (
        {**IDLE, "no-schedule": falling(2.3, 0.3)},
        "learning-rate",
        "the schedule",
    ),
    "autocast": ({**IDLE, "float32": falling(2.3, 0.3)}, "precision", "autocast"),
    "the same losses without the input": (
        {**IDLE, "as-it-is": level(2.3), "no-input": level(2.3), "mismatched": level(2.3)},
        "input-unused",
        "does not depend",
    ),
    "one batch is memorised, and that is all": (
        {**IDLE, "one-batch": falling(2.3, 0.05)},
        "targets-unrelated",
        "no relation",
    ),
    "one batch is not": (IDLE, "model-or-loss", "does not overfit"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_named(case: str) -> None:
    curves, cause, words = CASES[case]
    found = judge(Arms(curves, 0.0, relation=NONE))
    assert found.cause == cause
    assert found.cause in CAUSES
    assert words in found.message
    assert found.evidence
    assert found.advice
    assert set(found.arms) == set(curves)


def test_one_batch_accuses_no_model_whose_weights_hardly_move() -> None:
    found = judge(Arms(IDLE, 0.0, relation=NONE, moved=0.004))
    assert found.cause is None
    assert found.message.startswith("undetermined: the steps are too small")
    assert "by 0.4% of its norm" in found.arms["one-batch"]


def test_one_batch_accuses_no_model_whose_lowest_loss_is_not_known() -> None:
    """A VAE: its loss is high at best, and its decoder learns the mean first."""
    curves = {name: falling(45.0, 28.0, phase=phase) for phase, name in enumerate(HEALTHY)}
    assert judge(Arms(curves, relation=FOUND)).cause == "model-or-loss"
    found = judge(Arms(curves, relation=FOUND, is_open=True))
    assert found.cause is None
    assert "model or loss" not in found.message
    assert "not known" in found.arms["one-batch"]


def test_one_batch_accuses_no_model_of_targets_that_the_input_does_not_determine() -> None:
    """A model of the next token that sees no context: a third of the loss remains."""
    learning = {name: falling(2.3, 1.2, phase=phase) for phase, name in enumerate(HEALTHY)}
    curves = {**learning, "no-input": HEALTHY["no-input"], "mismatched": HEALTHY["mismatched"]}
    found = judge(Arms({**curves, "one-batch": falling(2.3, 0.7, 5)}, 0.0))
    assert found.cause is None
    assert "model or loss" not in found.message
    assert judge(Arms({**curves, "one-batch": falling(2.3, 1.4, 5)}, 0.0)).cause == "model-or-loss"


@pytest.mark.parametrize("floor", [0.0, None])
def test_a_training_that_goes_well_has_no_cause(floor: float | None) -> None:
    found = judge(Arms(HEALTHY, floor))
    assert found.cause is None
    assert found.message.startswith("none of these within 100 steps")
    assert found.arms["one-batch"] == "overfits"
    assert found.arms["no-input"] == "worse than as-it-is, as it should be"


@pytest.mark.parametrize("left", [name for name in HEALTHY if name != AS_IT_IS.name])
def test_no_arm_is_needed_for_that(left: str) -> None:
    curves = {name: curve for name, curve in HEALTHY.items() if name != left}
    assert judge(Arms(curves, 0.0)).cause is None


def test_a_slow_start_is_not_a_wrong_target() -> None:
    """Inputs help a little, and one batch is not overfitted yet, but falls."""
    curves = {
        **HEALTHY,
        "as-it-is": falling(2.3, 2.1),
        "other-seed": falling(2.3, 2.12, phase=1),
        "one-batch": falling(2.3, 0.5, 100),
        "learning-rate-x10": falling(2.3, 1.9),
        "no-dropout": falling(2.3, 2.05),
    }
    assert judge(Arms(curves, 0.0)).cause is None


def test_a_loss_that_does_not_see_whose_target_is_whose_does_not_accuse_the_input() -> None:
    """As a loss of the outputs alone: to shift the inputs changes no loss."""
    curves = {**HEALTHY, "mismatched": HEALTHY["as-it-is"]}
    assert judge(Arms(curves, None)).cause is None


@pytest.mark.parametrize(
    ("relation", "words"),
    [(None, "200 different samples"), (TOKENS, "bits or tokens"), (FEW, "too few samples")],
)
def test_a_model_that_has_not_learned_yet_is_not_one_whose_targets_are_wrong(
    relation: Dependence | None, words: str
) -> None:
    """As parity: the model memorises one batch, and learns nothing from its inputs at first."""
    found = judge(Arms({**IDLE, "one-batch": falling(2.3, 0.05)}, 0.0, relation=relation))
    assert found.cause is None
    assert found.message == (
        "undetermined: the targets are unrelated to the inputs, or not learned yet"
    )
    assert words in found.evidence[-1]
    assert "`--steps 1000`" in (found.advice or "")


def test_targets_that_depend_on_inputs_are_ruled_out_though_not_learned() -> None:
    found = judge(Arms({**IDLE, "one-batch": falling(2.3, 0.05)}, 0.0, relation=FOUND))
    assert found.cause is None
    assert "depend on" in found.evidence[-1]
    assert "targets" in found.message


def test_a_small_gain_is_learned_if_it_is_sure_and_the_samples_are_new() -> None:
    better = Curve(tuple(loss - 0.01 for loss in level(2.3).losses if loss is not None))
    curves = {**IDLE, "as-it-is": better, "one-batch": falling(2.3, 0.05)}
    curves["no-input"] = curves["mismatched"] = level(2.3)
    assert judge(Arms(curves, 0.0, relation=NONE)).cause is None
    assert judge(Arms(curves, 0.0, repeats=50.0, relation=NONE)).cause == "targets-unrelated"


def test_a_small_gain_does_not_rule_out_targets_that_the_test_of_the_pairs_denies() -> None:
    better = Curve(tuple(loss - 0.01 for loss in level(2.3).losses if loss is not None))
    curves = {**IDLE, "as-it-is": better, "one-batch": falling(2.3, 0.05)}
    curves["no-input"] = curves["mismatched"] = level(2.3)
    assert "targets" not in judge(Arms(curves, 0.0, relation=NONE)).message
    assert "targets" in judge(Arms(curves, 0.0, relation=FOUND)).message
    assert "targets" in judge(Arms(HEALTHY, 0.0, relation=NONE)).message  # a large gain does


def test_the_evidence_has_the_first_loss_of_its_own_arm() -> None:
    curves = {**HEALTHY, "one-batch": falling(2.1, 0.05)}
    (line,) = [one for one in judge(Arms(curves, 0.0)).evidence if one.startswith("one-batch")]
    assert line.startswith("one-batch: the loss falls from 2.100 to ")


def test_one_batch_that_falls_ever_faster_is_not_stuck() -> None:
    leaving = Curve(tuple(2.3 - 0.1 * (step / STEPS) ** 2 for step in range(STEPS)))
    assert judge(Arms({**IDLE, "one-batch": leaving}, 0.0, relation=NONE)).cause is None


def test_one_batch_at_the_end_of_a_schedule_is_not_stuck() -> None:
    half = falling(2.3, 1.2)
    curves = {**IDLE, "as-it-is": half, "other-seed": half, "one-batch": falling(2.3, 1.3)}
    assert judge(Arms(curves, 0.0)).cause == "model-or-loss"
    found = judge(Arms(curves, 0.0, rate_left=0.01))
    assert found.cause is None
    assert "model or loss" not in found.message
    assert found.arms["one-batch"].endswith("% of the way left at the end of the schedule")


def test_a_model_that_learns_at_another_rate_can_learn() -> None:
    """A rate that is too high: half is learned, and one batch ends in dead units."""
    curves = {
        **HEALTHY,
        "as-it-is": falling(2.3, 1.0),
        "other-seed": falling(2.3, 1.6),
        "one-batch": level(2.2),
        "learning-rate-x0.01": falling(2.3, 0.05),
    }
    found = judge(Arms(curves, 0.0, relation=FOUND))
    assert found.cause == "learning-rate"
    assert "too high" in found.message


def test_only_causes_that_the_arms_can_show_are_ruled_out() -> None:
    every = "model or loss, input, targets, learning rate, regularisation"
    for left, words in {
        (): every,
        ("one-batch",): "input, learning rate, regularisation",
        ("no-input", "mismatched", "no-dropout"): "model or loss, learning rate",
        ("mismatched",): "model or loss, input, learning rate, regularisation",
    }.items():
        curves = {name: curve for name, curve in HEALTHY.items() if name not in left}
        assert judge(Arms(curves, 0.0)).message == f"none of these within 100 steps: {words}"
    rates = {name: HEALTHY["as-it-is"] for name in HEALTHY if name.startswith("learning-rate")}
    assert "learning rate" not in judge(Arms({**HEALTHY, **rates}, 0.0)).message
    alone = judge(Arms({"as-it-is": HEALTHY["as-it-is"]}))
    assert alone.message == "undetermined: no arm to compare with has a loss"


def test_an_arm_that_scatters_is_not_as_it_is() -> None:
    wild = Curve(tuple(3.0 + 30.0 * math.sin(7 * step) for step in range(STEPS)))
    found = judge(Arms({**HEALTHY, "learning-rate-x100": wild}, 0.0))
    assert found.arms["learning-rate-x100"] == "scatters too much to compare"


def test_targets_that_may_be_memorised_are_not_ruled_out() -> None:
    once, often = (judge(Arms(HEALTHY, 0.0, repeats)) for repeats in (1.5, 25.0))
    assert "targets" in once.message
    assert "targets" not in often.message
    assert "each sample 25 times" in often.evidence[-1]


def test_targets_are_ruled_out_if_right_pairs_are_fitted_faster_than_wrong_ones() -> None:
    found = judge(Arms(HEALTHY, 0.0, repeats=25.0, relation=NONE, is_paired=True))
    assert found.cause is None
    assert "targets" in found.message
    few = judge(Arms(HEALTHY, 0.0, repeats=25.0, relation=None, is_paired=True))
    assert "targets" not in few.message


def test_targets_that_are_memorised_no_faster_than_wrong_ones_are_unrelated() -> None:
    slow = {name: falling(2.3, 1.9, 60, phase) for phase, name in enumerate(HEALTHY)}
    curves = {**slow, "one-batch": falling(2.3, 0.05), "no-input": level(2.3)}
    cases = [
        (NONE, True, "targets-unrelated"),
        (FOUND, True, None),  # the targets depend on the inputs
        (None, True, None),  # not known whether they do
        (NONE, False, None),  # wrong pairs could not be memorised
    ]
    for relation, paired, cause in cases:
        arms = Arms(curves, 0.0, repeats=6.0, relation=relation, is_paired=paired)
        assert judge(arms).cause == cause
    few = judge(Arms(curves, 0.0, repeats=6.0, relation=FEW, is_paired=True))
    assert few.message.startswith("undetermined: ")
    assert [line.partition(":")[0] for line in few.evidence[:2]] == ["mismatched", "one-batch"]
    fitted = {**curves, "as-it-is": falling(2.3, 0.2), "mismatched": falling(2.3, 0.2)}
    arms = Arms(fitted, 0.0, repeats=50.0, relation=NONE, is_paired=True)
    assert judge(arms).cause is None  # too late: everything is memorised
    assert "each sample 50 times" in judge(arms).evidence[-1]


def test_less_than_half_of_the_way_accuses_a_model_with_an_error() -> None:
    """A softmax in front of the cross entropy of two classes: 0.313 of 0.693 is left."""
    curves = {name: falling(0.693, 0.33, phase=phase) for phase, name in enumerate(HEALTHY)}
    for name in ("no-input", "mismatched", "learning-rate-x0.01"):
        curves[name] = level(0.693)
    assert judge(Arms(curves, 0.0, relation=FOUND)).cause is None
    assert judge(Arms(curves, 0.0, relation=FOUND, is_faulty=True)).cause == "model-or-loss"
    assert judge(Arms(HEALTHY, 0.0, relation=FOUND, is_faulty=True)).cause is None


def test_a_rate_that_trains_much_faster_is_named_though_it_is_no_cause() -> None:
    slow = {"as-it-is": falling(2.3, 1.5, 60), "other-seed": falling(2.3, 1.5, 60)}
    found = judge(Arms({**HEALTHY, **slow}, 0.0))
    assert found.cause is None
    assert found.evidence[-1].startswith("learning-rate-x10: the loss falls from 2.300 to 0.2")
    assert found.evidence[-1].endswith("twice as fast")
    assert not any("as fast" in line for line in judge(Arms(HEALTHY, 0.0)).evidence)


def test_a_rate_a_hundred_times_off_is_a_cause_though_the_script_learns_something() -> None:
    high = {name: falling(2.3, 1.4, 20) for name in ("as-it-is", "other-seed")}
    found = judge(Arms({**HEALTHY, **high, "learning-rate-x0.01": falling(2.3, 0.01)}, 0.0))
    assert found.cause == "learning-rate"
    assert found.message == "the learning rate is too high: × 0.01 trains"
    # It gets there no sooner: the script as it is may catch up.
    late = falling(2.3, 1.5, 5).losses[:70] + falling(0.4, 0.01).losses[:30]
    found = judge(Arms({**HEALTHY, **high, "learning-rate-x0.01": Curve(late)}, 0.0))
    assert found.cause is None
    assert found.evidence[-1].startswith("learning-rate-x0.01: ")
    assert judge(Arms({**HEALTHY, "learning-rate-x100": falling(2.3, 0.01, 2)}, 0.0)).cause is None


@pytest.mark.parametrize("relation", [NONE, FOUND, TOKENS, None])
def test_targets_of_the_position_before(relation: Dependence | None) -> None:
    """They depend on the sequence, so the test of the pairs cannot tell."""
    curves = {**IDLE, "one-batch": falling(2.3, 0.05)}
    shifted = {"targets-earlier": falling(2.3, 0.3), "targets-later": level(2.3)}
    assert gains_nothing(Arms(curves, 0.0, relation=relation))
    found = judge(Arms({**curves, **shifted}, 0.0, relation=relation))
    assert found.cause == "targets-unrelated"
    assert found.message == "the targets are those of the position before"
    assert not gains_nothing(Arms(HEALTHY, 0.0))
    assert judge(Arms({**HEALTHY, **shifted}, 0.0)).cause is None
    some = {**curves, "targets-later": falling(2.3, 1.5)}
    assert "position" not in judge(Arms(some, 0.0, relation=relation)).message


def test_without_one_batch_the_test_of_the_pairs_decides() -> None:
    curves = {name: curve for name, curve in IDLE.items() if name != "one-batch"}
    assert judge(Arms(curves, 0.0, relation=NONE)).cause == "targets-unrelated"
    for relation in (FOUND, TOKENS, FEW, None):
        assert judge(Arms(curves, 0.0, relation=relation)).cause is None


def test_targets_that_are_hard_to_fit_accuse_no_model() -> None:
    """A convolution of few pixels: it cannot fit the masks of other images."""
    curves = {**IDLE, "one-batch": falling(2.3, 1.4, 5)}
    assert judge(Arms(curves, 0.0, relation=FOUND)).cause == "model-or-loss"
    assert judge(Arms(curves, 0.0, relation=NONE)).cause == "targets-unrelated"
    found = judge(Arms(curves, 0.0, relation=FEW))
    assert found.cause is None
    assert found.message.startswith("undetermined: the model cannot overfit one batch, or")


def test_an_input_that_is_equal_for_all_samples_or_steps() -> None:
    curves = {**IDLE, "one-batch": falling(2.3, 1.4, 5)}
    same = judge(Arms(curves, 0.0, relation=TOKENS, is_constant=True))
    assert same.cause == "input-unused"
    assert same.message.endswith("the same input for every sample")
    stale = judge(Arms(curves, 0.0, is_stale=True))
    assert stale.cause == "input-unused"
    assert stale.message.endswith("and the targets change")
    assert judge(Arms(HEALTHY, 0.0, is_constant=True, is_stale=True)).cause is None


def test_an_input_that_the_model_discards_is_not_to_be_printed() -> None:
    blind = {**IDLE, "as-it-is": level(2.3), "no-input": level(2.3), "mismatched": level(2.3)}
    constant = judge(Arms(blind, 0.0, is_constant=True))
    discarded = judge(Arms(blind, 0.0))
    dead = judge(Arms(blind, 0.0, is_dead=True))
    assert [one.cause for one in (constant, discarded)] == ["input-unused"] * 2
    assert "print the model's input" in str(constant.advice)
    assert "where does the forward lose it" in str(discarded.advice)
    assert dead.cause == "model-or-loss"
    assert dead.message.endswith("all units of a layer are off")
    assert "name the layer" in str(dead.advice)


def test_a_model_that_was_trained_before_has_no_way_left() -> None:
    """Fine-tuning: the first loss is near the lowest, and the steps barely lower it."""
    curves = {name: level(4e-4, phase=phase) for phase, name in enumerate(HEALTHY)}
    curves["no-input"], curves["mismatched"] = level(1.6), level(2.1)
    found = judge(Arms(curves, 0.0, relation=FOUND))
    assert found.cause is None
    assert found.arms["as-it-is"].startswith("0% of the way")
    assert found.arms["one-batch"] == "overfits"


def test_a_small_rate_of_a_model_that_was_trained_before_is_no_cause() -> None:
    curves = {name: level(0.3, phase=phase) for phase, name in enumerate(HEALTHY)}
    curves["learning-rate-x100"] = falling(0.3, 0.02)
    assert judge(Arms(curves, 0.0, relation=FOUND)).cause == "learning-rate"
    curves["no-input"], curves["mismatched"] = falling(3.5, 1.6), falling(9.0, 2.1)
    assert judge(Arms(curves, 0.0, relation=FOUND)).cause is None
    # With a rate that is too high, the arms without the right inputs end anywhere.
    curves["as-it-is"] = curves["other-seed"] = falling(0.3, 0.9)
    curves["no-input"] = curves["mismatched"] = falling(0.3, 9.0)
    curves["learning-rate-x0.01"] = falling(0.3, 0.02)
    assert judge(Arms(curves, 0.0, relation=FOUND)).cause == "learning-rate"


def test_few_steps_say_nothing() -> None:
    curves = {name: Curve(curve.losses[:10]) for name, curve in HEALTHY.items()}
    found = judge(Arms(curves, 0.0))
    assert found.cause is None
    assert found.message == "undetermined: 10 steps with a loss, 50 are needed"
    assert "`--steps`" in (found.advice or "")


def test_the_noise_of_a_diverging_arm_is_its_own() -> None:
    wild = Curve(tuple(1e6 * math.sin(3 * step) for step in range(STEPS)))
    curves = {**IDLE, "learning-rate-x100": wild, "learning-rate-x10": falling(2.3, 0.3)}
    assert judge(Arms(curves, 0.0)).cause == "learning-rate"


def test_seeds_that_do_not_train_may_end_anywhere() -> None:
    """A rate that is too high: each seed ends elsewhere, and one batch is not fitted either."""
    curves = {
        **IDLE,
        "as-it-is": falling(2.3, 3.1),
        "other-seed": falling(4.5, 8.0),
        "one-batch": falling(2.3, 3.5),
        "learning-rate-x0.1": falling(2.3, 1.2),
    }
    assert judge(Arms(curves, 0.0)).cause == "learning-rate"


def test_a_training_that_another_seed_makes_has_no_cause() -> None:
    curves = {**HEALTHY, "as-it-is": falling(2.3, 2.2), "learning-rate-x10": falling(2.3, 0.2)}
    assert judge(Arms(curves, 0.0)).cause is None


def test_a_curve_in_numbers() -> None:
    line = Curve(tuple(10.0 - 0.1 * step for step in range(STEPS)))
    slope, low, high = line.slope() or (0.0, 0.0, 0.0)
    assert slope == pytest.approx(-0.1, rel=1e-9)
    assert low == pytest.approx(high, abs=1e-9)
    assert line.end == pytest.approx(10 - 0.1 * 89.5, rel=1e-9)
    assert line.first == 10.0
    assert not line.diverged
    assert LOST.diverged
    assert LOST.end == math.inf
    assert LOST.slope() is None
    assert line.largest_difference(line) == 0.0


def test_a_slope_lies_in_its_interval_as_often_as_it_should() -> None:
    import random

    made = random.Random(0)
    inside = 0
    for _ in range(400):
        noisy = Curve(tuple(5 - 0.02 * step + made.gauss(0, 0.3) for step in range(300)))
        _, low, high = noisy.slope() or (0.0, 0.0, 0.0)
        inside += low <= -0.02 <= high
    # Of 400 that hold 95 % each, four standard deviations of a binomial count.
    assert inside >= 380 - 4 * math.sqrt(400 * 0.95 * 0.05)


def test_arms_are_chosen_by_name() -> None:
    assert chosen([]) == ARMS
    names = [arm.name for arm in chosen(["one-batch", "learning-rate"])]
    assert names[:3] == ["as-it-is", "other-seed", "one-batch"]
    assert len(names) == 7
    with pytest.raises(OptionError, match="no arm `one-batches`"):
        chosen(["one-batches"])
