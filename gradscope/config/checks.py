"""Checks a config's data against schema and grammar; reports all mistakes at once, in plain
words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from gradscope.actions import ACTIONS, action
from gradscope.config.inputs import SOURCES, check_input, check_target
from gradscope.config.parallel import Expected, check_parallel
from gradscope.config.schema import GROUPS, LISTS, Config, InterventionConfig, check_compile
from gradscope.config.targets import (
    SPELLINGS,
    WITHOUT_ARGUMENTS,
    definition_fault,
    is_target,
    spec_fault,
)
from gradscope.config.words import Complaint, Path, describe, dotted, shorten, unknown_key
from gradscope.errors import GradscopeError, OptionError, Problem, did_you_mean
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
    """Return the config of ``data``, or None with all its mistakes.

    Interpolations are resolved, and target mappings are in their normal form.
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


def checked_interventions(wanted: Sequence[Mapping[str, Any]]) -> list[InterventionConfig]:
    """Check interventions that do not come from a config.

    Raises:
        OptionError: with all their mistakes.
    """
    data = {"model": "demo", "interventions": [dict(one) for one in wanted]}
    config, complaints = check(data, FilePath())
    if config is None:
        raise OptionError(*(Problem(c.message, None, c.help, c.notes) for c in complaints))
    return config.interventions


def _type_complaints(error: ValidationError, data: Mapping[str, Any]) -> Iterator[Complaint]:
    done: set[Path] = set()
    unknown: list[Complaint] = []
    lost: list[Complaint] = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        if fault["type"] == "missing" and len(fault["loc"]) > 1:
            around, name = fault["loc"][:-1], fault["loc"][-1]
            words = f"`{dotted(around)}` lacks the key `{name}`"
            yield Complaint(around, words, f"write `{name}: …` in it")
        elif fault["type"] == "missing":
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
    """Return the part of pydantic's location that exists in the data; pydantic also adds the
    members of unions."""
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
        given: Any = data
        for part in path[:-1]:
            given = given[part]
        model = GROUPS.get(dotted(path[:-1])) or LISTS[str(path[0])]
        return unknown_key(path, model.model_fields, given=given)
    word = str(path[0])
    if word in _BELOW:
        return Complaint(path, f"unknown key `{word}`", f"did you mean `{_BELOW[word]}`?", "key")
    if "model" not in data and did_you_mean(word, ["model"]):
        return unknown_key(path, ["model"])
    return unknown_key(path, Config.model_fields, given=data)


def _field(path: Path) -> tuple[FieldInfo, int]:
    """Return the field that contains a path, and the depth of the path inside it."""
    group = str(path[0])
    for length in range(len(path) - 1, 0, -1):
        if (inner := dotted(path[:length])) in GROUPS:
            return GROUPS[inner].model_fields[str(path[length])], len(path) - length - 1
    if len(path) > 2 and group in LISTS:
        return LISTS[group].model_fields[str(path[2])], len(path) - 3
    return Config.model_fields[group], len(path) - 1


def _wrong_type(path: Path, value: Any) -> Complaint:
    field, depth = _field(path)
    expected = next(item for item in field.metadata if isinstance(item, Expected))
    words = (expected.words, expected.item, expected.inner)[min(depth, 2)] or expected.words
    help = None
    if isinstance(value, str):
        help = did_you_mean(_plain(value), expected.choices)
        number = value.strip().lstrip("+-").replace("_", "")
        if ("number" in words or "integer" in words) and number.isdecimal():
            help = f"write it without quotes and underscores: {number}"
        if help is None and any(choice not in words for choice in expected.choices):
            help = f"the names are {', '.join(expected.choices)}"
        if words == "true or false" and value.lower() in _TRUTHS:
            help = "write `true` or `false`: YAML 1.2 reads any other word as text"
    elif isinstance(value, int | float) and "text" in words:
        help = f'put it in quotes: `"{value}"`'
    return Complaint(path, f"`{dotted(path)}` expects {words}, found {describe(value)}", help)


