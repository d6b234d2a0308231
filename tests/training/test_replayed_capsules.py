"""A capsule repeats its step: random states, modes, frozen parameters, buffers, autocast."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands.run_files import written
from processes import gradscope, python
from safetensors.torch import save_file
from torch import nn

from gradscope.api.spike_replay import replayed_spike
from gradscope.api.spiking import spike
from gradscope.errors import ConfigError, GradscopeError
from gradscope.loading.random_states import (
    NUMPY,
    RandomState,
    python_state,
    read_states,
    torch_state,
)
from gradscope.records.spike import CallState, Capsule, SpikeSample, SpikeSignals
from gradscope.runfile.capsules import (
    capsule_path,
    capsules_of,
    digests,
    metadata,
    read_capsule,
    read_tensors,
)
from gradscope.training.nan_detector.recorded_calls import RecordedCall
from gradscope.training.nan_detector.replayed_calls import as_it_began
from gradscope.training.nan_detector.side_effects import SideEffects
from gradscope.training.spikes.call_states import state_of_call

#: A model with all that a replay must restore; its loss depends on each.
NET = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs, targets):
        self.calls += 1
        hidden = self.drop(torch.relu(self.norm(self.inner(inputs))))
        drawn = random.random() + random.gauss(0, 1) + float(np.random.randn())
        hidden = hidden * (1 + 0.1 * drawn) + 0.1 * torch.randn_like(hidden) + 0.01 * self.calls
        return F.cross_entropy(self.head(hidden), targets)
"""
SCRIPT = """
import random, sys
import numpy as np
import torch
from net import Net

dtype, autocast = getattr(torch, sys.argv[1]), sys.argv[2] == "autocast"
torch.manual_seed(3)
random.seed(4)
np.random.seed(5)
net = Net().to(dtype)
net.head.bias.requires_grad_(False)
trained = [p for p in net.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, 0.01)
for step in range(1, 13):
    net.train()
    net.norm.eval()
    inputs, targets = torch.randn(8, 6, dtype=dtype), torch.randint(0, 4, (8,))
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = net(inputs, targets)
    loss.backward()
    net.eval()  # before the optimizer's step, at which the capsule is written
    norm = torch.stack([p.grad.double().square().sum() for p in trained]).sum().sqrt()
    print(step, repr(loss.item()), repr(norm.item()))
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "autocast", "bound"), [("float64", "off", 1e-12), ("float32", "autocast", 1e-6)]
)
def test_the_config_of_a_capsule_repeats_loss_and_gradient(
    tmp_path: Path, dtype: str, autocast: str, bound: float
) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["train.py", dtype, autocast]
    keep = ["--capsule", "9", "--capsule-weights"]
    done = gradscope(["run", "--quiet", *keep, "-o", "run.db", *words], cwd=tmp_path)
    assert done.stdout == python(words, cwd=tmp_path).stdout
    _, loss, norm = done.stdout.splitlines()[8].split()
    capsule = read_capsule(capsules_of(tmp_path / "run.db")[9])
    cast = {"cpu": "bfloat16"} if autocast == "autocast" else {}
    state = CallState(
        "net", True, ("norm",), ("head.bias",), dtype, cast, ("torch", "python", "numpy")
    )
    assert capsule.calls == (state,)
    tensors = read_tensors(capsules_of(tmp_path / "run.db")[9])
    assert tensors["weights.calls"].item() == 8  # before the step
    sizes = {name: t.nbytes for name, t in tensors.items() if ".random." in name}
    assert sizes == {
        "call0.random.torch": 5056,
        "call0.random.python": 5024,
        "call0.random.numpy": 5016,
    }
    shown = gradscope(["spike", "run.db", "--as-config", "spike.yaml"], cwd=tmp_path)
    assert "train mode, 1 module in eval mode" in shown.stdout
    assert "random state of torch, python, numpy" in " ".join(shown.stdout.split())
    again = ["inspect", "spike.yaml", "model=./net.py:Net", "-f", "json"]
    report = json.loads(gradscope(again, cwd=tmp_path).stdout)
    assert report["loss"] == pytest.approx(float(loss), rel=bound)
    assert report["totals"]["gradient_norm"] == pytest.approx(float(norm), rel=bound)
    # Each part is needed: without it, the loss is another.
    for word in ("random_state=null", "eval_modules=[]", "checkpoint=null"):
        report = json.loads(gradscope([*again, word], cwd=tmp_path).stdout)
        assert report["loss"] != pytest.approx(float(loss), rel=1e-4)


#: A model with a width to give, and dropout; what its file does beside the class is added.
SMALL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.body, self.head = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))
"""
TRAINS = """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
net(torch.ones(2, 3)).sum().backward()
optimizer.step()
"""


