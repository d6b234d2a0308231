"""Facts that each config must show, computed without gradscope: by hand or in plain PyTorch.

Tests compare gradscope's report with these facts as plain PyTorch gives them in the same process.
``python tests/configs/expected.py [NAME…]`` writes them beside the configs too, for people to read:
computed in float64, with the bound that float32 keeps to on any processor (``bounds``).
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, mse_loss, relu

sys.path.insert(0, str(Path(__file__).parent))
from compare import RESIDUE, Deviation, compared
from plain import Facts, Trace, describe, parameters, seed, step, totals
from precision import float64, one_rounding_away

CONFIGS = Path(__file__).parents[2] / "configs"

EXPECTED: dict[str, Callable[[], Facts]] = {}


def config(name: str) -> Callable[[Callable[[], Facts]], Callable[[], Facts]]:
    """Register the expected values of ``configs/NAME.yaml``."""

    def register(function: Callable[[], Facts]) -> Callable[[], Facts]:
        assert name not in EXPECTED, f"{name} twice"
        EXPECTED[name] = function
        return function

    return register


def beside(name: str) -> ModuleType:
    """A Python file beside the configs."""
    spec = importlib.util.spec_from_file_location(f"expected_{name}", CONFIGS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(*shape: int) -> Tensor:
    seed()
    return torch.randn(shape)


def exact(*values: float) -> Facts:
    return {"shape": [len(values)], "values": list(values)}


# By hand, on paper.


@config("external-gradient")
def external_gradient() -> Facts:
    x = normal(2)
    return {
        "loss": None,
        "parameters": {},
        "calls": {
            "": [
                {
                    "inputs": {"0": {"activation": describe(x), "gradient": exact(300.0, 0.3)}},
                    "outputs": {
                        "": {
                            "activation": describe(3 * x),
                            "gradient": exact(100.0, 0.1),
                            "grad_fn": "MulBackward0",
                        }
                    },
                }
            ]
        },
    }


@config("accumulation")
def accumulation() -> Facts:
    once, twice = exact(300.0, 0.3), exact(600.0, 0.6)
    return {
        "calls": {"": [{"inputs": {"0": {"gradient": twice}}}]},
        "history": [
            {"step": 0, "backward": 0, "inputs": {"0": {"gradient": once}}},
            {"step": 0, "backward": 1, "inputs": {"0": {"gradient": twice}}},
        ],
    }


@config("grad-fn")
def grad_fn() -> Facts:
    def tensor(a: float, b: float, operation: str | None, grad: Facts | None) -> Facts:
        return {"activation": exact(a, b), "grad_fn": operation, "gradient": grad}

    ones = exact(1.0, 1.0)
    w = tensor(4.0, 8.0, "AddBackward0", ones)
    y = tensor(3.0, 6.0, "MulBackward0", ones)
    z = tensor(0.5, 1.0, "DivBackward0", None)
    x = {"activation": exact(1.0, 2.0)}
    through = {"activation": exact(1.0, 2.0), "gradient": ones}
    return {
        "loss": 12.0,
        "calls": {
            "": [
                {
                    "inputs": {"0": {**x, "gradient": exact(4.0, 4.0)}},
                    "outputs": {"w": w, "y": y, "z": z},
                }
            ],
            "tripled": [{"inputs": {"0": {**x, "gradient": exact(3.0, 3.0)}}, "outputs": {"": y}}],
            "halved": [{"inputs": {"0": {**x, "gradient": None}}, "outputs": {"": z}}],
            "added": [
                {
                    "inputs": {
                        "0": through,
                        "1": {"activation": exact(3.0, 6.0), "gradient": ones},
                    },
                    "outputs": {"": w},
                }
            ],
        },
    }


@config("closed-form")
def closed_form() -> Facts:
    a = {"activation": exact(2.0, 3.0), "gradient": exact(36.0, 81.0)}
    b = {"activation": exact(6.0, 4.0), "gradient": exact(-12.0, -8.0)}
    q = {"activation": exact(-12.0, 65.0), "gradient": exact(1.0, 1.0), "grad_fn": "SubBackward0"}
    return {"calls": {"": [{"inputs": {"a": a, "b": b}, "outputs": {"": q}}]}}


@config("requires-grad-spreads")
def requires_grad_spreads() -> Facts:
    neither = {
        "activation": exact(4.0, 6.0),
        "requires_grad": False,
        "grad_fn": None,
        "gradient": None,
    }
    one = {
        "activation": exact(6.0, 8.0),
        "requires_grad": True,
        "grad_fn": "AddBackward0",
        "gradient": exact(1.0, 1.0),
    }
    z = {"activation": exact(5.0, 6.0), "requires_grad": True, "gradient": exact(1.0, 1.0)}
    x = {"activation": exact(1.0, 2.0), "requires_grad": False, "gradient": None}
    return {
        "loss": 24.0,
        "calls": {
            "neither": [{"inputs": {"0": x}, "outputs": {"": neither}}],
            "one": [{"inputs": {"0": x, "1": z}, "outputs": {"": one}}],
        },
    }


# Written out again, operation by operation.


@config("no-grad")
def no_grad() -> Facts:
    seed()
    block, decorated, head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    x = normal(3, 4)
    with torch.no_grad():
        middle = block(x)
        last = decorated(middle)
    loss = cross_entropy(head(last), torch.tensor([0, 1, 1]))
    loss.backward()
    cut = {"grad_fn": None, "gradient": None, "requires_grad": False}
    learnt = parameters(head)
    return {
        "loss": loss.item(),
        "calls": {
            "block": [{"outputs": {"": {"activation": describe(middle), **cut}}}],
            "decorated": [{"outputs": {"": {"activation": describe(last), **cut}}}],
            "decorated.linear": [{"outputs": {"": {"activation": describe(last), **cut}}}],
            "head": [
                {
                    "inputs": {"0": {"gradient": None}},
                    "outputs": {"": {"grad_fn": "AddmmBackward0"}},
                }
            ],
        },
        "parameters": {
            "block.weight": {"gradient": None},
            "block.bias": {"gradient": None},
            "decorated.linear.weight": {"gradient": None},
            "decorated.linear.bias": {"gradient": None},
            "head.weight": learnt["weight"],
            "head.bias": learnt["bias"],
        },
    }


def simple_layers() -> nn.ModuleDict:
    seed()
    return nn.ModuleDict(
        {
            "conv1": nn.Conv2d(1, 10, 5),
            "conv2": nn.Conv2d(10, 20, 5),
            "fc1": nn.Linear(320, 50),
            "out": nn.Linear(50, 10),
        }
    )


@config("simplenet")
def simplenet() -> Facts:
    layers, trace = simple_layers(), Trace()
    x = normal(1, 1, 28, 28)
    a = trace.output("conv1", layers["conv1"](x), kind="Conv2d", _0=x)
    b = trace.output("relu1", relu(a), kind="ReLU", _0=a)
    c = trace.output("pool1", max_pool2d(b, 2, 2), kind="MaxPool2d", _0=b)
    d = trace.output("conv2", layers["conv2"](c), kind="Conv2d", _0=c)
    e = trace.output("relu2", relu(d), kind="ReLU", _0=d)
    f = trace.output("pool2", max_pool2d(e, 2, 2), kind="MaxPool2d", _0=e)
    g = trace.output("fc1", layers["fc1"](flat := f.view(-1, 320)), kind="Linear", _0=flat)
    h = trace.output("relu3", relu(g), kind="ReLU", _0=g)
    i = trace.output("out", layers["out"](h), kind="Linear", _0=h)
    j = trace.output("out_relu", relu(i), kind="ReLU", _0=i)
    loss = cross_entropy(j, torch.tensor([3]))
    loss.backward()
    calls = trace.calls()
    assert calls["conv1"][0]["inputs"]["0"]["gradient"] is None
    assert calls["conv1"][0]["outputs"][""]["gradient"]["shape"] == [1, 10, 24, 24]
    calls["conv1"][0]["outputs"][""]["grad_fn"] = "ConvolutionBackward0"
    calls["out_relu"][0]["outputs"][""]["grad_fn"] = "ReluBackward0"
    return {
        "loss": loss.item(),
        "totals": totals(layers),
        "calls": calls,
        "parameters": parameters(layers),
    }


@config("mynet")
def mynet() -> Facts:
    seed()
    layers = nn.ModuleDict({"conv": nn.Conv2d(3, 10, 2, stride=2), "fc1": nn.Linear(160, 5)})
    trace = Trace()
    x = normal(1, 3, 8, 8)
    a = trace.output("conv", layers["conv"](x), kind="Conv2d", _0=x)
    b = trace.output("relu", relu(a), kind="ReLU", _0=a)
    c = trace.output("fc1", layers["fc1"](flat := b.view(-1)), kind="Linear", _0=flat)
    loss = 1 - c.mean()
    loss.backward()
    calls, found = trace.calls(), parameters(layers)
    assert calls["conv"][0]["inputs"]["0"]["gradient"] is None
    assert calls["conv"][0]["outputs"][""]["gradient"]["shape"] == [1, 10, 4, 4]
    assert calls["fc1"][0]["inputs"]["0"]["gradient"]["shape"] == [160]
    assert calls["fc1"][0]["outputs"][""]["gradient"]["shape"] == [5]
    assert found["conv.weight"]["shape"] == [10, 3, 2, 2]
    assert found["conv.bias"]["shape"] == [10]
    return {"loss": loss.item(), "calls": calls, "parameters": found}


@config("tensor-hook")
def tensor_hook() -> Facts:
    a = {"activation": exact(*[1.0] * 5), "gradient": exact(*[0.8] * 5)}
    b = {"activation": exact(*[2.0] * 5), "gradient": exact(*[0.4] * 5)}
    hook = {"before": exact(*[0.2] * 5), "after": exact(*[0.4] * 5), "factor": 2.0}
    return {
        "loss": 2.0,
        "calls": {"": [{"inputs": {"0": a}, "outputs": {"": b}}]},
        "interventions": [{"name": "", "at": "grad_output", "do": "scale", **hook}],
    }


@config("clipping")
def clipping() -> Facts:
    seed()
    layers = nn.ModuleDict({"conv": nn.Conv2d(3, 10, 2, stride=2), "fc1": nn.Linear(160, 5)})
    x = normal(1, 3, 8, 8)
    changes: list[Facts] = []

    def clip(tensor: Tensor, limit: float, name: str, at: str) -> None:
        def hook(gradient: Tensor) -> Tensor:
            norm = float(gradient.double().norm())
            clipped = gradient * min(1.0, limit / norm)
            after = {"norm": float(clipped.double().norm())}
            before = {"norm": norm}
            factor = after["norm"] / norm
            what = {"name": name, "at": at, "do": "clip_norm", "value": limit}
            changes.append({**what, "before": before, "after": after, "factor": factor})
            return clipped

        tensor.register_hook(hook)

    flat = relu(layers["conv"](x)).view(-1)
    clip(flat, 0.1, "fc1", "grad_input")
    for name, parameter in layers["conv"].named_parameters():
        clip(parameter, 0.05, f"conv.{name}", "parameter_grad")
    loss = 1 - layers["fc1"](flat).mean()
    loss.backward()
    assert any(change["factor"] < 1 for change in changes)
    order = ["fc1", "conv.weight", "conv.bias"]
    changes.sort(key=lambda change: order.index(change["name"]))
    return {"loss": loss.item(), "interventions": changes, "parameters": parameters(layers)}


@config("micro-batches")
def micro_batches() -> Facts:
    seed()
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))
    x, target = normal(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])

    def vectors() -> list[Tensor]:
        return [torch.cat([p.grad.double().flatten() for p in layer.parameters()]) for layer in net]

    cross_entropy(net(x), target).backward()
    whole = vectors()
    net.zero_grad()
    total, history = 0.0, []
    for number in range(4):
        rows = slice(2 * number, 2 * number + 2)
        loss = cross_entropy(net(x[rows]), target[rows]) / 4
        loss.backward()
        total += loss.item()
        history.append({"step": 0, "backward": number, "loss": total})
    pairs = zip(whole, vectors(), strict=True)
    errors = [float((a - b).norm() / a.norm()) for a, b in pairs]
    layers = [{"name": str(i), "error": error} for i, error in enumerate(errors)]
    return {
        "loss": total,
        "history": history,
        "parameters": parameters(net),
        "accumulation": {"equal": False, "sizes": [2, 2, 2, 2], "layers": layers},
    }


@config("sharded")
def sharded() -> Facts:
    seed()
    net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    x, target = normal(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    loss = cross_entropy(net(x), target)
    loss.backward()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    found = parameters(net, before)
    for name, old in before.items():
        found[name]["value"] = describe(old)
    return {"loss": loss.item(), "totals": totals(net), "parameters": found}


@config("rnn-cell")
def rnn_cell() -> Facts:
    seed()
    layers = nn.ModuleDict({"cell": nn.RNNCell(6, 8), "head": nn.Linear(8, 2)})
    trace = Trace()
    steps = normal(5, 3, 6)
    state = torch.zeros(3, 8)
    for index in range(5):
        # Each call's state is a leaf-like tensor of its own: its gradient is the whole one.
        state = trace.output("cell", layers["cell"](steps[index], state), kind="RNNCell")
    output = trace.output("head", layers["head"](state), kind="Linear")
    loss = cross_entropy(output, torch.tensor([0, 1, 1]))
    loss.backward()
    return {"loss": loss.item(), "calls": trace.calls(), "parameters": parameters(layers)}


@config("in-place")
def in_place() -> Facts:
    seed()
    layers = nn.ModuleDict(
        {
            "conv1": nn.Conv2d(3, 8, 3, padding=1),
            "norm1": nn.BatchNorm2d(8),
            "conv2": nn.Conv2d(8, 8, 3, padding=1),
            "norm2": nn.BatchNorm2d(8),
            "head": nn.Linear(8, 4),
        }
    )
    trace = Trace()
    x = normal(2, 3, 8, 8)
    # The same without a single in-place operation: every tensor stays what it was.
    a = trace.output("conv1", layers["conv1"](x), kind="Conv2d", _0=x)
    b = trace.output("norm1", layers["norm1"](a), kind="BatchNorm2d", _0=a)
    c = trace.output("relu1", relu(b), kind="ReLU", _0=b)
    d = trace.output("conv2", layers["conv2"](c), kind="Conv2d")
    e = trace.output("norm2", layers["norm2"](d), kind="BatchNorm2d", _0=d)
    f = e + c
    g = trace.output("relu2", relu(f), kind="ReLU", _0=f)
    h = trace.output("head", layers["head"](m := g.mean((2, 3))), kind="Linear", _0=m)
    loss = cross_entropy(h * 0.5, torch.tensor([1, 3]))
    loss.backward()
    return {
        "loss": loss.item(),
        "totals": totals(layers),
        "calls": trace.calls(),
        "parameters": parameters(layers),
    }


def checkpointed() -> Facts:
    seed()
    layers = nn.ModuleDict()
    layers["stem"] = nn.Linear(5, 12)
    for index in range(2):
        layers[f"blocks-{index}-inner"] = nn.Linear(12, 12)
        layers[f"blocks-{index}-outer"] = nn.Linear(12, 12)
    layers["head"] = nn.Linear(12, 3)
    trace = Trace()
    x = trace.output("stem", layers["stem"](normal(4, 5)), kind="Linear")
    for index in range(2):
        inner = layers[f"blocks-{index}-inner"](x)
        trace.output(f"blocks.{index}.inner", inner, kind="Linear")
        outer = layers[f"blocks-{index}-outer"](torch.tanh(inner))
        trace.output(f"blocks.{index}.outer", outer, kind="Linear")
        x = trace.output(f"blocks.{index}", x + outer, kind="Block")
    x = trace.output("head", layers["head"](x), kind="Linear")
    loss = cross_entropy(x, torch.tensor([0, 1, 2, 0]))
    loss.backward()
    found = {name.replace("-", "."): facts for name, facts in parameters(layers).items()}
    return {
        "loss": loss.item(),
        "totals": totals(layers),
        "calls": trace.calls(),
        "parameters": found,
    }


config("checkpointed")(checkpointed)
config("checkpointed-reentrant")(checkpointed)


@config("digits")
def digits() -> Facts:
    import numpy as np
    from PIL import Image
    from safetensors.torch import load_file

    demo = CONFIGS.parent / "gradscope" / "demo"
    layers = simple_layers()
    layers.load_state_dict(load_file(demo / "lecture.safetensors"))
    images = [np.asarray(Image.open(demo / "digits" / f"digit-{i}.png")) for i in range(10)]
    x = torch.from_numpy(np.stack(images)).unsqueeze(1) / 255
    trace = Trace()
    h = max_pool2d(relu(layers["conv1"](x)), 2, 2)
    h = max_pool2d(relu(layers["conv2"](h)), 2, 2)
    h = relu(layers["fc1"](h.view(-1, 320)))
    logits = trace.output("out", layers["out"](h), kind="Linear")
    clipped = trace.output("out_relu", relu(logits), kind="ReLU")
    loss = cross_entropy(clipped, torch.arange(10))
    loss.backward()
    dead = [0, 2, 4, 5, 8]
    assert torch.equal(clipped[:, dead], torch.zeros(10, 5))
    assert torch.equal(logits.grad[:, dead], torch.zeros(10, 5))
    return {
        "loss": loss.item(),
        "totals": totals(layers),
        "calls": trace.calls(),
        "parameters": parameters(layers),
    }


# Whole models, called as they are.


@config("resnet18-step")
def resnet18_step() -> Facts:
    from torchvision.models import resnet18

    def inputs() -> tuple[Tensor]:
        nonlocal labels
        image = torch.rand(1, 3, 64, 64)
        labels = torch.rand(1, 1000)
        return (image,)

    labels = torch.empty(0)
    sgd = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
    facts = step(resnet18, inputs, lambda out: (out - labels).sum(), optimizer=sgd)
    assert facts["calls"][""][0]["outputs"][""]["activation"]["shape"] == [1, 1000]
    moved = [
        facts["gradient"] and facts["update_ratio"] != 0 for facts in facts["parameters"].values()
    ]
    assert all(moved)
    return facts


@config("fine-tuning")
def fine_tuning() -> Facts:
    from torchvision.models import resnet18

    def build() -> nn.Module:
        model = resnet18().requires_grad_(False)
        model.fc = nn.Linear(512, 10)
        return model

    facts = step(
        build,
        lambda: (torch.randn(2, 3, 64, 64),),
        lambda out: cross_entropy(out, torch.tensor([3, 7])),
        optimizer=lambda _: torch.optim.SGD([torch.zeros(1, requires_grad=True)]),
    )
    learnt = [name for name, facts in facts["parameters"].items() if facts["gradient"]]
    assert learnt == ["fc.weight", "fc.bias"]
    for found in facts["parameters"].values():
        del found["update_ratio"]
    return facts


@config("detached")
def detached() -> Facts:
    facts = step(
        beside("nets").Detached,
        lambda: (torch.randn(4, 6),),
        lambda out: cross_entropy(out, torch.tensor([0, 1, 2, 0])),
    )
    learnt = [name for name, facts in facts["parameters"].items() if facts["gradient"]]
    assert learnt == ["body.weight", "body.bias", "head.weight", "head.bias"]
    return facts


@config("mask-rcnn")
def mask_rcnn() -> Facts:
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    def inputs() -> tuple[Any, ...]:
        images = [torch.rand(3, 96, 96), torch.rand(3, 96, 128)]
        ones = partial(torch.ones, dtype=torch.uint8)
        first = [[10.0, 10.0, 60.0, 70.0], [30.0, 5.0, 90.0, 50.0]]
        second = [[20.0, 16.0, 100.0, 80.0]]
        targets = [
            {
                "boxes": torch.tensor(first),
                "labels": torch.tensor([1, 2]),
                "masks": ones(2, 96, 96),
            },
            {"boxes": torch.tensor(second), "labels": torch.tensor([2]), "masks": ones(1, 96, 128)},
        ]
        return images, targets

    build = partial(
        maskrcnn_resnet50_fpn,
        weights_backbone=None,
        num_classes=3,
        min_size=96,
        max_size=128,
        rpn_post_nms_top_n_train=100,
        box_batch_size_per_image=32,
    )
    facts = step(build, inputs, lambda out: sum(out.values()), outputs=dict)
    assert len(facts["calls"][""][0]["outputs"]) == 5
    return {key: facts[key] for key in ("loss", "totals", "calls")}


@config("segmentation")
def segmentation() -> Facts:
    from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

    def inputs() -> tuple[Tensor]:
        nonlocal target
        image = torch.randn(2, 3, 64, 64)
        target = torch.randint(0, 5, (2, 64, 64))
        return (image,)

    target = torch.empty(0)
    build = partial(deeplabv3_mobilenet_v3_large, weights_backbone=None, num_classes=5)
    facts = step(build, inputs, lambda out: cross_entropy(out["out"], target), outputs=dict)
    # Behind the global pooling BatchNorm normalises two values a channel, which magnifies rounding:
    # plain PyTorch 2.6 and 2.15 differ by a tenth in the gradients.
    return {"loss": facts["loss"], "calls": facts["calls"]}


@config("video")
def video() -> Facts:
    from torchvision.models.video import r3d_18

    target = torch.tensor([7])
    return step(
        r3d_18, lambda: (torch.randn(1, 3, 8, 32, 32),), lambda out: cross_entropy(out, target)
    )


@config("optical-flow")
def optical_flow() -> Facts:
    from torchvision.models.optical_flow import raft_small

    facts = step(
        raft_small,
        lambda: (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)),
        lambda out: out[0].mean(),
        outputs=lambda out: {str(index): flow for index, flow in enumerate(out)},
    )
    assert len(facts["calls"][""][0]["outputs"]) == 12
    return {key: facts[key] for key in ("loss", "totals", "calls")}


@config("photograph")
def photograph() -> Facts:
    from torchvision.models import resnet18

    target = torch.tensor([497])
    picture = beside("data").photograph()
    return step(resnet18, lambda: (picture,), lambda out: cross_entropy(out, target), train=False)


@config("training-steps")
def training_steps() -> Facts:
    layers = simple_layers()
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    history = []
    for images, labels in beside("data").noise(3):
        before = {name: p.detach().clone() for name, p in layers.named_parameters()}
        h = max_pool2d(relu(layers["conv1"](images)), 2, 2)
        h = max_pool2d(relu(layers["conv2"](h)), 2, 2)
        loss = cross_entropy(layers["out"](relu(layers["fc1"](h.view(-1, 320)))), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = totals(layers)["gradient_norm"]
        history.append({"step": len(history), "loss": loss.item(), "gradient_norm": norm})
        optimizer.step()
    last = parameters(layers, before)
    for name, old in before.items():
        last[name]["value"] = describe(old)
    return {"loss": loss.item(), "history": history, "parameters": last}


@config("keyword-inputs")
def keyword_inputs() -> Facts:
    target = torch.tensor([0.0, 1.0, 0.5, -1.0])
    return step(
        beside("nets").Pair,
        lambda: {"left": torch.randn(4, 3), "right": torch.randn(4, 5).requires_grad_()},
        lambda out: mse_loss(out["score"], target),
        outputs=dict,
    )


@config("lstm")
def lstm() -> Facts:
    target = torch.tensor([0, 1, 2, 1])
    return step(
        beside("nets").SequenceLabeler,
        lambda: (torch.randint(0, 50, (4, 12)),),
        lambda out: cross_entropy(out, target),
    )


@config("tied-weights")
def tied_weights() -> Facts:
    nets = beside("nets")

    def inputs() -> tuple[Tensor]:
        nonlocal target
        tokens = torch.randint(0, 40, (2, 9))
        target = torch.randint(0, 40, (2, 9))
        return (tokens,)

    target = torch.empty(0)
    facts = step(nets.TiedTransformer, inputs, lambda out: nets.next_token(out, target))
    assert "output.weight" not in facts["parameters"]
    facts["parameters"]["embedding.weight"]["aliases"] = ["output.weight"]
    return facts


@config("gpt2")
def gpt2() -> Facts:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = GPT2Config.from_json_file(CONFIGS / "gpt2-tiny" / "config.json")
    facts = step(
        lambda: GPT2LMHeadModel(settings),
        lambda: {
            "input_ids": torch.randint(0, 101, (2, 12)),
            "labels": torch.randint(0, 101, (2, 12)),
        },
        lambda out: out.loss,
        outputs=lambda out: {"loss": out.loss, "logits": out.logits},
    )
    facts["parameters"]["transformer.wte.weight"]["aliases"] = ["lm_head.weight"]
    return facts


@config("bert")
def bert() -> Facts:
    from transformers import BertConfig, BertForSequenceClassification

    settings = BertConfig.from_json_file(CONFIGS / "bert-tiny" / "config.json")
    target = torch.tensor([2, 0])
    return step(
        lambda: BertForSequenceClassification(settings),
        lambda: {
            "input_ids": torch.randint(0, 90, (2, 10)),
            "attention_mask": torch.ones(2, 10, dtype=torch.int64),
        },
        lambda out: cross_entropy(out.logits, target),
        outputs=lambda out: {"logits": out.logits},
    )


def timm_model(name: str, **options: int) -> Facts:
    import timm

    target = torch.tensor([1, 4])
    return step(
        lambda: timm.create_model(name, num_classes=6, **options),
        lambda: (torch.randn(2, 3, 64, 64),),
        lambda out: cross_entropy(out, target),
    )


config("timm-vit")(partial(timm_model, "vit_tiny_patch16_224", img_size=64))
config("timm-resnet")(partial(timm_model, "resnet10t"))


@config("autocast")
def autocast() -> Facts:
    layers = simple_layers()
    images = normal(4, 1, 28, 28)
    # Autocast leaves float64 alone.
    half = torch.bfloat16 if images.dtype == torch.float32 else torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        h = max_pool2d(relu(layers["conv1"](images)), 2, 2)
        h = max_pool2d(relu(layers["conv2"](h)), 2, 2)
        logits = layers["out"](relu(layers["fc1"](h.view(-1, 320))))
        loss = cross_entropy(logits, torch.tensor([1, 2, 3, 4]))
    loss.backward()
    assert logits.dtype == half
    assert layers["out"].weight.grad.dtype == images.dtype
    out = {"activation": {"dtype": "bfloat16"}, "gradient": {"dtype": "bfloat16"}}
    grad = {"gradient": {"dtype": "float32"}}
    return {
        "loss": loss.item(),
        "calls": {
            "conv1": [{"inputs": {"0": {"activation": {"dtype": "float32"}}}, "outputs": {"": out}}]
        },
        "parameters": {"conv1.weight": grad, "out.bias": grad},
    }


#: Times that starting values are moved by a rounding, and what the largest deviation is taken by:
#: the roundings of another processor are others than those that were tried.
MOVES, MARGIN = 8, 8
#: What a bound is never under: a few roundings of the float32 numbers that are compared.
LEAST = 1e-6


@cache
def expected(name: str) -> Facts:
    """The facts of one config, as plain JSON data."""
    facts: Facts = json.loads(json.dumps(EXPECTED[name](), allow_nan=False))
    return facts


def exactly(name: str) -> Facts:
    """The facts of one config in float64, with 0.0 for what only rounding keeps from zero."""
    with float64():
        facts: Facts = json.loads(json.dumps(EXPECTED[name](), allow_nan=False))
    return _cleaned(facts)


def _cleaned(facts: Any) -> Any:
    if isinstance(facts, dict):
        return {key: _cleaned(value) for key, value in facts.items()}
    if isinstance(facts, list):
        return [_cleaned(value) for value in facts]
    return 0.0 if isinstance(facts, float) and abs(facts) < 1e-12 else facts


def bounds(name: str, facts: Facts) -> Facts:
    """Bound the distance of float32 from float64, from the measured one.

    Args:
        name: the config.
        facts: its facts in float64.

    Returns:
        ``tolerance``, relative (a mean's: of the root mean square), and ``residue``, absolute, for
        what is zero but for rounding: the largest deviation of the float32 step and of ``MOVES``
        more, whose starting values are one rounding away, times ``MARGIN``.
    """
    tries = [EXPECTED[name]()]
    for number in range(MOVES):
        with one_rounding_away(number):
            tries.append(EXPECTED[name]())
    found = [d for facts_then in tries for d in compared(facts_then, facts)]
    wrong = [d for d in found if isinstance(d, str)]
    if wrong:
        raise ValueError(f"{name}: not the same in float32 and float64: {wrong[0]}")
    deviations = [d for d in found if isinstance(d, Deviation)]
    relative = max((d.share for d in deviations if d.scale), default=0.0)
    absolute = max((d.share for d in deviations if not d.scale), default=0.0)
    return {
        "tolerance": _rounded_up(max(LEAST, MARGIN * relative)),
        "residue": max(RESIDUE, _rounded_up(MARGIN * absolute)),
    }


def _rounded_up(number: float) -> float:
    """One digit, not less than the number."""
    if number <= 0:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit) * unit:.0e}")


def file_of(name: str) -> Facts:
    """Return the content of the facts' file beside a config."""
    facts = exactly(name)
    found = bounds(name, facts)
    said = (
        f"plain PyTorch in float64; float32 keeps within {found['tolerance']:g} of each number, a"
        f" mean of the root mean square; what is 0.0 stays under {found['residue']:g}"
    )
    return {"computed": said, **found, **facts}


def written(name: str) -> Path:
    """The file beside the config."""
    return CONFIGS / f"{name}.expected.json"


def names() -> Iterator[str]:
    """Every config of the folder."""
    return iter(sorted(path.stem for path in CONFIGS.glob("*.yaml")))


if __name__ == "__main__":
    for name in sys.argv[1:] or names():
        written(name).write_text(json.dumps(file_of(name), indent=1) + "\n", encoding="utf-8")
        print(written(name).name)
