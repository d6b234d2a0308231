"""Sample reports, built by hand: the reporters are tested without torch and without the engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from gradscope.records.graph import Chain, GraphNode
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.records.run import (
    ErrorRecord,
    Frame,
    RunInfo,
    Seconds,
    StepParameter,
    StepRecord,
    Totals,
    Verification,
)
from gradscope.records.tensors import TensorRecord, TensorStats


def stats(*shape: int, seed: int = 0, scale: float = 1.0, **known: object) -> TensorStats:
    """Plausible figures for a tensor of that shape."""
    draw = random.Random(f"{shape}{seed}")
    numel = 1
    for size in shape:
        numel *= size
    figures: dict[str, object] = {
        "norm": scale * draw.uniform(0.5, 2) * numel**0.5,
        "mean": scale * draw.gauss(0, 0.1),
        "std": scale * draw.uniform(0.5, 2),
        "min": -scale * draw.uniform(3, 5),
        "max": scale * draw.uniform(3, 5),
        "zeros": 0,
        "nan": 0,
        "inf": 0,
    }
    return TensorStats(shape, "float32", numel, **{**figures, **known})  # type: ignore[arg-type]


def tensor(
    path: str, *shape: int, seed: int = 0, grad_fn: str | None = None, **known: object
) -> TensorRecord:
    """A tensor with its own gradient shape."""
    gradient = stats(*shape, seed=seed + 1, scale=1e-3)
    return TensorRecord(path, stats(*shape, seed=seed, **known), gradient, grad_fn, True)


def parameter(name: str, *shape: int, seed: int = 0, **known: object) -> ParameterStats:
    """A parameter with a gradient."""
    draw = stats(*shape, seed=seed, scale=0.05), stats(*shape, seed=seed + 1, scale=1e-3)
    report = ParameterStats(name, shape, True, draw[0], draw[1], 1.234e-3)
    return replace(report, **known)  # type: ignore[arg-type]


def small() -> Report:
    """Three layers; one is dead for every image, one parameter is frozen, one got no gradient."""
    dead = stats(2, 10, norm=0.0, mean=0.0, std=0.0, min=0.0, max=0.0, zeros=20)
    zero = stats(2, 10, norm=0.0, mean=0.0, std=0.0, min=0.0, max=0.0, zeros=20)
    zeroed = replace(stats(10, 32), norm=0.0, mean=0.0, std=0.0, min=0.0, max=0.0, zeros=320)
    image = TensorRecord("0", stats(2, 1, 28, 28, zeros=1))
    hidden = tensor("", 2, 32, seed=3, grad_fn="AddmmBackward0")
    logits = TensorRecord("", dead, stats(2, 10, scale=0.1), "ReluBackward0", True)
    calls = (
        ModuleCall("", "SimpleNet", 0, 0, inputs=(image,), outputs=(logits,), saved_bytes=31_640),
        ModuleCall("fc1", "Linear", 0, 1, inputs=(image,), outputs=(hidden,), saved_bytes=6_272),
        ModuleCall(
            *("drop", "Dropout", 0, 2),
            notes=("pass-through",),
            inputs=(replace(hidden, path="0"),),
            outputs=(hidden,),
            saved_bytes=0,
        ),
        ModuleCall(
            *("fc2", "Linear", 0, 3),
            inputs=(TensorRecord("0", hidden.activation, zero, None, True),),
            outputs=(TensorRecord("", stats(2, 10, seed=9), zero, "AddmmBackward0", True),),
            saved_bytes=256,
        ),
        ModuleCall(
            *("out", "ReLU", 0, 4),
            inputs=(TensorRecord("0", stats(2, 10, seed=9), zero, None, True),),
            outputs=(logits,),
            saved_bytes=80,
        ),
    )
    parameters = (
        parameter("fc1.weight", 32, 784, requires_grad=False, gradient=None, update_ratio=None),
        parameter("fc1.bias", 32),
        parameter("fc2.weight", 10, 32, gradient=zeroed, update_ratio=0.0),
        parameter("fc2.bias", 10, gradient=None, update_ratio=None, in_optimizer=False),
    )
    run = RunInfo(
        *("demo", "cpu", "float32", "train", 0, 1, "cross_entropy"),
        optimizer="SGD(lr=0.01, momentum=0.9)",
        verified=Verification(True, True, 0.0),
        notices=(
            "input: one digit from the bundled demo",
            "optimizer: SGD, lr 0.01 (none was given)",
        ),
    )
    return Report(
        "ok",
        run,
        loss=2.302585,
        totals=Totals(25_450, 362, 0.01234, 31_640, 5, 5, Seconds(0.0012, 0.00234)),
        calls=calls,
        parameters=parameters,
    )


def resnet() -> Report:
    """68 calls with containers, as a ResNet-18 has them."""
    calls: list[ModuleCall] = []
    parameters: list[ParameterStats] = []

    def call(name: str, kind: str, *shape: int, grad_fn: str, zeros: int = 0) -> None:
        seed = len(calls)
        given = tensor("0", *shape, seed=seed)
        if not calls or name == "conv1":
            given = TensorRecord("0", stats(2, 3, 224, 224))
        made = tensor("", *shape, seed=seed + 1, grad_fn=grad_fn, zeros=zeros)
        size = 0 if grad_fn == "AddBackward0" else 4 * made.activation.numel
        calls.append(
            ModuleCall(name, kind, 0, seed, inputs=(given,), outputs=(made,), saved_bytes=size)
        )

    def conv(name: str, before: int, after: int, kernel: int, side: int) -> None:
        call(name, "Conv2d", 2, after, side, side, grad_fn="ConvolutionBackward0")
        parameters.append(parameter(f"{name}.weight", after, before, kernel, kernel))

    def norm(name: str, width: int, side: int) -> None:
        call(name, "BatchNorm2d", 2, width, side, side, grad_fn="NativeBatchNormBackward0")
        parameters.append(parameter(f"{name}.weight", width, seed=len(parameters)))
        parameters.append(parameter(f"{name}.bias", width, seed=len(parameters)))

    def relu(name: str, width: int, side: int) -> None:
        half = width * side * side
        call(name, "ReLU", 2, width, side, side, grad_fn="ReluBackward0", zeros=half - 7)

    call("", "ResNet", 2, 1000, grad_fn="AddmmBackward0")
    conv("conv1", 3, 64, 7, 112)
    norm("bn1", 64, 112)
    relu("relu", 64, 112)
    call("maxpool", "MaxPool2d", 2, 64, 56, 56, grad_fn="MaxPool2DWithIndicesBackward0", zeros=1)
    before = 64
    for stage, (width, side) in enumerate(((64, 56), (128, 28), (256, 14), (512, 7)), start=1):
        call(f"layer{stage}", "Sequential", 2, width, side, side, grad_fn="ReluBackward0")
        for block in range(2):
            name = f"layer{stage}.{block}"
            call(name, "BasicBlock", 2, width, side, side, grad_fn="ReluBackward0")
            conv(f"{name}.conv1", before, width, 3, side)
            norm(f"{name}.bn1", width, side)
            relu(f"{name}.relu", width, side)
            conv(f"{name}.conv2", width, width, 3, side)
            norm(f"{name}.bn2", width, side)
            if before != width:
                call(
                    f"{name}.downsample",
                    "Sequential",
                    2,
                    width,
                    side,
                    side,
                    grad_fn="NativeBatchNormBackward0",
                )
                conv(f"{name}.downsample.0", before, width, 1, side)
                norm(f"{name}.downsample.1", width, side)
            before = width
    call("avgpool", "AdaptiveAvgPool2d", 2, 512, 1, 1, grad_fn="MeanBackward1")
    call("fc", "Linear", 2, 1000, grad_fn="AddmmBackward0")
    parameters += [parameter("fc.weight", 1000, 512), parameter("fc.bias", 1000)]
    total = sum(p.value.numel for p in parameters)
    saved = sum(
        c.saved_bytes or 0 for c in calls if not c.type.startswith(("ResNet", "Sequential"))
    )
    run = RunInfo(
        *("torchvision:resnet18", "cuda:0", "float32", "train", 0, 1, "cross_entropy"),
        autocast="bfloat16",
        notices=("input: randn [2, 3, 224, 224] (inferred from torchvision:resnet18)",),
    )
    seconds = Seconds(0.1234, 0.2345)
    return Report(
        "ok",
        run,
        loss=7.1284,
        totals=Totals(total, total, 3.2047, saved, len(calls), len(calls), seconds),
        calls=tuple(calls),
        parameters=tuple(parameters),
    )


def outputs() -> Report:
    """Dict and tuple outputs, several inputs with gradients, repeated and shared modules."""
    query, key = tensor("query", 2, 5, 8), tensor("key", 2, 7, 8, seed=1)
    mask = TensorRecord(
        "mask", TensorStats((2, 7), "bool", 14, 2.0, 0.2857, 0.4518, 0.0, 1.0, 10, 0, 0)
    )
    calls = (
        ModuleCall(
            *("", "Detector", 0, 0),
            inputs=(TensorRecord("images", stats(2, 3, 8, 8)),),
            outputs=(
                tensor("out", 2, 21, 8, 8, grad_fn="UpsampleBilinear2DBackward0"),
                replace(
                    tensor("aux.logits", 2, 21, 8, 8, seed=5, grad_fn="AddBackward0"), gradient=None
                ),
                TensorRecord(
                    "labels", TensorStats((2,), "int64", 2, 3.162, 2.0, 1.0, 1.0, 3.0, 0, 0, 0)
                ),
            ),
            saved_bytes=1_048_576,
        ),
        ModuleCall(
            *("backbone.attention", "CrossAttention", 0, 1),
            aliases=("head.attention",),
            notes=("shared-input",),
            inputs=(query, key, mask),
            outputs=(
                tensor("0", 2, 5, 8, seed=2, grad_fn="BmmBackward0"),
                tensor("1", 2, 5, 7, seed=3),
            ),
            saved_bytes=2_000,
        ),
        *(
            ModuleCall(
                *("cell", "RNNCell", step, 2 + step),
                inputs=(TensorRecord("0", stats(2, 4)), tensor("1", 2, 6, seed=step)),
                outputs=(tensor("", 2, 6, seed=step + 1, grad_fn="TanhBackward0"),),
                saved_bytes=48,
            )
            for step in range(3)
        ),
        ModuleCall("logger", "Logger", 0, 5, notes=("returned no tensor",)),
        ModuleCall(
            *("empty", "Select", 0, 6),
            outputs=(
                TensorRecord("", TensorStats((0, 4), "float32", 0, 0.0, zeros=0, nan=0, inf=0)),
            ),
        ),
    )
    tied = parameter("embed.weight", 100, 8, aliases=("head.weight",))
    run = RunInfo("./detector.py:Detector", "cpu", "float32", "eval", 7, 1, "output")
    totals = Totals(800, 800, 0.5, 1_050_576, 5, 7, Seconds(0.01, 0.02))
    return Report("ok", run, loss=0.5, totals=totals, calls=calls, parameters=(tied,))


def failed() -> Report:
    """A model that raised in its second layer."""
    calls = (
        ModuleCall(
            *("conv", "Conv2d", 0, 1),
            inputs=(TensorRecord("0", stats(2, 1, 28, 28)),),
            outputs=(
                replace(tensor("", 2, 8, 26, 26, grad_fn="ConvolutionBackward0"), gradient=None),
            ),
        ),
        ModuleCall(
            *("fc", "Linear", 0, 2),
            inputs=(replace(tensor("0", 2, 5408), gradient=None),),
        ),
    )
    error = ErrorRecord(
        "shape-mismatch",
        "mat1 and mat2 shapes cannot be multiplied (2x5408 and 1024x10)",
        "forward",
        name="fc",
        call=0,
        location="net.py:19",
        advice="build it with in_features=5408, or change what comes before `fc`",
        exception="RuntimeError",
        inputs=(stats(2, 5408),),
        frames=(
            Frame("train.py", 8, "main", "model(images)"),
            Frame("net.py", 19, "forward", "x = self.fc(x.flatten(1))"),
        ),
    )
    run = RunInfo("net.yaml", "cpu", "float32", "train", 0, 1, "cross_entropy")
    totals = Totals(10_330, 10_330, modules=3, calls=3)
    frozen = (parameter("conv.weight", 8, 1, 3, 3, gradient=None, update_ratio=None),)
    return Report("failed", run, totals=totals, calls=calls, parameters=frozen, error=error)


def steps() -> Report:
    """Three steps, two backwards in each; the loss becomes NaN."""
    history = tuple(
        StepRecord(
            *(step, backward, None if step == 2 else 2.3 - 0.1 * step),
            loss_nonfinite="nan" if step == 2 else None,
            gradient_norm=0.5 + step + backward,
            parameters=(
                StepParameter("fc1.bias", 0.3, 1.5e-3),
                StepParameter("fc2.bias", 0.1, 2.5e-3 * (step + 1)),
            ),
        )
        for step in range(3)
        for backward in range(2)
    )
    run = replace(small().run, steps=3, repeats=2, verified=Verification(True, False, 1.5e-3))
    return replace(small(), run=run, loss=None, loss_nonfinite="nan", history=history)


def chain() -> Report:
    """The chain of two residual blocks whose layers share one weight, and an empty one."""
    nodes: list[GraphNode] = []

    def node(
        op: str, module: str | None, *to: int | None, kind: str = "function", **known: object
    ) -> int:
        edges = tuple(None if id is None else (id, 0) for id in to)
        nodes.append(GraphNode(len(nodes), op, kind, module=module, to=edges, **known))  # type: ignore[arg-type]
        return len(nodes) - 1

    def leaf(name: str, *shape: int) -> int:
        return node("AccumulateGrad", None, kind="parameter", name=name, shape=shape)

    weight = leaf("block.fc.weight", 8, 8)
    image = node("AccumulateGrad", None, kind="input", name="0", shape=(2, 8))
    x = node(
        "AddmmBackward0",
        "stem",
        leaf("stem.bias", 8),
        image,
        node("TBackward0", "stem", leaf("stem.weight", 8, 8)),
    )
    for block in range(2):
        y = node(
            "AddmmBackward0",
            "block.fc",
            leaf(f"bias{block}", 8),
            x,
            node("TBackward0", "block.fc", weight, call=block),
            call=block,
        )
        y = node("ReluBackward0", "block.relu", y, call=block)
        y = node("MulBackward0", "block", y, y, call=block)
        x = node("AddBackward0", "block", y, x, call=block)
    nodes.reverse()
    made = (Chain("block", 1, "", tuple(nodes)), Chain("logger", 0, "1"))
    return replace(small(), chains=made)


def deep() -> Report:
    """Names as long as those of a vision transformer's layers."""
    base = "encoder.layers.encoder_layer_11"
    names = (
        "conv_proj",
        base,
        f"{base}.self_attention.out_proj",
        f"{base}.mlp.linear_1.parametrizations.weight",
    )
    calls = tuple(
        ModuleCall(
            *(name, "NonDynamicallyQuantizableLinear", call, order),
            inputs=(tensor("0", 2, 197, 768, seed=order),),
            outputs=(tensor("", 2, 197, 768, seed=order + 1, grad_fn="UnsafeViewBackward0"),),
            saved_bytes=605_184 * order,
        )
        for order, (name, call) in enumerate((name, call) for name in names for call in range(2))
    )
    owned = tuple(parameter(f"{name}.original0", 768, 3072, seed=i) for i, name in enumerate(names))
    run = RunInfo("timm:vit_base_patch16_224", "cpu", "float32", "train", 0, 1, "cross_entropy")
    totals = Totals(9_437_184, 9_437_184, 12.0, 16_945_152, 4, 8, Seconds(1.5, 3.25))
    return Report("ok", run, loss=6.9, totals=totals, calls=calls, parameters=owned)


