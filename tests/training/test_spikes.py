"""Spikes: the sample that made one is named, others are not blamed, the script sees nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from processes import gradscope, python
from torch.utils.data import DataLoader, TensorDataset

from gradscope.api.spiking import spike
from gradscope.records.spike import (
    BatchHistory,
    Capsule,
    LaterLoss,
    OptimizerState,
    OutsideChange,
    SpikeSample,
    SpikeSignals,
    SpikeToken,
)
from gradscope.rules import RuleSettings, spike_cause, with_worst_first
from gradscope.rules.gs601_loss_spike import stands_out as loss_stands_out
from gradscope.runfile.capsules import (
    capsule_path,
    capsules_of,
    every_capsule,
    metadata,
    read_capsule,
)
from gradscope.runfile.reader import RunFile
from gradscope.training.current_step import CurrentStep
from gradscope.training.loop.patches import observe_loop
from gradscope.training.models import Models
from gradscope.training.nan_detector.detector import NanDetector
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.nan_detector.side_effects import SideEffects
from gradscope.training.optimizers import ObservedOptimizer
from gradscope.training.sample_schedule import Schedule
from gradscope.training.session import RunSettings, Session
from gradscope.training.spikes.batch_figures import (
    BatchFigures,
    BatchWindows,
    Row,
    copies,
    input_figures,
    lengths,
    loss_figures,
    rows_of,
    twins,
)
from gradscope.training.spikes.batch_indices import BatchIndices
from gradscope.training.spikes.before import StepsBefore, state_of
from gradscope.training.spikes.capsule_contents import CapsuleContents
from gradscope.training.spikes.earlier_batches import EarlierBatches
from gradscope.training.spikes.later_losses import LaterLosses
from gradscope.training.spikes.outside_changes import OutsideChanges
from gradscope.training.spikes.sample_losses import loss_factor, row_losses
from gradscope.training.spikes.samples import mixes_samples, norms_without, taken_apart
from gradscope.training.spikes.spikes import Spikes, SpikeSettings, _Spike
from training.ranks.launched import side_by_side
from training.spike_scripts import INNOCENT, KINDS, RANKS, SCRIPT, SHARDED

#: The step of the fault, as the scripts count.
AT = 60


def observed(folder: Path, *words: str) -> tuple[Path, str]:
    """The run of a script, and what the script printed; the same as without observation."""
    (folder / "train.py").write_text(SCRIPT)
    done = gradscope(["run", "--quiet", "-o", "run.db", "train.py", *words], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert python(["train.py", *words], cwd=folder).stdout == done.stdout
    return folder / "run.db", done.stdout


def names_the_sample(folder: Path, kind: str, fault: str, seed: int = 1) -> None:
    run, out = observed(folder, kind, fault, str(seed))
    capsule = read_capsule(capsules_of(run)[AT])
    cause, message = spike_cause(capsule)
    bad = int(out.split()[1])
    assert cause in ("samples", "labels"), message
    assert capsule.samples[0].dataset_index == bad or fault == "duplicated", message
    with RunFile.open(run) as recorded:
        events = [one for one in recorded.events if one.kind == "capsule"]
    assert any(one.step == AT and one.details["cause"] == cause for one in events)


def test_a_bad_sample_is_named(tmp_path: Path) -> None:
    names_the_sample(tmp_path, "classifier", "scale")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), [(kind, one) for kind in KINDS for one in KINDS[kind]])
def test_a_bad_sample_is_named_in_every_kind_of_script(
    tmp_path: Path, kind: str, fault: str
) -> None:
    names_the_sample(tmp_path, kind, fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", INNOCENT)
def test_a_spike_without_a_guilty_sample_blames_none(tmp_path: Path, fault: str) -> None:
    run, _ = observed(tmp_path, "classifier", fault, "2")
    found = [spike_cause(read_capsule(path)) for path in capsules_of(run).values()]
    assert found
    assert all(cause != "samples" for cause, _ in found), found
    assert INNOCENT[fault] in [cause for cause, _ in found], found


@pytest.mark.slow
def test_of_ranks_the_one_with_the_bad_sample_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    words = ["-m", "gradscope", "run", "--quiet", "--every", "1", "-o", "run", "train.py"]
    done = side_by_side(tmp_path, 2, *words)
    assert done.returncode == 0, done.stderr
    found = [read_capsule(path) for step, path in every_capsule(tmp_path / "run") if step == AT]
    assert sorted(one.rank or 0 for one in found) == [0, 1]
    report = spike(tmp_path / "run", AT)
    assert (report.cause, report.rank) == ("samples", 1), report.message
    assert report.samples[0].dataset_index == AT * 16 - 1, report.message


@pytest.mark.slow
def test_of_a_sharded_model_each_rank_names_its_own_sample(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHARDED)
    words = ["-m", "gradscope", "run", "--quiet", "--every", "1", "-o", "run", "train.py"]
    done = side_by_side(tmp_path, 2, *words)
    assert done.returncode == 0, done.stderr
    report = spike(tmp_path / "run", AT)
    assert (report.cause, report.rank) == ("samples", 1), report.message
    assert report.samples[0].dataset_index == AT * 16 - 1, report.message
    assert (
        "not split by sample: the model is sharded, or waits for other processes: one rank cannot "
        "replay it"
    ) in report.notes


# ---------------------------------------------------------------- the cause, by its evidence


def capsule_of(shares: list[float], **more: object) -> Capsule:
    samples = [
        SpikeSample(n, gradient_norm=abs(share) * 100 + 1, share=share)
        for n, share in enumerate(shares)
    ]
    given = Capsule(
        60, "optimizer", "", "gradient", samples=tuple(samples), norm=100.0, usual_norm=2.0,
        high_norm=4.0, counted=59,
    )  # fmt: skip
    return replace(given, **more)  # type: ignore[arg-type]


def test_a_full_disk_costs_the_capsule_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object) -> None:
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    session = Session.begun("train.py", (), RunSettings(out=tmp_path / "run.db"))
    session.add_capsule(capsule_of([1.0]), "samples", {})
    session.finish("0")
    with RunFile.open(tmp_path / "run.db") as run:
        (event,) = run.events
    assert event.message.endswith("; no capsule: No space left on device")
    assert [one.name for one in tmp_path.iterdir()] == ["run.db"]


def signals(rates: list[float], **last: object) -> tuple[SpikeSignals, ...]:
    rows = [SpikeSignals(60 - len(rates) + 1 + n, 1.0, 2.0, 2.0, r) for n, r in enumerate(rates)]
    return (*rows[:-1], replace(rows[-1], **last))  # type: ignore[arg-type]


ONE, ALIKE = [0.96] + [0.004] * 10, [1 / 16] * 16
RATE = signals([1e-3] * 60)


def test_one_sample_with_most_of_the_gradient_is_to_blame() -> None:
    cause, message = spike_cause(capsule_of(ONE))
    assert cause == "samples"
    assert message.startswith("sample 0 of 11: 96.0 % of the gradient")


def test_no_sample_is_to_blame_if_the_gradient_stands_out_without_it() -> None:
    shares = [0.6] + [0.04] * 10
    assert spike_cause(capsule_of(shares))[0] == "undetermined"
    assert spike_cause(capsule_of(shares, kind="asked"))[0] == "samples"


@pytest.mark.parametrize("kind", ["loss", "sample", "asked"])
def test_a_sample_with_most_of_a_usual_gradient_has_made_no_spike(kind: str) -> None:
    # A sample whose loss alone stood out is to blame by its loss, and has none here.
    cause = "undetermined" if kind == "sample" else "samples"
    assert spike_cause(capsule_of(ONE, kind=kind))[0] == cause
    assert spike_cause(capsule_of(ONE, kind=kind, norm=3.9))[0] == "undetermined"


@pytest.mark.parametrize(("every", "cause"), [(0, "samples"), (4, "samples"), (1, "undetermined")])
def test_a_step_is_an_aftermath_if_more_steps_before_are_unusual_than_usual(
    every: int, cause: str
) -> None:
    """Each fourth gradient is large all the time; or each of the last steps."""
    steps = [
        replace(one, gradient_norm=20.0)
        if every and one.step % every == 0 and (every > 1 or one.step > 50)
        else one
        for one in signals([1e-3] * 60)
    ]
    assert spike_cause(capsule_of(ONE, signals=tuple(steps)))[0] == cause


@pytest.mark.parametrize(("loss", "cause"), [(90.0, "samples"), (30.0, "undetermined")])
def test_a_step_far_above_unusual_ones_is_no_aftermath(loss: float, cause: str) -> None:
    steps = [replace(one, loss=5.0 if one.step > 55 else 1.0) for one in RATE]
    steps[-1] = replace(steps[-1], loss=loss)
    assert spike_cause(capsule_of(ONE, signals=tuple(steps)))[0] == cause


def test_gradients_that_the_optimizer_took_make_an_aftermath() -> None:
    steps = [
        replace(one, gradient_norm=None, clipped_norm=90.0 if one.step in (57, 58, 59) else 2.0)
        for one in signals([1e-3] * 60)
    ]
    assert spike_cause(capsule_of(ONE, signals=tuple(steps)))[0] == "undetermined"
    assert spike_cause(capsule_of(ONE, signals=tuple(steps[:56])))[0] == "samples"


def test_samples_alike_are_not_to_blame() -> None:
    cause, message = spike_cause(capsule_of(ALIKE))
    assert cause == "undetermined"
    assert "the largest share is 6.2 % of 16 samples" in message


def test_a_jump_of_the_learning_rate_is_found() -> None:
    found = spike_cause(capsule_of(ALIKE, signals=signals([1e-3] * 30 + [1e-1] * 3)))
    assert found[0] == "learning-rate"
    assert "from 0.001000 to 0.1000 at step 58, 2 steps before" in found[1]
    assert spike_cause(capsule_of(ALIKE, signals=signals([1e-3] * 30)))[0] == "undetermined"


def test_a_new_state_of_the_optimizer_is_found() -> None:
    state = OptimizerState("Adam", parameters=100, steps=1, second_moment=0.1, update_rms=1.0)
    assert spike_cause(capsule_of(ALIKE, state=state))[0] == "optimizer"
    grown = replace(state, steps=59)
    assert spike_cause(capsule_of(ALIKE, state=grown))[0] == "undetermined"
    assert spike_cause(capsule_of(ALIKE, state=replace(grown, update_rms=4.0)))[0] == "optimizer"


def test_weights_that_moved_further_than_updates_reach_are_found() -> None:
    state = OptimizerState("SGD", {"momentum": 0.0})
    steps = list(signals([1e-2] * 20, weight_norm=30.0))
    steps[8] = replace(steps[8], weight_norm=10.0)
    found = spike_cause(capsule_of(ALIKE, state=state, signals=tuple(steps)))
    assert found[0] == "weights"
    assert "from 10.00 (step 49) to 30.00" in found[1]
    steps[-1] = replace(steps[-1], weight_norm=10.2)
    assert spike_cause(capsule_of(ALIKE, state=state, signals=tuple(steps)))[0] == "undetermined"


@pytest.mark.parametrize(("told", "cause"), [(1e-4, "weights"), (1.0, "undetermined")])
def test_weights_that_were_written_to_are_found_between_two_readings(
    told: float, cause: str
) -> None:
    state = OptimizerState("Adam", parameters=100, steps=59, second_moment=0.1, update_rms=0.1)
    steps = [replace(one, update_rms=told if one.step % 5 else None) for one in RATE]
    written = OutsideChange(58, "weights", "", 10.0, 20.0, since=20)
    given = capsule_of(ALIKE, state=state, signals=tuple(steps), changes=(written,))
    assert spike_cause(given)[0] == cause
    assert spike_cause(replace(given, changes=()))[0] == "undetermined"


@pytest.mark.parametrize(("loss", "cause"), [(9.0, "weights"), (1.2, "undetermined")])
def test_weights_set_anew_with_the_same_norm_are_found_by_the_loss(loss: float, cause: str) -> None:
    written = OutsideChange(60, "weights", "", 10.0, 10.1, since=59)
    steps = (*RATE[:-1], replace(RATE[-1], loss=loss))
    given = capsule_of(ALIKE, signals=steps, changes=(written,))
    assert spike_cause(given)[0] == cause
    resumed = replace(given, changes=(OutsideChange(60, "state"), written))
    state = OptimizerState("Adam", parameters=100, steps=0)
    assert spike_cause(replace(resumed, state=state))[0] == "optimizer"


@pytest.mark.parametrize(
    ("high", "loss", "cause"),
    [(5e-2, 3.0, "learning-rate"), (5e-2, 1.0, "undetermined"), (1e-3, 3.0, "undetermined")],
)
def test_a_rate_that_stays_high_is_found_if_the_loss_rose_with_it(
    high: float, loss: float, cause: str
) -> None:
    rates = [1e-3 + (high - 1e-3) * min(1.0, n / 20) for n in range(60)]
    steps = [
        replace(one, loss=1.0 + 0.1 * (one.step % 3) if one.step < 25 else loss)
        for one in signals(rates)
    ]
    found, message = spike_cause(capsule_of(ALIKE, signals=tuple(steps)))
    assert found == cause
    if cause == "learning-rate":
        assert "rose from 0.001000 to 0.05000, and the loss from 1.100 to 3.000" in message


@pytest.mark.parametrize(
    ("rms", "rises", "last", "cause"),
    [
        (0.4, False, 1.0, "learning-rate"),
        (0.2, False, 1.0, "undetermined"),
        (0.1, True, 1.0, "learning-rate"),
        (0.1, True, 0.5, "undetermined"),
        (0.05, True, 1.0, "undetermined"),
    ],
)
def test_updates_that_are_large_for_the_weights_are_those_of_a_high_learning_rate(
    rms: float, rises: bool, last: float, cause: str
) -> None:
    """10,000 weights of norm 10: an update of ``rms`` 0.4 at a rate of 0.015 moves them by 6 %."""
    state = OptimizerState("Adam", parameters=10_000, steps=59, second_moment=1.0, update_rms=rms)
    rates = [(60 + n if rises else 119) / 119 * 0.015 for n in range(60)]
    steps = signals(rates, weight_norm=10.0)
    steps = tuple(replace(one, loss=last) if one.step > 44 else one for one in steps)
    given = capsule_of(ALIKE, kind="highest", state=state, signals=steps)
    found, message = spike_cause(given)
    assert found == cause, message
    if cause == "learning-rate":
        share = "6.0 %" if rms == 0.4 else "1.5 %"
        assert message.startswith(f"each update moves the weights by {share} of their norm")
        assert ("the highest so far, and still rises" in message) == rises


def test_an_overflow_of_the_loss_scale_is_found() -> None:
    last = signals([1e-3] * 4, loss_scale=65536.0)
    assert spike_cause(capsule_of([], kind="non-finite", norm=None, signals=last))[0] == (
        "loss-scale"
    )


def test_an_unusual_loss_with_a_usual_gradient_is_a_label() -> None:
    samples = tuple(SpikeSample(n, loss=9.0 if n == 3 else 0.5) for n in range(8))
    given = capsule_of([], kind="loss", samples=samples, norm=2.0)
    cause, message = spike_cause(given)
    assert cause == "labels"
    assert message.startswith("sample 3 of 8: its loss is 9.000 (median 0.5000)")


def test_nan_in_few_samples_is_theirs_and_in_all_is_not() -> None:
    few = tuple(SpikeSample(n, nonfinite="input" if n == 5 else None) for n in range(8))
    given = capsule_of([], kind="non-finite", samples=few, norm=None)
    assert spike_cause(given)[1].startswith("sample 5 of 8: its input has NaN or Inf")
    returned = tuple(replace(one, nonfinite=one.nonfinite and "output") for one in few)
    assert spike_cause(replace(given, samples=returned))[0] == "samples"
    later = replace(given, samples=returned, follows=50)  # training has blown up before
    assert spike_cause(later)[0] == "undetermined"
    every = tuple(SpikeSample(n, nonfinite="output") for n in range(8))
    assert spike_cause(replace(given, samples=every))[0] == "undetermined"


# ---------------------------------------------------------------- losses and indices

SCORES, CLASSES = torch.randn(6, 5), torch.tensor([0, 4, -100, 1, 2, 3])
VALUES, WANTED = torch.randn(6, 3), torch.rand(6, 3)
LOSSES = {
    "cross entropy": (F.cross_entropy, SCORES, CLASSES),
    "nll": (lambda x, y, **k: F.nll_loss(x.log_softmax(1), y, **k), SCORES, CLASSES),
    "mse": (F.mse_loss, VALUES, WANTED),
    "l1": (F.l1_loss, VALUES, WANTED),
    "smooth l1": (F.smooth_l1_loss, VALUES, WANTED),
    "bce": (F.binary_cross_entropy_with_logits, VALUES, WANTED),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_the_losses_of_samples_are_those_of_the_loss_function(name: str, factor: float) -> None:
    function, scores, target = LOSSES[name]
    loss = function(scores.clone().requires_grad_(), target) * factor
    rows = row_losses([loss])
    assert rows is not None
    expected = function(scores, target, reduction="none").reshape(6, -1).double().mean(1)
    assert rows.of_samples(6) == pytest.approx(expected.tolist(), rel=1e-6)


def test_the_worst_token_of_each_sample_is_that_of_the_loss_function() -> None:
    scores = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[1, 2, 3, -100], [-100, -100, 5, -100], [0, 6, 6, 2]])
    each = F.cross_entropy(scores.view(-1, 7), target.view(-1), reduction="none").view(3, 4)
    rows = row_losses([F.cross_entropy(scores.view(-1, 7), target.view(-1))])
    assert rows is not None
    tokens = rows.tokens(3, 4)
    for n, token in enumerate(tokens):
        known = each[n][target[n] != -100].tolist()
        assert token is not None
        assert token.loss == pytest.approx(max(known), rel=1e-12)
        assert each[n][token.position].item() == pytest.approx(token.loss, rel=1e-12)
        assert token.target == target[n][token.position]
        assert token.median == (None if n == 1 else pytest.approx(median(known), rel=1e-12))
    assert rows.tokens(3, 5) == tokens  # the input has one token more: targets are shifted
    assert rows.tokens(3, 9) == [None] * 3


def test_a_square_by_hand_and_a_sum_with_a_penalty_are_read_too() -> None:
    given = VALUES.clone().requires_grad_()
    weight = torch.ones((), requires_grad=True)
    rows = row_losses([((given - WANTED) ** 2).mean() + 0.1 * weight])
    assert rows is not None
    assert rows.of_samples(6) == pytest.approx(((VALUES - WANTED) ** 2).mean(1).tolist(), rel=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 0.5).clamp_min(0),
        lambda x: F.relu(x + 0.5),
        lambda x: (x + 0.5).clamp(0, 0.8),
        lambda x: F.softplus(x, beta=2.0),
        lambda x: F.logsigmoid(x),
    ],
)
def test_the_terms_of_a_pairwise_loss_are_read(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    given = VALUES[:, 0].clone().double().requires_grad_()
    sign = -1.0 if function(given).max() < 0 else 1.0
    rows = row_losses([sign * function(given).mean()])
    assert rows is not None
    assert rows.of_samples(6) == pytest.approx((sign * function(given)).tolist(), rel=1e-12)


@pytest.mark.parametrize("reduced", [lambda t: t.mean(1).mean(), lambda t: t.mean(1).sum() / 6])
def test_the_terms_of_a_loss_that_is_reduced_twice_are_read(
    reduced: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    given = VALUES.clone().requires_grad_()
    each = F.mse_loss(given, WANTED, reduction="none")
    rows = row_losses([reduced(each)])
    assert rows is not None
    assert rows.of_samples(6) == pytest.approx(each.double().mean(1).tolist(), rel=1e-6)
    more = F.mse_loss(given, VALUES + 1, reduction="none")
    both = row_losses([reduced(each) + reduced(more)])
    assert both is not None
    assert both.of_samples(6) == pytest.approx((each + more).double().mean(1).tolist(), rel=1e-6)


def test_the_loss_of_the_predicted_class_is_known_for_one_class_a_sample() -> None:
    scores = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3, 0, 1])
    rows = row_losses([F.cross_entropy(scores, target)])
    assert rows is not None
    best = F.cross_entropy(scores, scores.argmax(1), reduction="none")
    assert rows.predictions(6) == pytest.approx(best.tolist(), rel=1e-12)
    assert rows.predictions(3) == [None] * 3
    weighted = row_losses([F.cross_entropy(scores, target, weight=torch.arange(1.0, 5).double())])
    assert weighted is not None
    assert weighted.predictions(6) == [None] * 6


def test_the_constant_factor_of_a_loss_is_known() -> None:
    given = VALUES.clone().requires_grad_()
    loss = F.mse_loss(given, WANTED)
    assert loss_factor([loss]) == 1.0
    assert loss_factor([loss * 128 / 4]) == 32.0
    assert loss_factor([given]) is None


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_loss_of_a_row_is_the_weighted_sum_of_several_losses(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, boxes = torch.randn(6, 7, generator=generator, dtype=torch.float64).split([3, 4], 1)
    wanted, classes = boxes + 2, torch.tensor([0, 2, -100, 1, 1, 0])
    logits.requires_grad_(), boxes.requires_grad_()
    losses = [
        F.cross_entropy(logits, classes),
        F.smooth_l1_loss(boxes, wanted, reduction="sum") * 5 / len(boxes),
        ((boxes - wanted) ** 2).mean() * 0.5,
        1e-4 * logits.norm(),  # belongs to no row
        *(1e-4 * one.pow(2).sum() for one in torch.nn.Linear(6, 2).double().parameters()),
    ]
    found = row_losses([sum(losses) * scale])
    assert found is not None
    each = F.cross_entropy(logits, classes, reduction="none") * 6 / 5
    each = each + 5 * F.smooth_l1_loss(boxes, wanted, reduction="none").sum(1)
    each = each + 0.5 * ((boxes - wanted) ** 2).mean(1)
    known = torch.tensor(found.of_samples(6), dtype=torch.float64)
    torch.testing.assert_close(known, each, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.values.mean(), sum(losses[:3]), atol=1e-12, rtol=0)


def test_losses_with_other_rows_or_an_unknown_factor_have_no_sum() -> None:
    given = VALUES.clone().requires_grad_()
    square = F.mse_loss(given, WANTED)
    assert row_losses([square + F.mse_loss(given[0, :1], WANTED[0, :1])]) is None
    factor = torch.ones((), requires_grad=True)
    assert row_losses([square + factor * F.mse_loss(given, WANTED)]) is None


@pytest.mark.parametrize("workers", [0, 2])
def test_the_indices_are_those_of_the_batch(workers: int) -> None:
    known = BatchIndices()
    loader = DataLoader(
        TensorDataset(torch.arange(40)), 8, shuffle=True, num_workers=workers, prefetch_factor=None
    )

    class Observes:
        def __getattr__(self, name: str) -> object:
            return lambda *_: None

        epoch_begins = staticmethod(known.epoch_begins)
        batch_drawn = staticmethod(known.drawn)

    with observe_loop(Observes()):  # type: ignore[arg-type]
        for (batch,) in loader:
            assert known.last(1) == [batch.tolist()]


# ---------------------------------------------------------------- single samples, and changes

HISTORY = BatchHistory(
    steps=64, loss_steps=32, usual_loss=1.0, high_loss=2.0, usual_median=0.5, high_median=0.8,
    usual_input=3.0, high_input=4.0, spread_input=0.1, constant=0, length=16,
    copies=1, twins=0,
)  # fmt: skip


def quiet(**odd: object) -> Capsule:
    """A step that does not stand out; of its 16 samples the last differs."""
    usual = SpikeSample(0, loss=0.5, gradient_norm=1.0, share=1 / 16, input_max=3.0, length=12)
    rows = [replace(usual, index=n) for n in range(16)]
    rows[-1] = replace(rows[-1], **odd)  # type: ignore[arg-type]
    return capsule_of([], kind="highest", samples=tuple(rows), history=HISTORY)


@pytest.mark.parametrize(
    ("odd", "cause", "words"),
    [
        ({"input_max": 400.0}, "samples", "its input reaches 400.0"),
        ({"constant": True}, "samples", "its input repeats one value"),
        ({"length": 64}, "samples", "it has 64 tokens; the others have at most 12"),
        ({"loss": 7.0}, "labels", "in the 32 steps before, no sample's is above 2.000"),
        ({"input_max": 15.0}, "undetermined", "no sample stands out"),
        ({"call": 2, "twin": 0}, "samples", "its inputs of calls 0 and 2 are equal"),
        ({"copy_of": 3}, "undetermined", "no sample stands out"),
        ({"loss": 3.0}, "undetermined", "The largest loss is that of sample 15 of 16: 3.000"),
    ],
)
def test_a_sample_unlike_all_before_is_named_in_a_usual_step(
    odd: dict[str, object], cause: str, words: str
) -> None:
    found, message = spike_cause(quiet(**odd))
    assert found == cause, message
    assert words in message
    first = with_worst_first(quiet(**odd)).samples[0]
    assert (first.index == 15) == (cause != "undetermined")


@pytest.mark.parametrize(
    ("steps", "loss", "cause"),
    [(63, 1.9, "undetermined"), (63, 2.1, "samples"), (64, 1.9, "samples")],
)
def test_one_repeated_value_after_few_steps_needs_a_large_loss(
    steps: int, loss: float, cause: str
) -> None:
    given = quiet(constant=True, loss=loss)
    found = spike_cause(replace(given, history=replace(HISTORY, steps=steps)))
    assert found[0] == cause, found


@pytest.mark.parametrize(("predicted", "cause"), [(7.0, "undetermined"), (0.01, "labels")])
def test_a_label_that_the_model_predicts_is_not_wrong(predicted: float, cause: str) -> None:
    found = spike_cause(quiet(loss=7.0, predicted_loss=predicted))
    assert found[0] == cause, found


@pytest.mark.parametrize(
    ("copy", "copies", "cause"), [(9, 1, "samples"), (9, 2, "undetermined"), (7, 1, "undetermined")]
)
def test_an_anchor_that_is_its_own_negative_is_named(copy: int, copies: int, cause: str) -> None:
    """Of 12 rows, rows 1, 5 and 9 are in term 1 of the loss."""
    rows = [replace(one, term=one.index % 4) for one in quiet().samples[:12]]
    rows[copy] = replace(rows[copy], copy_of=1)
    found, message = spike_cause(
        replace(quiet(), samples=tuple(rows), history=replace(HISTORY, copies=copies))
    )
    assert found == cause
    if cause == "samples":
        assert message.startswith(
            "sample 1 of 12 and its copy 9: one term of the loss compares them, and their inputs "
            "are equal; in the 64 steps before, no two inputs were."
        )


def test_a_sample_of_two_calls_counts_once() -> None:
    few = [
        SpikeSample(n, call=call, nonfinite="input" if n == 5 else None)
        for call in (0, 1)
        for n in range(8)
    ]
    given = capsule_of([], kind="non-finite", norm=None)
    start = "sample 5 of 8, in calls 0 and 1: its input has NaN or Inf"
    assert spike_cause(replace(given, samples=tuple(few)))[1].startswith(start)
    few[14] = replace(few[14], nonfinite="input")
    start = "sample 5 of 8, in calls 0 and 1, and 1 more sample: its input has NaN or Inf"
    assert spike_cause(replace(given, samples=tuple(few)))[1].startswith(start)
    rows = [
        SpikeSample(
            n, call=call, gradient_norm=60.0 if n == 2 else 1.0, share=0.32 if n == 2 else 0.0
        )
        for call in (0, 1, 2)
        for n in range(12)
    ]
    rows.sort(key=lambda one: -(one.share or 0.0))
    start = "sample 2 of 12, in calls 0, 1 and 2: 96.0 % of the gradient"
    assert spike_cause(capsule_of([], samples=tuple(rows)))[1].startswith(start)
    rows[1] = replace(rows[1], index=7)
    start = "sample 2 of 12, in calls 0 and 2 and 1 more (7): 96.0 % of the gradient"
    assert spike_cause(capsule_of([], samples=tuple(rows)))[1].startswith(start)


def test_copies_count_as_one_sample() -> None:
    rows = [SpikeSample(n, gradient_norm=1.0, share=0.005) for n in range(8)]
    for n in (2, 5):
        rows[n] = replace(rows[n], gradient_norm=60.0, share=0.485, copy_of=None if n == 2 else 2)
    rows.sort(key=lambda one: -(one.share or 0.0))
    found = spike_cause(capsule_of([], samples=tuple(rows)))
    assert found[0] == "samples"
    assert found[1].startswith("sample 2 of 8 and its copy 5: 97.0 % of the gradient")


@pytest.mark.parametrize(("copies", "cause"), [(1, "samples"), (2, "undetermined")])
def test_copies_that_fill_a_batch_are_named_if_no_two_inputs_were_equal(
    copies: int, cause: str
) -> None:
    given = quiet()
    rows = [replace(one, copy_of=2 if one.index in (5, 9, 11) else None) for one in given.samples]
    history = replace(HISTORY, copies=copies)
    found, message = spike_cause(replace(given, samples=tuple(rows), history=history))
    assert found == cause
    assert ("sample 2 of 16 and its 3 copies 5, 9, 11" in message) == (cause == "samples")


@pytest.mark.parametrize(
    ("before", "loss", "others", "cause"),
    [
        (3, 2.1, 0.5, "samples"),
        (4, 2.1, 0.5, "undetermined"),  # as many were equal before
        (3, 1.9, 0.5, "undetermined"),  # a loss before was larger
        (3, 2.1, 1.3, "undetermined"),  # the other losses grew, too
    ],
)
def test_more_copies_than_ever_with_the_largest_loss_are_named(
    before: int, loss: float, others: float, cause: str
) -> None:
    same = (2, 5, 9, 11)
    rows = [
        replace(
            one,
            copy_of=2 if one.index in same[1:] else None,
            loss=loss if one.index in same else others,
        )
        for one in quiet().samples
    ]
    history = replace(HISTORY, copies=before)
    found, message = spike_cause(replace(quiet(), samples=tuple(rows), history=history))
    assert found == cause, message
    assert ("at most 3 inputs were, and no sample's loss was as large" in message) == (
        cause == "samples"
    )


@pytest.mark.parametrize(("before", "cause"), [(2, "samples"), (3, "undetermined")])
def test_copies_that_fill_a_batch_are_named_if_far_fewer_inputs_were_equal(
    before: int, cause: str
) -> None:
    given = quiet()
    rows = [replace(one, copy_of=None if one.index < 2 else 2) for one in given.samples[:8]]
    rows += [replace(one, copy_of=None) for one in given.samples[8:]]
    rows[2] = replace(rows[2], copy_of=None)
    history = replace(HISTORY, copies=before)
    found, message = spike_cause(replace(given, samples=tuple(rows), history=history))
    assert found == cause, message
    assert ("before, at most 2 inputs were" in message) == (cause == "samples")


@pytest.mark.parametrize(("spread", "cause"), [(0.1, "labels"), (0.3, "undetermined")])
def test_a_loss_is_unusual_by_less_if_losses_scatter_little(spread: float, cause: str) -> None:
    given = quiet(loss=5.5)  # 2.75 times the largest before, and 5.5 times the usual one
    found, message = spike_cause(replace(given, history=replace(HISTORY, spread_loss=spread)))
    assert found == cause, message


@pytest.mark.parametrize(("middle", "cause"), [(1.1, "labels"), (1.3, "undetermined")])
def test_a_batch_whose_other_losses_rose_too_accuses_no_label(middle: float, cause: str) -> None:
    given = quiet(loss=7.0)  # the largest median before is 0.8
    rows = [replace(one, loss=middle if one.index < 15 else one.loss) for one in given.samples]
    found, message = spike_cause(replace(given, samples=tuple(rows)))
    assert found == cause, message


@pytest.mark.parametrize(
    ("loss", "varied", "cause"),
    [(2.5, ("src",), "samples"), (1.5, ("src",), "undetermined"), (2.5, (), "undetermined")],
)
def test_one_input_that_repeats_one_value_is_evidence_with_a_large_loss(
    loss: float, varied: tuple[str, ...], cause: str
) -> None:
    history = replace(HISTORY, varied=varied)
    given = replace(quiet(loss=loss, constant_in=("src",)), history=history)
    found, message = spike_cause(given)
    assert found == cause, message
    assert ("its input `src` repeats one value" in message) == (cause == "samples")


def test_a_step_that_an_input_made_unusual_needs_an_input_to_blame() -> None:
    samples = tuple(sorted(quiet(gradient_norm=60.0, share=0.9).samples, key=lambda s: -s.index))
    norms: dict[str, object] = {"norm": 5.0, "usual_norm": 4.0, "high_norm": 4.5}
    assert spike_cause(capsule_of([], samples=samples, kind="loss", **norms))[0] == "samples"
    found = spike_cause(capsule_of([], samples=samples, kind="input", **norms))
    assert found[0] == "undetermined", found


def test_an_input_that_later_steps_have_too_is_no_evidence(tmp_path: Path) -> None:
    odd = replace(quiet(constant=True), step=40, kind="input", score=9.0)
    label = replace(quiet(loss=7.0), kind="sample", score=5.0)
    assert spike(kept(tmp_path, odd, label)).step == 40
    once = replace(label, history=replace(HISTORY, constant=1, constant_steps=1))  # that step's own
    assert spike(kept(tmp_path, odd, once)).step == 40
    often = replace(label, history=replace(HISTORY, constant=1, constant_steps=3))
    assert spike(kept(tmp_path, odd, often)).step == 60
    assert spike(tmp_path / "run.db", 40).cause == "undetermined"
    capsule_path(tmp_path / "run.db", 60).write_bytes(b"damaged")
    assert spike(tmp_path / "run.db", 40).cause == "samples"  # another file's damage is its own


def test_the_inputs_that_never_repeat_one_value_are_known() -> None:
    windows = BatchWindows()
    texts = torch.tensor([[5, 6, 7, 0], [9, 9, 9, 9]])
    mask = torch.ones(2, 4, dtype=torch.long)
    usual = SimpleNamespace(args=(texts[[0, 0]],), kwargs={"mask": mask})
    for _ in range(32):
        windows.add(input_figures([usual]))  # type: ignore[list-item]
    assert windows.history.varied == ("0",)
    odd = SimpleNamespace(args=(texts,), kwargs={"mask": mask})
    assert dict(input_figures([odd]).constants) == {"0": 1, "mask": 2}  # type: ignore[list-item]
    rows = rows_of(odd, 2).each  # type: ignore[arg-type]
    assert [one.constant_in for one in rows] == [("mask",), ("0", "mask")]
    assert [one.constant for one in rows] == [False, True]
    windows.add(input_figures([odd]))  # type: ignore[list-item]
    assert windows.history.varied == ()
    assert windows.history.constant_steps == 1


@pytest.mark.parametrize(
    ("loss", "high", "is_spike"), [(3.1, 2.0, True), (2.9, 2.0, False), (3.1, 2.1, False)]
)
def test_a_loss_that_fell_is_compared_with_the_steps_just_before(
    loss: float, high: float, is_spike: bool
) -> None:
    """The loss fell to 1 from above; GS601 sees no spike among losses that scatter so far."""
    (limits,) = [found for entry, found in RuleSettings.of().active() if entry.rule.code == "GS601"]
    before = StepsBefore()
    for step in range(128):
        before.windows.add(high - 0.01 * step if step < 90 else 1.0, 1, None)
    assert loss_stands_out(before.losses(1), loss, limits) is None
    assert (before.loss_spike(1, loss, limits) > 0) == is_spike
    assert before.loss_spike(1, loss, None) == 0


def test_weights_that_training_moved_between_two_readings_make_no_step_unusual() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, known = torch.optim.SGD([weight], 1e-3), ObservedOptimizer(held=frozenset([weight]))
    for step, far in ((129, False), (17, True)):
        before = StepsBefore()
        for now, norm in ((1, 10.0), (step, 11.0)):
            current = CurrentStep(losses=[1.0])
            current.values = {weight: norm}
            before.note(now, optimizer, known, current, None)
        assert (before.score(step, CurrentStep(losses=[1.0]), BatchFigures()) > 5) == far


def test_the_loss_of_a_hinge_is_no_label() -> None:
    given = quiet(loss=7.0)
    assert spike_cause(given)[0] == "labels"
    mostly_zero = replace(given, history=replace(HISTORY, usual_loss=0.0))
    assert spike_cause(mostly_zero)[0] == "undetermined"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (OutsideChange(58, "factor", "", 128.0, 65536.0), "the script multiplies the loss by"),
        (OutsideChange(58, "scaled", "", 1.0, 512.0), "multiplied by the loss scale, 512.0, at"),
    ],
)
def test_a_loss_scale_that_was_not_taken_off_is_found(change: OutsideChange, words: str) -> None:
    steps = [
        replace(one, clipped_norm=900.0 if one.step >= 58 else 2.0) for one in signals([1e-3] * 40)
    ]
    cause, message = spike_cause(capsule_of(ALIKE, signals=tuple(steps), changes=(change,)))
    assert cause == "loss-scale"
    assert words in message


@pytest.mark.parametrize(("norm", "cause"), [(17.0, "loss-scale"), (15.0, "undetermined")])
def test_a_loss_scale_is_found_though_the_gradient_was_zero_before(norm: float, cause: str) -> None:
    """A hinge has no gradient in most steps: the highest of all steps before is 4."""
    steps = [
        replace(one, gradient_norm=None, clipped_norm=norm if one.step == 60 else 0.0)
        for one in signals([1e-3] * 40)
    ]
    change = OutsideChange(60, "factor", "", 1.0, 1000.0)
    found, message = spike_cause(capsule_of(ALIKE, signals=tuple(steps), changes=(change,)))
    assert found == cause, message


def test_a_loss_scale_that_was_taken_off_is_no_cause() -> None:
    change = OutsideChange(58, "factor", "", 128.0, 65536.0)
    given = capsule_of(ALIKE, signals=signals([1e-3] * 40), changes=(change,))
    assert spike_cause(given)[0] == "undetermined"


def test_a_changed_setting_comes_before_a_later_learning_rate() -> None:
    change = OutsideChange(57, "setting", "eps", 1e-8, 1e-2)
    state = OptimizerState("Adam", parameters=10, steps=59, second_moment=1.0, update_rms=1.0)
    given = capsule_of(ALIKE, state=state, signals=signals([1e-3] * 30 + [1e-1] * 3))
    assert spike_cause(given)[0] == "learning-rate"
    cause, message = spike_cause(replace(given, changes=(change,)))
    assert cause == "optimizer"
    assert message.startswith("`eps` of Adam went from 1.000e-08 to 0.01000 at step 57, 3 steps")


def test_a_factor_by_hand_that_was_left_on_is_a_loss_scale() -> None:
    steps = signals([1e-3] * 40)
    scaled = [replace(one, gradient_norm=2048.0) for one in steps]
    scaled[-2] = replace(scaled[-2], clipped_norm=2048.0)
    cause, message = spike_cause(capsule_of(ALIKE, signals=tuple(scaled)))
    assert cause == "loss-scale", message
    clipped = [replace(one, gradient_norm=2.0, clipped_norm=2.0) for one in steps]
    clipped[-2] = replace(clipped[-2], gradient_norm=900.0, clipped_norm=1.0)
    assert spike_cause(capsule_of(ALIKE, signals=tuple(clipped)))[0] == "undetermined"


@pytest.mark.parametrize(
    ("second", "cause"), [(2.0001 / 2048, "loss-scale"), (2.001 / 2048, "undetermined")]
)
def test_two_equal_ratios_are_enough_to_know_a_division_by_hand(second: float, cause: str) -> None:
    """The gradient after the division is read in a few steps only; clipping has other ratios."""
    ratios = {20: 2.0 / 2048, 40: second, 57: 1.0}
    steps = [
        replace(
            one,
            gradient_norm=2048.0 if one.step in ratios else None,
            clipped_norm=2048.0 * ratios[one.step] if one.step in ratios else None,
        )
        for one in RATE
    ]
    found, message = spike_cause(capsule_of(ALIKE, signals=tuple(steps)))
    assert found == cause, message
    assert ("at step 57, 3 steps before, it got 1.000 times" in message) == (cause == "loss-scale")


@pytest.mark.parametrize(
    ("norm", "loss", "cause"),
    [(1500.0, 1.0, "loss-scale"), (1500.0, 9.0, "undetermined"), (9e5, 1.0, "undetermined")],
)
def test_a_division_by_hand_that_was_left_out_is_found_without_the_gradient(
    norm: float, loss: float, cause: str
) -> None:
    """The gradient before the division is read in a few steps only."""
    steps = [
        replace(one, gradient_norm=2048.0 if one.step % 12 == 0 else None) for one in RATE[:-1]
    ]
    steps[-3] = replace(steps[-3], clipped_norm=norm, loss=loss)
    steps.append(replace(RATE[-1], gradient_norm=None))
    given = capsule_of(ALIKE, high_norm=3000.0, signals=tuple(steps))
    found, message = spike_cause(given)
    assert found == cause, message
    assert ("At step 57, 3 steps before, it got a norm of 1500" in message) == (
        cause == "loss-scale"
    )


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (OutsideChange(30, "weights", "", 10.0, 25.0, since=29), "undetermined"),
        (OutsideChange(30, "weights", "", 10.0, 10.1, since=29), "labels"),
        (OutsideChange(30, "weights"), "labels"),
        (OutsideChange(30, "state"), "undetermined"),
    ],
)
def test_losses_after_a_change_accuse_no_label(change: OutsideChange, cause: str) -> None:
    given = replace(quiet(loss=7.0), kind="sample", changes=(change,))
    assert spike_cause(given)[0] == cause
    assert spike_cause(replace(given, changes=()))[0] == "labels"


def test_a_loss_that_came_before_is_no_label() -> None:
    given = quiet(loss=7.0)
    steps = [replace(one, sample_loss=0.5) for one in RATE]
    assert spike_cause(replace(given, signals=tuple(steps)))[0] == "labels"
    steps[20] = replace(steps[20], sample_loss=4.0)  # of noise with long tails
    assert spike_cause(replace(given, signals=tuple(steps)))[0] == "undetermined"


@pytest.mark.parametrize(
    ("predicted", "others", "loss", "cause"),
    [
        (0.09, 0.03, 7.0, "labels"),
        (0.1, 0.03, 7.0, "undetermined"),  # less sure than usual
        (0.11, 0.1, 7.0, "undetermined"),  # p = 0.896
        (None, 0.03, 7.0, "undetermined"),
        (0.09, 0.03, 6.1, "labels"),
        (0.09, 0.03, 5.9, "undetermined"),
    ],
)
def test_a_model_sure_of_another_class_makes_a_smaller_loss_unusual(
    predicted: float | None, others: float, loss: float, cause: str
) -> None:
    """The largest loss before is 3, in these 32 steps, too."""
    given = quiet(loss=loss)
    rows = [replace(one, predicted_loss=others) for one in given.samples]
    rows[-1] = replace(rows[-1], predicted_loss=predicted)
    steps = [replace(one, sample_loss=3.0 if one.step == 20 else 0.5) for one in RATE]
    history = replace(HISTORY, high_loss=3.0, spread_loss=0.5)
    found, message = spike_cause(
        replace(given, samples=tuple(rows), signals=tuple(steps), history=history)
    )
    assert found == cause, message
    assert ("With another label it would be 0.09000" in message) == (cause == "labels")


@pytest.mark.parametrize(
    ("losses", "predicted", "expected"),
    [
        ([0.03, 7.0, 0.03, 0.03], [0.03, 0.09, 0.03, 0.03], (7.0, 0.03, True)),
        ([0.03, 7.0, 0.03, 0.03], [0.03, 0.1, 0.03, 0.03], (7.0, 0.03, False)),
        ([0.03, 7.0, 0.03, 0.03], [None] * 4, (7.0, 0.03, False)),
        ([0.03, 0.04, 0.03, 0.03], [0.03, 0.04, 0.03, 0.03], (0.04, 0.03, False)),
        ([float("nan"), 7.0], [0.03, 0.09], (None, None, False)),
        ([], [], (None, None, False)),
    ],
)
def test_the_figures_say_if_a_classifier_is_sure_of_another_class(
    losses: list[float], predicted: list[float | None], expected: tuple[object, ...]
) -> None:
    assert loss_figures(losses, predicted) == expected


@pytest.mark.parametrize(
    ("figures", "kind"),
    [
        (BatchFigures(sample_loss=2.3, median_loss=0.1), ""),
        (BatchFigures(sample_loss=2.3, median_loss=0.1, sure=True), "sample"),
        (BatchFigures(sample_loss=1.9, median_loss=0.1, sure=True), ""),
        (BatchFigures(sample_loss=2.3, median_loss=0.1, texts=True), "sample"),
        (BatchFigures(sample_loss=1.9, median_loss=0.1, texts=True), ""),
    ],
)
def test_steps_with_a_wrong_label_or_an_odd_text_are_kept(figures: BatchFigures, kind: str) -> None:
    """1.9 is below twice the largest loss before, and less than seven deviations above."""
    before = StepsBefore()
    for step in range(40):
        before.batches.add(
            BatchFigures(sample_loss=1.0 - 0.001 * (step % 2), median_loss=0.1, copies=1)
        )
    assert before.unusual_batch(figures) == kind


LATER = LaterLoss(76, 5.0, 0.01, True, asked=4, stayed=1)


@pytest.mark.parametrize(
    ("before", "later", "cause"),
    [
        (5.8, LATER, "labels"),
        (5.9, LATER, "undetermined"),
        (5.8, None, "undetermined"),
        (5.8, replace(LATER, loss=4.6), "undetermined"),  # it falls
        (5.8, replace(LATER, same=False), "undetermined"),
        (5.8, replace(LATER, predicted_loss=0.11), "undetermined"),
        (5.8, replace(LATER, stayed=2), "undetermined"),  # others stay, too
        (5.8, replace(LATER, asked=2, stayed=0), "undetermined"),  # it is not known if others do
        (4.6, replace(LATER, asked=0, stayed=0), "labels"),
    ],
)
def test_a_label_that_stays_wrong_makes_a_smaller_loss_unusual(
    before: float, later: LaterLoss | None, cause: str
) -> None:
    """Its loss is 7; a label is blamed above 1.2 times the largest before, or 1.5 times."""
    given = quiet(loss=7.0, predicted_loss=0.01, later=later)
    row = SpikeSignals(0, 1.0, 2.0, 2.0, 1e-3, sample_loss=0.5)
    steps = [replace(row, step=n, sample_loss=before if n == 40 else 0.5) for n in range(-10, 61)]
    rows = [replace(one, predicted_loss=0.01) for one in given.samples]
    given = replace(
        given, kind="sample", samples=tuple(rows), signals=tuple(steps),
        history=replace(HISTORY, high_loss=before),
    )  # fmt: skip
    found, message = spike_cause(given)
    assert found == cause, message
    assert spike_cause(replace(given, signals=tuple(steps[10:])))[0] == "undetermined"  # too few
    if cause == "labels":
        assert f"; in the 70 steps before, no sample's is above {before:.3f}" in message
        assert "16 steps later, after the model was trained on it, its loss is still 5.0" in message


def test_a_sample_is_asked_for_again_with_the_weights_of_then() -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4)).double()
    inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    scores = net(inputs)
    rows = row_losses([F.cross_entropy(scores, labels)])
    assert rows is not None
    call = call_of(net, inputs)
    call.side_effects.draws = False  # as is learned over the first calls
    worst = int(rows.values.argmax())
    later = LaterLosses()
    held = later.hold(60, 59, call, rows)
    assert held is not None and (held.sample, held.target) == (worst, int(labels[worst]))
    assert held.due == 75
    means = net[0].running_mean.clone()
    with torch.no_grad():
        net[1].weight[0] += 0.3
    found = later.ask(76)
    assert found is not None and not later.held
    assert torch.equal(net[0].running_mean, means)
    logs = net(inputs)[worst].detach().log_softmax(0)
    figures = [found.loss, found.predicted_loss]
    assert figures == pytest.approx([-float(logs[labels[worst]]), -float(logs.max())], abs=1e-12)
    assert found.same == (int(logs.argmax()) == int(scores[worst].argmax()))
    # A call with other losses, and a batch that the script wrote to, are not asked for.
    assert later.hold(60, 59, call, rows) is None
    now = row_losses([F.cross_entropy(net(inputs), labels)])
    assert now is not None and later.hold(60, 59, call, now) is not None
    inputs[2] *= 2
    assert later.ask(76) is None and not later.held


def test_scores_of_more_classes_than_the_result_has_are_none_of_its() -> None:
    net = torch.nn.Linear(3, 2).double()
    inputs, labels = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])
    prototypes = torch.randn(4, 2, dtype=torch.float64)
    rows = row_losses([F.cross_entropy(-torch.cdist(net(inputs), prototypes), labels)])
    assert rows is not None
    call = call_of(net, inputs)
    call.side_effects.draws = False
    assert LaterLosses().hold(60, 59, call, rows) is None


STUBBORN = """
import torch
from torch import nn

