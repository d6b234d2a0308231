"""The keys of a config: their types, defaults and meanings. A new key is a field here.

``Expected`` describes a key's form in plain words, for errors; descriptions feed the JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from pydantic.fields import FieldInfo

from gradscope.actions import ACTIONS, PLACES
from gradscope.config.parallel import (
    CALL,
    INPUT,
    LOSS,
    OPTIMIZER,
    TEXTS,
    Ddp,
    Expected,
    Fsdp,
    Parallel,
    Patterns,
    Positive,
    Strict,
    Truth,
    TruthOrNull,
    called,
    defaults,
    each_called,
    integer,
    listed,
    loss_call,
    named,
    or_truth,
)
from gradscope.config.targets import LOSSES, OPTIMIZERS
from gradscope.config.words import Complaint

_BACKENDS: Final = ("inductor", "aot_eager", "eager", "cudagraphs")
_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Compile(Strict):
    """Arguments of ``torch.compile``."""

    backend: Annotated[
        Literal["inductor", "aot_eager", "eager", "cudagraphs"],
        Expected(f"one of {', '.join(_BACKENDS)}", _BACKENDS),
    ] = Field(
        default="inductor",
        description="inductor generates kernels; aot_eager and eager stop before that, to find the "
        "stage that diverges.",
    )
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None,
        Expected(f"one of {', '.join(_MODES)}, or null", _MODES),
    ] = Field(default=None, description="What inductor optimizes for; null is PyTorch's default.")
    dynamic: TruthOrNull = Field(
        default=None, description="Kernels for all shapes; null is PyTorch's default."
    )
    fullgraph: Truth = Field(
        default=False, description="Raise an error where the graph would break."
    )


def check_compile(config: Mapping[str, Any]) -> Iterator[Complaint]:
    """Check for conflicts between ``compile`` and other keys."""
    wanted = config.get("compile")
    if not wanted and not isinstance(wanted, Mapping):
        return
    for key, why in (
        ("call", "the method would run eagerly"),
        ("parallel", "the model runs eagerly in each process"),
    ):
        if config.get(key):
            message = f"`compile` and `{key}` do not go together: {why}"
            yield Complaint(("compile",), message, f"leave `{key}` out")
    if (
        isinstance(wanted, Mapping)
        and wanted.get("mode")
        and wanted.get("backend", "inductor") != "inductor"
    ):
        message = f"`compile.mode` is for inductor, and the backend is {wanted['backend']}"
        yield Complaint(("compile", "mode"), message, "leave it out")


DEVICE: Final = r"^(auto|cpu|cuda(:[0-9]+)?|mps|meta)$"


class Backward(Strict):
    """Settings of backward."""

    gradient: Annotated[Any, Expected("numbers or a source")] = Field(
        default=None,
        description="External gradient for a non-scalar output: numbers, nested lists of "
        "them, or a source such as {file: g.npy}.",
    )
    repeats: Positive = Field(
        default=1, description="How often backward runs after one forward; gradients accumulate."
    )
    retain_graph: Truth = Field(
        default=False, description="Keep the graph after backward; more than one repeat needs it."
    )


_ACTIONS: Final = tuple(ACTIONS)
_VALUE: Final = {
    "anyOf": [{"type": "number"}, {"type": "array"}, {"type": "object"}, {"type": "null"}]
}


class InterventionConfig(Strict):
    """One intervention: the layers, the tensor, the action, and its value."""

    layers: Patterns = Field(
        description="The modules; for parameter_grad their own parameters, or parameters by name."
    )
    do: Annotated[
        str,
        WithJsonSchema({"enum": list(_ACTIONS)}),
        Expected(f"one of {', '.join(_ACTIONS)}", _ACTIONS),
    ] = Field(description="The action.")
    at: Annotated[
        Literal["grad_output", "grad_input", "parameter_grad", "activation"] | None,
        Expected(f"one of {', '.join(PLACES)}, or null", PLACES),
    ] = Field(
        default=None,
        description="Tensor to change: the gradient of the output, of the input or of the "
        "parameters, or the output itself; null is grad_output, or activation for detach.",
    )
    value: Annotated[
        Any, WithJsonSchema(_VALUE), Expected("a number, nested lists of numbers, or {file: PATH}")
    ] = Field(
        default=None,
        description="The limit, the factor, the standard deviation, or the replacement.",
    )


#: Other facts on these keys are in the rules, which no config imports.
PRESETS: Final = ("sagemaker", "deepchecker", "autotrainer")
FAIL_ON: Final = ("error", "warning", "info", "never")
_Codes = Annotated[
    list[str],
    BeforeValidator(listed),
    WithJsonSchema(TEXTS),
    Expected("a list of rules", item="text: a rule's code, the beginning of codes, or a name"),
]


class Rules(Strict):
    """Choice of rules and their thresholds."""

    preset: Annotated[
        Literal["sagemaker", "deepchecker", "autotrainer"] | None,
        Expected("sagemaker, deepchecker, autotrainer or null", PRESETS),
    ] = Field(default=None, description="The thresholds of another tool instead of gradscope's.")
    select: _Codes = Field(
        default=[],
        description="Only these rules: codes, beginnings of codes (GS1), or names; empty: all.",
    )
    ignore: _Codes = Field(default=[], description="Not these rules, written as in select.")
    thresholds: Annotated[
        dict[str, dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]],
        Expected(
            "a mapping of rules to thresholds",
            item="a mapping of a rule's thresholds to numbers",
            inner="a number from 0",
        ),
    ] = Field(
        default={},
        description="Numbers of your own by rule and name: {GS101: {ratio: 1e-4}}; "
        "`gradscope rules GS101` lists the names.",
    )
    fail_on: Annotated[
        Literal["error", "warning", "info", "never"] | None,
        Expected("error, warning, info, never or null", FAIL_ON),
    ] = Field(
        default=None,
        description="Exit with 1 if a finding has this severity or worse; null leaves it to the "
        "command: never for inspect, error for check.",
    )


class Config(Strict):
    """A gradscope config: a model, its inputs, and the settings of backward."""

    model: Annotated[str | dict[str, Any], WithJsonSchema(CALL), Expected("a spec or a mapping")]
    weights: Annotated[str | None, Expected("DEFAULT, the name of weights, or null")] = Field(
        default=None,
        description="null for random weights, DEFAULT, or a name that torchvision, timm or "
        "transformers gives to weights.",
    )
    checkpoint: Annotated[str | None, Expected("the path of a file, or null")] = Field(
        default=None,
        description="Weights from a file: .safetensors, or .pt and .pth (weights only).",
    )
    replace: Annotated[
        dict[str, Any],
        BeforeValidator(each_called),
        WithJsonSchema({"type": "object", "additionalProperties": CALL}),
        Expected("a mapping of module names to replacements"),
    ] = Field(default={}, description="Modules to put in place of others: {fc: {_target_: …}}.")
    freeze: Patterns = Field(
        default=[], description='Parameters that get no gradient, by pattern: ["**", "!fc.**"].'
    )
    mode: Annotated[Literal["train", "eval"], Expected("train or eval", ("train", "eval"))] = Field(
        default="train", description="model.train() or model.eval()."
    )
    eval_modules: Patterns = Field(
        default=[],
        description="Modules in eval mode, by pattern; their submodules keep training: "
        '"type:BatchNorm2d", "encoder.**".',
    )
    call: Annotated[str | None, Expected("the name of a method, or null")] = Field(
        default=None,
        description="The method of the model that a step calls with the batch, training_step for "
        "one; null is forward. Its result is read like forward's.",
    )
    input: Annotated[Any, WithJsonSchema(INPUT), Expected("a source")] = Field(
        default=None,
        description="Inputs of the model; null infers them. A source has one of shape, "
        "image, file, text, tokens, values (and fill, dtype, requires_grad, batch, transform "
        "beside it); a mapping of sources is keyword arguments, a list of them positional ones; "
        "{_target_: ./data.py:batches}, or ./data.py:batches alone, gives a batch or an iterable "
        "of batches.",
    )
    classes: Annotated[
        list[str] | str | None,
        BeforeValidator(named),
        Expected(
            "a list of names, the path of a file with a name on each line, or null",
            item="a name, which is text",
        ),
    ] = Field(
        default=None,
        description="Names of the model's classes by number, for saliency: a list, or a text file "
        "with a name on each line. null: those that come with the weights.",
    )
    target: Annotated[Any, Expected("numbers, a file or a source")] = Field(
        default=None,
        description="Targets of the loss: class ids, values, the path of a file, a "
        "source, or random; null draws random classes if the loss needs them.",
    )
    loss: Annotated[
        str | dict[str, Any] | None,
        BeforeValidator(loss_call),
        WithJsonSchema(LOSS),
        Expected("the name of a loss, a mapping with `_target_`, or null", LOSSES),
    ] = Field(
        default=None,
        description="Loss, the start of backward. null: the model's own loss, else cross entropy "
        "for outputs [N, C], else the sum. output: the model's own .loss. A _target_ is called "
        "with (output, target).",
    )
    backward: Annotated[Backward, Expected("a mapping with gradient, repeats, retain_graph")] = (
        Field(default_factory=Backward, description="Settings of backward.")
    )
    accumulate: Positive = Field(
        default=1,
        description="Micro-batches that each batch is cut into; each loss is divided by their "
        "number, and gradients accumulate.",
    )
    interventions: Annotated[
        list[InterventionConfig],
        Expected(
            "a list of mappings with layers, do, at, value",
            item="a mapping with layers, do, at, value",
        ),
    ] = Field(
        default=[],
        description="Experiments: hooks that change activations or gradients on their way.",
    )
    layers: Patterns = Field(
        default=["**"],
        description='Modules to select, by pattern: "conv*", "layer4.**", "type:Conv2d".',
    )
    optimizer: Annotated[
        dict[str, Any] | None,
        BeforeValidator(called),
        WithJsonSchema(OPTIMIZER),
        Expected("the name of an optimizer, a mapping with `_target_`, or null", tuple(OPTIMIZERS)),
    ] = Field(
        default=None,
        description="null takes no step. A name in small letters, adam or sgd, is one of torch's "
        "with its own defaults; {_target_: adamw, lr: 0.001} has arguments too. param_groups is "
        'a list of groups by pattern: [{params: "fc.*", lr: 0.0001}].',
    )
    steps: Positive = Field(
        default=1, description="Training steps to run; calls and parameters describe the last."
    )
    device: Annotated[
        str,
        Field(pattern=DEVICE),
        Expected("auto, cpu, cuda, cuda:N, mps or meta", ("auto", "cpu", "cuda", "mps", "meta")),
    ] = Field(
        default="auto",
        description="auto takes a GPU where there is one; meta computes shapes only.",
    )
    dtype: Annotated[
        Literal["float32", "float64", "float16", "bfloat16"],
        Expected(
            "float32, float64, float16 or bfloat16", ("float32", "float64", "float16", "bfloat16")
        ),
    ] = Field(default="float32", description="Of parameters and floating inputs.")
    compile: Annotated[
        Compile | None,
        BeforeValidator(defaults),
        Expected("a mapping with backend, mode, dynamic, fullgraph, or true or false"),
    ] = Field(
        default=None,
        description="Compile the model by torch.compile; true takes its defaults. Only diff runs "
        "it compiled; all other commands run it eagerly.",
        json_schema_extra=or_truth,
    )
    autocast: Annotated[
        Literal["bfloat16", "float16"] | None,
        Expected("bfloat16, float16 or null", ("bfloat16", "float16")),
    ] = Field(default=None, description="Run forward under autocast with this dtype.")
    seed: Annotated[
        int,
        Field(ge=0, lt=2**32),
        BeforeValidator(integer),
        Expected("an integer from 0 to 4294967295"),
    ] = Field(
        default=0, description="Set before construction, before inputs, and before each forward."
    )
    random_state: Annotated[str | None, Expected("the path of a file, or null")] = Field(
        default=None,
        description="Random states before each forward in place of seed, from the file that "
        "spike --as-config writes.",
    )
    parallel: Annotated[
        Parallel | None, Expected("a mapping with ddp, fsdp, tp, mesh, or null")
    ] = Field(
        default=None,
        description="Spread the model over the processes of torchrun, for inspect; each batch is "
        "cut among those that share the data.",
    )
    rules: Annotated[
        Rules, Expected("a mapping with preset, select, ignore, thresholds, fail_on")
    ] = Field(default_factory=Rules, description="Which rules run, and their thresholds.")


#: The keys that hold their own keys, and those that hold a list of such mappings.
GROUPS: Final[dict[str, type[BaseModel]]] = {
    "backward": Backward,
    "compile": Compile,
    "parallel": Parallel,
    "parallel.ddp": Ddp,
    "parallel.fsdp": Fsdp,
    "rules": Rules,
}
LISTS: Final[dict[str, type[BaseModel]]] = {"interventions": InterventionConfig}


def expected(key: str) -> Expected | None:
    """Return the form of a dotted key's value; None for no key, or below a key without keys."""
    first, _, rest = key.partition(".")
    number, _, inner = rest.partition(".")
    fields, name = Config.model_fields, key
    group, _, last = key.rpartition(".")
    if group in GROUPS:
        fields, name = GROUPS[group].model_fields, last
    elif first in LISTS and number.isdecimal() and inner:
        fields, name = LISTS[first].model_fields, inner
    metadata = fields[name].metadata if name in fields else ()
    return next((item for item in metadata if isinstance(item, Expected)), None)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a config file."""
    schema = Config.model_json_schema()
    schema["properties"]["model"]["description"] = (
        "torchvision:NAME, timm:NAME, hf:DIR_OR_ID, ./net.py:Name, pkg.mod:Name, demo, "
        "demo:lecture, demo:scouter, demo:scouter-negative, "
        "or a mapping {_target_: dotted.Name, argument: value}."
    )
    inner = (*GROUPS.values(), *LISTS.values())
    groups = [schema["$defs"][group.__name__]["properties"] for group in inner]
    for properties in (schema["properties"], *groups):
        for name, part in properties.items():
            part.pop("title", None)
            properties[name] = _or_interpolated(part)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gradscope config",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def _or_interpolated(part: dict[str, Any]) -> dict[str, Any]:
    """Allow an interpolation in place of a number or one of a few words."""
    outer: dict[str, Any] = {
        key: part.pop(key) for key in ("default", "description") if key in part
    }
    variable = {"type": "string", "pattern": r"^\$\{env:.*\}$"}
    members = part.get("anyOf", [part])
    if any({"type": "string"}.items() == member.items() for member in members) or "$ref" in part:
        return {**outer, **part}
    closed = part and not any(member.get("type") in ("object", "array") for member in members)
    return {**outer, "anyOf": [*members, variable]} if closed else {**outer, **part}


@dataclass(frozen=True, slots=True)
class KeyText:
    """The documentation of a dotted key. ``default`` is empty for a required key."""

    name: str
    takes: str
    default: str
    description: str


#: Keys inside ``input``: (form, default, meaning).
_INPUT: Final = {
    "shape": ("a list of sizes", "", "Random numbers of this shape."),
    "fill": (
        "randn, rand, zeros, ones, arange, randint(N) or a number",
        "randn",
        "How a tensor of this shape is filled.",
    ),
    "image": ("a path, a pattern or a list of these", "", "Pictures, as one batch."),
    "transform": (
        "a mapping with resize, crop, mean, std, grayscale, invert",
        "the weights' own",
        "The transform of pictures before the model gets them.",
    ),
    "file": ("a path", "", "Tensors from a .npy, .npz, .pt or .safetensors file."),
    "text": ("text or a list of it", "", "Token ids for a model of transformers."),
    "tokens": ("a list of numbers", "", "Token ids as they are."),
    "values": ("numbers and lists of them", "", "These numbers, as a tensor."),
    "value": ("anything", "", "This value as it is, no tensor: a flag, a number, a word."),
    "dtype": ("the name of a dtype", "the config's dtype", "Of this input."),
    "requires_grad": ("true or false", "false", "Have a gradient flow into this input."),
    "batch": ("an integer from 1", "2", "Samples of an input that is inferred or repeated."),
}


def keys() -> Iterator[KeyText]:
    """Yield the keys of the config in the order of its schema; the keys of a group, and of the
    input, follow it."""
    for name, field in Config.model_fields.items():
        yield _key(name, field, group=name in GROUPS)
        yield from _inner(name)
        if name == "input":
            yield from (KeyText(f"input.{inner}", *texts) for inner, texts in _INPUT.items())


def _inner(key: str) -> Iterator[KeyText]:
    """Yield the keys below a key, at all levels."""
    for inner, part in _fields(key):
        name = f"{key}.{inner}"
        yield _key(name, part, group=name in GROUPS)
        yield from _inner(name)


def _fields(key: str) -> Iterator[tuple[str, FieldInfo]]:
    model: type[BaseModel] | None = GROUPS.get(key) or LISTS.get(key)
    first = "0." if key in LISTS else ""
    for name, part in model.model_fields.items() if model else ():
        yield f"{first}{name}", part


def _key(name: str, field: FieldInfo, *, group: bool = False) -> KeyText:
    takes = expected(name)
    description = field.description or json_schema()["properties"][name]["description"]
    default = "" if field.is_required() or group else _written(field.get_default())
    return KeyText(name, takes.words if takes else "", default, description)


def _written(value: Any) -> str:
    """Return a default as a config would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(json.dumps(item) for item in value)}]"
    return "{}" if value == {} else str(value)