@pytest.fixture
def unsplit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[SpikeSample]]:
    """Write a capsule without the samples' parts, and its model; return the parts, by autograd."""
    monkeypatch.chdir(tmp_path)

    def write(scale: float = 1.0, weights: bool = True, **more: object) -> list[SpikeSample]:
        (tmp_path / "net.py").write_text(SMALL)
        names: dict[str, Any] = {}
        exec(SMALL, names)
        torch.manual_seed(0)
        net = names["Net"]().double()
        x, y = torch.randn(6, 3).double(), torch.tensor([0, 1, 0, 1, 0, 1])
        x[4] *= 30
        output = net(x)
        y[4] = output[4].argmin()
        each = nn.functional.cross_entropy(output, y, reduction="none")
        (sent,) = torch.autograd.grad(each.mean() * scale, output, retain_graph=True)
        rows = [
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(one / 6, net.parameters(), retain_graph=True)
                ]
            )
            for one in each
        ]
        full = torch.stack(rows).sum(0)
        tensors = {"call0.args.0": x, "call0.gradients.0": sent.contiguous()}
        if weights:
            tensors |= {f"weights.{name}": t for name, t in net.state_dict().items()}
        capsule = Capsule(
            7, "opt", "", "gradient", model="net", high_norm=0.01, usual_norm=0.005, counted=50,
            samples=tuple(SpikeSample(n, loss=one) for n, one in enumerate(each.tolist())),
            signals=(SpikeSignals(7, gradient_norm=float(full.norm()), loss_scale=scale),),
            notes=("not split by sample: a split takes too long",), tensors=tuple(tensors),
            calls=(CallState("net", dtype="float64"),),
        )  # fmt: skip
        path = written(tmp_path / "one.db")
        save_file(tensors, capsule_path(path, 7), metadata(replace(capsule, **more)))
        return [
            SpikeSample(
                n,
                loss=loss,
                gradient_norm=float(row.norm()),
                share=float(row @ full / (full @ full)),
                cosine=float(row @ (full - row) / (row.norm() * (full - row).norm())),
                input_rms=float(one.square().mean().sqrt()),
            )
            for n, (loss, row, one) in enumerate(zip(each.tolist(), rows, x, strict=True))
        ]

    return write


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_step_that_was_not_split_is_split_later_with_the_model(
    tmp_path: Path, unsplit: Callable[..., list[SpikeSample]], scale: float
) -> None:
    expected = unsplit(scale)
    assert spike(tmp_path / "one.db").cause == "undetermined"
    found = replayed_spike(tmp_path / "one.db", None, "./net.py:Net")
    assert (found.cause, found.samples[0].index) == ("samples", 4)
    assert found.samples[0].layers
    for one in found.samples:
        for name in ("loss", "gradient_norm", "share", "cosine", "input_rms"):
            wanted = getattr(expected[one.index], name)
            assert getattr(one, name) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    (note,) = found.notes
    assert note.startswith(
        "split by sample in a replay with `./net.py:Net`: the gradient norm is that of the step, "
    )


@pytest.mark.parametrize(
    ("written_by", "model", "words"),
    [
        ({"weights": False}, "./net.py:Net", "step 7 cannot be replayed: the capsule has no weig"),
        ({"kind": "non-finite"}, "./net.py:Net", "a gradient with NaN or Inf has no parts"),
        ({"calls": (CallState("a"), CallState("b"))}, "./net.py:Net", "it has 2 calls of models"),
        ({"norm": 123.0}, "./net.py:Net", "the step had 123.0: this is not the model of the step"),
        ({}, "{_target_: ./net.py:Net, width: 6}", "the weights of step 7 do not fit"),
        ({}, "./none.py:Net", "there is no file"),
        ({}, "./net.py:Missing", "has no `Missing`"),
        ({}, "./trains.py:Net", "the file trains while it is imported"),
    ],
)
def test_a_replay_that_cannot_be_says_why_and_changes_no_file(
    tmp_path: Path,
    unsplit: Callable[..., list[SpikeSample]],
    written_by: dict[str, object],
    model: str,
    words: str,
) -> None:
    unsplit(**written_by)
    (tmp_path / "trains.py").write_text(SMALL + TRAINS)
    before = capsule_path(tmp_path / "one.db", 7).read_bytes()
    with pytest.raises(GradscopeError) as raised:
        replayed_spike(tmp_path / "one.db", 7, model)
    assert words in str(raised.value)
    assert capsule_path(tmp_path / "one.db", 7).read_bytes() == before


@pytest.mark.parametrize(
    "model",
    [
        "./none.py:Net",
        "../none.py:Net",
        "./net.py:Missing",
        "{_target_: ./none.py:Net}",
        "{_target_",
    ],
)
def test_an_error_of_the_model_names_the_option_as_typed(
    tmp_path: Path, unsplit: Callable[..., list[SpikeSample]], model: str
) -> None:
    unsplit()
    with pytest.raises(GradscopeError) as raised:
        replayed_spike(tmp_path / "one.db", 7, model)
    said = raised.value.render()
    assert f"\n  --> --replay {model}\n" in f"{said}\n"
    assert str(tmp_path) not in said
    assert "argument" not in said
    assert "step.yaml" not in said