torch.manual_seed(0)
centres = 3 * torch.eye(4)
net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.5)
for step in range(1, 221):
    labels = torch.randint(0, 4, (16,))
    inputs = centres[labels] + 0.5 * torch.randn(16, 4)
    if step == 120:  # its loss is more than half that of step 180
        inputs[3], labels[3] = centres[1], 2
    if step == 180:
        inputs[5], labels[5] = 1.7 * centres[1], 2
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), net[0].running_mean.sum().item())
"""


@pytest.mark.slow
def test_a_sample_is_not_asked_for_again_if_hooks_would_see_it(tmp_path: Path) -> None:
    hooked = "    if step == 185:\n        net.register_forward_hook(lambda *_: calls.append(1))\n"
    (tmp_path / "train.py").write_text(f"calls = []\n{STUBBORN}{hooked}print(len(calls))")
    done = gradscope(["run", "--quiet", "-o", "run.db", "train.py"], cwd=tmp_path)
    assert python(["train.py"], cwd=tmp_path).stdout == done.stdout


@pytest.mark.slow
def test_a_label_that_stays_wrong_is_found_though_a_loss_was_nearly_as_large(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(STUBBORN)
    done = gradscope(["run", "--quiet", "-o", "run.db", "train.py"], cwd=tmp_path)
    assert python(["train.py"], cwd=tmp_path).stdout == done.stdout
    capsule = read_capsule(capsules_of(tmp_path / "run.db")[180])
    cause, message = spike_cause(capsule)
    assert cause == "labels" and message.startswith("sample 5 of 16"), message
    assert "16 steps later, after the model was trained on it, its loss is still" in message
    without = [replace(one, later=None) for one in capsule.samples]
    assert spike_cause(replace(capsule, samples=tuple(without)))[0] == "undetermined"


@pytest.mark.parametrize(("predicted", "sure"), [(0.09, True), (0.11, False), (3.0, False)])
def test_a_label_that_may_be_wrong_is_said_though_it_is_not_blamed(
    predicted: float, sure: bool
) -> None:
    given = quiet(loss=3.0)
    rows = [replace(one, predicted_loss=0.1) for one in given.samples]
    rows[-1] = replace(rows[-1], predicted_loss=predicted)
    found, message = spike_cause(replace(given, samples=tuple(rows)))
    assert found == "undetermined"
    assert ("The model is sure of another class: its label may be wrong." in message) == sure


@pytest.mark.parametrize(
    ("loss", "before", "spread", "cause"),
    [
        (4.1, 2.0, 0.22, "labels"),  # 6.4 deviations
        (4.1, 2.1, 0.22, "undetermined"),
        (4.1, 2.0, 0.24, "undetermined"),  # 5.9
        (3.5, 2.0, 0.13, "labels"),
        (3.5, 2.4, 0.13, "undetermined"),
        (3.5, 2.0, 0.19, "undetermined"),
        (2.9, 2.0, 0.1, "undetermined"),
    ],
)
def test_the_mean_loss_of_a_text_is_unusual_at_less(
    loss: float, before: float, spread: float, cause: str
) -> None:
    """It is 1.75 times the largest of the 32 steps before, and 9.6 deviations above the usual."""
    given = quiet(loss=loss)
    steps = [replace(one, sample_loss=before if one.step == 20 else 0.5) for one in RATE]
    given = replace(
        given, signals=tuple(steps), history=replace(HISTORY, spread_loss=spread, high_loss=2.0)
    )
    assert spike_cause(given)[0] == "undetermined"
    token = SpikeToken(3, 9.0, 17, 0.4)
    rows = tuple(replace(one, token=token if one.index == 15 else None) for one in given.samples)
    found, message = spike_cause(replace(given, samples=rows))
    assert found == cause, message


@pytest.mark.parametrize(
    ("before", "spread", "cause"),
    [
        (3.0, 0.1, "undetermined"),
        (2.2, 0.1, "labels"),
        (2.2, 1.0, "undetermined"),
        (1.7, 1.0, "labels"),
    ],
)
def test_a_loss_must_be_further_above_those_before_if_they_scatter(
    before: float, spread: float, cause: str
) -> None:
    given = quiet(loss=7.0)
    given = replace(given, history=replace(HISTORY, spread_loss=spread))
    steps = [replace(one, sample_loss=before if one.step == 20 else 0.5) for one in RATE]
    found = spike_cause(replace(given, signals=tuple(steps)))
    assert found[0] == cause, found


@pytest.mark.parametrize(
    ("before", "norm", "cause"),
    [(1.7, 15.0, "samples"), (1.8, 15.0, "undetermined"), (7.0, 25.0, "samples")],
)
def test_a_hard_sample_with_a_loss_that_came_before_makes_no_spike_of_the_loss(
    before: float, norm: float, cause: str
) -> None:
    """A square may be four times as large where the error is twice as large."""
    given = capsule_of(ONE, kind="loss", norm=norm, history=replace(HISTORY, high_loss=before))
    rows = [replace(one, loss=0.5 if one.index else 7.0) for one in given.samples]
    steps = [replace(one, sample_loss=before if one.step == 20 else 0.5) for one in RATE]
    found = spike_cause(replace(given, samples=tuple(rows), signals=tuple(steps)))
    assert found[0] == cause, found


def test_what_no_step_made_is_found_and_a_habit_is_not() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], 1e-3)
    changes = OutsideChanges()

    def step(number: int) -> list[str]:
        before = len(changes.found)
        changes.step_begins(number, optimizer, [weight])
        weight.grad = torch.ones(3)
        optimizer.step()
        changes.step_ended(optimizer, [weight])
        return [f"{one.kind} {one.name}".strip() for one in list(changes.found)[before:]]

    assert [step(n) for n in range(1, 4)] == [[], [], []]
    optimizer.param_groups[0]["eps"] = 1e-3
    assert step(4) == ["setting eps"]
    optimizer.state[weight]["exp_avg_sq"].zero_()
    assert step(5) == ["written exp_avg_sq"]
    optimizer.state.clear()
    assert step(6) == ["state"]
    for number in (7, 8, 9):  # as a clamp after each step
        with torch.no_grad():
            weight.clamp_(-1, 1)
        step(number)
        assert changes.weights_written == (number == 7)


@pytest.mark.parametrize("write", ["in place", "anew", "each step", "none"])
def test_weights_written_through_data_are_found_and_a_habit_is_not(write: str) -> None:
    layer = torch.nn.Linear(3, 3)
    held = frozenset(layer.parameters())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    changes = OutsideChanges()
    for step in range(1, 13):
        if write == "in place" and step == 9:
            layer.weight.data.mul_(2.0)
        if write == "anew" and step == 9:
            layer.weight.data = layer.weight.data * 2.0
        if write == "each step":
            layer.weight.data.clamp_(0.1, 0.2)
            layer.weight.data.add_(1e-3)
        changes.step_begins(step, optimizer, held)
        if changes.weights_written:
            changes.weights_moved(step, step - 1, 1.0, 2.0)
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        changes.step_ended(optimizer, held)
    found = [(one.step, one.kind) for one in changes.recent(12)]
    assert found == ([(9, "weights")] if write in ("in place", "anew") else [])
    assert changes.recent(12) == changes.recent(12)
    assert changes.recent(130) == changes.recent(12)  # compared with the steps before the write
    assert changes.recent(150) == ()


@pytest.mark.parametrize(("first", "written"), [(1, False), (20, False), (66, True)])
def test_a_write_through_data_is_known_at_once_if_none_came_before(
    first: int, written: bool
) -> None:
    """So that the step is kept. A script that writes after each step has the habit to."""
    layer = torch.nn.Linear(3, 3)
    held = frozenset(layer.parameters())
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    changes, found = OutsideChanges(), []
    for step in range(1, 70):
        if step >= first:
            layer.weight.data.mul_(1.1)
        changes.step_begins(step, optimizer, held)
        found += [step] * changes.weights_written
        changes.step_ended(optimizer, held)
    assert found == ([first] if written else [])


def test_a_new_scale_of_the_loss_is_found_and_a_doubled_one_is_not() -> None:
    changes = OutsideChanges()
    for step, factor in enumerate((128.0, 256.0, None, 8192.0), 1):
        assert changes.is_new_factor(factor) == (step == 4)
        changes.loss_scale_is(step, factor, None)
    changes.loss_scale_is(5, 8192.0, 1024.0)
    changes.loss_scale_is(6, 8192.0, 1024.0)
    found = [(one.step, one.kind, one.before, one.after) for one in changes.found]
    assert found == [(4, "factor", 256.0, 8192.0), (5, "scaled", 1.0, 1024.0)]


def test_a_script_that_never_unscales_changes_nothing() -> None:
    changes = OutsideChanges()
    for step in range(1, 4):
        changes.loss_scale_is(step, None, 1024.0)
    assert not changes.found


def test_equal_inputs_of_a_batch_and_of_two_calls_are_counted() -> None:
    torch.manual_seed(0)
    anchor, negative = torch.randn(6, 5), torch.randn(6, 5)
    negative[4] = anchor[4]
    anchor[1] = anchor[2] = anchor[0].clone()
    calls = [SimpleNamespace(args=(one,), kwargs={}) for one in (anchor, negative)]
    found = input_figures(calls)  # type: ignore[arg-type]
    assert (found.copies, found.count, found.twins) == (3, 6, 1)
    assert twins(calls[1], 6, calls[:1]) == [None] * 4 + [0, None]  # type: ignore[arg-type]


def test_equal_inputs_in_one_term_of_the_loss_are_counted() -> None:
    torch.manual_seed(0)
    given = torch.randn(12, 5)  # four terms of three rows
    given[9] = given[1]
    calls = [SimpleNamespace(args=(given,), kwargs={})]
    assert input_figures(calls, [3]).twins == 1  # type: ignore[arg-type]
    assert input_figures(calls).twins == 0  # type: ignore[arg-type]
    given[9], given[6] = given[11], given[8]
    assert input_figures(calls, [3]).twins == 2  # rows 6 and 8, rows 9 and 11
    given[6], given[9] = torch.randn(5), torch.randn(5)
    given[2] = given[11]  # of terms 2 and 3, or of terms 0 and 3
    assert input_figures(calls, [3]).twins == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize("margin", [0.5, 100.0])
def test_the_rows_of_a_triplet_have_its_term(by_batch: bool, margin: float) -> None:
    """Of one call on anchors, positives and negatives. If no term is 0, the order is not known."""
    torch.manual_seed(0)
    rows = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    a, p, n = rows.chunk(3) if by_batch else rows.reshape(4, 3, 3).unbind(1)
    each = F.relu((a - p).square().sum(1) - (a - n).square().sum(1) + margin)
    known = row_losses([each.mean()])
    assert known is not None
    assert known.rows_each(12) == 3
    (sent,) = torch.autograd.grad(each.mean(), rows)
    terms = known.terms_of_rows(12, (sent != 0).any(1))
    if margin == 100.0:
        assert terms is None
        return
    assert 0 < int((each > 0).sum()) < 4
    assert terms == ([0, 1, 2, 3] * 3 if by_batch else [n // 3 for n in range(12)])
    assert known.of_samples(4) == pytest.approx(each.tolist(), rel=1e-12)
    assert [known.rows_each(count) for count in (0, 4, 6, 8, 16, 20)] == [1, 1, 1, 2, 4, 1]


def test_texts_with_the_same_tokens_in_another_order_are_no_copies() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [7, 6, 5, 0], [6, 7, 5, 0], [5, 6, 7, 0]])
    call = SimpleNamespace(args=(ids,), kwargs={})
    assert input_figures([call]).copies == 2


def test_calls_with_batches_of_several_sizes_have_no_twins() -> None:
    calls = [SimpleNamespace(args=(torch.randn(n, 8),), kwargs={}) for n in (6, 32, 6)]
    assert input_figures(calls).twins == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_rows_too_short_to_compare_have_no_copies(width: int) -> None:
    calls = [SimpleNamespace(args=(torch.ones(6, width),), kwargs={})]
    assert input_figures(calls).copies is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "unusual"),
    [
        (BatchFigures(1.0, 0, 40, 1, 16, 0), "input"),  # longer
        (BatchFigures(1.0, 0, 20, 4, 16, 0), "input"),  # copies
        (BatchFigures(1.0, 0, 20, 2, 16, 0), ""),
        (BatchFigures(1.0, 0, 20, 1, 16, 1), "input"),  # equal in two calls
        (BatchFigures(1.0, 1, 20, 1, 16, 0), "input"),  # one value
    ],
)
def test_a_batch_with_an_input_unlike_all_before_stands_out(
    figures: BatchFigures, unusual: str
) -> None:
    before = StepsBefore()
    for _ in range(40):
        before.batches.add(BatchFigures(1.0, 0, 16, 1, 16, 0))
    assert before.unusual_batch(figures) == unusual


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_state_of_adam_is_that_of_its_moments(dtype: torch.dtype) -> None:
    net = torch.nn.Linear(300, 200).to(dtype)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, betas=(0.8, 0.95))
    for _ in range(3):
        net(torch.randn(4, 300, dtype=dtype)).square().sum().backward()
        optimizer.step()
    held = [optimizer.state[p] for p in net.parameters()]
    m, v = (torch.cat([one[k].flatten() for one in held]).double() for k in _MOMENTS)
    before = [one[k].clone() for one in held for k in _MOMENTS]
    found = state_of(optimizer)
    update = m / (1 - 0.8**3) / ((v / (1 - 0.95**3)).sqrt() + 1e-8)
    figures = [found.first_moment, found.second_moment, found.update_rms]
    wanted = [m.abs().mean(), v.mean().sqrt(), update.square().mean().sqrt()]
    # 60,200 terms of float32, added in pairs, differ from their sum by less than 1e-5.
    assert figures == pytest.approx([float(one) for one in wanted], rel=1e-5)
    after = [one[k] for one in held for k in _MOMENTS]
    assert all(map(torch.equal, before, after))


_MOMENTS = ("exp_avg", "exp_avg_sq")


def test_a_step_after_a_change_comes_before_all_that_do_not_stand_out() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer, before = torch.optim.SGD([weight], 1e-3), StepsBefore()
    known = ObservedOptimizer(held=frozenset([weight]))
    usual, wild = CurrentStep(losses=[0.0]), CurrentStep(losses=[5.0])
    for step in range(1, 41):
        loss = CurrentStep(losses=[1e-9 if step % 8 else 0.0])
        before.add(step, optimizer, loss, BatchFigures())
    loud = before.score(41, wild, BatchFigures())
    optimizer.param_groups[0]["lr"] = 1.0
    before.note(41, optimizer, known, usual, None)
    assert loud > 10
    assert before.score(41, usual, BatchFigures()) > loud


def test_a_step_for_one_sample_begins_no_series() -> None:
    kept: set[int] = set()
    spikes = Spikes(
        SpikeSettings(), RuleSettings(),
        detector=NanDetector(lambda: ()), models=Models(), schedule=Schedule(),
        keep=lambda *_: None, drop=kept.remove,
    )  # fmt: skip
    sizes = {500: ("sample", 9.0), 530: ("loss", 5.0), 531: ("loss", 50.0)}
    sizes |= {step: ("loss", 100.0 * step) for step in range(532, 536)}
    for step, (kind, size) in sizes.items():
        if spikes._makes_room(step, _Spike(kind, "", size)):
            kept.add(step)
    assert kept == {530, 534, 535}


def test_a_step_more_unusual_than_all_is_kept_though_the_time_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[tuple[int, tuple[str, ...]]] = []
    weight = torch.nn.Parameter(torch.ones(3))
    known = ObservedOptimizer("optimizer", held=frozenset([weight]))
    spikes = Spikes(
        SpikeSettings(), RuleSettings.of(ignore=("GS601", "GS602")),
        detector=NanDetector(lambda: ()), models=Models(), schedule=Schedule(),
        keep=lambda capsule, *_: taken.append((capsule.step, capsule.notes)), drop=lambda _: None,
    )  # fmt: skip
    name = "gradscope.training.spikes.spikes._Allowance.affords"
    optimizer = torch.optim.SGD([weight], 1e-3)
    losses = {40: 1.2, 41: 1.3, 42: 1.4, 50: 2.0, 51: 1.9, 52: 2.1}
    for step in range(1, 60):
        if step == 45:
            monkeypatch.setattr(name, lambda *_, more=False: more)
        loss = losses.get(step, 1.0 + 0.01 * (step % 7))
        current = CurrentStep(losses=[loss])
        spikes.backward_begins(step, [weight.sum()], loss, None)
        spikes.gradients_ready(step, optimizer, known, current)
        spikes.step_ended(optimizer, known)
    assert [step for step, _ in taken if step >= 40] == [40, 41, 42, 50, 52]


def kept(folder: Path, *capsules: Capsule) -> Path:
    """A run with these capsules."""
    folder.mkdir(exist_ok=True)
    (folder / "run.db").touch()
    for one in capsules:
        safetensors.torch.save_file({}, capsule_path(folder / "run.db", one.step), metadata(one))
    return folder / "run.db"


def test_of_unusual_steps_one_with_a_cause_is_shown(tmp_path: Path) -> None:
    plain = replace(quiet(), step=40, score=90.0)
    long = replace(quiet(length=64), step=60, score=8.0)
    assert spike(kept(tmp_path, plain, long)).step == 60
    input_alone = replace(quiet(), step=80, score=200.0, kind="input")
    assert spike(kept(tmp_path, input_alone)).step == 60


def test_damage_to_the_weights_comes_before_a_hard_sample(tmp_path: Path) -> None:
    label = replace(quiet(loss=7.0), step=40, kind="sample", score=5.0)
    steps = tuple(replace(one, loss=9.0 if one.step > 58 else 1.0) for one in signals([1e-3] * 40))
    written = (OutsideChange(59, "weights", "", 5.0, 5.0, 50),)
    reset = capsule_of(ALIKE, kind="highest", score=204.0, signals=steps, changes=written)
    assert spike_cause(reset)[0] == "weights"
    assert spike(kept(tmp_path, label, reset)).step == 60
    usual = replace(reset, changes=())
    assert spike(kept(tmp_path / "other", label, usual)).step == 40


@pytest.mark.parametrize("spent", [False, True])
def test_the_gradient_is_read_if_the_loss_has_a_new_factor(
    spent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is known whether the optimizer got the factor; also if time for figures of usual
    steps is spent, because such a loss is large."""
    weight = torch.nn.Parameter(torch.ones(3))
    known = ObservedOptimizer("optimizer", held=frozenset([weight]))
    spikes = Spikes(
        SpikeSettings(), RuleSettings.of(), detector=NanDetector(lambda: ()), models=Models(),
        schedule=Schedule(), keep=lambda *_: None, drop=lambda _: None,
    )  # fmt: skip
    optimizer = torch.optim.SGD([weight], 1e-3)
    found = []
    for step, factor in enumerate((1.0, 1.0, 1.0, 1000.0), 1):
        loss = (weight * 2).sum()
        current = CurrentStep(losses=[1.0])
        if spent and step == 3:
            name = "gradscope.training.spikes.spikes._Allowance.affords"
            monkeypatch.setattr(name, lambda *_: False)
        spikes.backward_begins(step, [loss * factor], factor, None)
        found.append(spikes.is_unusual(step, known, current))
        spikes.gradients_ready(step, optimizer, known, current)
        spikes.step_ended(optimizer, known)
    assert found == [False, False, False, True]


