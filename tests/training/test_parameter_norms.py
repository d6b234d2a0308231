"""The norm of every parameter's gradient at every step: against float64, in loops of all kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

import gradscope
from gradscope.records.tensors import NONE, VALUES_EVERY
from gradscope.runfile.reader import RunFile
from gradscope.training import gradients, metrics_schedule
from gradscope.training.discovery import outermost_modules
from gradscope.training.metrics_schedule import Frequency

Norms = dict[str, float]


@dataclass
class Truth:
    """Float64 norms that a loop reads itself, step by step: before clipping, after, and weights."""

    gradient: list[Norms] = field(default_factory=list)
    clipped: list[Norms] = field(default_factory=list)
    value: list[Norms] = field(default_factory=list)

    def left(self, *modules: nn.Module, scale: float = 1.0) -> None:
        self.gradient.append({n: x / scale for n, x in norms_of(modules, gradients=True).items()})
        self.value.append(norms_of(modules, gradients=False))

    def got(self, *modules: nn.Module) -> None:
        self.clipped.append(norms_of(modules, gradients=True))


def norms_of(modules: tuple[nn.Module, ...], *, gradients: bool) -> Norms:
    found = {}
    for module in modules:
        for name, p in module.named_parameters():
            tensor = p.grad if gradients else p.detach()
            found[name] = NONE if tensor is None else tensor.double().norm().item()
    return found


def net(seed: int = 0) -> nn.Sequential:
    """Small tensors, and one of more than a block."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 3))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 40), torch.randint(3, (16,))


def loss_of(model: nn.Module) -> torch.Tensor:
    x, y = batch()
    return nn.functional.cross_entropy(model(x), y)


def plain(kind: Callable[..., torch.optim.Optimizer]) -> Callable[[Truth], None]:
    def loop(truth: Truth) -> None:
        model = net()
        optimizer = kind(model.parameters(), lr=0.01)
        for _ in range(8):
            optimizer.zero_grad()
            loss_of(model).backward()
            truth.left(model)
            truth.got(model)
            optimizer.step()

    return loop


def clipped(truth: Truth) -> None:
    """At some steps the bound is above the norm."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(8):
        optimizer.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1 if step % 3 else 100.0)
        truth.got(model)
        optimizer.step()


def clipped_by_value(truth: Truth) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        truth.got(model)
        optimizer.step()


def clipped_in_parts(truth: Truth) -> None:
    """One bound for each layer; a layer that is clipped twice; noise on one gradient."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        nn.utils.clip_grad_norm_(model[0].parameters(), 0.05)
        nn.utils.clip_grad_norm_(model[2].parameters(), 0.01)
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        if step % 3:
            model[0].weight.grad.add_(torch.randn(64, 40) / 100)
        truth.got(model)
        optimizer.step()


def clipped_and_written(truth: Truth) -> None:
    """Each gradient has one write more, in a call of clipping that raised, and by hand."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        with pytest.raises(TypeError):
            nn.utils.clip_grad_norm_(model.parameters(), None)
        for p in model.parameters():
            p.grad.clamp_(-0.01, 0.02)
        truth.got(model)
        optimizer.step()


def accumulated(truth: Truth) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        for _ in range(3):
            (loss_of(model) / 3).backward()
        truth.left(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        truth.got(model)
        optimizer.step()


def closure(truth: Truth) -> None:
    """Those of the last call count, the weights before the first."""
    model = net()
    x, y = batch()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for _ in range(4):
        calls = 0

        def compute() -> torch.Tensor:
            nonlocal calls
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if calls:
                for of in (truth.gradient, truth.clipped):
                    of.pop()
                value = truth.value.pop()
            truth.left(model)
            if calls:
                truth.value[-1] = value
            truth.got(model)
            calls += 1
            return loss

        optimizer.step(compute)


def scaled(truth: Truth) -> None:
    """The scaler takes its factor out before the step; every other step is clipped, too."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    for step in range(8):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        truth.left(model, scale=scaler.get_scale())
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            truth.got(model)
        else:
            truth.clipped.append(truth.gradient[-1])
        scaler.step(optimizer)
        scaler.update()


