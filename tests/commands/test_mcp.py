"""``gradscope mcp``: each tool through the package's own client, and arguments that mean harm."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands.run_files import with_findings, written

import gradscope
from gradscope.api.tools import Tools
from gradscope.commands import mcp as command
from gradscope.errors import GradscopeError, OptionError

needs_mcp = pytest.mark.skipif(
    importlib.util.find_spec("mcp") is None, reason="the extra `mcp` is not installed"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two runs and a report, and a secret beside it."""
    project = tmp_path / "project"
    (project / "gradscope-runs").mkdir(parents=True)
    with_findings(project / "gradscope-runs" / "one.db")
    written(project / "two.db")
    written(tmp_path / "outside.db")
    (tmp_path / "secret.json").write_text("{}")
    (project / "link.db").symlink_to(tmp_path / "outside.db")
    (project / "notes.txt").write_text("no report")
    monkeypatch.chdir(project)
    return project


def test_each_answer_is_what_the_commands_show(folder):
    tools = Tools(folder)
    (one,) = json.loads(tools.runs())["runs"]
    assert one["path"] == "gradscope-runs/one.db"
    assert (one["steps"], one["ended"]) == (40, True)
    assert one["findings"] == ["GS101 layer1.conv", "GS301 fc"]
    run = gradscope.load("one")
    shown = json.loads(tools.show("one"))
    assert [f["code"] for f in shown["findings"]] == [f.code for f in run.findings]
    step = json.loads(tools.show("two.db", step=10, layers=["netG.layer1.**"]))
    assert {call["name"] for call in step["calls"]} == {"layer1.conv"}
    answers = json.loads(tools.why("gradscope-runs/one.db"))["answers"]
    assert "GS101" in {one["code"] for one in answers}
    assert json.loads(tools.diff("one", "two"))["schema"].startswith("gradscope.diff/")
    assert json.loads(tools.rules("GS101"))["rules"][0]["name"] == "vanishing-gradient"
    assert len(Tools(folder, tokens=300).rules()) <= 900


def test_a_link_out_or_a_damaged_run_hides_no_other(folder):
    runs = folder / "gradscope-runs"
    (runs / "link.db").symlink_to(folder.parent / "outside.db")
    (runs / "bad.db").write_text("not a database, but some text that is long enough")
    listed = {one["path"]: one for one in json.loads(Tools(folder).runs())["runs"]}
    assert listed["gradscope-runs/one.db"]["steps"] == 40
    assert "outside of the working directory" in listed["gradscope-runs/link.db"]["error"]
    assert "is not a run" in listed["gradscope-runs/bad.db"]["error"]
    assert str(folder.parent) not in json.dumps(listed)


SQL = "x'; DROP TABLE run; --"
HOSTILE = {
    "an absolute path": ("show", {"path": "/etc/passwd"}, "outside of the working directory"),
    "above": ("show", {"path": "../secret.json"}, "outside of the working directory"),
    "a run above": ("why", {"run": "../outside.db"}, "outside of the working directory"),
    "a run above by name": ("why", {"run": "../outside"}, "outside of the working directory"),
    "a link out": ("why", {"run": "link.db"}, "outside of the working directory"),
    "a link out by name": ("diff", {"a": "link", "b": "two"}, "outside of the working directory"),
    "SQL as a run": ("why", {"run": SQL}, "there is no run"),
    "SQL as a layer": ("why", {"run": "two", "layers": [SQL]}, "matches no"),
    "SQL as a rule": ("rules", {"code": SQL}, "DROP TABLE"),
    "10 MB": ("show", {"path": "a" * 10_000_000}, "too long"),
    "10 MB of a layer": ("show", {"path": "two", "layers": ["a" * 10_000_000]}, "too long"),
    "many layers": ("show", {"path": "two", "layers": ["a"] * 1000}, "too many"),
    "a NUL": ("show", {"path": "a\0b"}, "NUL"),
    "a slow expression": ("show", {"path": "two", "layers": ["re:(a+)+b"]}, "may take long"),
    "many stars": ("show", {"path": "two", "layers": ["*" * 40]}, "may take long"),
    "no report": ("show", {"path": "notes.txt"}, "not JSON"),
    "a step that is none": ("show", {"path": "two", "step": 10**30}, "not sampled"),
    "an option": ("inspect", {"model": "--allow=*"}, "is not a model"),
    "an option beside it": ("inspect", {"model": "demo", "overrides": ["-o=x"]}, "`key=value`"),
    "a model outside": ("inspect", {"model": "../net.py:Net"}, "outside"),
    "a config outside": ("inspect", {"model": "/tmp/model.yaml"}, "outside"),
}