@pytest.mark.parametrize("kind", ["loss", "input"])
def test_a_bad_input_is_shown_though_a_sample_stood_out_before(tmp_path: Path, kind: str) -> None:
    label = replace(quiet(loss=7.0), step=40, kind="sample", score=9.0)
    bad = replace(quiet(input_max=400.0), kind=kind, score=50.0)
    assert spike(kept(tmp_path, label, bad)).step == 60
    aftermath = capsule_of(ALIKE, kind="loss", score=50.0)  # of the wrong label
    assert spike(kept(tmp_path / "later", label, aftermath)).step == 40


def test_a_nan_in_the_data_is_shown_though_a_sample_stood_out_before(tmp_path: Path) -> None:
    few = tuple(SpikeSample(n, nonfinite="input" if n == 5 else None) for n in range(8))
    nan = capsule_of([], kind="non-finite", samples=few, norm=None)
    label = replace(quiet(loss=7.0), step=40, kind="sample", score=9.0)
    assert spike(kept(tmp_path, label, nan)).step == 60


def six_samples(plain: float) -> tuple[CapsuleContents, RecordedCall]:
    """Return the contents of a capsule of one call; a plain step takes ``plain`` seconds."""
    net = torch.nn.Linear(3, 2)
    effects = SideEffects(net)
    effects.writes_arguments = False
    call = RecordedCall("net", net, (torch.randn(6, 3),), {}, effects)
    output = net(*call.args)
    call.ended(output)
    output.square().sum().backward()
    model = SimpleNamespace(module=net, module_ref=lambda: net, compiled=False)
    contents = CapsuleContents(
        [model],  # type: ignore[arg-type]
        SimpleNamespace(plain=plain),  # type: ignore[arg-type]
        BatchIndices(),
        megabytes=1,
        weights=False,
        earlier=EarlierBatches(0, 1),
    )
    return contents, call


