"""The keys below ``parallel``, and what all keys share: checks and descriptions of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gradscope.config.targets import LOSSES, OPTIMIZERS
from gradscope.config.words import Complaint


class Strict(BaseModel):
    """The base of mappings that allow only declared keys and types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


@dataclass(frozen=True, slots=True)
class Expected:
    """The form of a key's value; ``choices`` are suggested for a text close to one of them.

    ``item`` is the form of each item, ``inner`` the form of an item's own items.
    """

    words: str
    choices: tuple[str, ...] = ()
    item: str | None = None
    inner: str | None = None


def integer(value: Any) -> Any:
    """Convert a float with an integer value to an integer: YAML reads 1e3 as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def called(value: Any) -> Any:
    return {"_target_": value} if isinstance(value, str) else value


def loss_call(value: Any) -> Any:
    if isinstance(value, str) and value not in LOSSES:
        if not re.search(r"[.:]", value):
            raise ValueError("no built-in loss")
        return {"_target_": value}
    return value


def named(value: Any) -> Any:
    """Convert numbers to text: some classes have numbers as names."""
    if not isinstance(value, list):
        return value
    return [str(item) if type(item) in (int, float) else item for item in value]


def each_called(value: Any) -> Any:
    return {k: called(v) for k, v in value.items()} if isinstance(value, dict) else value


TEXTS: Final = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}
CALL: Final = {
    "anyOf": [
        {"type": "string", "description": "A dotted name or a spec, called without arguments."},
        {
            "type": "object",
            "anyOf": [
                {"required": [spelling]} for spelling in ("_target_", "class_path", "_component_")
            ],
        },
    ]
}
LOSS: Final = {"anyOf": [{"enum": list(LOSSES)}, *CALL["anyOf"], {"type": "null"}]}
INPUT: Final = {
    "anyOf": [
        {"type": "string", "description": "A function that gives batches: ./data.py:batches."},
        {"type": "object"},
        {"type": "array"},
        {"type": "null"},
    ]
}
OPTIMIZER: Final = {"anyOf": [{"enum": list(OPTIMIZERS)}, *CALL["anyOf"], {"type": "null"}]}

Truth = Annotated[bool, Expected("true or false")]
TruthOrNull = Annotated[bool | None, Expected("true, false or null")]
Positive = Annotated[int, Field(ge=1), BeforeValidator(integer), Expected("an integer from 1")]
Patterns = Annotated[
    list[str],
    BeforeValidator(listed),
    WithJsonSchema(TEXTS),
    Expected("a list of patterns", item="a pattern, which is text"),
]


#: Styles of ``tp``: those of ``torch.distributed.tensor.parallel``, and a colwise layer whose
#: output is combined again.
STYLES: Final = ("colwise", "colwise_gather", "rowwise", "sequence")
AXES: Final = ("dp", "tp")
_DTYPES: Final = ("float32", "float16", "bfloat16")
_Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    Expected("float32, float16, bfloat16 or null", _DTYPES),
]


def defaults(value: Any) -> Any:
    """Return no settings for ``true``, as in ``fsdp: true``, and None for ``false``."""
    return {} if value is True else None if value is False else value


def or_truth(schema: dict[str, Any]) -> None:
    """Add ``true`` and ``false`` to the JSON Schema of a key that ``defaults`` reads."""
    schema["anyOf"].append({"type": "boolean"})


class Ddp(Strict):
    """Arguments of ``DistributedDataParallel``."""

    find_unused_parameters: Truth = Field(
        default=False,
        description=(
            "Look for parameters that take no part in the loss: PyTorch would wait for their "
            "gradients."
        ),
    )


class Fsdp(Strict):
    """Arguments of ``fully_shard``."""

    units: Patterns = Field(
        default=[],
        description="Modules to shard as units, by pattern; the full model is a unit too.",
    )
    reshard_after_forward: TruthOrNull = Field(
        default=None, description="Free full parameters after forward; null is PyTorch's default."
    )
    param_dtype: _Dtype = Field(
        default=None, description="Dtype of full parameters in compute; null is their own."
    )
    reduce_dtype: _Dtype = Field(
        default=None, description="Dtype in which gradients are reduced; null is param_dtype."
    )


class Parallel(Strict):
    """Distribution of the model over processes: its kinds and the mesh."""

    ddp: Annotated[Ddp | None, BeforeValidator(defaults), Expected("a mapping, true or null")] = (
        Field(
            default=None,
            description="A copy in each process: DistributedDataParallel.",
            json_schema_extra=or_truth,
        )
    )
    fsdp: Annotated[Fsdp | None, BeforeValidator(defaults), Expected("a mapping, true or null")] = (
        Field(
            default=None,
            description="Shards in each process: FSDP2, fully_shard.",
            json_schema_extra=or_truth,
        )
    )
    tp: Annotated[
        dict[str, Literal["colwise", "colwise_gather", "rowwise", "sequence"]],
        Expected(
            "a mapping of layer patterns to styles", STYLES, item=f"one of {', '.join(STYLES)}"
        ),
    ] = Field(
        default={},
        description=(
            "Layers that are split, by pattern: {blocks.*.up: colwise, blocks.*.down: "
            "rowwise}. colwise_gather gathers the output again, sequence splits the second "
            "dimension of a norm's input."
        ),
    )
    mesh: Annotated[
        dict[Literal["dp", "tp"], Annotated[int, Field(ge=1)]],
        Expected("a mapping with dp and tp", AXES, item="dp or tp with an integer from 1"),
    ] = Field(
        default={},
        description="Processes that share the data, and those that share layers: {dp: 2, tp: 4}. "
        "With only one kind of parallelism, it has all processes.",
    )


def check_parallel(config: Mapping[str, Any]) -> Iterator[Complaint]:
    """Check for conflicts inside ``parallel`` and with keys beside it."""
    parallel = config.get("parallel")
    if not isinstance(parallel, Mapping):
        return
    ddp, fsdp = (parallel.get(key) not in (None, False) for key in ("ddp", "fsdp"))
    tp = bool(parallel.get("tp"))
    if not (ddp or fsdp or tp):
        help = "write `ddp: true`, `fsdp: true`, or `tp: {PATTERN: colwise}` in it"
        yield Complaint(("parallel",), "`parallel` has none of ddp, fsdp and tp", help)
    if ddp and (fsdp or tp):
        other = "fsdp" if fsdp else "tp"
        message = f"`parallel` has ddp and {other}: DistributedDataParallel keeps full replicas"
        yield Complaint(
            ("parallel", "ddp"), message, "take `fsdp`, which goes with tp, or ddp alone"
        )
    yield from _mesh(parallel.get("mesh"), {"dp": ddp or fsdp, "tp": tp})
    for key, alone, why in _ALONE:
        if key in config and config[key] not in (None, alone, [], {}):
            message = f"`{key}` and `parallel` do not go together: {why}"
            yield Complaint((key,), message, f"leave `{key}` out, or run one process alone")


#: Keys that are for one process, the value that asks for nothing, and why.
_ALONE: Final = (
    ("accumulate", 1, "each batch is cut among processes already"),
    ("backward", None, "several backwards and external gradients need one process"),
    ("interventions", None, "each process would change its part alone"),
    ("call", "forward", "PyTorch's wrappers only wrap forward"),
)


def _mesh(mesh: Any, wanted: Mapping[str, bool]) -> Iterator[Complaint]:
    """Yield complaints about the mesh: it must have both axes if both kinds are used, and no other
    axis."""
    given = mesh if isinstance(mesh, Mapping) else {}
    for axis in AXES:
        if axis in given and not wanted[axis]:
            kind = "tp" if axis == "tp" else "ddp or fsdp"
            message = f"`parallel.mesh.{axis}` is unused: there is no {kind}"
            yield Complaint(("parallel", "mesh", axis), message, "leave it out")
    if all(wanted.values()) and set(given) != set(AXES):
        message = "`parallel` has fsdp and tp: how many processes are for each?"
        yield Complaint(("parallel",), message, "write `mesh: {dp: 2, tp: 2}` in it")
