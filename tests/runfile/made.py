"""Runs made up for the tests: records of every kind, as large as a test needs them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.records.run import DeviceMesh, ParameterPlacement, RunInfo
from gradscope.records.tensors import (
    NONE,
    NormNames,
    ParameterNorms,
    TensorRecord,
    TensorStats,
    packed,
)
from gradscope.records.training import (
    GradientParts,
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)

RUN = TrainingRun(
    *("train.py", 1.7e9),
    arguments=("--lr", "0.1", "模型"),
    directory="/home/me",
    options={"every": 10, "layers": ["fc*"]},
    versions={"torch": "2.8.0"},
    device="cpu",
)
#: The same as it ended, with every field filled.
ENDED = replace(
    RUN,
    rank=1,
    world_size=2,
    ended=1.7e9 + 60,
    exit="SystemExit: 3",
    steps=3,
    every=10,
    plain=0.01,
    sampled_seconds=0.02,
    cost=0.018,
    notices=("a notice",),
    cost_seconds=1.08,
    cut="--steps 3",
)
MODELS = (
    TrainedModel(0, "netG", "Generator", 1000, 900, 12, autocast="bfloat16"),
    TrainedModel(
        *(1, "netD", "Discriminator", 500, 500, 8),
        first_step=2,
        wrapper="FSDP",
        stage=1,
        compiled="parts",
    ),
)
STEPS = (
    TrainingStep(1, "optG", 1, 0.1, 0.1, (2.5,), None, 1.5, 1.0, (0.1,), 1024.0, True),
    TrainingStep(2, "optD", 1, 0.2, 0.1, (), None, None, None, ()),
    TrainingStep(3, "", 2, 0.3, 0.1, (1.0, None), "nan", None, None, (0.1, 0.2), None, True),
    TrainingStep(4, "", 3, 0.4, 0.1, (None,), "inf"),
    TrainingStep(
        *(5, "", 4, 0.5, 0.1, (1.0, 2.0, 0.125), None, 3.5, 3.5, (0.25, 0.0)),
        norms=((0, 3.5, 3.5), (1, None, 0.0)),
        own_seconds=0.0625,
        batch=8,
        summed=(0, 2),
        update_rms=0.0625,
        parts=GradientParts(4, (1.5, 3.5), (2.5,)),
    ),
)
NORM_NAMES = (NormNames(1, 0, ("fc.weight", "fc.bias")), NormNames(2, 1, ("weight",)))
NORMS = (
    ParameterNorms(1, 1, 1, packed([0.5, 2.0]), packed([0.25, 1.0]), packed([4.0, 3.0])),
    ParameterNorms(2, 2, 1, packed([1e-50])),
    ParameterNorms(3, 1, 2, packed([0.75, NONE])),
    ParameterNorms(4, 1, 3, packed([float("nan"), float("inf")])),
    ParameterNorms(5, 1, 4, None, packed([1.5, 2.5])),
)
MESHES = (DeviceMesh(0, ("dp", "tp"), (1, 2), (0, 1), (0, 1)),)
PLACEMENTS = (
    ParameterPlacement(0, "fc.bias", (4,), (4,)),
    ParameterPlacement(
        *(0, "fc.weight", (4, 8), (4, 4), 0, ("R", "S(1)"), ("P", "S(1)")), norm_group=1
    ),
)
EVENTS = (
    TrainingEvent(1, 0.1, "skipped", "a scaler skipped the step", {"scale": 512.0, "all": [1]}),
    TrainingEvent(3, 0.3, "nan", "the loss is NaN"),
)
FINDING = Finding(
    *("GS101", "vanishing-gradient", "error", "fc", "message", "advice", 0, 1.0, 2.0, "paper"),
    cause="depth",
    location="net.py:3",
)
STATS = TensorStats((2, 3), "float32", 6, 1.5, -0.1, 0.3, -1.0, 1.0, 1, 0, 0)
FINDINGS = (
    TrainingFinding(FINDING, ((1, 2), (4, 4)), 0, parameters=((0, "fc.weight"), (0, "fc.bias"))),
    TrainingFinding(
        replace(FINDING, code="GS301", cause=None, call=None),
        ((3, 3),),
        None,
        NonFiniteOrigin("nan", "forward", "message", "sqrt", "fc", inputs=(STATS,), spread=("fc",)),
    ),
)


def report(calls: int = 2, parameters: int = 2, seed: int = 0) -> Report:
    """As ``inspect`` leaves one: ``calls`` calls of one input and one output, and parameters."""
    draw = random.Random(seed)

    def stats() -> TensorStats:
        norm, *others = (draw.gauss(0, 1) for _ in range(5))
        shape = (8, 64, 7, 7)
        return TensorStats(shape, "float32", 25088, abs(norm), *others, draw.randrange(25088), 0, 0)

    def tensor() -> TensorRecord:
        return TensorRecord("", stats(), stats(), "ConvolutionBackward0", True)

    return Report(
        "ok",
        RunInfo("net", "cpu", "float32", "train", 0, 1, "cross_entropy"),
        loss=draw.random(),
        calls=tuple(
            ModuleCall(f"layer{i}.conv", "Conv2d", 0, i, (), True, (), (tensor(),), (tensor(),))
            for i in range(calls)
        ),
        parameters=tuple(
            ParameterStats(f"layer{i}.conv.weight", (64, 64), True, stats(), stats(), draw.random())
            for i in range(parameters)
        ),
    )


def step(number: int, *, sampled: bool = False) -> TrainingStep:
    """The step metrics of one step."""
    return TrainingStep(
        *(number, "optimizer", number, number / 8, 0.125, (1 / number,), None, 2.5, 1.0, (0.1,)),
        sampled=sampled,
    )


def sample(number: int, model: int = 0, **size: int) -> StepSample:
    """The sample of one step."""
    return StepSample(
        *(number, model, report(**{"seed": number, **size}), {"layer0.conv.weight": 0.5}),
        optimizer="optimizer",
        settings={"lr": 0.1, "eps": 1e-8},
        unheld=("layer1.conv.weight",),
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the writer's thread does soon, however busy the machine."""
    for _ in range(10_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")