def test_a_changed_file_is_named_if_the_gradient_is_another(
    tmp_path: Path, unsplit: Callable[..., list[SpikeSample]]
) -> None:
    (tmp_path / "net.py").write_text(SMALL)
    unsplit(sources=digests([str(tmp_path / "net.py")]))
    (tmp_path / "net.py").write_text(SMALL.replace("torch.relu", "torch.sigmoid"))
    with pytest.raises(ConfigError, match="this is not the model of the step") as raised:
        replayed_spike(tmp_path / "one.db", 7, "./net.py:Net")
    assert raised.value.problems[0].help == f"changed since the run: `{tmp_path / 'net.py'}`"


def numpy_state() -> RandomState:
    return RandomState(NUMPY, np.random.get_state(legacy=False))


@pytest.mark.parametrize(
    ("state", "draw"),
    [
        (torch_state, lambda: torch.randn(3).tolist()),
        (python_state, lambda: [random.gauss(0, 1), random.random()]),
        (numpy_state, lambda: np.random.randn(3).tolist()),
    ],
)
def test_a_random_state_goes_through_a_file(tmp_path: Path, state, draw) -> None:
    draw()  # of the normal numbers in pairs, the second is now kept
    known = state()
    expected = draw()
    torch.save({known.generator: known.tensor()}, tmp_path / "state.pt")
    (found,), notices = read_states(tmp_path / "state.pt", torch.device("cpu"))
    for one in (known, found):
        draw()
        one()
        assert draw() == expected
    assert notices == []


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"torch": torch.zeros(3, dtype=torch.uint8)},
        {"python": torch.zeros(628)},
        {"numpy": torch.zeros(628, dtype=torch.int64)},
        {"head.weight": torch.zeros(3)},
    ],
)
def test_another_file_is_no_random_state(tmp_path: Path, content) -> None:
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(ConfigError, match="has something other than random states"):
        read_states(tmp_path / "state.pt", torch.device("cpu"))


def test_the_state_of_a_gpu_is_left_out_without_one(tmp_path: Path) -> None:
    state = {"cuda:0": torch.zeros(16, dtype=torch.uint8), "torch": torch_state().tensor()}
    torch.save(state, tmp_path / "state.pt")
    found, notices = read_states(tmp_path / "state.pt", torch.device("cpu"))
    assert [one.generator for one in found] == ["torch"]
    assert notices == ["random_state: the state of cuda:0 is not used; the model runs on cpu"]


def test_another_bit_generator_of_numpy_is_restored_without_a_warning_and_has_no_tensor() -> None:
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        call, _ = called(Draws())
        (state,) = call.random_states
        state()
        assert call.random_states[0].tensor() is None
        assert state_of_call(call).random is None
        np.random.rand()
        with as_it_began(call) as (module, args, kwargs):
            first = module(*args, **kwargs)
        with as_it_began(call) as (module, args, kwargs):
            assert torch.equal(module(*args, **kwargs), first)
    finally:
        np.random.set_bit_generator(usual)


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.drop(self.linear(inputs))


class Draws(Noise):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) * np.random.rand()


def called(model: nn.Module, autocast: bool = False) -> tuple[RecordedCall, torch.Tensor]:
    """A call of a model whose side effects are known, and its output."""
    effects = SideEffects(model)
    inputs = torch.randn(4, 3)
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            call = RecordedCall("net", model, (inputs,), {}, effects)
            output = model(inputs)
        call.ended(output)
    return call, output.detach()


@pytest.mark.parametrize("autocast", [False, True])
def test_a_replay_has_the_modes_and_the_autocast_of_the_call(autocast: bool) -> None:
    model = Noise()
    call, output = called(model, autocast)
    model.eval()
    with (
        torch.autocast("cpu", torch.float16, enabled=True),
        as_it_began(call) as (module, args, kwargs),
    ):
        again = module(*args, **kwargs)
    assert torch.equal(again, output)
    assert not model.training
    assert not model.drop.training
    state = state_of_call(call)
    assert (state.training, state.others, state.random) == (True, (), ("torch",))
    assert state.autocast == ({"cpu": "bfloat16"} if autocast else {})


def test_a_module_in_the_other_mode_is_named() -> None:
    model = Noise()
    model.drop.eval()
    model.linear.bias.requires_grad_(False)
    call, _ = called(model)
    state = state_of_call(call)
    assert state == CallState("net", True, ("drop",), ("linear.bias",), "float32", {}, ())
    model.double()
    model.linear.bias.data = model.linear.bias.data.half()
    assert state_of_call(call).dtype == ""
