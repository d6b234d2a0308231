"""The noise scale of a run: the closed form of linear regression, and the parts that it reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from processes import gradscope, python
from training.ranks.launched import side_by_side

from gradscope.records.training import GradientParts, RunNoise, TrainingStep
from gradscope.reporters.tables.experiments import noise_of_run as words_of
from gradscope.runfile.gradient_noise import noise_of_run
from gradscope.runfile.reader import RunFile


def regression(
    generator: torch.Generator, form: tuple[int, int, int, int], noise: float, by_ranks: bool
) -> list[TrainingStep]:
    """Steps at weights with distance 1 from the true ones: the losses and norms of their parts."""
    inputs, size, parts, steps = form
    error = torch.ones(inputs, dtype=torch.float64) / math.sqrt(inputs)
    x = torch.randn(steps, parts, size, inputs, generator=generator, dtype=torch.float64)
    drawn = torch.randn(steps, parts, size, generator=generator, dtype=torch.float64)
    residual = x @ error - noise * drawn
    own = (x * residual[..., None]).mean(2)  # [steps, parts, inputs]
    losses = (residual**2 / 2).mean(2).tolist()
    norms = own.mean(1).norm(dim=1).tolist()
    sums = (own.cumsum(1) / parts).norm(dim=2).tolist()
    found = []
    for n in range(steps):
        part = GradientParts(size, sums=tuple(sums[n]))
        if by_ranks:
            part = GradientParts(size, ranks=tuple(own[n].norm(dim=1).tolist()))
        found.append(step(n + 1, losses[n], norms[n], part))
    return found


def step(
    number: int, losses: Sequence[float], norm: float, parts: GradientParts | None
) -> TrainingStep:
    return TrainingStep(
        number, "optimizer", number, 0.0, 0.0, tuple(losses), None, norm, norm, (0.1,), parts=parts
    )


@pytest.mark.slow
@pytest.mark.parametrize("by_ranks", [False, True])
@pytest.mark.parametrize(
    ("form", "noise"), [((5, 8, 4, 60), 1.0), ((5, 16, 2, 60), 0.5), ((20, 32, 4, 20), 1.0)]
)
def test_the_interval_has_the_closed_form(
    form: tuple[int, int, int, int], noise: float, by_ranks: bool
) -> None:
    generator, inputs = torch.Generator().manual_seed(5), form[0]
    true = inputs * (1 + noise**2) + 1  # Σ = (1 + σ²) I + e eᵀ, |e| = 1
    found = [noise_of_run(regression(generator, form, noise, by_ranks)) for _ in range(200)]
    known = [one for one in found if one is not None]
    assert len(known) >= 196  # the losses of equal parts differ by chance
    within = sum(one.low <= true <= (one.high or math.inf) for one in known)
    assert within >= 0.915 * len(known)  # 95 %, less two standard errors of the count
    values = sorted(one.value for one in known if one.value is not None)
    assert values[len(values) // 2] == pytest.approx(true, rel=0.15)


def test_parts_of_other_losses_tell_no_noise() -> None:
    steps = regression(torch.Generator().manual_seed(6), (5, 8, 4, 30), 1.0, False)
    assert noise_of_run(steps) is not None
    other = [replace(one, losses=(*one.losses[:3], (one.losses[3] or 0.0) + 9.0)) for one in steps]
    assert noise_of_run(other) is None
    assert noise_of_run(steps[:7]) is None
    assert noise_of_run([replace(one, parts=None) for one in steps]) is None


def test_the_words() -> None:
    noise = RunNoise(900.0, 600.0, 1500.0, 32, 4, False, 20)
    assert words_of(noise) == (
        "noise scale: 900 samples (95 % interval: 600 to 1500): a batch 4 times as large as 128 "
        "would still pay; from 20 sampled steps with 4 micro-batches of 32"
    )
    few = RunNoise(None, 10.0, None, 8, 2, True, 9)
    assert words_of(few) == (
        "noise scale: unknown (95 % interval: 10 or more); 9 sampled steps with 2 ranks of 8 are "
        "too few"
    )


#: Accumulation; it prints the gradient's norm after each backward.
SCRIPT = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn

kind = sys.argv[1]
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
norms = []
for step in range(12):
    optimizer.zero_grad()
    norms.append([])
    for part in range(3):
        x = torch.randn(8 if kind != "sizes" or part else 4, 5)
        loss = F.mse_loss(net(x), x.sum(1, keepdim=True)) / 3
        loss.backward()
        squares = [p.grad.double().square().sum().item() for p in net.parameters()]
        norms[-1].append(sum(squares) ** 0.5)
        if kind == "zero":
            optimizer.zero_grad()
    if kind == "lines":
        F.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
print(json.dumps(norms))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["accumulation", "sizes", "lines", "zero"])
def test_a_run_has_the_norms_of_its_micro_batches(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--quiet", "--every", "1", "-o", "run.db", "train.py", kind]
    done = gradscope(words, cwd=tmp_path)
    assert done.stdout == python(["train.py", kind], cwd=tmp_path).stdout
    with RunFile.open(tmp_path / "run.db") as run:
        found = [one.parts for one in run.steps()]
    if kind != "accumulation":
        assert found == [None] * 12
        return
    norms = json.loads(done.stdout)
    for parts, expected in zip(found, norms, strict=True):
        assert parts is not None
        assert parts.size == 8
        assert parts.sums == pytest.approx(expected, rel=1e-5)
    shown = gradscope(["show", "run.db", "--width", "200"], cwd=tmp_path)
    assert "12 sampled steps with 3 micro-batches of 8" in shown.stdout


RANKS = """
import json, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
torch.manual_seed(1 + rank)
norms = []
for step in range(12):
    x = torch.randn(8, 5)
    own = torch.autograd.grad(
        F.mse_loss(net(x), x.sum(1, keepdim=True)), list(net.parameters())
    )
    norms.append(sum(g.double().square().sum().item() for g in own) ** 0.5)
    optimizer.zero_grad()
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
open(f"{sys.argv[1]}-{rank}.json", "w").write(json.dumps([norms, net[0].weight.tolist()]))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_have_the_norms_of_their_own_gradients(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    observed = ["-m", "gradscope", "run", "--quiet", "--every", "1", "-o", "run"]
    for words in ([*observed, "train.py", "observed"], ["train.py", "plain"]):
        done = side_by_side(tmp_path, 2, *words)
        assert done.returncode == 0, done.stderr
    norms = []
    for rank in (0, 1):
        content = [(tmp_path / f"{kind}-{rank}.json").read_text() for kind in ("observed", "plain")]
        assert content[0] == content[1]
        norms.append(json.loads(content[0])[0])
    with RunFile.open(tmp_path / "run") as run:
        found = [one.parts for one in run.steps()]
    for parts, expected in zip(found, zip(*norms, strict=True), strict=True):
        assert parts is not None
        assert parts.size == 8
        assert parts.ranks == pytest.approx(expected, rel=1e-5)
    shown = gradscope(["show", "run", "--width", "200"], cwd=tmp_path)
    assert "12 sampled steps with 2 ranks of 8" in shown.stdout
