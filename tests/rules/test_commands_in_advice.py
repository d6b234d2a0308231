"""The commands that advice names are about the reader's own model or run, and lead further."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import gradscope
from gradscope.records.answers import NonFiniteOrigin
from gradscope.records.loop import LoopParameter, LoopRecord
from gradscope.records.report import Finding
from gradscope.records.training import TrainingFinding, TrainingRun
from gradscope.rules import ReadRun, RuleSettings, diagnose
from gradscope.rules._book import entries
from rules.made import parameter, report

PACKAGE = Path(gradscope.__file__).parent
#: What takes a MODEL, a RUN or a file, without any: it would be about the demo, or refused.
TAKES = "why|inspect|check|graph|layers|saliency|show|live|export|diff"
BARE = re.compile(rf"(?<!for )`gradscope ({TAKES})`")

LOST = {"GS401": parameter("stem.weight", None), "GS103": parameter("stem.weight", 0.0)}
MODELS = {
    "a config": ({"file": "nets/a b.yaml"}, {"model": "./net.py:Net"}, "'nets/a b.yaml'"),
    "a spec of a file": ({"file": "net.py"}, {"model": "./net.py:Net"}, "./net.py:Net"),
    "a spec of a library": ({}, {"model": "torchvision:resnet18"}, "torchvision:resnet18"),
    "the demo": ({}, {"model": "demo"}, "demo"),
    "a spec with arguments": ({}, {"model": {"_target_": "torchvision:resnet18"}}, "MODEL"),
}


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize("kind", MODELS)
def test_of_a_model_the_command_names_it(kind: str, code: str) -> None:
    run, config, word = MODELS[kind]
    found = report(parameters=(LOST[code],), run=run, config=config)
    (finding,) = diagnose(found, RuleSettings.of(select=[code]))
    assert f"`gradscope why {word} stem.weight` names" in finding.advice


@pytest.mark.parametrize("code", LOST)
def test_of_a_live_model_it_is_the_python_entry(code: str) -> None:
    found = report(parameters=(LOST[code],), config={"model": "Net"})
    (finding,) = diagnose(found, RuleSettings.of(select=[code]))
    assert "`gradscope.why(model, inputs, names=['stem.weight'])` names" in finding.advice


def in_run(code: str) -> Finding:
    """Return the finding on a weight in a run whose cause was not traced."""
    fact = {"GS401": "no-gradient", "GS103": "zero-gradient"}[code]
    lost = LoopParameter("stem.weight", "net", (2, 2), frozenset({fact}), ("o",), 12)
    (entry,) = (one for one in entries() if one.rule.code == code)
    assert entry.find_in_loop is not None
    loop = LoopRecord(12, parameters=(lost,))
    (found,) = entry.find_in_loop(loop, entry.rule.limits())
    return found.finding


READER = ReadRun(
    Path("gradscope-runs/a b.db"), TrainingRun("train.py", 0.0, arguments=("--lr", "a b")), (10, 20)
)


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize(("steps", "option"), [((4, 12), " --step 10"), ((21, 30), "")])
def test_of_a_run_the_command_names_its_path_and_a_step_that_it_holds(
    code: str, steps: tuple[int, int], option: str
) -> None:
    named = READER.named(TrainingFinding(in_run(code), (steps,)))
    command = f"`gradscope show 'gradscope-runs/a b.db'{option} --table calls`"
    assert named.finding.advice.startswith(command)
    assert "gradscope why" not in named.finding.advice


def test_a_step_is_run_again_by_the_script_with_its_arguments() -> None:
    advice = "`gradscope run --deep STEP SCRIPT` watches every operation"
    origin = NonFiniteOrigin("nan", "loss", "message", advice=advice)
    found = TrainingFinding(replace(in_run("GS103"), advice=advice), ((44, 60),), origin=origin)
    named = READER.named(found)
    filled = "`gradscope run --deep 43:44 train.py --lr 'a b'` watches every operation"
    assert named.origin is not None
    assert (named.finding.advice, named.origin.advice) == (filled, filled)
    assert READER.named(named) == named


@pytest.mark.slow
def test_no_sentence_names_a_command_without_what_it_is_about() -> None:
    """Docstrings name commands as such; what is printed must be one to type."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in sentences(path.read_text(encoding="utf-8"))
        if BARE.search(text)
    ]
    assert found == []


def sentences(source: str) -> list[tuple[int, str]]:
    """The texts of a file that are no docstrings."""
    tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]


def test_the_check_finds_a_bare_command() -> None:
    source = '"""``gradscope`` and `gradscope why`."""\nADVICE = f"{1}: run `gradscope why`"\n'
    assert [line for line, text in sentences(source) if BARE.search(text)] == [2]