def broken() -> Report:
    """NaN and Inf in activations and gradients; a model that hostile hands have named."""
    lost = stats(2, 4, norm=None, mean=None, std=None, min=None, max=None, nan=6, inf=2)
    partly = stats(2, 4, nan=3)
    calls = (
        ModuleCall(
            *("block.exp", "Exp", 0, 0),
            inputs=(TensorRecord("0", stats(2, 4), lost, None, True),),
            outputs=(TensorRecord("", stats(2, 4, inf=2), partly, "ExpBackward0", True),),
            saved_bytes=32,
        ),
        ModuleCall(
            *("[red]evil[/red]\n\x1b[31m|`x`", "=cmd()", 0, 1),
            inputs=(TensorRecord("0", lost, stats(2, 4), None, True),),
            outputs=(
                TensorRecord(
                    "", lost, stats(2, 4, seed=3, scale=1e-38), "\u202eLogBackward0", True
                ),
            ),
            saved_bytes=1,
        ),
        ModuleCall(
            *("模型.层.注意力", "Attention", 0, 2),
            inputs=(tensor("0", 2, 4),),
            outputs=(tensor("", 2, 4, grad_fn="MulBackward0"),),
            saved_bytes=123_456_789_012,
        ),
    )
    found = (
        Finding(
            *("GS201", "nan-gradient", "error", "block.exp"),
            message="3 of 8 elements of the output's gradient are NaN",
            advice="look at what divides by the output of `block.exp`",
            call=0,
        ),
        Finding("GS901", "note", "info", "模型.层.注意力", "saves 115 GiB", ""),
    )
    bad = parameter("block.scale", 4, value=lost, gradient=partly)
    run = RunInfo(
        "[bold]net\x07",
        "cpu",
        "float32",
        "train",
        0,
        1,
        "sum",
        verified=Verification(False, False, None),
    )
    totals = Totals(4, 4, None, 123_456_789_045, 3, 3)
    return Report(
        "findings",
        run,
        loss_nonfinite="-inf",
        totals=totals,
        calls=calls,
        parameters=(bad,),
        findings=found,
    )


SAMPLES: dict[str, Callable[[], Report]] = {
    build.__name__: build for build in (small, resnet, outputs, failed, steps, chain, deep, broken)
}