@pytest.mark.parametrize("slow", [False, True], ids=["not tried", "too slow"])
def test_a_step_that_is_not_split_has_its_samples_and_says_so(slow: bool) -> None:
    contents, call = six_samples(plain=0.0)
    filled, tensors = contents.fill(quiet(), [call], [], 1.0, split=slow, seconds=0.0)
    assert [one.index for one in filled.samples] == list(range(6))
    assert all(one.share is None and one.input_max for one in filled.samples)
    assert any("`gradscope run --capsule 60` does it" in note for note in filled.notes)
    assert next(iter(tensors)) == "call0.args.0"


def test_an_estimate_of_the_time_does_not_replace_its_limit() -> None:
    """Six samples could take six steps of 0.1 s; split together they take far less than 0.5 s."""
    contents, call = six_samples(plain=0.1)
    filled, _ = contents.fill(quiet(), [call], [], 1.0, seconds=0.5)
    assert sum(one.share or 0.0 for one in filled.samples) == pytest.approx(1, rel=1e-5)


def call_of(net: torch.nn.Module, inputs: torch.Tensor) -> RecordedCall:
    effects = SideEffects(net)
    effects.writes_arguments = False  # as is learned over the first calls
    call = RecordedCall("net", net, (inputs,), {}, effects)
    call.ended(net(inputs))
    return call


