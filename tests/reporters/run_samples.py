"""Sample runs, built by hand: the reporters are tested without torch and without a run file."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradscope.records.answers import Judgement, NonFiniteOrigin, NotJudged
from gradscope.records.report import Finding
from gradscope.records.tensors import NormSeries, TensorStats
from gradscope.records.training import (
    LayerSeries,
    RunHistory,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)

CALLS = ("GS101", "GS102", "GS201", "GS203")
START = 1_763_809_391.0
VERSIONS = {"gradscope": "0.3.0", "torch": "2.15.0", "python": "3.13.1"}
Shape = Callable[[float], float]


def looked_at(steps: int, every: int) -> tuple[int, ...]:
    """The first three steps and every so many."""
    return tuple(s for s in range(1, steps + 1) if s <= 3 or s % every == 0)


def series(
    name: str, steps: tuple[int, ...], *, call: int | None = None, model: int = 0, **known: object
) -> LayerSeries:
    """A layer whose gradient falls and whose weights grow, and what a test knows better."""
    draw = random.Random(name)
    end, noise = max(steps), [draw.lognormvariate(0, 0.1) for _ in steps]
    fall, grow = draw.uniform(0.5, 4), draw.uniform(0, 0.3)
    ways = [(step / end, n) for step, n in zip(steps, noise, strict=True)]
    gradient = tuple(n * 0.1 * math.exp(-fall * part) for part, n in ways)
    size = tuple(10 * (1 + grow * part) for part, _ in ways)
    zeros = (0,) * len(steps)
    if call is None:
        values: dict[str, object] = {
            "value_norm": size,
            "grad_norm": gradient,
            "clipped_norm": gradient,
            "update_ratio": tuple(x / 50 for x in gradient),
            "zeros": (0.0,) * len(steps),
            "nonfinite": zeros,
        }
        shape: tuple[int, ...] = (64, 32) if name.endswith("weight") else (64,)
    else:
        values = {
            "out_norm": size,
            "out_mean": gradient,
            "out_nonfinite": zeros,
            "grad_out_norm": gradient,
            "grad_out_nonfinite": zeros,
            "grad_in_norm": (None, *gradient[1:]),
            "grad_in_nonfinite": zeros,
        }
        shape = ()
    return LayerSeries(
        name,
        steps,
        {**values, **known},  # type: ignore[dict-item]
        model,
        call,
        shape,
        ("Linear",) if call is not None else (),
    )


def step(number: int, of: int, **known: object) -> TrainingStep:
    """A step of a loss that falls."""
    draw = random.Random(number)
    part = number / of
    gradient = draw.lognormvariate(0, 0.2) * (0.5 + math.exp(-5 * part))
    return replace(
        TrainingStep(
            step=number,
            optimizer="optimizer",
            optimizer_step=number,
            time=0.2 * number,
            seconds=0.2 if number > 1 else 1.9,
            losses=(2.3 * math.exp(-3 * part) + 0.1 * draw.random(),),
            gradient_norm=gradient,
            clipped_norm=min(gradient, 1.0),
            learning_rates=(1e-3 * (1 - 0.99 * part),),
        ),
        **known,  # type: ignore[arg-type]
    )


def small() -> RunHistory:
    """1,200 steps of a small network; one layer learns nothing, the gradients are clipped."""
    of, looked = 1200, looked_at(1200, 40)
    none = (None,) * len(looked)
    vanishing = Finding(
        *("GS101", "vanishing-gradient", "warning", "conv1"),
        "its gradient is 1.2e-6 of the last layer's.",
        "Normalise between the layers, or begin with larger weights.",
        call=0,
        value=1.2e-6,
        threshold=1e-4,
        source="Glorot and Bengio 2010",
        location="train.py:14",
    )
    missing = Finding(
        *("GS401", "no-gradient", "error", "aux.weight"),
        "no gradient arrives: `aux` is never called.",
        "Call it, or freeze it.",
        cause="not-called",
    )
    return RunHistory(
        TrainingRun(
            "train.py",
            START,
            arguments=("--epochs", "3"),
            versions=VERSIONS,
            device="cpu",
            ended=START + 252.4,
            exit="0",
            steps=of,
            every=40,
            plain=0.182,
            sampled_seconds=0.240,
            cost=0.016,
            notices=("the optimizer holds 2 tensors that are of no module",),
        ),
        models=(TrainedModel(0, "net", "SimpleNet", 21_840, 21_840, 11),),
        steps=tuple(step(n, of, sampled=n in looked) for n in range(1, of + 1)),
        sampled=looked,
        events=(
            TrainingEvent(1, 0.1, "model-found", "`net` (SimpleNet), 21,840 parameters"),
            *(TrainingEvent(n, 0.2 * n, "clipping", f"from 1.{n} to 1") for n in (40, 41, 981)),
        ),
        findings=(
            TrainingFinding(vanishing, ((1, 400), (800, 840)), 0),
            TrainingFinding(missing, ((1, of),), 0),
        ),
        parameters=(
            *(series(f"{name}.weight", looked) for name in ("conv1", "conv2", "fc1", "out")),
            *(series(f"{name}.bias", looked) for name in ("conv1", "conv2", "fc1", "out")),
            series("aux.weight", looked, grad_norm=none, update_ratio=none, clipped_norm=none),
        ),
        calls=tuple(series(name, looked, call=0) for name in ("", "conv1", "conv2", "fc1", "out")),
    )


def read() -> RunHistory:
    """The first 150 steps of it, all of whose gradients were read; one of them is NaN or Inf."""
    of, whole = 150, small()
    looked = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144)
    names = ("conv1.weight", "conv1.bias", "out.weight", "out.bias")
    parameters = []
    for name in names:
        norms = norms_of(name, range(1, of + 1))
        places = [step - 1 for step in looked]
        sampled = tuple(norms.gradient[i] for i in places)
        one = series(name, looked, grad_norm=sampled)
        if name == "out.weight":
            norms.gradient[120] = norms.clipped[120] = math.nan
        parameters.append(replace(one, norms=norms))
    missing = (None,) * len(looked)
    aux = series("aux.weight", looked, grad_norm=missing, update_ratio=missing)
    return replace(
        whole,
        run=replace(whole.run, steps=of, ended=START + 30),
        steps=tuple(step(n, of, sampled=n in looked) for n in range(1, of + 1)),
        sampled=looked,
        events=(),
        findings=(),
        parameters=(*parameters, aux),
        calls=(),
    )


def norms_of(name: str, steps: Sequence[int]) -> NormSeries:
    """Norms that fall, with one spike; the weight's at each sixteenth step."""
    draw, values = random.Random(name), [*steps][::16]
    gradient = array("d", [draw.lognormvariate(0, 0.1) * 0.1 / math.sqrt(n) for n in steps])
    gradient[70] *= 50
    clipped = array("d", [min(norm, 0.05) for norm in gradient])
    value = array("d", [10 + n / 100 for n in values])
    return NormSeries(array("q", steps), gradient, clipped, array("q", values), value)


