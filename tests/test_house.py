"""Allowed imports and actions of each room. The second half shows that the first can fail."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import gradscope

PACKAGE = Path(gradscope.__file__).parent

#: A room is a folder or a file at the top of the package. It imports from lower floors only.
FLOORS = {
    "records": 0, "errors": 0, "plugins": 0, "patterns": 0, "nesting": 0, "typeset": 0,
    "version": 0, "click": 0, "output_files": 0, "progress": 0, "actions": 0, "charts": 0,
    "references": 0, "machine": 0,
    "config": 1, "rules": 1, "images": 1, "demo": 1, "runfile": 1, "pages": 1,
    "comparison": 2, "reporters": 2, "loading": 2, "capture": 2,
    "diagrams": 3, "running": 3, "explain": 3, "saliency": 3, "features": 3,
    "leaks": 4, "per_sample": 4,
    "training": 5,
    "experiment": 6,
    "api": 7,
    "commands": 8,
    "lightning": 8, "transformers": 8, "pytest": 8,
    "cli": 9,
    "__init__": 10, "__main__": 10,
}  # fmt: skip

#: Only this file sets hooks, and only these kinds: what is set in one place is removed in one. The
#: one of all modules tells of those that are not the model's, before they run.
HOOKS = "capture/hooks.py"
KINDS = r"register_((module_)?forward_pre_|forward_)?hook|register_prehook"

#: Only this file runs a workload's step, and only it leaves everything as it was found.
STEP = "running/step.py"

#: What runs a part of a workload's step, as methods are called: forward, the loss, backward, the
#: optimizer, and what the loop goes over. Rooms below `running` do not know a workload.
PARTS = {"model", "called", "criterion", "backward", "step", "zero_grad", "batches"}
RUNNERS = {"running", "api", "commands"}

#: What puts something back after a run, in running/state.py.
PUT_BACK = {
    "state_restored",
    "modules_restored",
    "others_restored",
    "gradients_restored",
    "random_state_restored",
    "switches_restored",
    "run_eagerly",
    "deeper_recursion",
    "post_accumulate_hooks_disabled",
}
#: Who else calls which of them, and why.
ALSO_PUT_BACK = {
    # Parts of `state_restored`, one of them of `others_restored` too.
    "running/state.py": {"modules_restored", "random_state_restored", "switches_restored"},
    "running/rerun.py": {"post_accumulate_hooks_disabled"},  # a first run calls them
    # A call of a script's model is run again in the middle of a step that is not ours.
    "training/nan_detector/replayed_calls.py": {
        "state_restored",
        "run_eagerly",
        "deeper_recursion",
        "post_accumulate_hooks_disabled",
    },
    # Loading draws random numbers and turns switches, and a live model has its mode set for it.
    "api/opened.py": {"state_restored", "random_state_restored", "switches_restored"},
    "api/attributing.py": {"run_eagerly"},  # saliency has no steps
    "api/features.py": {"run_eagerly"},  # nor have features
}

#: Calls that import what a string names.
BY_NAME = {"import_module", "find_spec", "files", "load", "names", "__import__"}

#: Only this file imports private modules of other packages; of torch, whose inner works are what is
#: observed, everybody may: a change there has to be followed in any case.
ADAPTERS = {"click.py": {"typer"}}

#: What the checks look at.
Node = ast.Import | ast.ImportFrom | ast.Call

#: A question of explain/ imports these rooms of it and its own.
QUESTIONS = {"shared": set(), "errors": {"shared", "missing"}}
OF_A_QUESTION = {"shared"}


def nodes(path: Path) -> Sequence[Node]:
    """The imports and calls of a file."""
    return _nodes(path.read_text(encoding="utf-8"))


@functools.cache
def _nodes(source: str) -> Sequence[Node]:
    """By its text, parsed once for all checks."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, Node)]


