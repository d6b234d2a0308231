"""``gradscope rules``: the list and the pages, at every width, and without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gradscope import cli, plugins
from gradscope.errors import OptionError
from gradscope.reporters.views import TextView
from gradscope.rules import PRESETS, documented, explained

terminal = plugins.load("gradscope.reporters.rulebook", "terminal")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def rules(*words: str) -> str:
    """Run the command and return its output."""
    result = CliRunner().invoke(cli.app(), ["rules", *words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_list_at_every_width(width):
    lines = rules("--width", str(width)).splitlines()
    blocks: list[list[str]] = []
    for line in lines[2:-1]:
        if line.startswith(("GS", "GD")):
            blocks.append([])
        if not line.startswith("`") and "rules ·" not in line:
            blocks[-1] += line.split()
    expected = [[r.code, r.name, r.severity, *r.summary.split()] for r in documented()]
    assert [block[: len(row)] for block, row in zip(blocks, expected, strict=True)] == expected
    # A name is never cut, however narrow it is: 30 characters and the two columns beside it.
    assert all(len(line) <= max(width, 47) for line in lines)


def test_the_list_in_a_pipe():
    lines = rules().splitlines()
    rows = [line for line in lines if line.startswith(("GS", "GD"))]
    assert len(rows) == len(documented())
    for row, rule in zip(rows, documented(), strict=True):
        assert row.endswith(rule.summary)
    assert lines[-1].startswith(f"{len(documented())} rules · ")


PAGE = """\
GS505 bias-before-batchnorm  info
A bias is cancelled by the BatchNorm after it.

What it looks for
  Finds, in the autograd graph, linear or convolutional layers with a trainable
  bias whose output goes only into a BatchNorm in train mode.

Why it matters
  The norm subtracts the mean, and the bias with it. The bias's gradient is
  rounding noise, and it costs memory and optimizer state. It does no harm.

How to fix it
  Build the layer with `bias=False`; the norm has its own bias.

In a training run
  It is reported at once. It can be judged from 1 sampled step on.

Sources
  Ioffe and Szegedy 2015, Batch normalization, section 3.2

Leave it out with `--ignore GS505`
"""


def test_a_page():
    assert rules("GS505", "--width", "80") == PAGE
    assert rules("bias-before-batchnorm", "--width", "80") == PAGE


@pytest.mark.slow
@pytest.mark.parametrize("rule", documented(), ids=lambda rule: rule.code)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_page_fits(rule, width):
    """As ``gradscope rules CODE`` prints it; for the command line itself see ``test_a_page``."""
    assert explained(rule.code) == rule
    page = terminal.render((rule,), TextView(width))
    assert max(map(len, page.splitlines())) <= width
    text = " ".join(page.split())
    for part in (rule.what, rule.why, rule.fix, rule.calibration, *rule.sources):
        assert part in text
    for threshold in rule.thresholds:
        assert f"{threshold.name}: {threshold.meaning}" in text


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("GS101", "It is reported after 3 sampled steps in a row."),
        (
            "GS401",
            "It reads the training loop at every step, sampled or not. It is reported",
        ),
        ("GS506", "It judges the first step only."),
        ("GS507", "It does not judge training runs:"),
        ("GS601", "It is reported at once. It can be judged from 33 steps on."),
        (
            "GS602",
            "It is reported at once. It can be judged from 33 steps and 13 sampled steps",
        ),
        ("GS701", "It judges runs with several ranks, when `show` or"),
        ("GS608", "It is reported after 50 steps in a row."),
    ],
)
def test_how_it_speaks_of_a_run(code, said):
    assert f"In a training run {said}" in " ".join(rules(code).split())


def test_thresholds_by_preset():
    rows = [line.split() for line in rules("GS101", "--width", "80").splitlines()]
    assert ["threshold", "default", "sagemaker", "deepchecker", "autotrainer"] in rows
    assert ["ratio", "1e-06", "off", "off", "0.001"] in rows
    assert ["mean_abs", "off", "1e-07", "1e-06", "off"] in rows


def test_colour_says_nothing_more():
    assert ESCAPES.sub("", rules("GS101", "--color", "always")) == rules("GS101")
    assert "\x1b[" in rules("--color", "always")


def test_json():
    data = json.loads(rules("-f", "json"))
    assert data["schema"] == "gradscope.rules/1"
    assert [rule["code"] for rule in data["rules"]] == [rule.code for rule in documented()]
    (rule,) = json.loads(rules("dead-units", "-f", "json"))["rules"]
    share = rule["thresholds"][0]
    assert share["name"] == "share"
    assert share["presets"] == {"sagemaker": 0.5, "deepchecker": 0.5, "autotrainer": 0.7}
    assert set(share["presets"]) <= set(PRESETS)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradscope", "rules", *words], capture_output=True, text=True
    )


def test_an_unknown_rule_ends_with_2():
    done = run("vanishing-gradiant")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: unknown rule `vanishing-gradiant`\n  = help: did you mean `vanishing-gradient`?\n"
    )
    assert run("-f", "yaml").returncode == 2


def test_no_torch():
    code = (
        "import sys; sys.argv = ['gradscope', 'rules', 'GS101']\n"
        "from gradscope import cli\n"
        "try: cli.main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "heavy = {'torch', 'torchvision', 'numpy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_json_within_a_number_of_tokens():
    text = rules("-f", "json", "--max-tokens", "300")
    assert len(text) <= 901
    assert json.loads(text)["rules"][0]["severity"] == "error"
    refused = CliRunner().invoke(cli.app(), ["rules", "--max-tokens", "300"])
    assert isinstance(refused.exception, OptionError)
