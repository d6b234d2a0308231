"""Configs, keys, options, names and targets that are nearly right."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from hypothesis import strategies as st

from fuzz.attempts import Attempt
from fuzz.values import ARGUMENTS, NUMBERS, VALUES, WORDS, trees

CONFIGS = Path(__file__).parents[2] / "configs"
#: Those that run in a moment.
NAMES = (
    *("simplenet", "training-steps", "autocast", "accumulation", "checkpointed", "clipping"),
    *("closed-form", "detached", "in-place", "keyword-inputs", "lstm", "micro-batches", "mynet"),
    *("tensor-hook", "rnn-cell"),
)
MODULES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (CONFIGS / "data.py", CONFIGS / "lecture.py", CONFIGS / "nets.py")
}
TEXTS = {name: (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8") for name in NAMES}
COMMANDS = st.sampled_from(
    [
        *(("inspect",), ("inspect", "-f", "json"), ("inspect", "-o", "made.json")),
        *(("check",), ("why",), ("layers",), ("graph",), ("graph", "-f", "mermaid")),
    ]
)
#: Not ``steps`` and ``backward.repeats``: so many are run as somebody asks for.
KEYS = st.sampled_from(
    [
        *("model", "weights", "checkpoint", "replace", "freeze", "mode", "input", "input.shape"),
        *("input.values", "input.fill", "input.batch", "input.dtype", "target", "loss", "backward"),
        *("input.file", "input.image", "input.tokens", "input.text", "input.requires_grad"),
        *("input.transform", "backward.gradient", "backward.retain_graph"),
        *("layers", "interventions", "optimizer", "optimizer.lr", "device", "dtype"),
        *("autocast", "seed", "call", "rules", "rules.thresholds", "rules.select", "classes"),
        *("accumulate", "model.num_classes", "replace.0", "a.b.c", "interventions.0.value"),
    ]
)
OPTIONS = st.sampled_from(
    [
        *("-l", "--exclude", "--device", "--dtype", "--seed", "-f", "--sort", "--top"),
        *("--columns", "--depth", "--bar", "--chain", "--width", "--color", "--set"),
        *("--allow", "--table", "--fail-on", "--fold", "--nonsense"),
    ]
)
_INTERVENTIONS = [
    {"layers": "**", "at": "activation", "do": "scale", "value": 2},
    {"layers": "**", "at": "grad_output", "do": "clip_norm", "value": 0.1},
    {"layers": "**", "at": "parameter_grad", "do": "noise", "value": 1.0},
    {"layers": "**", "at": "grad_input", "do": "replace", "value": [1.0]},
]
_CALLED = st.sampled_from(
    [
        *("torch.nn.Linear", "torch.nn.Conv2d", "torch.nn.Embedding", "torch.nn.LSTM"),
        *("torch.nn.Transformer", "torch.nn.Sequential", "torch.nn.Flatten", "torch.nn.Softmax"),
        *("torch.nn.BatchNorm2d", "torch.nn.Dropout", "torch.nn.Upsample", "torch.nn.Module"),
        *("torch.nn.MultiheadAttention", "torch.nn.LayerNorm", "torch.nn.PReLU", "torch.nn.Fold"),
        *("torch.nn.LazyLinear", "torch.nn.ZeroPad2d", "torch.nn.AdaptiveAvgPool2d"),
        *("torch.nn.functional.relu", "torch.optim.SGD", "torch.optim.Adam", "torch.optim.LBFGS"),
        *("torchvision.ops.MLP", "torchvision.transforms.Resize", "torchvision.models.resnet18"),
        *("timm.create_model", "transformers.BertConfig", "torch.load", "os.system", "torch.nn"),
        *("builtins.eval", "torch.nn.modules.linear.sys.exit", "torch.hub.load", "./c.yaml:x"),
    ]
)
_ARGUMENTS = st.sampled_from(
    [
        *("in_features", "out_features", "in_channels", "out_channels", "kernel_size", "padding"),
        *("num_embeddings", "embedding_dim", "input_size", "hidden_size", "num_layers", "dim"),
        *("normalized_shape", "p", "lr", "d_model", "nhead", "model_name", "num_classes", "size"),
        *("stride", "dilation", "groups", "num_features", "output_size", "_partial_", "dtype"),
    ]
)


@st.composite
def configs(draw: st.DrawFn) -> Attempt:
    """A config of the project's in which a value or two are something else."""
    tree = draw(trees(yaml.safe_load(TEXTS[draw(st.sampled_from(NAMES))])))
    text = yaml.safe_dump(tree, allow_unicode=draw(st.booleans()), sort_keys=False)
    return Attempt("config", (*draw(COMMANDS), "c.yaml"), {**MODULES, "c.yaml": text})


