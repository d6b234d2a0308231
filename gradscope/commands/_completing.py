"""Completions for the shell; no torch, and nothing runs.

Each function takes the word so far, and returns full words that begin with it. If a file cannot be
read, it returns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from gradscope import plugins
from gradscope.output_files import expanded
from gradscope.runfile.folder import SUFFIX, recorded

Complete = Callable[[str], list[str]]
_FILES = (".yaml", ".yml", ".json")


def one_of(choices: Iterable[str]) -> Complete:
    """Complete one of a few words."""
    listed = list(choices)

    def complete(incomplete: str) -> list[str]:
        return _beginning(listed, incomplete)

    return complete


def files_of(package: str, *others: str) -> Complete:
    """Complete the name of a file in a registry folder: a format, a method."""

    def complete(incomplete: str) -> list[str]:
        return _beginning([*plugins.names(package), *others], incomplete)

    return complete


def models(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a MODEL or ``key=value``: a source and its names, the classes of a file, keys,
    values."""
    from gradscope.config.python_files import classes_of, names_of
    from gradscope.config.targets import DEMOS, SOURCES

    if "=" in incomplete:
        return settings(incomplete)
    source, colon, _ = incomplete.rpartition(":")
    if colon and source.endswith(".py"):
        return [f"{source}:{name}" for name in classes_of(Path(source))]
    if colon:
        names = [*DEMOS, *(f"{source}:{name}" for name in names_of(source))]
        return _beginning(names, incomplete)
    found = _beginning(["demo", *(f"{name}:" for name in SOURCES)], incomplete)
    found += _paths(incomplete, (*_FILES, ".py"))
    # Keys change a MODEL, so they are offered after a MODEL, or once the user begins to write a
    # key.
    return found + (_keys(incomplete) if incomplete or ctx.params.get("words") or ctx.args else [])


def models_and_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a MODEL, a run, or ``key=value``."""
    return list(dict.fromkeys([*models(ctx, incomplete), *runs(incomplete)]))


def pictures(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a picture, or ``key=value``."""
    from gradscope.images.files import suffixes

    if "=" in incomplete:
        return settings(incomplete)
    return _paths(incomplete, (*suffixes(), ".npy")) + (_keys(incomplete) if incomplete else [])


def reports(incomplete: str) -> list[str]:
    """Complete a saved report, or a run."""
    return list(dict.fromkeys([*_paths(incomplete, (".json", SUFFIX)), *_recorded(incomplete)]))


def runs(incomplete: str) -> list[str]:
    """Complete a run: a file, or a name in the folder of runs."""
    return list(dict.fromkeys([*_paths(incomplete, (SUFFIX,)), *_recorded(incomplete)]))


def _recorded(incomplete: str) -> list[str]:
    """Return the runs in the folder of runs, the newest first: by path, or else by name."""
    found = recorded()
    paths = _beginning(map(str, found), incomplete)
    return paths or _beginning([run.stem for run in found], incomplete)


def trackers(incomplete: str) -> list[str]:
    """Complete the values of ``run --to``."""
    from gradscope.runfile.exports import trackers as names

    return _beginning(["otlp://" if name == "otlp" else name for name in names()], incomplete)


def settings(incomplete: str) -> list[str]:
    """Complete ``key=value``."""
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={one}" for one in _values(key) if one.startswith(value)]
    return _keys(incomplete)


def rules(incomplete: str) -> list[str]:
    """Complete codes and names of rules, separated by commas."""
    from gradscope.rules import rule_book

    words = [word for rule in rule_book() for word in (rule.code, rule.name)]
    return _listed(words, incomplete)


def columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete columns of the requested table, separated by commas, with or without ``+``."""
    return _listed(["all", *_columns(ctx)], incomplete)


def column(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete one column."""
    return _beginning(_columns(ctx), incomplete)


def tables(incomplete: str) -> list[str]:
    """Complete a table of a report."""
    from gradscope.reporters.tables.report_tables import TABLES

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _beginning(TABLES, last)]


def sort(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a column and a direction."""
    name, colon, _ = incomplete.partition(":")
    if colon:
        return _beginning([f"{name}:asc", f"{name}:desc"], incomplete)
    return _beginning(_columns(ctx), incomplete)


def layers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of layers, if they are known without torch: from a saved report, or a class's
    file."""
    from gradscope.config.python_files import attributes_of

    # If the last word is an option without its value, the words before it are still in ``args``.
    for word in (*(ctx.params.get("words") or ctx.args), ctx.params.get("model") or ""):
        file, colon, name = word.rpartition(":")
        if word.lower().endswith(".json"):
            return _beginning(_saved_names(Path(word)), incomplete)
        if colon and file.endswith(".py"):
            return _beginning(attributes_of(Path(file), name), incomplete)
    return []


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _listed(words: Iterable[str], incomplete: str) -> list[str]:
    """Complete the last word of a list with commas, with or without ``+``."""
    before, comma, last = incomplete.rpartition(",")
    sign = "+" if last.startswith("+") else ""
    return [f"{before}{comma}{sign}{word}" for word in words if word.startswith(last[len(sign) :])]


def _columns(ctx: typer.Context) -> list[str]:
    from gradscope.reporters.tables import call_columns, parameter_columns, transformer

    of_table: dict[str, Iterable[str]] = {
        "parameters": parameter_columns.COLUMNS,
        **transformer.COLUMNS,
    }
    return list(of_table.get(ctx.params.get("table") or "", call_columns.COLUMNS))


def _keys(incomplete: str) -> list[str]:
    """Yield keys of the config, ready for a value; the keys of a group after its name is typed."""
    from gradscope.config.schema import GROUPS, Config

    groups = {"": Config} | {f"{group}.": model for group, model in GROUPS.items()}
    names = [
        f"{group}{name}." if f"{group}{name}" in GROUPS else f"{group}{name}="
        for group, model in groups.items()
        if incomplete.startswith(group)
        for name in model.model_fields
    ]
    return _beginning(names, incomplete)


def _values(key: str) -> Sequence[str]:
    """Return the words that a key takes, if there are only a few."""
    from gradscope.config.schema import expected
    from gradscope.config.targets import OPTIMIZERS

    if key == "optimizer":
        return list(OPTIMIZERS)
    found = expected(key)
    if found is None:
        return ()
    return ("true", "false") if found.words == "true or false" else found.choices


def _paths(incomplete: str, suffixes: Sequence[str]) -> list[str]:
    """Yield files with one of the suffixes, Python files ready for a class name, and folders."""
    folder, slash, name = incomplete.rpartition("/")
    start = f"{folder}{slash}"
    try:
        beside = sorted(expanded(start or ".").iterdir())
    except OSError:
        return []
    found = []
    for path in beside:
        if not path.name.startswith(name) or (path.name.startswith(".") and not name):
            continue
        if path.is_dir():
            found.append(f"{start}{path.name}/")
        elif path.suffix.lower() in suffixes:
            found.append(f"{start}{path.name}{':' if path.suffix == '.py' else ''}")
    return found


def _saved_names(path: Path) -> list[str]:
    """Return the names of modules in a saved report or graph."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    import json

    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = data.get("modules") or data.get("calls") if isinstance(data, dict) else None
    names = [one.get("name") for one in found or () if isinstance(one, dict)]
    plain = re.compile(r"[\w.]+").fullmatch
    return [name for name in dict.fromkeys(names) if isinstance(name, str) and plain(name)]