def test_the_batches_before_are_references_without_their_graph() -> None:
    net = torch.nn.Linear(3, 2)
    held = EarlierBatches(2, 1)
    made = torch.ones(4, 3, requires_grad=True) * 2  # by another model
    given = [made, torch.full((4, 3), 5.0), torch.full((4, 3), 7.0)]
    given[2][1, 0] = float("nan")
    for step, inputs in enumerate(given, 1):
        rows = row_losses([F.mse_loss(net(inputs), torch.zeros(4, 2))])
        held.add(step, [call_of(net, inputs)], [rows], [[10 * step + n for n in range(4)]])
    second, third = held.records()
    assert (second.step, third.step) == (2, 3)
    assert [one.dataset_index for one in second.samples] == [20, 21, 22, 23]
    expected = F.mse_loss(net(given[1]), torch.zeros(4, 2)).item()
    assert [one.loss for one in second.samples] == pytest.approx([expected] * 4, rel=1e-6)
    assert [one.nonfinite for one in third.samples] == [None, "input", None, None]
    tensors = dict(held.tensors())
    assert list(tensors) == [
        f"step{step}.{name}" for step in (2, 3) for name in ("call0.args.0", "loss0.target")
    ]
    assert tensors["step2.call0.args.0"].data_ptr() == given[1].data_ptr()
    held.add(4, [call_of(net, made)], [None], [None])
    assert not dict(held.tensors())["step4.call0.args.0"].requires_grad