@st.composite
def texts(draw: st.DrawFn) -> Attempt:
    """A config whose text is cut, doubled or broken somewhere."""
    text = TEXTS[draw(st.sampled_from(NAMES))]
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    signs = ["&a", "*a", "!!", "<<: ", "\t", "- ", "{", "[" * 10_000, "%", "|", "9" * 100_000]
    put = draw(st.one_of(st.text(max_size=8), st.sampled_from(signs)))
    text = text[:start] + put + text[end:]
    return Attempt("text", (*draw(COMMANDS), "c.yaml"), {**MODULES, "c.yaml": text})


@st.composite
def overrides(draw: st.DrawFn) -> Attempt:
    """``key=value`` with any value for a key that there is."""
    value = json.dumps(draw(VALUES)).replace("\0", "")
    return Attempt("key", (*draw(COMMANDS), "demo", f"{draw(KEYS)}={value}"))


@st.composite
def fills(draw: st.DrawFn) -> Attempt:
    """A shape filled with any number, or drawn between any two."""
    first, second = draw(NUMBERS), draw(NUMBERS)
    fill = draw(st.sampled_from([first, f"randint({first})", f"randint({first}, {second})"]))
    dtype = draw(st.sampled_from([None, "int64", "uint8", "float16", "bool", "complex64"]))
    tree = {"shape": draw(st.lists(st.integers(0, 3), max_size=3)), "fill": fill, "dtype": dtype}
    return Attempt("key", (*draw(COMMANDS), "demo", f"input={json.dumps(tree)}"))


@st.composite
def interventions(draw: st.DrawFn) -> Attempt:
    """An experiment in which a value or two are something else."""
    tree = draw(trees([draw(st.sampled_from(_INTERVENTIONS))]))
    word = f"interventions={json.dumps(tree)}".replace("\0", "")
    return Attempt("key", (*draw(COMMANDS), "demo", word))


@st.composite
def targets(draw: st.DrawFn) -> Attempt:
    """A call in the config, of something real or not, with any arguments."""
    tree: dict[str, object] = {"_target_": draw(st.one_of(_CALLED, WORDS))}
    tree |= draw(st.dictionaries(_ARGUMENTS, st.one_of(NUMBERS, VALUES), max_size=3))
    if draw(st.booleans()):
        tree["_args_"] = draw(st.lists(st.one_of(NUMBERS, VALUES), max_size=3))
    key = draw(st.sampled_from(["model", "model", "loss", "optimizer", "input", "replace"]))
    config = {"model": "demo", key: {"net.0": tree} if key == "replace" else tree}
    text = yaml.safe_dump(config, sort_keys=False)
    return Attempt("target", (*draw(COMMANDS), "c.yaml"), {"c.yaml": text})


@st.composite
def options(draw: st.DrawFn) -> Attempt:
    """Options with words that they may not take."""
    words = [draw(OPTIONS), draw(ARGUMENTS)]
    if draw(st.booleans()):
        words += [draw(OPTIONS), draw(ARGUMENTS)]
    return Attempt("option", (*draw(COMMANDS), "demo", *words))


@st.composite
def names(draw: st.DrawFn) -> Attempt:
    """Models by names that nobody has."""
    spec = draw(
        st.sampled_from(["{}", "torchvision:{}", "timm:{}", "./{}.py:Net", "hf:./{}", "demo:{}"])
    )
    return Attempt("name", (*draw(COMMANDS), "--", spec.format(draw(ARGUMENTS))))