def imports(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each import of the package's own, wherever it stands."""
    name = package.name
    here = [name, *path.relative_to(package).parent.parts]
    for node in nodes(path):
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
            if len(parts) > 1 and parts[1] == home:
                continue
            floor = FLOORS.get(parts[1] if len(parts) > 1 else "__init__")
            if floor is None or not (floor < FLOORS[home] or floor == FLOORS[home] == 0):
                found.append(f"{path.relative_to(package)}:{line} imports {target}")
    return found


def questions_that_mix(package: Path) -> list[str]:
    """Each import by which a question of explain/ uses the answer to another."""
    found = []
    for path in sorted((package / "explain").rglob("*.py")):
        home = path.relative_to(package).with_suffix("").parts[1]
        allowed = {home, *QUESTIONS.get(home, OF_A_QUESTION)}
        for node in nodes(path):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for target in (f"{above}{alias.name}" for alias in node.names):
                parts = target.split(".")
                if parts[:2] == [package.name, "explain"] and not {*parts[2:3]} <= allowed:
                    found.append(f"{path.relative_to(package)}:{node.lineno} imports {target}")
    return found


def hooks_set_elsewhere(package: Path) -> list[str]:
    """Each call of a ``register_…hook`` method outside the one file for it, or of another kind."""
    return [
        f"{path.relative_to(package)}:{node.lineno} calls {node.func.attr}"
        for path in sorted(package.rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and re.fullmatch(r"register_\w*hook", node.func.attr)
        and not (path == package / HOOKS and re.fullmatch(KINDS, node.func.attr))
    ]


def calls(package: Path) -> Iterator[tuple[str, int, str, bool]]:
    """File, line and name of each call, and whether it is a method's."""
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield file, node.lineno, node.func.attr, True
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield file, node.lineno, node.func.id, False


def steps_run_elsewhere(package: Path) -> list[str]:
    """Each call outside the one file for it that runs a part of a workload's step."""
    return [
        f"{file}:{line} calls {name}"
        for file, line, name, method in calls(package)
        if method and name in PARTS and file.split("/")[0] in RUNNERS and file != STEP
    ]


def put_back_elsewhere(package: Path) -> list[str]:
    """Each call outside the one file for it that leaves something as it was found."""
    return [
        f"{file}:{line} calls {name}"
        for file, line, name, _ in calls(package)
        if name in PUT_BACK and file != STEP and name not in ALSO_PUT_BACK.get(file, ())
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


def foreign_private_imports(package: Path) -> list[str]:
    """Each import of a private module, or of a private name, of another package."""
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        allowed = {package.name, "torch", "__future__", *ADAPTERS.get(file, ())}
        for node in nodes(path):
            targets = []
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            for target in targets:
                parts = target.split(".")
                if parts[0] not in allowed and any(part.startswith("_") for part in parts[1:]):
                    found.append(f"{file}:{node.lineno} imports {target}")
    return found


#: Functions of PyTorch whose tensor is on the default device, if they get no device.
MAKERS = {"arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn"}
MAKERS |= {"randperm", "tensor", "zeros"}


def made_anywhere(package: Path) -> list[str]:
    """Tensors of gradscope's own without a device: `torch.set_default_device` of a script would put
    them elsewhere. Those of the demo's networks are the user's.
    """
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        if file.startswith("demo/"):
            continue
        for node in nodes(path):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=given
                ) if name in MAKERS and not {"device", None} & {one.arg for one in given}:
                    found.append(f"{file}:{node.lineno} torch.{name}")
    return found


def modules_imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """As ``imports``, with each name that is itself a file or a folder of the package."""
    yield from imports(path, package)
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            folder = package.parent.joinpath(*node.module.split("."))
            for name in node.names:
                if (folder / f"{name.name}.py").is_file() or (folder / name.name).is_dir():
                    yield node.lineno, f"{node.module}.{name.name}"


def test_imports_go_down():
    assert breaches(PACKAGE) == []


def test_questions_do_not_mix():
    assert questions_that_mix(PACKAGE) == []


@pytest.mark.slow
def test_underscored_files_stay_in_their_room():
    assert private_imports(PACKAGE) == []


def test_private_modules_of_other_packages_stay_theirs():
    assert foreign_private_imports(PACKAGE) == []


def test_a_private_module_of_another_package_is_found(tmp_path):
    package = write(
        tmp_path / "gradscope",
        {
            "click.py": "from typer._click import Context",
            "cli.py": "from __future__ import annotations\nfrom typer._click import Context",
            "typeset/tables.py": "from rich import _palettes\nimport yaml._yaml",
            "capture/stats.py": "from torch._ops import OpOverload\nfrom gradscope._x import y",
        },
    )
    assert foreign_private_imports(package) == [
        "cli.py:2 imports typer._click.Context",
        "typeset/tables.py:1 imports rich._palettes",
        "typeset/tables.py:2 imports yaml._yaml",
    ]


@pytest.mark.slow
def test_each_tensor_is_made_on_a_named_device():
    assert made_anywhere(PACKAGE) == []


def test_a_tensor_on_the_default_device_is_found(tmp_path):
    source = "import torch\ntorch.zeros(3, device='cpu')\ntorch.rand(3)\ntorch.ones(1, **more)"
    package = write(tmp_path / "gradscope", {"capture/stats.py": source, "demo/train.py": source})
    assert made_anywhere(package) == ["capture/stats.py:3 torch.rand"]


def test_the_map_shows_each_room_on_its_floor():
    """The table of rooms in docs/architecture.md."""
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, re.MULTILINE)
    shown = {
        name.removesuffix("/").removesuffix(".py"): int(floor)
        for floor, rooms in rows
        for name in re.findall(r"`([^`]+)`", rooms)
    }
    assert shown == {name: floor for name, floor in FLOORS.items() if not name.startswith("__")}


def test_hooks_are_set_in_one_file():
    assert hooks_set_elsewhere(PACKAGE) == []


def test_a_step_is_run_in_one_file():
    assert steps_run_elsewhere(PACKAGE) == []


def test_everything_is_left_as_found_by_one_file():
    assert put_back_elsewhere(PACKAGE) == []


def test_no_room_without_a_subject():
    assert [p for p in PACKAGE.rglob("*.py") if p.stem in {"utils", "helpers", "common"}] == []


ALLOWED = {
    "config/yaml.py": "from gradscope.errors import ConfigError",
    "config/keys.py": "from gradscope.config.yaml import read",
    "records.py": "from gradscope import errors",
    "running/step.py": "def f():\n    from gradscope.capture.hooks import hooked",
    "commands/show.py": "from gradscope import records\nfrom gradscope.version import __version__",
    "cli/__init__.py": "names('gradscope.commands')",
}

REFUSED = {
    "upwards": ("config/yaml.py", "from gradscope.loading import load"),
    "sideways": ("loading/inputs.py", "from gradscope.capture.stats import reduce"),
    "the top": ("capture/stats.py", "from gradscope import api"),
    "the package": ("api/runs.py", "import gradscope"),
    "what the package holds": ("commands/doctor.py", "from gradscope import __version__"),
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


def test_a_step_run_elsewhere_is_found(tmp_path):
    package = write(
        tmp_path / "gradscope",
        {
            STEP: "for batch in workload.batches():\n    loss.backward()\n    optimizer.step()",
            "demo/train.py": "loss.backward()\noptimizer.step()",
            "running/trace.py": "def f(loss):\n    loss.backward()",
            "api/looking.py": "output = workload.model(*args)\nself.optimizer.step(closure)",
        },
    )
    assert steps_run_elsewhere(package) == [
        "api/looking.py:1 calls model",
        "api/looking.py:2 calls step",
        "running/trace.py:2 calls backward",
    ]


def test_who_else_leaves_things_as_found_is_found(tmp_path):
    package = write(
        tmp_path / "gradscope",
        {
            STEP: "with state_restored(model, weights=True), deeper_recursion():\n    pass",
            "api/graphing.py": "with state.state_restored(model), run_eagerly():\n    pass",
            "api/attributing.py": "with run_eagerly(), switches_restored():\n    pass",
        },
    )
    assert put_back_elsewhere(package) == [
        "api/attributing.py:1 calls switches_restored",
        "api/graphing.py:1 calls state_restored",
        "api/graphing.py:1 calls run_eagerly",
    ]


MIXED = {
    "another question": ("explain/zero/a.py", "from gradscope.explain.missing.values import Cut"),
    "a question from what all share": (
        "explain/shared/a.py",
        "from gradscope.explain.errors.explanation import Kind",
    ),
    "errors from the question that it may use": (
        "explain/missing/a.py",
        "from gradscope.explain.errors import kind",
    ),
    "by its folder": ("explain/zero/a.py", "from gradscope.explain import missing"),
    "inside a function": ("explain/units/a.py", "def f():\n    import gradscope.explain.precision"),
    "deeper": ("explain/errors/kinds/a.py", "from gradscope.explain.zero.causes import cause_of"),
}


@pytest.mark.parametrize(("file", "source"), MIXED.values(), ids=MIXED)
def test_a_question_that_uses_another_is_found(file, source, tmp_path):
    fine = {
        "explain/errors/kinds/no_grad_root.py": "from gradscope.explain.missing.values import Cut",
        "explain/missing/values.py": "from gradscope.explain.shared.frames import CallSite",
        "explain/zero/causes.py": "from gradscope.explain.zero.factors import factor",
        "explain/shared/frames.py": "from gradscope.records import Frame",
        "api/runs.py": "from gradscope.explain.zero.explain_zero import explain_zeros",
    }
    package = write(tmp_path / "gradscope", fine)
    assert questions_that_mix(package) == []
    found = questions_that_mix(write(package, {file: source}))
    assert len(found) == 1
    assert found[0].startswith(file)


PRIVATE = {
    "by its name": "from gradscope.reporters.report._view import View",
    "from its folder": "from gradscope.reporters.report import _view",
    "a name in it": "def f():\n    from gradscope.reporters._hidden.inner import x",
}


@pytest.mark.parametrize("source", PRIVATE.values(), ids=PRIVATE)
def test_an_underscored_file_imported_from_outside_is_found(source, tmp_path):
    room = {
        "reporters/report/_view.py": "",
        "reporters/report/tables/report_tables.py": "from gradscope.reporters.report import _view",
        "reporters/_hidden/inner.py": "",
        "reporters/json.py": "from gradscope.reporters._hidden.inner import x",
    }
    package = write(tmp_path / "gradscope", room)
    assert private_imports(package) == []
    found = private_imports(write(package, {"commands/show.py": source}))
    assert found
    assert all(one.startswith("commands/show.py") for one in found)
