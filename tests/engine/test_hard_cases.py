"""Models that broke an earlier engine: each against what plain PyTorch says."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

import gradscope


class Part(nn.Module):
    """A module that runs a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Model(nn.Module):
    """A function of self and the inputs, with modules."""

    def __init__(self, function, **modules) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


def inspected(function, *inputs, **modules):
    model = Model(function, **modules)
    return gradscope.inspect(model, inputs or (torch.ones(1, 2),), loss="sum")


def calls(report, name):
    return [call for call in report.calls if call.name == name]


def values(record):
    return None if record.gradient is None else list(record.gradient.values)


def test_a_view_that_a_write_made_stale_enters_a_call_beside_its_base():
    def forward(s, x):
        h = x * 1.0
        v = h[:, :2]
        h.mul_(2)
        return s.both(h, v)

    both = Part(lambda h, v: h.sum(1, keepdim=True) * 3 + v * 5)
    x = torch.ones(1, 4, requires_grad=True)
    (call,) = calls(inspected(forward, x, both=both), "both")
    assert values(call.inputs[0]) == [6.0, 6.0, 6.0, 6.0]


def test_a_call_whose_error_is_caught_has_no_gradient_and_no_children():
    def fails_first(x, attempt):
        y = x * 2
        if attempt == 0:
            raise ValueError
        return y

    def forward(s, x):
        h = s.fc(x)
        try:
            s.sub(h, 0)
        except ValueError:
            h = s.sub(h, 1)
        return s.act(h)

    report = inspected(forward, fc=nn.Linear(2, 2), sub=Part(fails_first), act=nn.Tanh())
    first, second = calls(report, "sub")
    assert first.notes == ("did-not-return",)
    assert first.inputs[0].gradient is None
    assert first.saved_bytes == 0
    assert second.outputs[0].gradient is not None


def test_a_module_that_calls_itself_and_catches():
    def recursive(x, depth):
        try:
            return module(x * 2, depth - 1) + 1 if depth else 1 / 0
        except ZeroDivisionError:
            return x * 3

    module, x = Part(recursive), torch.ones(1, 2, requires_grad=True)
    outer, middle, inner = calls(inspected(lambda s, x: s.part(x, 2), x, part=module), "part")
    assert [call.notes for call in (outer, middle, inner)] == [(), (), ()]
    assert outer.outputs[0].activation.values == (14.0, 14.0)
    assert inner.outputs[0].activation.values == (12.0, 12.0)


def test_calls_in_threads_say_so():
    def forward(s, x):
        h, results = s.fc(x), {}
        work = [
            threading.Thread(target=lambda n=n: results.update({n: getattr(s, n)(h)}))
            for n in ("a", "b")
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        return results["a"] + results["b"]

    report = inspected(forward, fc=nn.Linear(2, 2), a=nn.Tanh(), b=nn.Sigmoid())
    for name in ("a", "b"):
        (call,) = calls(report, name)
        assert "other-thread" in call.notes
        assert call.inputs[0].gradient is None
        assert values(call.outputs[0]) == [1.0, 1.0]


def test_a_write_to_a_sibling_view_hides_what_readers_of_the_base_send():
    def forward(s, x):
        h = x * 1.0
        left = s.left(h)
        y = left * 10
        h[:, 2:].mul_(3)
        return y.sum() + (h * 2).sum()

    x = torch.ones(1, 4, requires_grad=True)
    (call,) = calls(inspected(forward, x, left=Part(lambda h: h[:, :2])), "left")
    assert call.outputs[0].gradient is None
    assert "in-place-view" in call.notes


def test_a_leaf_that_died_does_not_lend_its_identity():
    def forward(s, x):
        s.make(x)
        return s.fc(torch.ones(1, 2, requires_grad=True))

    make = Part(lambda x: torch.zeros(1, 2, requires_grad=True))
    model = Model(forward, make=make, fc=nn.Linear(2, 2))
    report = gradscope.inspect(model, torch.ones(1, 2), loss="sum")
    assert values(calls(report, "fc")[0].inputs[0]) == pytest.approx(
        model.fc.weight.sum(0).tolist()
    )


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_module_that_returns_its_input_inside_a_checkpoint(reentrant):
    def forward(s, x):
        h = s.fc(x)
        return checkpoint(lambda t: s.idle(t * 2) * 3, h, use_reentrant=reentrant)

    (call,) = calls(inspected(forward, fc=nn.Linear(2, 2), idle=nn.Identity()), "idle")
    assert values(call.inputs[0]) == values(call.outputs[0]) == [3.0, 3.0]
    assert "pass-through" in call.notes


def test_a_tensor_that_is_cut_from_its_history_does_not_keep_its_gradient():
    def forward(s, x):
        h = s.fc(x)
        h.detach_().requires_grad_()
        return s.idle(h)

    report = inspected(forward, fc=nn.Linear(2, 2), idle=nn.Identity())
    assert calls(report, "fc")[0].outputs[0].gradient is None
    assert values(calls(report, "idle")[0].outputs[0]) == [1.0, 1.0]


# Scripted models are still met, though torch.jit.script itself is on its way out.
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_model_keeps_its_gradients():
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    report = gradscope.inspect(model, torch.randn(2, 4), loss="sum")
    assert report.status == "ok"
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())


