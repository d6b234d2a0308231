"""Who may import whom. The second half shows that the first can fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradscope

PACKAGE = Path(gradscope.__file__).parent

#: A room is a folder or a file at the top of the package. It imports from lower floors only.
FLOORS = {
    "records": 0, "errors": 0, "plugins": 0, "patterns": 0, "nesting": 0, "typeset": 0,
    "config": 1, "rules": 1, "images": 1, "demo": 1,
    "reporters": 2, "loading": 2, "capture": 2,
    "diagrams": 3, "running": 3, "explain": 3, "saliency": 3,
    "api": 4,
    "commands": 5,
    "cli": 6,
    "__init__": 7, "__main__": 7,
}  # fmt: skip

#: Only this file sets hooks, and only these kinds: what is set in one place is removed in one.
HOOKS, KINDS = "capture/hooks.py", r"register_(forward_|forward_pre_)?hook|register_prehook"

#: Calls that import what a string names.
BY_NAME = {"import_module", "find_spec", "files", "load", "names", "__import__"}


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each import of the package's own, wherever it stands."""
    name = package.name
    here = [name, *path.relative_to(package).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] == name)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            if module == name:
                yield from ((node.lineno, f"{name}.{a.name}") for a in node.names)
            elif module.startswith(f"{name}."):
                yield node.lineno, module
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            target = node.args[0].value
            if called in BY_NAME and isinstance(target, str) and target.startswith(f"{name}."):
                yield node.lineno, target


def room(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def breaches(package: Path) -> list[str]:
    """Each import that goes up, sideways, or to a room that has no floor."""
    found = []
    for path in sorted(package.rglob("*.py")):
        home = room(path, package)
        if home not in FLOORS:
            found.append(f"{path.relative_to(package)}: `{home}` has no floor")
            continue
        for line, target in imports(path, package):
            parts = target.split(".")
            if len(parts) == 1 or parts[1] in {home, "__version__"}:
                continue
            floor = FLOORS.get(parts[1])
            if floor is None or not (floor < FLOORS[home] or floor == FLOORS[home] == 0):
                found.append(f"{path.relative_to(package)}:{line} imports {target}")
    return found


def hooks_set_elsewhere(package: Path) -> list[str]:
    """Each call of a ``register_…hook`` method outside the one file for it, or of another kind."""
    return [
        f"{path.relative_to(package)}:{node.lineno} calls {node.func.attr}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and re.fullmatch(r"register_\w*hook", node.func.attr)
        and not (path == package / HOOKS and re.fullmatch(KINDS, node.func.attr))
    ]


def private_imports(package: Path) -> list[str]:
    """Each import of an underscored file, or of an underscored folder, from outside its folder."""
    found = []
    for path in sorted(package.rglob("*.py")):
        here = path.relative_to(package).parent.parts
        for line, target in modules_imported(path, package):
            parts = target.split(".")[1:]
            depth = next((i for i, part in enumerate(parts) if part.startswith("_")), None)
            if depth is not None and here[:depth] != tuple(parts[:depth]):
                found.append(f"{path.relative_to(package)}:{line} imports {target}")
    return found


def modules_imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """As ``imports``, with each name that is itself a file or a folder of the package."""
    yield from imports(path, package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            folder = package.parent.joinpath(*node.module.split("."))
            for name in node.names:
                if (folder / f"{name.name}.py").is_file() or (folder / name.name).is_dir():
                    yield node.lineno, f"{node.module}.{name.name}"


def test_imports_go_down():
    assert breaches(PACKAGE) == []


#: The one room whose inner files another room still imports.
LENT = "api/attributing.py"


def test_underscored_files_stay_in_their_room():
    assert [found for found in private_imports(PACKAGE) if not found.startswith(LENT)] == []


def test_hooks_are_set_in_one_file():
    assert hooks_set_elsewhere(PACKAGE) == []


def test_no_room_without_a_subject():
    assert [p for p in PACKAGE.rglob("*.py") if p.stem in {"utils", "helpers", "common"}] == []


ALLOWED = {
    "config/yaml.py": "from gradscope.errors import ConfigError",
    "config/keys.py": "from gradscope.config.yaml import read",
    "records.py": "from gradscope import errors",
    "running/step.py": "def f():\n    from gradscope.capture.hooks import hooked",
    "commands/show.py": "from gradscope import __version__, records\nimport gradscope",
    "cli.py": "names('gradscope.commands')",
}

REFUSED = {
    "upwards": ("config/yaml.py", "from gradscope.loading import load"),
    "sideways": ("loading/inputs.py", "from gradscope.capture.stats import reduce"),
    "the top": ("capture/stats.py", "from gradscope import api"),
    "plain import": ("errors.py", "import gradscope.config.yaml"),
    "inside a function": ("reporters/json.py", "def f():\n    import gradscope.api"),
    "for types only": (
        "config/yaml.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gradscope.api import run",
    ),
    "relative": ("demo/train.py", "from ..loading import load"),
    "relative to the root": ("demo/train.py", "from .. import api"),
    "by name": ("config/yaml.py", "importlib.import_module('gradscope.loading.specs')"),
    "a room without a floor": ("capture/stats.py", "from gradscope.attic import box"),
    "a file without a floor": ("attic.py", "import os"),
}


def write(package: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source + "\n", encoding="utf-8")
    return package


def test_what_the_floors_allow(tmp_path):
    assert breaches(write(tmp_path / "gradscope", ALLOWED)) == []


@pytest.mark.parametrize(("file", "source"), REFUSED.values(), ids=REFUSED)
def test_what_the_floors_refuse(file, source, tmp_path):
    found = breaches(write(tmp_path / "gradscope", {**ALLOWED, file: source}))
    assert len(found) == 1
    assert found[0].startswith(file)


def test_a_hook_set_elsewhere_is_found(tmp_path):
    package = write(
        tmp_path / "gradscope",
        {
            HOOKS: "node.register_hook(f)\nmodule.register_full_backward_hook(f)",
            "running/step.py": "tensor.register_hook(f)",
            "api.py": "for m in ms:\n    m.register_full_backward_pre_hook(f)",
        },
    )
    assert hooks_set_elsewhere(package) == [
        "api.py:2 calls register_full_backward_pre_hook",
        "capture/hooks.py:2 calls register_full_backward_hook",
        "running/step.py:1 calls register_hook",
    ]


PRIVATE = {
    "by its name": "from gradscope.reporters.report._view import View",
    "from its folder": "from gradscope.reporters.report import _view",
    "a name in it": "def f():\n    from gradscope.reporters._hidden.inner import x",
}


@pytest.mark.parametrize("source", PRIVATE.values(), ids=PRIVATE)
def test_an_underscored_file_imported_from_outside_is_found(source, tmp_path):
    room = {
        "reporters/report/_view.py": "",
        "reporters/report/tables/derive.py": "from gradscope.reporters.report import _view",
        "reporters/_hidden/inner.py": "",
        "reporters/json.py": "from gradscope.reporters._hidden.inner import x",
    }
    package = write(tmp_path / "gradscope", room)
    assert private_imports(package) == []
    found = private_imports(write(package, {"commands/show.py": source}))
    assert found
    assert all(one.startswith("commands/show.py") for one in found)