@pytest.mark.parametrize(("tool", "arguments", "said"), HOSTILE.values(), ids=HOSTILE)
def test_what_means_harm_is_refused(tool, arguments, said, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with pytest.raises(GradscopeError) as caught:
        getattr(Tools(folder), tool)(**arguments)
    message = "\n".join(p.message for p in caught.value.problems)
    assert said in message
    assert len(message) < 2000
    assert str(folder) not in message
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def calls(
    server: Any, asked: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[list[str], list[tuple[bool, str]]]:
    """The tools of a server, and its answers through the package's own client."""
    from mcp import Client

    async def ask() -> tuple[list[str], list[tuple[bool, str]]]:
        async with Client(server) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            found = []
            for name, arguments in asked:
                answer = await client.call_tool(name, arguments)
                found.append((bool(answer.is_error), answer.content[0].text))
            return tools, found

    return asyncio.run(ask())


@needs_mcp
def test_a_client_gets_answers_and_errors(folder):
    asked = [("why", {"run": "one"}), ("runs", {}), ("inspect", {"model": "demo"})]
    refused = [(tool, arguments) for tool, arguments, _ in HOSTILE.values() if tool != "inspect"]
    made = command.server(folder, allow_run=False, max_tokens=500)
    tools, found = calls(made, [*asked, *refused, ("why", {}), ("show", {"path": 3})])
    assert tools == ["runs", "show", "why", "diff", "rules"]
    assert [wrong for wrong, _ in found] == [False, False, True, *[True] * (len(refused) + 2)]
    assert all(len(text) <= 1500 for wrong, text in found if not wrong)
    assert "inspect" in found[2][1]
    assert not any(str(folder) in text for _, text in found)


@needs_mcp
def test_an_answer_names_no_place_of_the_machine(folder):
    (folder / "loop.db").symlink_to(folder / "loop.db")
    words = (".", "~/x", "link", "gradscope-runs", "")
    asked = [("show", {"path": word}) for word in words]
    _, found = calls(command.server(folder, allow_run=False, max_tokens=500), asked)
    assert all(wrong and str(folder) not in text for wrong, text in found), found
    assert "cannot read: Too many levels of symbolic links" in found[0][1]


@needs_mcp
@pytest.mark.slow
def test_over_standard_input_and_output(folder):
    """As an editor starts it; a model's own output does not disturb the protocol."""
    from mcp.client.stdio import StdioServerParameters

    (folder / "net.py").write_text(
        "import torch\nprint('loud')\n"
        "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n"
    )
    home = str(Path(gradscope.__file__).parents[1])
    started = StdioServerParameters(
        command=sys.executable,
        args=["-m", "gradscope", "mcp", "--allow-run"],
        cwd=folder,
        env={"PYTHONPATH": home, "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )
    inspect = {"model": "./net.py:Net", "overrides": ["input.shape=[2,4]"]}
    tools, found = calls(started, [("why", {"run": "one"}), ("inspect", inspect), ("rules", {})])
    assert tools[-1] == "inspect"
    assert [wrong for wrong, _ in found] == [False, False, False], found
    assert '"Linear' in found[1][1] or "Net" in found[1][1]


def test_without_the_package_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None)
    with pytest.raises(OptionError) as caught:
        command.run()
    assert caught.value.problems[0].help == "pip install 'gradscope[mcp]'"
