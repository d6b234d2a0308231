"""``gradscope.watch`` around a loop: what it records, and that the loop notices nothing."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import logging
import math
import pickle
import signal
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradscope
from gradscope.api.reading import read_history
from gradscope.capture import gradients
from gradscope.capture.measurements import MeasurementCache
from gradscope.errors import OptionError
from gradscope.records.training import TrainingStep
from gradscope.runfile.reader import RunFile
from gradscope.training.extra_passes import notices
from gradscope.training.observer import Observer
from gradscope.training.session import RunSettings, Session
from gradscope.training.steps import Steps


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, steps: int = 12) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    return optimizer


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("every", [1, None])
def test_a_scripted_model_is_observed_without_hooks(every, tmp_path, capfd):
    """It can have none. Its parameters are read, and nothing is said about its calls."""
    weights = []
    for watched in (False, True):
        model = torch.jit.script(net())
        context = gradscope.watch(model, every=every, out=tmp_path / "run.db")
        with context if watched else nullcontext():
            train(model)
        weights.append([*model.parameters()])
    assert all(map(torch.equal, *weights))
    assert "internal error" not in capfd.readouterr().err
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert not recorded.findings
        history = read_history(recorded, calls=True)
    assert len(history.steps) == 12 and not history.calls
    assert all(step.gradient_norm for step in history.steps)


class Parts(nn.Module):
    """A model whose layers the script calls itself; it never calls the last."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.extra = net(), nn.Linear(4, 1)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_layers_can_be_scripted_in_a_training(tmp_path, capfd):
    """TorchScript compiles the hooks of a module, too: it sees none of gradscope's, and all of the
    script's."""
    model, calls, inputs = Parts(), [], torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradscope.watch(model, every=2, out=tmp_path / "run.db"):
        for _ in range(8):
            optimizer.zero_grad()
            model.body(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            for part in (model.body.eval(), model.extra):
                hooks = dict(part._forward_pre_hooks)
                scripted = torch.jit.script(part)
                assert torch.equal(scripted(inputs), part.forward(inputs))
                assert dict(part._forward_pre_hooks) == hooks
                assert not scripted._forward_pre_hooks
            model.train()
        handle = model.extra.register_forward_pre_hook(lambda *_: calls.append(1))
        with pytest.raises(RuntimeError, match="top-level function"):
            torch.jit.script(model.extra)
        handle.remove()
    assert "internal error" not in capfd.readouterr().err


def test_a_layer_may_share_the_hooks_of_another(tmp_path, capfd):
    """As of a layer with the attributes of another, which the script calls itself."""
    model, twin = nn.Sequential(nn.Linear(4, 4)), nn.Linear.__new__(nn.Linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradscope.watch(model, every=2, out=tmp_path / "run.db"):
        for step in range(8):
            if step == 4:
                vars(twin).update(vars(model[0]))
            optimizer.zero_grad()
            out = model[0](torch.randn(16, 4))
            (twin(out) if step > 3 else out).square().mean().backward()
            optimizer.step()
    assert "internal error" not in capfd.readouterr().err


def test_an_optimizer_may_hold_parameters_without_a_shape(tmp_path, capfd):
    """As of lazy modules before their first call: of one that is called late, and of one that
    never is."""
    body = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten())
    model = nn.ModuleDict({"body": body, "head": nn.LazyLinear(3), "late": nn.LazyLinear(3)})
    model["spare"] = nn.LazyLinear(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(16, 2, 8), torch.randint(0, 3, (16,))
    with gradscope.watch(model, every=2, out=tmp_path / "run.db"):
        for step in range(12):
            optimizer.zero_grad()
            out = model["late" if step > 5 else "head"](model["body"](x))
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
    assert "internal error" not in capfd.readouterr().err
    with RunFile.open(tmp_path / "run.db") as file:
        last = file.steps()[-1]
    norms = [p.grad.double().norm().item() for p in model.parameters() if p.grad is not None]
    assert last.gradient_norm == pytest.approx(math.hypot(*norms), rel=1e-6)


@pytest.mark.parametrize("remove", [True, False])
def test_a_gradient_may_be_removed_before_the_step(remove, tmp_path):
    """As of a last layer that does not train at first: the rate is not what keeps it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 4)
    with gradscope.watch(model, every=1, out=tmp_path / "run.db"):
        for _ in range(8):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            if remove:
                model[2].weight.grad = None
            else:
                model[2].weight.grad.zero_()
            optimizer.step()
    with RunFile.open(tmp_path / "run.db") as file:
        assert not [one for one in file.findings if one.code == "GS104"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_parameter_may_be_a_nested_tensor(layout, tmp_path, capfd):
    parts = [torch.randn(3, 4), torch.randn(2, 4)]
    nested = nn.Parameter(torch.nested.nested_tensor(parts, layout=layout))
    model = nn.Module()
    model.nested, model.head = nested, (head := nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradscope.watch(model, every=2, out=tmp_path / "run.db"):
        for _ in range(8):
            optimizer.zero_grad()
            sum(head(part).square().sum() for part in nested.unbind()).backward()
            optimizer.step()
    assert "internal error" not in capfd.readouterr().err
    with RunFile.open(tmp_path / "run.db") as file:
        last = file.steps()[-1]
    gradients = [*nested.grad.unbind(), head.weight.grad, head.bias.grad]
    norms = [gradient.double().norm().item() for gradient in gradients]
    assert last.gradient_norm == pytest.approx(math.hypot(*norms), rel=1e-6)


@pytest.mark.parametrize("every", [1, 2, None])
def test_an_optimizer_without_a_state_gets_none(every, tmp_path):
    """``state`` is a dictionary that makes an entry for each parameter that it is asked for."""
    model = net()
    with gradscope.watch(model, every=every, out=tmp_path / "run.db"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
        assert optimizer.state == {} == optimizer.state_dict()["state"]


@pytest.mark.parametrize("every", [1, 5, None])
def test_the_numbers_are_the_same_to_the_last_bit(every, tmp_path):
    plain, watched = net(), net()
    train(plain)
    with gradscope.watch(watched, every=every, out=tmp_path / "run.db"):
        train(watched)
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in watched.modules())


def test_what_is_recorded_is_what_happened(tmp_path):
    model = net()
    with gradscope.watch(model, every=5, out=tmp_path / "run.db") as run:
        train(model)
        report = run.report()
        assert report is not None
        assert [call.name for call in report.calls] == ["", "0", "1", "2", "3"]
    assert (run.steps, run.path) == (12, tmp_path / "run.db")
    with RunFile.open(run.path) as file:
        assert file.sampled == (1, 2, 3, 5, 10)
        assert [model.name for model in file.models] == ["model"]
        assert len(file.steps()) == 12
        assert file.run.exit == "0"


def large() -> nn.Sequential:
    """One weight of megabytes, and one that is stored in columns."""
    model = nn.Sequential(nn.Linear(4, 1024), nn.Linear(1024, 512), nn.Linear(512, 512))
    model[2].weight = nn.Parameter(torch.randn(512, 512).t())
    return model


@pytest.mark.parametrize("made", [net, large])
def test_gradients_and_updates_are_pytorchs_own(made, tmp_path):
    torch.manual_seed(0)
    model = made().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 4).double()).square().mean().backward()
            wanted = {n: p.grad.norm().item() for n, p in model.named_parameters()}
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
    report = run.report()
    assert report is not None
    for parameter in report.parameters:
        now = dict(model.named_parameters())[parameter.name]
        old = before[parameter.name]
        assert parameter.gradient.norm == pytest.approx(wanted[parameter.name], rel=1e-9, abs=1e-15)
        if old.norm() > 0:
            ratio = ((now - old).norm() / old.norm()).item()
            assert parameter.update_ratio == pytest.approx(ratio, rel=1e-6)
    with RunFile.open(run.path) as file:
        last = file.steps()[-1]
        assert last.clipped_norm == pytest.approx(0.01, rel=1e-3)
        assert last.gradient_norm == pytest.approx(sum(w**2 for w in wanted.values()) ** 0.5)


def test_accumulation_and_evaluation(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(3):
            for _ in range(4):
                model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.randn(2, 4))
    report = run.report()
    assert report is not None
    assert [call.call for call in report.calls if call.name == "0"] == [0, 1, 2, 3]
    with RunFile.open(run.path) as file:
        assert [len(step.losses) for step in file.steps()] == [4, 4, 4]


def steps_of(path: Path) -> tuple[TrainingStep, ...]:
    with RunFile.open(path) as file:
        return file.steps()


def unsampled(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> Any:
    """Every step with its metrics, none of them sampled."""
    return gradscope.watch(model, optimizer, every=1000, first=0, out=path)


def test_the_loss_of_an_accumulating_step_is_the_sum(tmp_path):
    model, printed = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unsampled(model, optimizer, tmp_path / "run.db"):
        for backwards in (4, 4, 2, 4):
            optimizer.zero_grad()
            losses = [model(torch.randn(16, 4)).square().mean() / 4 for _ in range(backwards)]
            for loss in losses:
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            printed.append(sum(loss.item() for loss in losses))
    steps = steps_of(tmp_path / "run.db")
    assert [step.loss for step in steps] == pytest.approx(printed, rel=1e-12)
    assert [len(step.losses) for step in steps] == [4, 4, 2, 4]
    assert [step.summed for step in steps] == [None] * 4


def test_gradients_that_were_read_after_clipping_are_not_those_before(tmp_path):
    """A step of fewer backwards than the one before: its gradients are read when it steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unsampled(model, optimizer, tmp_path / "run.db"):
        for backwards in (4, 2, 2):
            optimizer.zero_grad()
            for _ in range(backwards):
                model(torch.randn(16, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
    steps = steps_of(tmp_path / "run.db")
    assert [step.gradient_norm is None for step in steps] == [False, True, False]
    assert all(step.clipped_norm == pytest.approx(1e-3, rel=1e-2) for step in steps)


def test_the_loss_of_a_closure_is_that_of_its_first_call(tmp_path):
    model, returned = net().double(), []
    x = torch.randn(16, 4).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with unsampled(model, optimizer, tmp_path / "run.db"):
        for _ in range(3):
            returned.append(optimizer.step(closure).item())
    steps = steps_of(tmp_path / "run.db")
    assert [step.loss for step in steps] == returned
    assert [step.summed for step in steps] == [(0, 1)] * 3
    assert all(len(step.losses) > 1 and step.gradient_norm for step in steps)


def test_a_backward_whose_gradients_were_thrown_away_is_not_in_the_sum(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with unsampled(model, optimizer, tmp_path / "run.db"):
        for _ in range(2):
            optimizer.zero_grad()
            for loss in [model(torch.randn(16, 4)).square().mean() for _ in range(2)]:
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
    for step in steps_of(tmp_path / "run.db"):
        assert (step.loss, step.summed, len(step.losses)) == (step.losses[1], (1, 2), 2)


def test_scaled_losses_are_told_without_their_scale(tmp_path):
    model, printed = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with unsampled(model, optimizer, tmp_path / "run.db"):
        for together in (True, False):
            optimizer.zero_grad()
            losses = [model(torch.randn(16, 4)).square().mean() for _ in range(2)]
            # All are scaled before the first goes backward.
            scaled = scaler.scale(losses) if together else [scaler.scale(one) for one in losses]
            for loss in scaled:
                loss.backward()
            scaler.step(optimizer)
            scaler.update()
            printed.append([loss.item() for loss in losses])
    steps = steps_of(tmp_path / "run.db")
    assert [list(step.losses) for step in steps] == [pytest.approx(one) for one in printed]
    assert [step.loss_scale for step in steps] == [1024.0, 1024.0]


def outside(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x).float().square().mean()


def inside(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).float().square().mean()


@pytest.mark.parametrize("forward", [outside, inside])
def test_the_autocast_of_forward_is_recorded(forward, tmp_path):
    model = net()
    if forward is inside:  # as accelerate does
        model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, first=1, every=2, out=tmp_path / "run.db") as run:
        for _ in range(3):
            optimizer.zero_grad()
            forward(model, torch.randn(16, 4)).backward()
            optimizer.step()
    report = run.report()
    assert report is not None
    assert report.run.autocast == "bfloat16"
    with RunFile.open(run.path) as file:
        assert [model.autocast for model in file.models] == ["bfloat16"]


def test_an_evaluation_under_autocast_is_not_the_training(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(2):
            optimizer.zero_grad()
            inside(model, torch.randn(16, 4)).backward()
            optimizer.step()
            with torch.no_grad():
                outside(model, torch.randn(16, 4))
    with RunFile.open(run.path) as file:
        assert [model.autocast for model in file.models] == [None]


def test_an_epsilon_far_above_the_gradients_is_found(tmp_path):
    """GS606 asks for the optimizer's class and its settings."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=10.0)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    assert "GS606" in [one.finding.code for one in run.findings]
    report = run.report()
    assert report is not None
    assert report.run.optimizer == "Adam"


def test_the_file_and_the_run_agree_on_what_could_be_judged(tmp_path):
    first, second = net(), net()
    one = torch.optim.SGD(first.parameters(), lr=0.1)
    two = torch.optim.SGD(second.parameters(), lr=0.1)
    settings = {"every": 4, "ignore": ["GS2"], "out": tmp_path / "run.db"}
    with gradscope.watch([first, second], [one, two], **settings) as run:
        for _ in range(20):
            for model, optimizer, backwards in ((first, one, 2), (second, two, 1)):
                optimizer.zero_grad()
                for _ in range(backwards):
                    model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
    with RunFile.open(run.path) as file:
        read = read_history(file).judgement
    assert read == run._session.judgement
    assert {"GS101", "GS401"} <= {*read.judged}
    assert not any(code.startswith("GS2") for code in read.judged)
    lacking = {one.code: (one.unit, one.needs, one.seen) for one in read.not_judged}
    assert lacking["GS601"] == ("steps", 33, 20)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["model", "parts"])
def test_of_a_compiled_model_no_calls_are_recorded(what, tmp_path):
    """Its parameters, gradients and updates are, and the rules that read calls are not judged."""
    model = net()
    (model if what == "model" else model[0]).compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
    with RunFile.open(run.path) as file:
        history = read_history(file, calls=True)
    (found,) = history.models
    assert (found.compiled, history.calls) == (what, ())
    assert len(history.parameters) == 6
    for layer in history.parameters:
        assert all(x is not None for x in layer.values["grad_norm"] + layer.values["update_norm"])
    assert "GS401" in history.judgement.judged
    lacking = {one.code: one.unit for one in history.judgement.not_judged}
    assert lacking["GS101"] == lacking["GS505"] == "calls"


@pytest.mark.slow
def test_a_compiled_step_has_no_part_of_the_observer(tmp_path):
    """Neither a graph of its own nor other numbers."""

    def train(*, watched: bool) -> tuple[list[torch.Tensor], int]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        graphs = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            graphs.append(graph)
            return graph

        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run = gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db")
        with run if watched else nullcontext():
            step = torch.compile(optimizer.step, backend=backend)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                step()
        torch._dynamo.reset()
        return [p.detach().clone() for p in model.parameters()], len(graphs)

    weights, graphs = train(watched=False)
    under, same = train(watched=True)
    assert same == graphs
    assert all(map(torch.equal, under, weights))
    with RunFile.open(tmp_path / "run.db") as file:
        assert file.run.steps == 3


def test_two_optimizers_take_turns(tmp_path):
    first, second = net(), net()
    one = torch.optim.SGD(first.parameters(), lr=0.1)
    two = torch.optim.SGD(second.parameters(), lr=0.1)
    with gradscope.watch([first, second], [one, two], every=1, out=tmp_path / "run.db"):
        for _ in range(3):
            for model, optimizer in ((first, one), (second, two)):
                optimizer.zero_grad()
                model(torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
    with RunFile.open(tmp_path / "run.db") as file:
        assert [step.optimizer for step in file.steps()] == ["one", "two"] * 3
        assert [step.optimizer_step for step in file.steps()] == [1, 1, 2, 2, 3, 3]
        assert {model.name for model in file.models} == {"first", "second"}
        for step in (3, 4):
            (sample,) = file.sample(step)
            assert len(sample.report.calls) == 5


def test_what_the_loop_lets_go_of_is_gone(tmp_path):
    kept = net()
    with gradscope.watch(kept, every=10, out=tmp_path / "run.db"):
        model = net()
        optimizer = train(model, steps=32)
        weight = weakref.ref(model[0].weight)
        del model, optimizer
        gc.collect()
        assert weight() is None


def test_what_locals_gave_the_loop_stays_as_it_is(tmp_path):
    model = net()
    mine = locals()
    with gradscope.watch(model, out=tmp_path / "run.db"):
        train(model, steps=3)
    assert mine["model"] is model


def test_a_closure_belongs_to_its_step(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    x = torch.randn(32, 4)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db"):
        for _ in range(2):
            optimizer.step(closure)
    with RunFile.open(tmp_path / "run.db") as file:
        steps = file.steps()
        assert len(steps) == 2
        assert len(steps[0].losses) > 1


def test_an_optimizer_that_was_made_before_is_found(tmp_path):
    model, other = net(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beside = torch.optim.SGD(other.parameters(), lr=0.1)
    with gradscope.watch(model, out=tmp_path / "run.db") as run:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert run.steps == 5
    with RunFile.open(run.path) as file:
        assert {step.optimizer for step in file.steps()} == {"optimizer"}
    assert not beside.state


def test_without_an_optimizer_each_backward_is_a_step(tmp_path):
    model = nn.Linear(4, 1)
    with gradscope.watch(model, out=tmp_path / "run.db") as run:
        for _ in range(4):
            model(torch.randn(8, 4)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    assert run.steps == 4


def test_a_step_that_a_scaler_skips_is_an_event(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db"):
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(torch.randn(8, 4)) * 1e4).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(2.0**10)
    with RunFile.open(tmp_path / "run.db") as file:
        assert [event.kind for event in file.events] == ["skipped-step"]
        steps = file.steps()
        assert [step.loss_scale for step in steps] == [1024.0] * 3
        report = file.sample(2)[0].report
        assert report.totals.gradient_norm == pytest.approx(steps[1].gradient_norm, rel=1e-5)


def test_copies_and_pickles_carry_nothing_of_gradscope(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db"):
        copied, pickled = copy.deepcopy(model), pickle.dumps(model)
    assert b"gradscope" not in pickled
    for other in (copied, pickle.loads(pickled)):
        assert torch.equal(other.eval()(torch.ones(2, 4)), model.eval()(torch.ones(2, 4)))


def test_a_copy_has_no_hooks_of_the_script(tmp_path):
    """A class with its own ``__getstate__`` passes gradscope's hooks on, which then do nothing."""

    class Stateful(nn.Linear):
        def __getstate__(self):
            return dict(self.__dict__)

    model = Stateful(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradscope.watch(model, optimizer, every=1, out=tmp_path / "run.db"):
        copied = copy.deepcopy(model)
    assert copied._forward_pre_hooks
    assert notices(copied) == ""


def test_a_fault_of_gradscopes_own_is_not_the_loops(tmp_path, monkeypatch, capsys):
    """It is reported at the end; where nothing is to be said, it is a warning."""
    from gradscope.training.sampled_step import SampledStep

    def broken(self, *args, **named):
        raise RuntimeError("injected")

    monkeypatch.setattr(SampledStep, "backward_begins", broken)
    plain, watched = net(), net()
    train(plain)
    with gradscope.watch(net(), out=tmp_path / "said.db"):
        train(net())
    assert "gradscope: error: internal error in gradscope at step 1" in capsys.readouterr().err
    with (
        pytest.warns(UserWarning, match="internal error in gradscope at step 1.*injected"),
        gradscope.watch(watched, out=tmp_path / "run.db", quiet=True),
    ):
        train(watched)
    for one, other in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_an_exception_of_the_loop_passes(tmp_path):
    with pytest.raises(ValueError, match="mine"), gradscope.watch(net(), out=tmp_path / "run.db"):
        raise ValueError("mine")
    with RunFile.open(tmp_path / "run.db") as file:
        assert file.run.exit == "ValueError: mine"


class Unused(nn.Sequential):
    """A network with a layer that nobody calls, which a rule finds."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.Linear(8, 1))
        self.add_module("unused", nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x))


def test_at_the_end_it_says_what_run_says(tmp_path, capsys):
    path = tmp_path / "run.db"
    with gradscope.watch(Unused(), every=1, out=path) as run:
        train_of(run)
        assert capsys.readouterr().err == ""
    out, err = capsys.readouterr()
    assert out == ""
    first, found, help, where = err.splitlines()
    assert first.startswith("gradscope: 12 steps, 12 sampled")
    assert found.startswith("gradscope: error[GS402] unused: the module was never called in all 12")
    assert help == "gradscope:   help: Call the module in `forward`, or remove it."
    assert where == f"gradscope: recorded in {path}: `gradscope why {path}`"
    assert f"{run}\n" == f"{run!r}\n" == err


def train_of(run) -> None:
    (model,) = (m.module for m in run._session.observer.models)
    train(model)


def test_a_run_that_goes_on_says_what_is_known(tmp_path):
    model = net()
    with gradscope.watch(model, every=5, out=tmp_path / "run.db") as run:
        assert repr(run).startswith("gradscope: no step so far")
        train(model, steps=4)
        assert repr(run).startswith("gradscope: 4 steps, 3 sampled\n")


def test_quiet_says_nothing(tmp_path, capsys):
    with gradscope.watch(Unused(), out=tmp_path / "run.db", quiet=True) as run:
        train_of(run)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("rank", "says"), [("0", True), ("1", False)])
def test_of_several_processes_the_first_says_it(rank, says, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with gradscope.watch(Unused(), out=tmp_path / "run") as run:
        train_of(run)
    assert ("gradscope: rank 0: 12 steps" in capsys.readouterr().err) == says


class Lines(logging.Handler):
    def __init__(self, level: int = 0) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []
        self.emit = self.records.append


@pytest.mark.parametrize(
    ("of_logger", "of_handler", "model", "level"),
    [
        (logging.INFO, 0, net, logging.INFO),
        (logging.INFO, 0, Unused, logging.WARNING),
        (logging.WARNING, 0, Unused, logging.WARNING),
        (logging.WARNING, 0, net, None),
        (logging.ERROR, 0, Unused, None),
        (logging.INFO, logging.ERROR, Unused, None),
    ],
)
def test_a_logger_gets_it_where_it_lets_it_through(
    of_logger, of_handler, model, level, tmp_path, capsys
):
    """Else nobody would see it: it goes to standard error."""
    lines, logger = Lines(of_handler), logging.getLogger(tmp_path.name)
    logger.propagate = False
    logger.setLevel(of_logger)
    logger.addHandler(lines)
    try:
        child = logger.getChild("child")
        with gradscope.watch(model(), every=1, out=tmp_path / "run.db", logger=child) as run:
            train_of(run)
    finally:
        logger.propagate = True  # pytest observes those that do not
    err = capsys.readouterr().err
    if level is None:
        assert (err, lines.records) == (f"{run}\n", [])
    else:
        (record,) = lines.records
        assert (record.levelno, record.getMessage(), err) == (level, repr(run), "")


def test_findings_name_commands_for_this_run(tmp_path, monkeypatch):
    # Without a trace there is no cause to name.
    monkeypatch.setattr("gradscope.training.traced_steps.CauseTracer.wanted", False)

    class Cut(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x).detach())

    path = tmp_path / "run.db"
    with gradscope.watch(Cut(nn.Linear(4, 8), nn.Linear(8, 1)), every=1, out=path) as run:
        train_of(run)
    (found,) = (one for one in run.findings if one.finding.code == "GS401")
    assert f"`gradscope show {path} --step 1 --table calls`" in found.finding.advice


def test_a_page_is_no_file_for_a_run(tmp_path):
    with (
        pytest.raises(OptionError, match="a run is a SQLite database") as caught,
        gradscope.watch(net(), out="run.html"),
    ):
        pass
    (problem,) = caught.value.problems
    help = "`gradscope.watch(…, out='run.db')`, then `gradscope show run.db -o run.html`"
    assert problem.help == help


def test_under_run_the_block_is_part_of_it(tmp_path, capsys):
    """Two observers would see each other's work: the NaN detector of one raised in the script."""
    whole = Session.begun("train.py", (), RunSettings(out=tmp_path / "whole.db", every=1))
    whole.observe()
    try:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gradscope.watch(model, optimizer, out=tmp_path / "own.db") as run:
            for step in range(4):
                x = torch.rand(16, 4) * (step != 2)
                optimizer.zero_grad()
                model(x.log()).square().mean().backward()
                optimizer.step()
        assert (run.path, run.steps) == (whole.path, 4)
        assert [one.finding.code for one in run.findings][:1] == ["GS301"]
    finally:
        whole.finish("0")
    assert not (tmp_path / "own.db").exists()
    assert capsys.readouterr().err == ""
    with gradscope.watch(net(), out=tmp_path / "own.db") as run:
        train_of(run)
    assert run.path == tmp_path / "own.db"


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"budget": 2}, {"every": 0}, {"select": "GX9"}])
def test_what_is_no_option(wrong, tmp_path):
    with pytest.raises(OptionError), gradscope.watch(net(), out=tmp_path / "run.db", **wrong):
        pass


def test_norms_of_steps_that_are_not_looked_at(tmp_path):
    """Two optimizers in turn with different numbers of backwards, and one that clips."""
    first, second = net().double(), net().double()
    one = torch.optim.SGD(first.parameters(), lr=0.01)
    two = torch.optim.SGD(second.parameters(), lr=0.01)
    wanted: list[tuple[float, float]] = []
    out = tmp_path / "run.db"
    with gradscope.watch([first, second], [one, two], every=1000, first=0, out=out):
        for _ in range(4):
            for model, optimizer, backwards in ((first, one, 2), (second, two, 1)):
                optimizer.zero_grad()
                for _ in range(backwards):
                    model(torch.randn(16, 4).double()).square().mean().backward()
                before = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
                if model is first:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                after = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
                wanted.append((before, after))
                optimizer.step()
    with RunFile.open(out) as file:
        found = [(step.gradient_norm, step.clipped_norm) for step in file.steps()]
    for has, should in zip(found, wanted, strict=True):
        assert has == pytest.approx(should, rel=1e-9)


def test_an_ensemble_under_vmap_is_watched(tmp_path):
    """The modules that ``functional_call`` calls there see tensors of a transform."""
    nets = [nn.Linear(4, 1) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(nets)
    parameters = {name: p.detach().requires_grad_() for name, p in stacked.items()}
    base = nets[0]
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)

    def one(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(base, weights, (x,))

    with gradscope.watch(base, optimizer, every=1, out=tmp_path / "run.db") as run:
        for _ in range(5):
            optimizer.zero_grad()
            outputs = torch.func.vmap(one, (0, None))(parameters, torch.randn(8, 4))
            outputs.square().mean().backward()
            optimizer.step()
    assert run.steps == 5
    with RunFile.open(run.path) as file:
        assert all(step.gradient_norm for step in file.steps())
        assert not file.events


def test_several_threads_that_train_are_told_apart(tmp_path):
    """The first is observed; of the others the number of steps is reported."""
    begun, done = threading.Event(), threading.Event()
    models = [net(), net()]

    def first() -> None:
        train(models[0], steps=1)
        begun.set()
        done.wait()
        train(models[0], steps=9)

    with gradscope.watch(models, out=tmp_path / "run.db") as run:
        thread = threading.Thread(target=first)
        thread.start()
        begun.wait()
        train(models[1], steps=7)
        done.set()
        thread.join()
    assert run.steps == 10
    with RunFile.open(run.path) as file:
        (notice,) = file.run.notices
        assert notice == "several threads train: 7 steps of the other threads were not observed"


class Alarm:
    """Handlers of the kinds that scripts set."""

    def method(self, number: int, frame: object) -> None:
        raise TimeoutError("alarm")

    __call__ = method


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("method", (Steps, "_end")),
        ("object", (Steps, "_end")),
        ("partial", (Observer, "_backward_begins")),
        ("function", (Observer, "_step_begins")),
        ("function", (gradients, "measure")),
        ("function", (MeasurementCache, "measured")),
    ],
)
def test_what_a_signal_handler_raises_is_the_scripts(kind, where, tmp_path, monkeypatch):
    """It comes wherever the processor is: here in the middle of gradscope's own code."""
    alarm, calls = Alarm(), itertools.count()

    def function(number: int, frame: object) -> None:
        raise TimeoutError("alarm")

    handlers = {
        "method": alarm.method,
        "object": alarm,
        "partial": functools.partial(alarm.method),
        "function": function,
    }
    before = signal.signal(signal.SIGUSR1, handlers[kind])
    owner, name = where
    function_there = getattr(owner, name)

    def interrupted(*args: object) -> object:
        if next(calls) == 4:
            signal.raise_signal(signal.SIGUSR1)
        return function_there(*args)

    monkeypatch.setattr(owner, name, interrupted)
    model = net()
    try:
        with (
            pytest.raises(TimeoutError, match="alarm"),
            gradscope.watch(model, every=1, out=tmp_path / "run.db") as run,
        ):
            train(model)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with RunFile.open(run.path) as file:
        assert file.run.exit == "TimeoutError: alarm"
        assert not file.events


@pytest.mark.parametrize("name", ["nan_detector", "sentinel"])
def test_the_nan_detector_is_switched_off(name, tmp_path):
    """By the old name of the argument too."""
    model = nn.Linear(2, 1)
    with gradscope.watch(model, out=tmp_path / "run.db", quiet=True, **{name: False}) as run:
        model(torch.ones(1, 2)).sum().backward()
    with RunFile.open(run.path) as file:
        assert file.run.options["nan_detector"] is False


class Signed(torch.optim.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


@pytest.mark.parametrize("layers", [("**",), ("0",)])
@pytest.mark.parametrize("make", [functools.partial(torch.optim.Adam, lr=0.01), Signed])
def test_the_update_of_a_step_is_that_of_all_parameters(make, layers, tmp_path):
    model, moved, path = net().double(), [], tmp_path / "run.db"
    optimizer = make(model.parameters())
    with gradscope.watch(model, optimizer, every=1, layers=layers, out=path):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 4, dtype=torch.float64)).square().mean().backward()
            before = nn.utils.parameters_to_vector(model.parameters()).detach()
            optimizer.step()
            after = nn.utils.parameters_to_vector(model.parameters()).detach()
            moved.append((after - before).square().mean().sqrt().item())
    with RunFile.open(path) as run:
        found = [step.update_rms for step in run.steps()]
    assert found == pytest.approx(moved, rel=1e-6)
