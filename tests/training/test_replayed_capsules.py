"""A capsule repeats its step: random states, modes, frozen parameters, buffers, autocast."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import gradscope, python
from torch import nn

from gradscope.errors import ConfigError
from gradscope.loading.random_states import (
    NUMPY,
    RandomState,
    python_state,
    read_states,
    torch_state,
)
from gradscope.records.spike import CallState
from gradscope.runfile.capsules import capsules_of, read_capsule, read_tensors
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
