"""Checks built by hand: findings of every severity, many alike, a known one, a failed model."""

from __future__ import annotations

from gradscope.records.report import (
    BaselineEntry,
    CheckedModel,
    CheckReport,
    Finding,
    PrecisionForecast,
    RuleText,
)
from gradscope.records.run import ErrorRecord, Frame, RunInfo
from gradscope.records.tensors import TensorStats

RULES = (
    RuleText(
        *("GS101", "vanishing-gradient", "warning"),
        "The gradient shrinks on its way to the first layers.",
        "Normalise, or add skip connections.",
        ("SageMaker Debugger, VanishingGradient",),
    ),
    RuleText("GS401", "no-gradient", "error", "A trainable parameter has no gradient.", "Find it."),
    RuleText("GS405", "misspelt-requires-grad", "error", "A flag that PyTorch does not know."),
    RuleText("GS506", "initial-loss", "info", "The first loss is far from ln(classes)."),
)


def run(model: str, file: str | None = None) -> RunInfo:
    return RunInfo(model, "cpu", "float32", "train", 0, 1, "cross_entropy", file=file)


def missing(name: str, location: str | None = "net.py:19") -> Finding:
    """One of the findings that differ in their names only."""
    return Finding(
        *("GS401", "no-gradient", "error", name),
        message="no gradient arrives: `.detach()` cuts the path in the forward of blocks.2",
        advice="take the `.detach()` away, or freeze what is upstream of it",
        cause="detached",
        location=location,
    )


VANISHING = Finding(
    *("GS101", "vanishing-gradient", "warning", "encoder.layers.encoder_layer_11.mlp.linear_1"),
    message="the gradient shrinks by 0.31 a layer from here to the first one",
    advice="put a normalisation before it",
    call=2,
    value=3.217e-09,
    threshold=1e-07,
    source="SageMaker Debugger, VanishingGradient",
)
LOSS = Finding(
    *("GS506", "initial-loss", "info", ""),
    message="the first loss is 6.2, and ln(10) is 2.303",
    advice="",
    value=6.2,
    threshold=3.0,
)
HOSTILE = Finding(
    *("GS405", "misspelt-requires-grad", "error", "[red]模型[/red]\n\x1b[31m|`x`::,%"),
    message="`require_grad` is a plain attribute\n::error::100 % of it, [x](y)",
    advice="write `requires_grad`",
    location="/abs/weird, name:1.py:7",
)


def forecasts() -> tuple[PrecisionForecast, ...]:
    """Three layers: one overflows, one flushes, one is safe; float16 is safe from 2^4 on."""
    made = []
    for dtype in ("float16", "bfloat16"):
        for layer, (under, over) in enumerate(((0.1234, 0.0), (0.0, 0.00001), (0.0, 0.0))):
            lost = dtype == "float16"
            for scale in (1.0, 256.0, 65536.0):
                share = under / scale if lost else 0.0
                made.append(
                    PrecisionForecast(
                        f"layer{layer}", "gradient", dtype, scale, 100, share, over * lost
                    )
                )
            made.append(
                PrecisionForecast(
                    f"layer{layer}", "activation", dtype, 1.0, 100, 0.0, over * lost, call=layer
                )
            )
        made += [
            PrecisionForecast("**", "total", dtype, 2.0**power, 300, 0.1 / 2**power * lost, 0.0)
            for power in range(8)
        ]
    return tuple(made)


def sound() -> CheckReport:
    """One model, nothing wrong."""
    return CheckReport(
        versions={"gradscope": "0.1.0"},
        rules=tuple(rule.code for rule in RULES),
        models=(CheckedModel("ok", run("torchvision:resnet18")),),
    )


def several() -> CheckReport:
    """Two sound models, one with findings of all severities, one that raised, one known finding."""
    names = [f"blocks.{i}.attention.in_proj_weight" for i in range(14)]
    alike = (*map(missing, names), missing("head.weight", "heads.py:7"))
    error = ErrorRecord(
        *("shape-mismatch", "mat1 and mat2 shapes cannot be multiplied (2x5408 and 1024x10)"),
        *("forward", "fc", 0, "net.py:19"),
        advice="build it with in_features=5408",
        exception="RuntimeError",
        inputs=(TensorStats((2, 5408), "float32", 10816),),
        frames=(Frame("net.py", 19, "forward", "x = self.fc(x.flatten(1))"),),
    )
    return CheckReport(
        status="failed",
        versions={"gradscope": "0.1.0"},
        rules=tuple(rule.code for rule in RULES),
        models=(
            CheckedModel("ok", run("demo")),
            CheckedModel("ok", run("net.yaml", "configs/net.yaml"), known=(missing("fc.bias"),)),
            CheckedModel(
                "findings", run("vit.yaml", "configs/vit.yaml"), findings=(LOSS, VANISHING, *alike)
            ),
            CheckedModel("failed", run("./net.py:Net", "net.py"), error=error),
            CheckedModel("ok", run("last")),
        ),
        baseline="known.json",
        stale=(BaselineEntry("configs/net.yaml", "GS101", "conv1", "saturated"),),
    )


def hostile() -> CheckReport:
    """Names and messages that try to leave their place."""
    model = CheckedModel("findings", run("[bold]net\x07, 100%"), findings=(HOSTILE,))
    return CheckReport(status="findings", rules=("GS405",), models=(model,))


def precision() -> CheckReport:
    """A forecast and nothing else."""
    model = CheckedModel("ok", run("demo"), precision=forecasts())
    return CheckReport(rules=("GS101",), models=(model,))


CHECKS = {build.__name__: build for build in (sound, several, hostile, precision)}
