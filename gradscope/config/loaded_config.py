"""Reads MODEL, ``key=value`` arguments and flags into one checked config; reports all errors at
once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope.config import words
from gradscope.config.checks import check
from gradscope.config.overrides import Argument, Origins, assign, interpolate, parse_override
from gradscope.config.schema import Config
from gradscope.config.targets import LOSSES, SPELLINGS, normalise, spec_fault
from gradscope.config.words import Complaint, Text, describe, visible
from gradscope.config.yaml12 import Document, is_file, parse, read_text
from gradscope.errors import ConfigError, Place, Problem


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config, with the origin of its values.

    ``directory`` is the base of relative paths, ``name`` the title in a header, ``given`` the
    dotted keys that were set; every other key has its default. ``exclude`` has patterns of layers
    from the command line.
    """

    config: Config
    directory: Path
    name: str
    given: frozenset[str]
    origins: Origins = field(default_factory=Origins, repr=False, compare=False)
    exclude: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """The patterns of layers, with the excluded ones taken out."""
        return (*self.config.layers, *(f"!{pattern}" for pattern in self.exclude))

    def place(self, key: str, *, of_key: bool = False) -> Place | None:
        """Return the place of the dotted ``key`` or its nearest parent; None for a default.

        It is the place of the value, or with ``of_key`` of the key.
        """
        return self.origins.place(key, of_key=of_key)

    def typed(self, key: str) -> bool:
        """Return True if the name at the dotted ``key`` comes from the caller, not from a file."""
        spelled = [key, *(f"{key}.{spelling}" for spelling in SPELLINGS)]
        return any(map(self.origins.typed, spelled))

    @property
    def file(self) -> str | None:
        """The file that names the model: the config, or the source file of a spec; None without
        one.

        The path is relative if the file is below the working directory.
        """
        if self.origins.file is not None:
            path = self.directory / self.name
        else:
            spec = self.config.model
            written = spec if isinstance(spec, str) else str(spec.get("_target_", ""))
            source = written.rpartition(":")[0]
            if not source.endswith(".py"):
                return None
            path = self.directory / source
        path = Path(os.path.normpath(path))
        return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def read(
    model: str | os.PathLike[str] | Mapping[str, Any] | None,
    overrides: Sequence[str] = (),
    *,
    options: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Read the config of a YAML file or a spec (None: the demo), with overrides and flags.

    A mapping counts as a file's content; its paths are relative to the working directory.
    ``options`` has flags by the key that they set (``{"device": "cpu"}``). They win over overrides,
    which win over the file.

    Raises:
        ConfigError: with all problems of syntax, or else of keys, types and the environment.
    """
    problems: list[Problem] = []
    base = _Base.of(model, problems)
    origins = Origins(base.document, list(base.arguments), dict(options or {}))
    data = base.data
    problems += _put_overrides(data, overrides, origins, first=1 + (model is not None))
    _put_options(data, options or {})
    if base.broken:
        raise ConfigError(*problems)
    data, complaints = interpolate(data)
    data, malformed = normalise(_spelled_out(data))
    complaints += malformed
    config, wrong = check(data, base.directory)
    settled = {c.path for c in complaints}
    complaints += [c for c in wrong if c.at == "key" or not _below(c.path, settled)]
    problems += [_problem(c, origins, base) for c in complaints]
    if problems or config is None:
        raise ConfigError(*sorted(problems, key=_position))
    by_default = base.default and origins.place("model") is None  # the user named no model
    given = frozenset(_keys(data)) - ({"model"} if by_default else set())
    spec = config.model if isinstance(config.model, str) else config.model["_target_"]
    return LoadedConfig(config, base.directory, base.name or spec, given, origins)


def check_spec(spec: str) -> None:
    """Check the form of a model spec that the command line named.

    Raises:
        ConfigError: it is not a spec; the help suggests a correction.
    """
    fault = spec_fault(spec, Path.cwd())
    if fault:
        place = Place(f"--model {visible(spec)}")
        raise ConfigError(fault[0], place=place, help=fault[1])


@dataclass(slots=True)
class _Base:
    """The config from MODEL alone. ``broken``: it is unreadable, so its keys are not checked."""

    data: dict[str, Any]
    directory: Path
    name: str | None = None
    document: Document | None = None
    arguments: tuple[Argument, ...] = ()
    broken: bool = False
    default: bool = False

    @classmethod
    def of(
        cls, model: str | os.PathLike[str] | Mapping[str, Any] | None, problems: list[Problem]
    ) -> _Base:
        if model is None:
            return cls({"model": "demo"}, Path.cwd(), default=True)
        if isinstance(model, Mapping):
            return cls(_plain(model), Path.cwd())
        model = os.fspath(model)
        argument = Argument("model", Text.of_argument(model, 1))
        try:
            if is_file(model):
                return cls._of_file(model, argument, problems)
            fault = spec_fault(model, Path.cwd(), argument=True)
            if fault is None:
                return cls({"model": model}, Path.cwd(), arguments=(argument,))
            problems.append(Problem(fault[0], argument.own_place("model"), fault[1]))
        except ConfigError as error:
            problems += error.problems
        return cls({}, Path.cwd(), broken=True)

    @classmethod
    def _of_file(cls, model: str, argument: Argument, problems: list[Problem]) -> _Base:
        path = Path(model)
        text, body = read_text(path, argument.own_place("model"))
        document = parse(text, body)
        problems += document.problems
        if document.data is None:
            help = "`gradscope init` writes a starter; the least is `model: demo`"
            raise ConfigError("the config is empty", place=Place(text.name), help=help)
        if not isinstance(document.data, dict):
            place = document.place(document.root) if document.root else None
            message = f"a config is a mapping of keys, found {describe(document.data)}"
            raise ConfigError(message, place=place, help="start it with `model: …`")
        return cls(document.data, path.absolute().parent, path.name, document)


def _put_overrides(
    data: dict[str, Any], overrides: Sequence[str], origins: Origins, *, first: int
) -> Iterator[Problem]:
    values: dict[str, Any] = {}
    for number, argument in enumerate(overrides, first):
        override = parse_override(argument, number)
        if isinstance(override, list):
            yield from override
            continue
        key = override.argument.key
        if values.setdefault(key, override.value) != override.value:
            message = f"`{key}` is given twice, with two values"
            yield Problem(message, override.argument.own_place(key), "give one of them")
            continue
        result = assign(data, override)
        if isinstance(result, Argument):
            origins.arguments.append(result)
        else:
            place = override.argument.own_place(override.argument.key)
            yield Problem(result.message, place, result.help)


def _put_options(data: dict[str, Any], options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        node = data
        *parents, last = key.split(".")
        for parent in parents:
            inner = node.get(parent)
            node[parent] = node = dict(inner) if isinstance(inner, dict) else {}
        # Flags do one thing more each; a key's own list they leave as it is.
        before = node.get(last) if key == "interventions" else None
        node[last] = [*before, *_plain(value)] if isinstance(before, list) else _plain(value)


def _plain(value: Any) -> Any:
    """Return a copy with plain containers."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _spelled_out(data: dict[str, Any]) -> dict[str, Any]:
    """Expand a text that names an object to its mapping."""
    out = dict(data)
    loss, optimizer, replace = data.get("loss"), data.get("optimizer"), data.get("replace")
    given = data.get("input")
    if isinstance(given, str) and re.fullmatch(r"(\S+\.py|[\w.]+):[\w.]+", given):
        out["input"] = {"_target_": given}
    if isinstance(optimizer, str):
        out["optimizer"] = {"_target_": optimizer}
    if isinstance(loss, str) and loss not in LOSSES and ("." in loss or ":" in loss):
        out["loss"] = {"_target_": loss}
    if isinstance(replace, dict):
        out["replace"] = {
            name: {"_target_": value} if isinstance(value, str) else value
            for name, value in replace.items()
        }
    return out


def _below(path: words.Path, roots: set[words.Path]) -> bool:
    return any(path[: len(root)] == root for root in roots)


def _problem(complaint: Complaint, origins: Origins, base: _Base) -> Problem:
    key = ".".join(map(str, complaint.path))
    place = origins.place(key, of_key=complaint.at == "key")
    if place is None and base.document is not None:
        place = Place(base.document.text.name)
    return Problem(complaint.message, place, complaint.help, complaint.notes)


def _position(problem: Problem) -> tuple[bool, int, int]:
    place = problem.place
    if place is None:
        return True, 0, 0
    return place.file == "argument" or place.line is None, place.line or 0, place.column or 0


def _keys(value: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{prefix}{key}"
            yield from _keys(item, f"{prefix}{key}.")