def test_a_view_without_a_history_is_a_row_that_says_so():
    def forward(s, x):
        h = s.fc(x)
        left, _ = h.chunk(2, 1)
        h.add_(1)
        return s.shape(h, left)

    shape = Part(lambda h, v: h * v.shape[1])
    (call,) = calls(inspected(forward, fc=nn.Linear(2, 2), shape=shape), "shape")
    assert any("overwritten" in note for note in call.notes)


def test_modules_copied_in_forward_run_unwatched():
    def forward(s, x):
        h = s.fc(x)
        return copy.copy(s.fc)(h) + copy.deepcopy(s.fc)(h)

    report = inspected(forward, fc=nn.Linear(2, 2))
    assert [call.name for call in report.calls] == ["", "fc"]


def test_a_functional_checkpoint_is_not_recomputed_by_looking():
    runs = []

    def part(x):
        runs.append(1)
        for _ in range(20):
            x = x.sin()
        return x

    def forward(s, x):
        return checkpoint(part, s.fc(x), use_reentrant=False)

    report = inspected(forward, fc=nn.Linear(2, 2))
    assert len(runs) == 3  # forward, backward, and the run that counts saved bytes
    assert report.totals.saved_bytes is not None


class Labelled(dict):
    def __getattr__(self, name):
        return self[name]


def test_inputs_keep_their_class():
    report = inspected(lambda s, d: s.fc(d.x), Labelled(x=torch.ones(1, 2)), fc=nn.Linear(2, 2))
    assert report.status == "ok"


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Embedding(10, 4, max_norm=0.5), torch.tensor([1, 2])),
        (nn.Linear(3, 2), torch.ones(2, 3)),
    ],
    ids=["max_norm", "data"],
)
def test_weights_that_a_model_writes_itself_come_back(module, inputs):
    def forward(s, x):
        if isinstance(s.m, nn.Linear):
            s.m.weight.data = s.m.weight.data * 2
        return s.m(x)

    model = Model(forward, m=module)
    before, memory = module.weight.detach().clone(), module.weight.data_ptr()
    gradscope.inspect(model, inputs, loss="sum")
    assert torch.equal(module.weight, before)
    assert module.weight.data_ptr() == memory


def test_leaves_outside_the_model_keep_their_gradients():
    outside = torch.ones(2, requires_grad=True)
    outside.grad = torch.full((2,), 7.0)
    kept = outside.grad
    inspected(lambda s, x: s.fc(x) * outside, fc=nn.Linear(2, 2))
    assert outside.grad is kept
    assert kept.tolist() == [7.0, 7.0]