def test_a_script_that_writes_over_its_batch_gets_copies_as_far_as_they_fit() -> None:
    net, buffer = torch.nn.Linear(3, 2), torch.ones(4, 3)
    small, large = EarlierBatches(2, 1), EarlierBatches(2, 0)
    for step in range(1, 5):
        buffer.fill_(step)
        for held in (small, large):
            held.add(step, [call_of(net, buffer)], [None], [None])
    assert [one.note for one in small.records()] == ["", ""]
    assert [one.samples[0].input_max for one in small.records()] == [3.0, 4.0]
    assert [len(one.samples) for one in large.records()] == [0, 0]
    assert all("larger than `--capsule-size`" in one.note for one in large.records())
    first = EarlierBatches(1, 1)
    first.add(1, [call_of(net, buffer)], [None], [None])
    buffer.zero_()
    assert first.records()[0].note == "the script has written over this batch since"
    assert not dict(first.tensors())


@pytest.mark.slow
def test_the_batches_before_a_step_are_kept_and_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--quiet", "--keep-batches", "3", "--capsule", "60", "-o", "run.db"]
    done = gradscope([*words, "train.py", "classifier", "scale", "1"], cwd=tmp_path)
    plain = python(["train.py", "classifier", "scale", "1"], cwd=tmp_path)
    assert (done.stdout, done.stderr) == (plain.stdout, "")
    order = torch.randperm(1280, generator=torch.Generator().manual_seed(1)).tolist()
    path = capsules_of(tmp_path / "run.db")[AT]
    assert [one.step for one in read_capsule(path).earlier] == [58, 59]
    for one in read_capsule(path).earlier:
        first = 16 * (one.step - 1)
        assert [s.dataset_index for s in one.samples] == order[first : first + 16]
    tensors = safetensors.torch.load_file(path)
    assert tensors["step59.call0.args.0"].shape == (16, 8)
    shown = gradscope(["spike", "run.db", "--step", "60"], cwd=tmp_path)
    assert "the batches before, each with its worst sample" in shown.stdout