def partly_frozen(truth: Truth) -> None:
    """A frozen layer has no gradient; one is frozen later, and one thawed."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        if step == 3:
            model[0].requires_grad_(True)
            model[2].bias.requires_grad_(False)
        optimizer.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        truth.got(model)
        optimizer.step()


def many_dtypes(truth: Truth) -> None:
    """Clipped bfloat16 rounds so much that its gradients are read again."""
    model = net()
    model[2].double()
    model[0].bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        x, y = batch()
        hidden = torch.tanh(model[0](x.bfloat16())).double()
        nn.functional.cross_entropy(model[2](hidden), y).backward()
        truth.left(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        truth.got(model)
        optimizer.step()


def without_optimizer(truth: Truth) -> None:
    model = net()
    for _ in range(5):
        model.zero_grad()
        loss_of(model).backward()
        truth.left(model)
        truth.got(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


LOOPS = {
    **{
        kind.__name__: plain(kind)
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
    },
    **{
        loop.__name__: loop
        for loop in (
            *(clipped, clipped_by_value, clipped_in_parts, clipped_and_written, accumulated),
            *(closure, scaled, partly_frozen, many_dtypes, without_optimizer),
        )
    },
}


def observed(path: Path, loop: Callable[[Truth], None], **options: object) -> Truth:
    """The loop under `watch`, of whatever models it makes."""
    from gradscope.training.session import RunSettings, Session

    truth = Truth()
    # Without an optimizer all models count that are alive: those of other tests do not train now.
    others = [p for one in outermost_modules() for p in one.parameters() if p.requires_grad]
    for parameter in others:
        parameter.requires_grad_(False)
    session = Session.begun("loop", (), RunSettings(out=path, **options))  # type: ignore[arg-type]
    session.observe()
    try:
        loop(truth)
    finally:
        session.finish("0")
        for parameter in others:
            parameter.requires_grad_(True)
    assert session.failure is None
    return truth


#: Those whose gradients take another way each: the step's own, clipped, scaled, of a closure.
QUICK = ("AdamW", "clipped_in_parts", "scaled", "closure")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in LOOPS]
)
def test_norms_are_those_of_float64(name, tmp_path):
    truth = observed(tmp_path / "run.db", LOOPS[name], every=1)
    count = len(truth.gradient)
    with RunFile.open(tmp_path / "run.db") as run:
        found = {key: one for (_, key), one in run.norm_series().items()}
        sampled = {key: one for (_, key), one in run.parameter_series().items()}
        steps = run.steps()
    for measure, of in (("gradient_norm", truth.gradient), ("clipped_norm", truth.clipped)):
        totals = [math.hypot(*(x for x in norms.values() if x != NONE)) for norms in of]
        assert [getattr(step, measure) for step in steps] == pytest.approx(totals, rel=1e-5)
    assert found.keys() == truth.gradient[0].keys()
    for key, one in found.items():
        assert list(one.steps) == list(range(1, count + 1)), "every step is there"
        for own, theirs in ((one.gradient, truth.gradient), (one.clipped, truth.clipped)):
            assert list(own) == pytest.approx([norms[key] for norms in theirs], rel=1e-5), key
        values = [truth.value[step - 1][key] for step in one.value_steps]
        assert one.value_steps[0] == 1
        assert list(one.value) == pytest.approx(values, rel=1e-5)
        # The samples have the same numbers, from another computation.
        for measure in ("grad_norm", "clipped_norm"):
            steps, norms = one.of(measure)
            known = [None if norm == NONE else norm for norm in norms]
            theirs = sampled[key].values[measure]
            assert sampled[key].steps == tuple(steps)
            for mine, sample in zip(known, theirs, strict=True):
                assert (mine is None) == (sample is None)
                assert mine is None or mine == pytest.approx(sample, rel=2e-6)


def test_a_clip_costs_one_reading_of_the_small_gradients(tmp_path, monkeypatch):
    read: list[int] = []
    original = gradients.gradient_norms

    def counted(given, *more):
        read.append(sum(g.numel() for g in given))
        return original(given, *more)

    monkeypatch.setattr(gradients, "gradient_norms", counted)
    observed(tmp_path / "run.db", clipped, every=100, first=0, nan_detector=False)
    full, small = 40 * 64 + 64 + 64 * 3 + 3, 64 + 64 * 3 + 3
    assert read == [full, small] * 8


def test_each_step_has_the_parameters_of_its_optimizer(tmp_path):
    """A GAN: the generator's loss gives the discriminator gradients, which no step of its uses."""
    truth: dict[str, Truth] = {"G": Truth(), "D": Truth()}

    def loop(_: Truth) -> None:
        netG, netD = nn.Linear(4, 6), nn.Linear(6, 1)
        optG = torch.optim.Adam(netG.parameters(), lr=0.01)
        optD = torch.optim.SGD(netD.parameters(), lr=0.01)
        for _ in range(10):
            optD.zero_grad()
            fake = netG(torch.randn(8, 4))
            netD(torch.randn(8, 6)).mean().neg().backward()
            netD(fake.detach()).mean().backward()
            truth["D"].left(netD)
            optD.step()
            optG.zero_grad()
            netD(fake).square().mean().backward()
            truth["G"].left(netG)
            optG.step()

    observed(tmp_path / "run.db", loop, every=7)
    with RunFile.open(tmp_path / "run.db") as run:
        names = {model.id: model.name for model in run.models}
        found = run.norm_series()
    assert {names[model] for model, _ in found} == {"netG", "netD"}
    for (model, name), one in found.items():
        which = names[model][-1]
        assert list(one.steps) == list(range(1 if which == "D" else 2, 21, 2))
        expected = [norms[name] for norms in truth[which].gradient]
        assert list(one.gradient) == pytest.approx(expected, rel=1e-5)


