"""Whether a Python file is a script that trains, by its text: it is parsed and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradscope.config.python_files import PythonFile

#: Methods by which a training goes on, or all of it runs.
_METHODS = {"backward", "manual_backward", "fit", "fit_one_cycle"}
#: How the classes of others' training loops end: `Trainer`, `SFTTrainer`, `L.Trainer`.
_TRAINER = "Trainer"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
#: What does nothing but give names.
_QUIET = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Pass, *_Definition.__args__)


def trains(file: PythonFile) -> bool:
    """Whether the file calls ``backward`` or a trainer when it is run.

    What a function or a class does counts where the code that runs names it.
    """
    return any(map(_is_training, _running(file.tree)))


def does_something(file: PythonFile) -> bool:
    """Whether the file, when it is run, does more than to define names."""
    return any(not isinstance(one, _QUIET) and not _is_text(one) for one in file.tree.body)


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    """The code that runs when the file does, as far as names tell."""
    defined: dict[str, list[_Definition]] = {}
    left: list[ast.AST] = []
    for statement in tree.body:
        if isinstance(statement, _Definition):
            defined.setdefault(statement.name, []).append(statement)
            # A decorator may be what runs it: `@app.command()`.
            left += [statement] if statement.decorator_list else []
        else:
            left.append(statement)
    while left:
        for node in ast.walk(left.pop()):
            yield node
            if isinstance(node, ast.Name):
                left += defined.pop(node.id, [])


def _is_training(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        return True
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return bool(name.endswith(_TRAINER))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