def _plain(word: str) -> str:
    """Return gradscope's name for a dtype or a loss that has another common name."""
    word = word.lower().removeprefix("torch.").replace("-", "_")
    names = {"fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
    names |= {"fp64": "float64", "double": "float64", "bf16": "bfloat16", "gpu": "cuda"}
    names |= {"crossentropyloss": "cross_entropy", "ce": "cross_entropy", "mseloss": "mse"}
    names |= {"mse_loss": "mse", "nll_loss": "nll", "bce": "bce_with_logits"}
    names |= {"training": "train", "evaluation": "eval", "test": "eval"}
    return names.get(word, word)


def _grammar_complaints(data: Mapping[str, Any], directory: FilePath) -> Iterator[Complaint]:
    """Check what the types cannot state: specs, target mappings, sources, patterns."""
    model = data.get("model")
    if isinstance(model, str):
        fault = spec_fault(model, directory) or definition_fault(model, directory)
        if fault:
            yield Complaint(("model",), *fault)
    elif isinstance(model, Mapping) and isinstance(target := model.get("_target_"), str):
        fault = definition_fault(target, directory)
        if fault:
            yield Complaint(("model", "_target_"), *fault)
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
    for key in ("layers", "freeze", "eval_modules"):
        yield from _patterns(data.get(key), (key,))
    yield from check_compile(data)
    yield from check_parallel(data)
    for pattern in _tp(data):
        yield from _pattern(pattern, ("parallel", "tp", pattern))
    interventions = data.get("interventions")
    for number, one in enumerate(interventions) if isinstance(interventions, list) else ():
        if isinstance(one, Mapping):
            yield from _patterns(one.get("layers"), ("interventions", number, "layers"))
            yield from _intervention(one, ("interventions", number))


def _intervention(one: Mapping[str, Any], path: Path) -> Iterator[Complaint]:
    """Yield complaints about an intervention: the action does not exist, not at this place, or not
    with this value."""
    do, at, value = one.get("do"), one.get("at"), one.get("value")
    if not isinstance(do, str):
        return
    if do not in ACTIONS:
        help = did_you_mean(do.replace("-", "_"), ACTIONS)
        listed = f"the actions are {', '.join(ACTIONS)}"
        yield Complaint((*path, "do"), f"unknown action `{shorten(do)}`", help or listed)
        return
    known = action(do)
    if at is not None and at not in known.places:
        message = f"`{do}` cannot be done at {at}"
        yield Complaint((*path, "at"), message, f"it is for {', '.join(known.places)}")
    key = f"`{dotted((*path, 'value'))}`"
    if not known.takes and value is not None:
        yield Complaint((*path, "value"), f"{key}: `{do}` takes no value", "drop it")
    elif known.takes and value is None:
        yield Complaint(path, f"`{do}` needs a value: {known.takes}", "write `value: …` in it")
    elif known.takes and not known.accepts(value):
        message = f"{key} expects {known.takes}, found {describe(value)}"
        yield Complaint((*path, "value"), message)


def _tp(data: Mapping[str, Any]) -> list[str]:
    """Return the patterns of ``parallel.tp``, if there are any."""
    parallel = data.get("parallel")
    tp = parallel.get("tp") if isinstance(parallel, Mapping) else None
    return list(tp) if isinstance(tp, Mapping) else []


def _patterns(patterns: Any, key: Path) -> Iterator[Complaint]:
    listed = patterns if isinstance(patterns, list) else [patterns]
    for index, pattern in enumerate(listed):
        yield from _pattern(pattern, (*key, index) if isinstance(patterns, list) else key)


def _must_build(value: Any, path: Path) -> Iterator[Complaint]:
    if not isinstance(value, Mapping) or is_target(value):
        return
    stuck = next((k for k in value if k.partition(":")[0] in SPELLINGS), None)
    if stuck is not None:
        word, _, name = stuck.partition(":")
        help = f"YAML needs a blank after the colon: `{{{word}: {name.strip()}, …}}`"
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