def test_one_optimizer_of_two_models(tmp_path):
    def loop(_: Truth) -> None:
        actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
        optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
        for step in range(2 * VALUES_EVERY):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            loss = actor(x).square().mean()
            if step % 4 == 0:
                loss = loss + critic(x).square().mean()
            loss.backward()
            optimizer.step()

    observed(tmp_path / "run.db", loop, every=100)
    with RunFile.open(tmp_path / "run.db") as run:
        names = {model.id: model.name for model in run.models}
        found = {(names[model], name): one for (model, name), one in run.norm_series().items()}
    actor, critic = found["actor", "weight"], found["critic", "bias"]
    assert list(actor.steps) == list(range(1, 33))
    assert list(actor.value_steps) == [1, 16, 32]
    # A step in which a model has no gradient has no row of it.
    assert list(critic.steps) == list(range(1, 33, 4))
    assert list(critic.value_steps) == [1]


def test_parameters_that_come_later_and_heads_that_are_replaced(tmp_path):
    def loop(_: Truth) -> None:
        model = net()
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for step in range(9):
            if step == 3:
                optimizer.add_param_group({"params": list(model[0].parameters())})
            if step == 6:
                model[2] = nn.Linear(64, 3)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    observed(tmp_path / "run.db", loop, every=100)
    with RunFile.open(tmp_path / "run.db") as run:
        found = {name: one for (_, name), one in run.norm_series().items()}
    assert {name: list(one.steps) for name, one in found.items()} == {
        "2.weight": list(range(1, 10)),
        "2.bias": list(range(1, 10)),
        "0.weight": list(range(4, 10)),
        "0.bias": list(range(4, 10)),
    }


def test_what_is_not_finite_is_seen(tmp_path):
    """The steps after it, too, though a run that is not sampled there reads no other gradients."""

    def loop(_: Truth) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(model)
            (loss * (math.nan if step == 4 else 1.0)).backward()
            optimizer.step()

    observed(tmp_path / "run.db", loop, every=100)
    history = gradscope.load(tmp_path / "run.db")
    (weight,) = (one for one in history.parameters if one.name == "2.weight")
    course = weight.course("grad_norm")
    assert list(course.steps) == [1, 2, 3, 4, 5, 6]
    assert list(course.lost) == [5, 6]
    assert course.values[4] is course.values[5] is None


def test_a_script_makes_its_models_again_and_again(tmp_path):
    def loop(_: Truth) -> None:
        for _ in range(4):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(model).backward()
                optimizer.step()

    observed(tmp_path / "run.db", loop, every=100)
    with RunFile.open(tmp_path / "run.db") as run:
        found = run.norm_series()
    assert sorted(
        step for key, one in found.items() if key[1] == "0.bias" for step in one.steps
    ) == [*range(1, 13)]


def test_a_budget_that_does_not_pay_for_all_thins_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_schedule, "MEASURED", 1)

    def renew(self: Frequency) -> None:
        self.every = 1 if self is records else 5

    records = None
    original = metrics_schedule.MetricsSchedule.__init__

    def made(self, *given, **named):
        nonlocal records
        original(self, *given, **named)
        records = self.records

    monkeypatch.setattr(metrics_schedule.MetricsSchedule, "__init__", made)
    monkeypatch.setattr(Frequency, "renew", renew)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "run.db"
    with gradscope.watch(model, optimizer, out=path, first=1, budget=1e-9, quiet=True):
        for _ in range(200):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    with RunFile.open(path) as run:
        weight = run.norm_series()[1, "0.weight"]
        assert len(run.steps()) == 200
        assert 200 / 5 < len(weight.steps) < 200 / 5 + len(run.sampled) + 5
        assert any("Gradient norms kept for 1 step in 5 (" in notice for notice in run.run.notices)