def test_the_rows_of_a_call_are_those_of_its_tensors() -> None:
    ids = torch.tensor([[5, 6, 7, 0], [9, 9, 9, 9], [5, 6, 7, 0], [1, 2, 3, 4]])
    sizes = torch.tensor([[1.0, -7.0], [2.0, 2.0], [1.0, -7.0], [0.0, 3.0]])
    given = SimpleNamespace(args=(ids, sizes), kwargs={})
    found = rows_of(given, 4)  # type: ignore[arg-type]
    rows, length = found.each, found.length
    assert [one.largest for one in rows] == [7.0, 2.0, 7.0, 3.0]
    assert length == 4
    assert copies(given, 4) == [None, None, 0, None]  # type: ignore[arg-type]
    assert lengths(SimpleNamespace(args=(ids[[0, 2]],), kwargs={}), 2) == [3, 3]  # type: ignore[arg-type]
    alone = rows_of(SimpleNamespace(args=(ids,), kwargs={}), 4)  # type: ignore[arg-type]
    assert [one.constant for one in alone.each] == [
        False, True, False, False,
    ]  # fmt: skip


def test_the_gradient_without_a_sample_is_that_of_the_other_samples() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    ).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    running = net[1].running_mean
    assert isinstance(running, torch.Tensor)
    effects = SideEffects(net)
    call = RecordedCall("net", net, (x,), {}, effects)
    output = net(x)
    call.ended(output)
    effects.draws = False  # as is learned over the first calls
    output.retain_grad()
    F.mse_loss(output, torch.zeros(5, 2, dtype=torch.float64)).backward()
    assert output.grad is not None
    before, kept = running.clone(), [p.grad for p in net.parameters()]
    found, whole = norms_without(call, 5, 1.0)
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    assert whole == pytest.approx(torch.cat([g.flatten() for g in grads]).norm().item(), rel=1e-12)
    assert torch.equal(running, before)
    assert all(p.grad is one for p, one in zip(net.parameters(), kept, strict=True))
    for n in range(5):
        others = [m for m in range(5) if m != n]
        parts = torch.autograd.grad(net(x[others]), list(net.parameters()), output.grad[others])
        norm = torch.cat([one.flatten() for one in parts]).norm().item()
        assert found[n] == pytest.approx(norm, rel=1e-12)