def test_a_failed_run_does_not_keep_activations_alive():
    alive = []

    def forward(s, x):
        h = s.fc(x)
        alive.append(weakref.ref(h))
        raise ValueError("no")

    gc.disable()
    try:
        with contextlib.suppress(gradscope.GradscopeError):
            inspected(forward, fc=nn.Linear(2, 2))
        assert [ref() for ref in alive] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(7), GeneratorExit()], ids=repr)
def test_a_model_that_exits_has_raised(error):
    def forward(s, x):
        s.fc(x)
        raise error

    with pytest.raises(gradscope.GradscopeError) as caught:
        inspected(forward, fc=nn.Linear(2, 2))
    assert caught.value.exit_code == 3
    assert caught.value.report.error.exception == type(error).__name__
    assert len(caught.value.report.calls) == 2


def test_nesting_as_deep_as_plain_pytorch_takes():
    model = nn.Linear(2, 2)
    for _ in range(200):
        model = nn.Sequential(model)
    model(torch.ones(1, 2))
    assert len(gradscope.inspect(model, torch.ones(1, 2), loss="sum").calls) == 201


def test_compiled_modules_run_eagerly_and_stay_compiled():
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    in_place = nn.Linear(2, 2)
    in_place.compile(backend="eager")
    before = (compiled.forward, in_place._compiled_call_impl)
    report = inspected(lambda s, x: s.b(s.a(x)), a=compiled, b=in_place)
    assert [call.name for call in report.calls] == ["", "a", *A_PARTS, "b"]
    assert (compiled.forward, in_place._compiled_call_impl) == before
    assert any("eagerly" in notice for notice in report.run.notices)


A_PARTS = ("a.0", "a.1")


def test_a_tensor_detached_while_somebody_keeps_it_has_its_gradient():
    kept = []

    def forward(s, x):
        h = s.fc(x)
        out = h * 3
        h.detach_()
        kept.append(h)
        return out

    (call,) = calls(inspected(forward, fc=nn.Linear(2, 2)), "fc")
    assert values(call.outputs[0]) == [3.0, 3.0]


def test_a_module_saved_in_forward_is_saved_without_the_watch():
    file = io.BytesIO()
    inspected(lambda s, x: (torch.save(s.fc, file), s.fc(x))[1], fc=nn.Linear(2, 2))
    file.seek(0)
    assert torch.load(file, weights_only=False)(torch.ones(1, 2)).shape == (1, 2)


def test_a_compiled_function_in_a_model_has_rows():
    model = Model(lambda s, x: s.run(x), a=nn.Linear(2, 2), b=nn.ReLU())
    model.run = torch.compile(lambda x: model.b(model.a(x)), backend="eager")
    model(torch.ones(1, 2))
    report = gradscope.inspect(model, torch.ones(1, 2), loss="sum")
    assert [call.name for call in report.calls] == ["", "a", "b"]


def test_what_cannot_be_measured_is_a_row_that_says_so(monkeypatch):
    from gradscope.capture import measurements

    def refuses(tensor):
        raise RuntimeError("no reductions here")

    monkeypatch.setattr(measurements, "measure", refuses)
    (call,) = calls(inspected(lambda s, x: s.fc(x), fc=nn.Linear(2, 2)), "fc")
    assert call.notes == ("unmeasured: no reductions here",)
    assert call.outputs[0].activation.norm is None
    assert values(call.outputs[0]) == [1.0, 1.0]


class Wrapped(nn.Module):
    """A compiled part and one in a checkpoint wrapper; the graph is cut behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
        self.b = checkpoint_wrapper(nn.Sequential(nn.Linear(4, 4)))
        self.c = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)).detach())


def test_names_are_those_of_the_modules_inside_of_wrappers():
    report = gradscope.inspect(Wrapped(), torch.ones(3, 4), loss="sum", layers=["a.0", "b.0"])
    assert [call.name for call in report.calls] == ["a.0", "b.0"]
    answers = gradscope.why(Wrapped(), torch.ones(3, 4), loss="sum")
    names = {name for answer in answers.answers for name in (answer.name, *answer.upstream)}
    assert names == {"a.0.weight", "a.0.bias", "b.0.weight", "b.0.bias"}