def gan() -> RunHistory:
    """Two models and two optimizers; a NaN is made at step 89, and the script raises."""
    of, looked = 90, (1, 2, 3, 20, 40, 60, 80, 89)
    given = TensorStats((32, 1), "float32", 32, 12.1, 0.4, 1.9, -3.2, 98.31, 2, 0, 0)
    origin = NonFiniteOrigin(
        *("nan", "loss"),
        "`log` at train.py:61 (`loss = -torch.log(1 - score).mean()`) made NaN of finite numbers: "
        "log of -0.0312",
        op="log",
        location="train.py:61",
        reason="log of -0.0312",
        count=2,
        inputs=(given,),
        spread=("main.0.weight", "main.2.weight", "main.4.weight", "main.6.weight", "main.8"),
        advice="keep its input above 0",
    )
    made = Finding(
        *("GS301", "non-finite", "error", ""),
        f"{origin.message}. It spread to `main.0.weight` and 4 more.",
        "Keep its input above 0.",
        value=2.0,
        cause="loss",
        location="train.py:61",
    )
    spike = Finding(
        *("GS601", "loss-spike", "warning", ""),
        "the loss of 41.2 is 37 median deviations above the 50 steps before.",
        "",
        value=37.0,
        threshold=10.0,
    )
    steps = []
    for n in range(1, of + 1):
        name = "optimizerD" if n % 2 else "optimizerG"
        known: dict[str, object] = {"clipped_norm": None, "loss_scale": 65536.0 / (1 + n // 40)}
        one = step(n, of, optimizer=name, optimizer_step=(n + 1) // 2, sampled=n in looked, **known)
        if n >= 89:
            one = replace(one, losses=(None,), nonfinite="nan", gradient_norm=None)
        elif n == 71:
            one = replace(one, losses=(41.2, 40.8), gradient_norm=812.0)
        steps.append(one)
    lost = tuple(3 if n == 89 else 0 for n in looked)
    return RunHistory(
        TrainingRun(
            "dcgan.py",
            START,
            versions=VERSIONS,
            device="cuda:0 (NVIDIA H100)",
            ended=START + 18.4,
            exit="ValueError: Expected parameter logits to satisfy the constraint",
            steps=of,
            every=20,
            plain=0.0912,
            sampled_seconds=0.151,
            cost=0.0196,
        ),
        models=(
            TrainedModel(0, "netD", "Discriminator", 2_765_568, 2_765_568, 14),
            TrainedModel(1, "netG", "Generator", 3_576_704, 3_576_000, 15, first_step=2),
        ),
        steps=tuple(steps),
        sampled=looked,
        events=(
            *(
                TrainingEvent(n, 0.2 * n, "skipped-step", "the gradient scaler skipped a step")
                for n in (40, 80)
            ),
            TrainingEvent(89, 17.9, "non-finite", "NaN in the loss"),
        ),
        findings=(
            TrainingFinding(made, ((89, 90),), 0, origin),
            TrainingFinding(spike, ((71, 71),)),
        ),
        parameters=tuple(
            series(f"main.{i}.weight", looked, model=m, **({"nonfinite": lost} if m == 0 else {}))
            for m in (0, 1)
            for i in (0, 2, 4)
        ),
    )


def many() -> RunHistory:
    """500 parameters in 62 equal blocks, still running."""
    of, looked = 400, looked_at(400, 25)
    names = [
        f"model.layers.{i}.{part}.weight"
        for i in range(62)
        for part in (
            *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            *("self_attn.o_proj", "post_attention_layernorm", "mlp.up_proj", "mlp.down_proj"),
        )
    ]
    dead = (0.0,) * len(looked)
    name = "model.layers.40.mlp.up_proj.weight"
    zero = Finding(
        *("GS103", "zero-gradient", "error", name),
        "its gradient is exactly zero.",
        "Look at the activation behind it.",
    )
    known = {name: {"grad_norm": dead, "update_ratio": dead}}
    return RunHistory(
        TrainingRun("finetune.py", START, steps=of, every=25, plain=1.2, rank=0, world_size=4),
        models=(
            TrainedModel(
                *(0, "", "CausalLM", 6_738_415_616, 6_738_415_616, 500),
                autocast="bfloat16",
                compiled="model",
            ),
        ),
        judgement=Judgement(
            ("GS103", "GS104", "GS301"),
            (
                *(NotJudged(code, "calls", 1, 0, "--compiled") for code in CALLS),
                *(NotJudged(f"GS60{n}", "steps", 33, 20 + n, "--every 16") for n in (1, 2)),
                NotJudged("GS604", "samples", 11, 9, "--every 16"),
                NotJudged("GS506", "first-step", 1, 0, "--first 1"),
                NotJudged("GS603", "steps", 1026, 400, "a run of 1026 steps or more"),
            ),
        ),
        steps=tuple(step(n, of, sampled=n in looked, optimizer="AdamW") for n in range(1, of + 1)),
        sampled=looked,
        findings=(TrainingFinding(zero, ((275, of),), 0),),
        parameters=tuple(
            series(one, looked, **known.get(one, {}))
            for one in ("model.embed_tokens.weight", *names, "model.norm.weight", "lm_head.weight")
        ),
        ranks=(
            TrainingRun("finetune.py", START, steps=of, rank=0, world_size=4),
            TrainingRun("finetune.py", START, steps=of - 1, rank=1, world_size=4, ended=START + 9),
            TrainingRun("finetune.py", START, steps=3, rank=2, world_size=4),
        ),
        age=2.5,
    )


def empty() -> RunHistory:
    """A script that was killed before its first step."""
    return RunHistory(TrainingRun("train.py", START), age=7322.0)


def one_step() -> RunHistory:
    """One step, looked at, of a model without a name, by hand."""
    return RunHistory(
        TrainingRun("-m", START, arguments=("pkg.train",), steps=1, ended=START + 3, exit="1"),
        models=(TrainedModel(0, "Linear", "Linear", 10, 10, 1),),
        steps=(step(1, 1, optimizer="", clipped_norm=None, learning_rates=(), sampled=True),),
        sampled=(1,),
        parameters=(series("weight", (1,)), series("bias", (1,))),
        calls=(series("", (1,), call=0),),
        judgement=Judgement(
            ("GS301", "GS405", "GS501", "GS502", "GS503", "GS505", "GS506"),
            tuple(
                NotJudged(code, unit, needs, 1, f"a run of {needs} steps or more")
                for code, unit, needs in (
                    *(("GS101", "samples", 3), ("GS102", "samples", 3), ("GS601", "steps", 33)),
                    *(("GS603", "steps", 1026), ("GS604", "samples", 11)),
                )
            ),
        ),
    )


def hostile() -> RunHistory:
    """Names that move cursors, mark up and take half a page; figures at the ends of all floats."""
    looked = (1, 2, 4)
    names = ("\x1b[31mred", "[bold]b[/bold].w", "a" * 70 + ".weight", "x\u202ey\n|z", "層.重み")
    values = (1e300, -1e308, math.inf)
    finding = Finding(
        *("GS\x1b[2J", "[link=x]", "disaster", names[0]),
        "`a`|b\nc\x07",
        "[red]help[/red]",
        location="\x1b]0;title\x07",
    )
    origin = NonFiniteOrigin(
        "nan", "for\nward", "boom\x1b[A", op="[i]op", name=names[1], spread=names
    )
    whole = (None, None)
    return RunHistory(
        TrainingRun(
            "tr\x1b[31main.py",
            1e300,
            arguments=("[bold]", "a\nb", "*x*"),
            versions={"to\nrch": "\x1b[0m"},
            device="[cpu]",
            ended=1.0,
            exit="Err\x1b[2Jor: [/]",
            steps=4,
            cost=7.5,
            notices=("\x1b[5m[blink]",),
        ),
        models=(TrainedModel(0, "[x]\x1b", "T\n", 0, 0, 0), TrainedModel(1, "", "", 3, 1, 1)),
        steps=tuple(
            step(n, 4, losses=whole, nonfinite="in\x1bf", gradient_norm=x, optimizer="[o]\x1b[1m")
            for n, x in enumerate((*values, math.nan), 1)
        ),
        sampled=looked,
        events=(TrainingEvent(1, math.inf, "\x1b[2Jkind", "[b]\nmessage"),),
        findings=(
            TrainingFinding(finding, (), 0),
            TrainingFinding(finding, tuple((n, n) for n in range(1, 90, 2)), 7, origin),
        ),
        parameters=tuple(series(name, looked, grad_norm=values) for name in names),
        calls=(series(names[1], looked, call=3, out_norm=values),),
        judgement=Judgement(
            ("\x1b[31mG",), (NotJudged("[bold]\x1b[1m", "\x1b[0m", 1, 0, "--\x1b[2J[/]"),)
        ),
    )


#: Every sample by its name.
def causes() -> RunHistory:
    """60 steps of two models: one optimizer's rate is 0, and what follows from that."""
    of, looked = 60, (1, 2, 3, 5, 8, 13, 21, 34, 55)
    weights = tuple(f"{name}.weight" for name in ("conv1", "conv2", "fc1", "out"))

    def stalled(name: str, model: int) -> TrainingFinding:
        finding = Finding(
            *("GS605", "stalled-layer", "warning", name),
            "it moves by 0 of its norm per step, and moved by 0.001000 before.",
            "Look at the layer's activations.",
            value=0.0,
            threshold=1e-3,
            source="gradscope, calibrated",
        )
        return TrainingFinding(finding, ((21, of),), model)

    rate = Finding(
        *("GS806", "zero-learning-rate", "error", "optG"),
        "the learning rate of `optG` is 0 in all 30 steps: no step moves a weight. `sched` "
        "(LambdaLR) sets it.",
        "Look at where the rate is computed.",
        value=0.0,
        location="train.py:31",
    )
    update = Finding(
        *("GS104", "update-ratio", "warning", "conv1.weight"),
        "4 parameters with a gradient did not move in the step: conv1.weight and 3 more.",
        "Look at the learning rate of this parameter group.",
        value=0.0,
        threshold=0.0,
        source="a step that moves nothing",
    )
    frozen = Finding(
        *("GS403", "frozen-but-moving", "warning", "bn1"),
        "`backbone`, of which it is a part, is frozen, and in train mode.",
        "Call `backbone.eval()` after `train()`.",
    )
    bias = Finding(
        *("GS505", "bias-before-batchnorm", "info", "conv1.bias"),
        "the batch norm behind it, `bn1`, subtracts it again.",
        "Make the layer with `bias=False`.",
    )
    return RunHistory(
        TrainingRun(
            *("train.py", START),
            versions=VERSIONS,
            device="cpu",
            ended=START + 12.4,
            exit="0",
            steps=of,
            plain=0.182,
            sampled_seconds=0.240,
            cost=0.016,
            cost_seconds=0.2,
        ),
        models=(
            TrainedModel(0, "netG", "Generator", 21_840, 21_840, 11),
            TrainedModel(1, "netD", "Critic", 21_840, 21_840, 11),
        ),
        steps=tuple(
            step(n, of, sampled=n in looked, optimizer=("optG", "optD")[n % 2])
            for n in range(1, of + 1)
        ),
        sampled=looked,
        findings=(
            TrainingFinding(update, ((1, of),), 0),
            *(stalled(name, 0) for name in weights[1:]),
            stalled("conv1.weight", 1),
            TrainingFinding(frozen, ((3, of),), 1),
            TrainingFinding(bias, ((1, of),), 1),
            TrainingFinding(rate, ((1, of),), parameters=tuple((0, name) for name in weights)),
        ),
        parameters=tuple(series(name, looked, model=model) for model in (0, 1) for name in weights),
        judgement=Judgement(("GS101", "GS104", "GS403", "GS605", "GS806")),
    )


SAMPLES: dict[str, Callable[[], RunHistory]] = {
    "small": small,
    "gan": gan,
    "many": many,
    "read": read,
    "empty": empty,
    "one-step": one_step,
    "hostile": hostile,
    "causes": causes,
}