class Scored(torch.nn.Module):
    """Returns its loss beside the logits and features that the loss is made of."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.embed, self.head, self.order = torch.nn.Linear(3, 4), torch.nn.Linear(4, 5), order

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = self.embed(x).tanh()
        logits = self.head(features)
        given = {"loss": F.cross_entropy(logits, labels), "logits": logits, "features": features}
        return tuple(given[name] for name in self.order.split())


@pytest.mark.parametrize("order", ["loss logits features", "features logits loss", "logits loss"])
@pytest.mark.parametrize("outside", [0.0, 0.1], ids=["the loss", "the loss and the logits"])
def test_results_made_of_one_another_are_sent_what_came_from_outside(
    order: str, outside: float
) -> None:
    """As of a Hugging Face model, which returns its loss, its logits and its cache."""
    torch.manual_seed(0)
    net = Scored(order).double()
    x, labels = torch.randn(6, 3, dtype=torch.float64), torch.randint(5, (6,))
    effects = SideEffects(net)
    effects.draws = False
    call = RecordedCall("net", net, (x, labels), {}, effects)
    output = dict(zip(order.split(), net(x, labels), strict=True))
    call.ended(tuple(output.values()))
    (output["loss"] + outside * output["logits"].square().mean()).backward()
    true = [p.grad for p in net.parameters() if p.grad is not None]
    norm = torch.cat([one.flatten() for one in true]).norm().item()
    found = taken_apart(call, 6, 1.0)
    assert found is not None
    assert float(found.norm) == pytest.approx(norm, rel=1e-12)
    for n in range(6):
        one = dict(zip(order.split(), net(x[n : n + 1], labels[n : n + 1]), strict=True))
        own = (one["loss"] + outside * one["logits"].square().mean()) / 6
        parts = torch.autograd.grad(own, list(net.parameters()))
        norm = torch.cat([part.flatten() for part in parts]).norm().item()
        assert float(found.norms[n]) == pytest.approx(norm, rel=1e-12)


class Contrastive(torch.nn.Module):
    """Each sample is compared with all others, in the model."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self.layer, self.returned = torch.nn.Linear(3, 4), returned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = F.normalize(self.layer(x), dim=1)
        if self.returned == "rows":
            return z - z.mean(0)
        scores = z @ z.T / 0.1
        if self.returned == "scores":
            return scores
        return F.cross_entropy(scores, torch.arange(len(x)).roll(1))


@pytest.mark.parametrize("returned", ["loss", "scores", "rows"])
def test_a_sample_that_cannot_be_split_off_is_left_out(returned: str) -> None:
    torch.manual_seed(0)
    net, x = Contrastive(returned).double(), torch.randn(6, 3, dtype=torch.float64)
    effects = SideEffects(net)
    effects.draws = False  # as is learned over the first calls
    call = RecordedCall("net", net, (x,), {}, effects)
    output = net(x)
    call.ended(output)
    sent = torch.ones(()) if returned == "loss" else torch.randn(output.shape)
    output.backward(sent.double())
    assert mixes_samples(call, 6)
    found, _ = norms_without(call, 6, 1.0)
    for n in range(6):
        others = [m for m in range(6) if m != n]
        rows = sent if returned == "loss" else sent[others]
        rows = rows[:, others] if returned == "scores" else rows
        parts = torch.autograd.grad(net(x[others]), list(net.parameters()), rows.double())
        norm = torch.cat([one.flatten() for one in parts]).norm().item()
        assert found[n] == pytest.approx(norm, rel=1e-10)


def test_a_model_that_keeps_its_samples_apart_mixes_none() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    effects = SideEffects(net)
    effects.draws = False
    call = RecordedCall("net", net, (torch.randn(6, 3),), {}, effects)
    call.ended(net(*call.args))
    assert not mixes_samples(call, 6)


IN_BATCH = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, a, b):
        scores = self.layer(a) @ self.layer(b).T / 8
        return F.cross_entropy(scores, torch.arange(len(a)))


net = Pairs()
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(1, 61):
    a = torch.randn(16, 8)
    b = a + 0.1 * torch.randn(16, 8)
    if step == 60:
        a[5] *= -1000
    optimizer.zero_grad()
    net(a, b).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_loss_in_the_model_that_compares_samples_names_the_bad_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_BATCH)
    done = gradscope(["run", "--quiet", "--every", "1", "-o", "run.db", "train.py"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    report = spike(tmp_path / "run.db", AT)
    assert report.cause == "samples", report.message
    assert report.samples[0].index == 5
    norms = {one.index: one.norm_without for one in report.samples}
    known = [one for one in norms.values() if one is not None]
    assert (len(known), norms[5]) == (16, min(known))
    assert any("or it returns its loss alone" in note for note in report.notes)


def test_the_sample_without_which_the_gradient_is_usual_is_to_blame() -> None:
    rows = [
        SpikeSample(n, gradient_norm=9.0, share=1 / 16, norm_without=3.0 if n == 4 else 90.0)
        for n in range(16)
    ]
    found = spike_cause(capsule_of([], samples=tuple(rows)))
    assert found[0] == "samples"
    assert found[1].startswith("sample 4 of 16: 6.2 % of the gradient")
    assert "Without it, the batch's gradient norm is 3.000." in found[1]
    rows[4] = replace(rows[4], norm_without=80.0)
    assert spike_cause(capsule_of([], samples=tuple(rows)))[0] == "undetermined"


@pytest.mark.parametrize(
    ("without", "copy", "cause"),
    [
        (50.0, None, "samples"),
        (51.0, None, "undetermined"),
        (None, None, "undetermined"),
        (50.0, 0, "undetermined"),
    ],
)
def test_shares_of_a_batch_that_a_module_mixes_need_the_gradient_without_the_sample(
    without: float | None, copy: int | None, cause: str
) -> None:
    """Without a copy of the sample, the gradient may be half as large by chance."""
    given = capsule_of(ONE, kind="loss", norm=100.0, usual_norm=20.0)
    rows = [replace(one, norm_without=99.0 if one.index else without) for one in given.samples]
    rows[1] = replace(rows[1], copy_of=copy)
    mixed = replace(given, samples=tuple(rows), mixing=("norm1",))
    assert spike_cause(given)[0] == "samples"
    assert spike_cause(mixed)[0] == cause


@pytest.mark.parametrize(("second", "cause"), [(3.49, "labels"), (3.51, "undetermined")])
def test_the_next_loss_of_a_batch_may_be_half_that_of_a_wrong_label(
    second: float, cause: str
) -> None:
    """It is above all of the 32 steps before, as one in 33 is."""
    given = quiet(loss=7.0)
    rows = [replace(one, loss=second) if one.index == 2 else one for one in given.samples]
    assert spike_cause(replace(given, samples=tuple(rows)))[0] == cause


def test_the_address_of_a_freed_weight_may_have_a_smaller_one() -> None:
    # The allocator gives a freed address anew: the values of then lie outside the memory of now.
    memory = np.zeros(1000, dtype=np.float32)
    weight = torch.nn.Parameter(torch.from_numpy(memory))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    changes = OutsideChanges()
    changes.step_begins(1, optimizer, [weight])
    changes.step_ended(optimizer, [weight])
    weight.data = torch.from_numpy(memory[:10])
    changes.step_begins(2, optimizer, [weight])
    changes.step_ended(optimizer, [weight])
    assert not changes._compared
    end = weight.data_ptr() + weight.untyped_storage().nbytes()
    assert [address + size <= end for address, size in changes._places] == [True]


@pytest.mark.parametrize("values", [torch.zeros(10)[10:], torch.eye(3).to_sparse()])
def test_a_parameter_without_a_value_to_read(values: torch.Tensor) -> None:
    weight = torch.nn.Parameter(values)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    changes = OutsideChanges()
    for step in (1, 2):
        changes.step_begins(step, optimizer, [weight])
        changes.step_ended(optimizer, [weight])
    assert changes.recent(2) == ()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.bool])
def test_inputs_whose_extremes_pytorch_does_not_find(dtype: torch.dtype) -> None:
    given = SimpleNamespace(args=(torch.zeros(4, 6).to(dtype),), kwargs={})
    assert rows_of(given, 4).each == [Row(None, False)] * 4  # type: ignore[arg-type]
