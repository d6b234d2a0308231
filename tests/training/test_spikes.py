"""Spikes: the sample that made one is named, others are not blamed, the script sees nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from processes import gradscope, python
from torch.utils.data import DataLoader, TensorDataset

from gradscope.api.spiking import spike
from gradscope.records.spike import Capsule, OptimizerState, SpikeSample, SpikeSignals
from gradscope.rules import spike_cause
from gradscope.runfile.capsules import capsules_of, every_capsule, read_capsule
from gradscope.runfile.reader import RunFile
from gradscope.training.loop.patches import observe_loop
from gradscope.training.spikes.batch_indices import BatchIndices
from gradscope.training.spikes.sample_losses import row_losses
from training.spike_scripts import INNOCENT, KINDS, RANKS, SAMPLES, SCRIPT

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


#: Bad samples that do not make their step stand out by GS601 or GS602: nothing is kept.
MISSED = {
    *((kind, "label") for kind in ("classifier", "cnn", "batchnorm", "accumulation")),
    *((kind, "label") for kind in ("workers", "autocast", "own-loss")),
    *((kind, fault) for kind in ("batchnorm", "own-loss") for fault in ("scale", "duplicated")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"), [(k, f) for k in KINDS for f in SAMPLES if (k, f) not in MISSED]
)
def test_a_bad_sample_is_named_in_every_kind_of_script(
    tmp_path: Path, kind: str, fault: str
) -> None:
    names_the_sample(tmp_path, kind, fault)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("fault", INNOCENT)
def test_a_spike_without_a_guilty_sample_blames_none(tmp_path: Path, fault: str, seed: int) -> None:
    run, _ = observed(tmp_path, "classifier", fault, str(seed))
    found = [spike_cause(read_capsule(path)) for path in capsules_of(run).values()]
    assert found
    assert all(cause != "samples" for cause, _ in found), found
    assert INNOCENT[fault] in [cause for cause, _ in found], found


@pytest.mark.slow
def test_of_ranks_the_one_with_the_bad_sample_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    observed = ["-m", "gradscope", "run", "--quiet", "--every", "1", "-o", "run", "train.py"]
    done = python([*torchrun, *observed], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [read_capsule(path) for step, path in every_capsule(tmp_path / "run") if step == AT]
    assert sorted(one.rank or 0 for one in found) == [0, 1]
    report = spike(tmp_path / "run", AT)
    assert (report.cause, report.rank) == ("samples", 1), report.message
    assert report.samples[0].dataset_index == AT * 16 - 1, report.message


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


def signals(rates: list[float], **last: object) -> tuple[SpikeSignals, ...]:
    rows = [SpikeSignals(60 - len(rates) + 1 + n, 1.0, 2.0, 2.0, r) for n, r in enumerate(rates)]
    return (*rows[:-1], replace(rows[-1], **last))  # type: ignore[arg-type]


ONE, ALIKE = [0.96] + [0.004] * 10, [1 / 16] * 16


def test_one_sample_with_most_of_the_gradient_is_to_blame() -> None:
    cause, message = spike_cause(capsule_of(ONE))
    assert cause == "samples"
    assert message.startswith("sample 0 of 11: 96.0 % of the gradient")


def test_no_sample_is_to_blame_if_the_gradient_stands_out_without_it() -> None:
    shares = [0.6] + [0.04] * 10
    assert spike_cause(capsule_of(shares))[0] == "undetermined"
    assert spike_cause(capsule_of(shares, kind="asked"))[0] == "samples"


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


def test_two_losses_are_not_taken_for_one() -> None:
    given = VALUES.clone().requires_grad_()
    assert row_losses([F.mse_loss(given, WANTED) + F.l1_loss(given, WANTED)]) is None


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
