"""A config's data against its schema and its grammar: every complaint at once, in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gradscope.config.inputs import SOURCES, check_input, check_target
from gradscope.config.schema import GROUPS, Config, Expected
from gradscope.config.specs import WITHOUT_ARGUMENTS, spec_fault
from gradscope.config.targets import SPELLINGS, is_target
from gradscope.config.words import Complaint, Path, describe, dotted, unknown_key
from gradscope.errors import GradscopeError, did_you_mean
from gradscope.patterns import Pattern

#: Keys that people look for on the top floor.
_BELOW = {
    **{key: f"{group}.{key}" for group, model in GROUPS.items() for key in model.model_fields},
    **{key: f"input.{key}" for key in SOURCES},
    "lr": "optimizer.lr",
    "momentum": "optimizer.momentum",
}
_TRUTHS = ("yes", "no", "on", "off", "y", "n", "true", "false")


def check(data: Mapping[str, Any], directory: FilePath) -> tuple[Config | None, list[Complaint]]:
    """The config that ``data`` makes, or None and everything that is wrong with it.

    ``data`` has its interpolations and its target mappings already in their final form.
    """
    config, complaints = None, []
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        complaints = list(_type_complaints(error, data))
    seen = {c.path for c in complaints}
    for complaint in _grammar_complaints(data, directory):
        if not any(complaint.path[: len(path)] == path for path in seen):
            complaints.append(complaint)
    return (None if complaints else config), complaints


def _type_complaints(error: ValidationError, data: Mapping[str, Any]) -> Iterator[Complaint]:
    done: set[Path] = set()
    unknown: list[Complaint] = []
    lost: list[Complaint] = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        if fault["type"] == "missing":
            help = "add one, `model: demo` for example"
            lost.append(Complaint(fault["loc"], f"the key `{fault['loc'][0]}` is missing", help))
        elif fault["type"] == "extra_forbidden":
            unknown.append(_unknown(fault["loc"], data))
        else:
            path, value = _follow(fault["loc"], data)
            if path not in done:
                done.add(path)
                yield _wrong_type(path, value)
    yield from unknown
    # `modle: x` is one mistake, not two.
    yield from (c for c in lost if not any("`model`" in (u.help or "") for u in unknown))


def _follow(location: Path, data: Any) -> tuple[Path, Any]:
    """The part of pydantic's location that is in the data: it also names the union's members."""
    path: Path = ()
    for part in location:
        in_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not in_list and not (isinstance(data, Mapping) and part in data):
            break
        data = data[part]
        path = (*path, part)
    return path, data


def _unknown(path: Path, data: Mapping[str, Any]) -> Complaint:
    if len(path) > 1:
        group = str(path[0])
        return unknown_key(path, GROUPS[group].model_fields, given=data[group])
    word = str(path[0])
    if word in _BELOW:
        return Complaint(path, f"unknown key `{word}`", f"did you mean `{_BELOW[word]}`?", "key")
    if "model" not in data and did_you_mean(word, ["model"]):
        return unknown_key(path, ["model"])
    return unknown_key(path, Config.model_fields, given=data)


def _field(path: Path) -> tuple[FieldInfo, int]:
    """The field that a path lies in, and how deep inside it the path leads."""
    field = Config.model_fields[str(path[0])]
    inner = field.annotation
    if len(path) > 1 and isinstance(inner, type) and issubclass(inner, BaseModel):
        return inner.model_fields[str(path[1])], len(path) - 2
    return field, len(path) - 1


def _wrong_type(path: Path, value: Any) -> Complaint:
    field, depth = _field(path)
    expected = next(item for item in field.metadata if isinstance(item, Expected))
    words = (expected.words, expected.item, expected.inner)[min(depth, 2)] or expected.words
    help = None
    if isinstance(value, str):
        help = did_you_mean(_plain(value), expected.choices)
        number = value.strip().lstrip("+-").replace("_", "")
        if "number" in words and number.isdecimal():
            help = f"write it without quotes and underscores: {number}"
        if help is None and any(choice not in words for choice in expected.choices):
            help = f"the names are {', '.join(expected.choices)}"
        if words == "true or false" and value.lower() in _TRUTHS:
            help = "write `true` or `false`: YAML 1.2 reads any other word as text"
    elif isinstance(value, int | float) and "text" in words:
        help = f'put it in quotes: `"{value}"`'
    return Complaint(path, f"`{dotted(path)}` expects {words}, found {describe(value)}", help)


def _plain(word: str) -> str:
    """Other people's names for dtypes and losses, in ours."""
    word = word.lower().removeprefix("torch.").replace("-", "_")
    names = {"fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
    names |= {"fp64": "float64", "double": "float64", "bf16": "bfloat16", "gpu": "cuda"}
    names |= {"crossentropyloss": "cross_entropy", "ce": "cross_entropy", "mseloss": "mse"}
    names |= {"mse_loss": "mse", "nll_loss": "nll", "bce": "bce_with_logits"}
    names |= {"training": "train", "evaluation": "eval", "test": "eval"}
    return names.get(word, word)


def _grammar_complaints(data: Mapping[str, Any], directory: FilePath) -> Iterator[Complaint]:
    """What the types cannot say: specs, target mappings, sources, patterns."""
    model = data.get("model")
    if isinstance(model, str):
        fault = spec_fault(model, directory)
        if fault:
            yield Complaint(("model",), *fault)
    for key in ("model", "loss", "optimizer"):
        yield from _must_build(data.get(key), (key,))
    replace = data.get("replace")
    for name, value in replace.items() if isinstance(replace, Mapping) else ():
        if not isinstance(value, Mapping):
            message = f"`{dotted(('replace', name))}` expects a mapping with `_target_`"
            yield Complaint(("replace", name), f"{message}, found {describe(value)}")
        yield from _must_build(value, ("replace", name))
    loss = data.get("loss")
    if isinstance(loss, Mapping) and loss.get("_target_") in WITHOUT_ARGUMENTS and len(loss) > 1:
        yield Complaint(("loss",), f"the loss `{loss['_target_']}` takes no arguments")
    yield from check_input(data.get("input"))
    yield from check_target(data.get("target"))
    backward = data.get("backward")
    if isinstance(backward, Mapping):
        yield from check_target(backward.get("gradient"), ("backward", "gradient"))
    for key in ("layers", "freeze"):
        patterns = data.get(key)
        listed = patterns if isinstance(patterns, list) else [patterns]
        for index, pattern in enumerate(listed):
            path: Path = (key, index) if isinstance(patterns, list) else (key,)
            yield from _pattern(pattern, path)


def _must_build(value: Any, path: Path) -> Iterator[Complaint]:
    if not isinstance(value, Mapping) or is_target(value):
        return
    stuck = next((k for k in value if k.partition(":")[0] in SPELLINGS), None)
    if stuck is not None:
        word, _, name = stuck.partition(":")
        help = f"YAML wants a blank after the colon: `{{{word}: {name.strip()}, …}}`"
        yield Complaint(
            (*path, stuck), f"`{stuck}` is read as one key without a value", help, "key"
        )
        return
    close = [key for key in value if did_you_mean(key, SPELLINGS)]
    if close:
        yield unknown_key((*path, close[0]), SPELLINGS)
        return
    example = {"optimizer": "torch.optim.SGD", "loss": "torch.nn.MSELoss"}.get(str(path[0]))
    help = f"say what to build: `{dotted(path)}: {{_target_: {example or 'torch.nn.Linear'}, …}}`"
    yield Complaint(path, f"`{dotted(path)}` has no `_target_`", help)


def _pattern(value: Any, path: Path) -> Iterator[Complaint]:
    if isinstance(value, str):
        try:
            Pattern(value)
        except GradscopeError as error:
            for problem in error.problems:
                yield Complaint(path, problem.message, problem.help)
