"""``gradscope why`` from end to end: answers, names, formats, exit codes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradscope
from gradscope import cli, plugins
from gradscope.errors import ModelError, OptionError
from gradscope.records import json as record_json
from gradscope.records.answers import Answer, WhyReport
from gradscope.reporters.views import TextView
from gradscope.rules import reaches, severity

CONFIGS = Path(__file__).parents[2] / "configs"
NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.block = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.head = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 2)

    def forward(self, x):
        cut = self.stem(x).detach()
        return self.head(self.act(self.block(cut)))

class Dead(Net):
    def __init__(self):
        super().__init__()
        nn.init.constant_(self.block.bias, -50.0)

class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 2).requires_grad_(False)
        self.lora_A = nn.Linear(4, 2, bias=False)
        self.lora_B = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))

class Infinite(Net):
    def forward(self, x):
        h = self.block(self.stem(x))
        return self.head(h / (h - h))

class Boom(Net):
    def forward(self, x):
        return self.head(self.stem(x)[:, :3])

class Quiet(Net):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)

class Stopped(Net):
    def forward(self, x):
        raise KeyboardInterrupt

class Thaws(Net):
    def forward(self, x):
        self.stem.weight.requires_grad_(True)
        return self.head(self.act(self.block(self.stem(x))))

class Misspelt(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.fc.weight.require_grad = False

    def forward(self, x):
        return self.fc(x)

class StoppedLater(Net):
    ran = 0

    def forward(self, x):
        StoppedLater.ran += 1
        if StoppedLater.ran > 1:
            raise KeyboardInterrupt
        return super().forward(x)

# The first step throws the bias far below zero, and the ReLU is dead from then on.
class DiesLater(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 2), nn.ReLU()
        nn.init.constant_(self.fc.bias, 5.0)

    def forward(self, x):
        return self.act(self.fc(x)).sum()

class Carries(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.h = 0

    def forward(self, x):
        self.h = torch.tanh(self.h + self.fc(x))
        return self.h

class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(7))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x + self.scale * torch.tanh(self.fc(x))

class Stood(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)))
"""
SHAPE = "input.shape=[3,4]"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("net.yaml").write_text("model: ./net.py:Net\ninput: {shape: [3, 4]}\n")
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr("sys.argv", ["gradscope", "why", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


@pytest.fixture
def why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command; its exit code, standard output and standard error."""

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = run(monkeypatch, *arguments)
        out, err = capsys.readouterr()
        return int(code or 0), out, err

    return ran


def as_json(out: str) -> dict[str, Any]:
    def refuse(token: str) -> None:
        raise AssertionError(f"`{token}` is no strict JSON")

    found: dict[str, Any] = json.loads(out, parse_constant=refuse)
    return found


# ---------------------------------------------------------------- what it answers


def test_a_healthy_model_is_one_line(why) -> None:
    code, out, _ = why()
    assert code == 0
    last = out.rstrip().rpartition("\n\n")[2]
    assert last.startswith("healthy: all 8 trainable parameters get a gradient from the loss")
    assert "missing, all zeros, NaN or Inf" in last
    assert "\n" not in last


def test_healthy_for_a_stand_in_says_so(why) -> None:
    _, out, _ = why("./net.py:Stood", "input.shape=[2, 4]")
    assert " · loss sum of the output (inferred, a stand-in)\n" in out
    said = (
        "healthy: all 2 trainable parameters get a gradient from the sum of the output (a stand-in"
    )
    assert out.rstrip().rpartition("\n\n")[2].startswith(said)


def test_the_lectures_relu_on_the_logits(why) -> None:
    code, out, _ = why("demo:lecture")
    assert code == 0
    assert "zero, dead-activation: conv1.weight" in out
    assert "in out_relu; 8 parameters upstream" in out
    assert "self.out_relu(super().forward(x))" in out
    assert "remove the activation from the logits" in out


def test_missing_gradients_name_the_cut_and_what_is_upstream(why) -> None:
    code, out, _ = why("net.yaml")
    assert code == 0
    assert "missing, detached: stem.weight, stem.bias" in out
    assert "net.py:14 (`cut = self.stem(x).detach()`)" in out
    assert "2 parameters upstream" in out
    assert "missing, not-called: spare.weight, spare.bias" in out
    assert out.endswith("8 trainable parameters checked, 4 of them without a useful gradient\n")
    assert len(out.split("\n\n")) == 4


@pytest.mark.parametrize(
    ("config", "cause", "name"),
    [("detached.yaml", "detached", "stem.weight")],
)
def test_configs_of_the_repository(why, config: str, cause: str, name: str) -> None:
    _, out, _ = why(str(CONFIGS / config), "-f", "json")
    data = as_json(out)
    assert [(a["cause"], a["name"]) for a in data["answers"]] == [(cause, name)]


def test_a_partner_of_zeros_recovers(why) -> None:
    _, out, _ = why("./net.py:Lora", SHAPE, "-f", "json")
    (answer,) = as_json(out)["answers"]
    assert (answer["state"], answer["cause"], answer["recovers"]) == ("zero", "zero-weight", True)
    assert (answer["module"], answer["location"]) == ("lora_B", "net.py:31")
    assert as_json(out)["frozen"] == 2
    assert why("./net.py:Lora", SHAPE, "--fail-on", "warning")[0] == 0
    assert why("./net.py:Lora", SHAPE, "--fail-on", "info")[0] == 1


def test_a_gradient_that_is_not_finite_has_the_place_of_its_birth(why) -> None:
    _, out, _ = why("./net.py:Infinite", SHAPE, "block.*", "-f", "json")
    (answer,) = as_json(out)["answers"]
    assert (answer["state"], answer["cause"]) == ("non-finite", None)
    assert answer["location"] == "net.py:36"
    assert {"block.weight", "block.bias"} <= set(answer["upstream"])


def test_one_line_of_code_in_many_modules_is_told_once(why) -> None:
    _, out, _ = why("./net.py:Twins", SHAPE)
    assert out.count("help:") == 1
    assert "in blocks.0; 2 parameters upstream" in out
    assert "the same in blocks.1, blocks.2, blocks.3, blocks.4, … 2 more" in out
    assert "12 parameters more" in out
    _, out, _ = why("./net.py:Twins", SHAPE, "-f", "json")
    assert len(as_json(out)["answers"]) == 7


# ---------------------------------------------------------------- names


def test_a_name_alone_is_a_name_of_the_demo(why) -> None:
    code, out, _ = why("conv1.weight")
    assert code == 0
    assert "conv1.weight: healthy, it gets a gradient of norm " in out


def test_names_restrict_what_is_answered(why) -> None:
    _, out, _ = why("net.yaml", "head.weight", "stem.*")
    assert "head.weight: healthy" in out
    assert "detached: stem.weight, stem.bias" in out
    assert "spare" not in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("head", "head: healthy, all 2 parameters of it get a gradient of norm "),
        ("act", "act: healthy, its output gradient has norm "),
        ("type:Linear", "head: healthy"),
        ("re:head.*bias", "head.bias: healthy"),
        ("spare", "missing, not-called: spare.weight, spare.bias"),
    ],
)
def test_layers_and_patterns(why, name: str, said: str) -> None:
    code, out, _ = why("net.yaml", name)
    assert code == 0
    assert said in out


def test_a_module_without_parameters_that_never_ran(why) -> None:
    _, out, _ = why("net.yaml", "act", "model=./net.py:Infinite", "-f", "json")
    (answer,) = as_json(out)["answers"]
    assert (answer["kind"], answer["state"], answer["cause"]) == ("module", "missing", "not-called")


def test_unknown_names_are_refused_with_the_closest(why) -> None:
    code, out, err = why("net.yaml", "steem.weight")
    assert (code, out) == (2, "")
    assert "`steem.weight` matches no parameter or layer" in err
    assert "did you mean `stem.weight`" in err


def test_a_word_that_was_meant_for_a_model(why) -> None:
    code, _, err = why("resnet18")
    assert code == 2
    assert "did you mean `torchvision:resnet18`?" in err
    assert why("net.yaml", "demo")[0] == 2


def test_frozen_parameters_are_answered_when_named(why) -> None:
    Path("net.yaml").write_text(
        "model: ./net.py:Lora\ninput: {shape: [3, 4]}\nfreeze: [lora_A.*]\n"
    )
    _, out, _ = why("net.yaml", "-f", "json")
    assert as_json(out)["status"] == "ok"
    assert as_json(out)["answers"] == []
    _, out, _ = why("net.yaml", "**", "-f", "json")
    answers = {a["name"]: a for a in as_json(out)["answers"]}
    assert answers["lora_A.weight"]["cause"] == answers["base.weight"]["cause"] == "frozen"
    assert answers["lora_A.weight"]["location"] == "net.yaml:3"
    assert "code" in answers["base.weight"]["message"]
    assert answers["lora_B.weight"]["state"] == "healthy"


def test_a_freeze_that_does_not_hold(why) -> None:
    thaws = ("./net.py:Thaws", SHAPE, "freeze=[stem.weight]", "stem.weight", "--fail-on")
    code, out, _ = why(*thaws, "warning")
    assert code == 1
    assert "not frozen: stem.weight" in out
    assert why(*thaws, "error")[0] == 0
    code, out, _ = why("./net.py:Misspelt", SHAPE, "--fail-on", "error")
    assert code == 1
    assert "`require_grad`" in out
    assert "not frozen:" in out


def test_layer_patterns_say_what_is_checked(why) -> None:
    _, out, _ = why("net.yaml", "-l", "head", "-f", "json")
    data = as_json(out)
    assert (data["checked"], data["answers"], data["status"]) == (2, [], "ok")


# ---------------------------------------------------------------- formats and widths


def test_json_has_the_contracts_keys(why) -> None:
    _, out, _ = why("net.yaml", "-f", "json")
    data = as_json(out)
    assert list(data)[:2] == ["schema", "status"]
    assert (data["schema"], data["status"], data["checked"]) == ("gradscope.why/2", "findings", 8)
    assert data["error"] is None
    keys = ("name", "kind", "state", "cause", "module", "call", "location", "upstream", "message")
    for answer in data["answers"]:
        assert {*keys, "advice"} <= set(answer)
    record = record_json.loads(out, WhyReport)
    assert record_json.dumps(record) == out


@pytest.mark.slow
@pytest.mark.parametrize("format", plugins.names("gradscope.reporters.answers"))
def test_every_format_is_written_whole_and_never_over_another(why, format: str) -> None:
    suffix = plugins.load("gradscope.reporters.answers", format).suffix
    assert why("net.yaml", "-o", f"why{suffix}")[0] == 0
    written = Path(f"why{suffix}").read_text()
    assert "stem.weight" in written
    code, _, err = why("net.yaml", "-o", f"why{suffix}")
    assert code == 2
    assert "--force" in err
    assert why("net.yaml", "-o", f"why{suffix}", "--force")[0] == 0


def test_saved_answers_are_shown_again(why) -> None:
    assert why("net.yaml", "-o", "why.json")[0] == 0
    _, first, _ = why("net.yaml")
    _, again, _ = why("why.json")
    assert again == first
    assert why("why.json", "--fail-on", "error")[0] == 1
    for more in (["stem.weight"], ["--seed", "1"], ["seed=1"]):
        code, _, err = why("why.json", *more)
        assert code == 2
        assert "cannot run again" in err


@pytest.mark.parametrize("width", [20, 60, 80, 120, 200])
def test_names_and_numbers_are_never_cut(why, width: int) -> None:
    _, out, _ = why("net.yaml", "stem", "head.weight", "spare", "--width", str(width))
    words = out.split()
    for name in ("stem.weight,", "stem.bias", "head.weight:", "spare.weight,"):
        assert name in words
    spaces = [line for line in out.splitlines() if len(line) > width and " " in line.strip()]
    assert spaces == []


def test_what_does_not_print_is_escaped() -> None:
    answer = Answer("a\x1b[31m", "parameter", "zero", "x\x07y.", module="m\n", upstream=("a\x1b",))
    run_info = gradscope.why("demo").run
    report = WhyReport(run_info, status="findings", checked=1, answers=(answer,))
    for format in ("terminal", "markdown"):
        text = plugins.load("gradscope.reporters.answers", format).render(report, TextView())
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(folder: Path) -> None:
    command = f"{sys.executable} -m gradscope why net.yaml | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


# ---------------------------------------------------------------- what stops it


def test_a_model_that_raises_is_explained(why) -> None:
    code, out, err = why("./net.py:Boom", SHAPE)
    assert code == 3
    assert "shape-mismatch" in out
    assert "net.py:40" in out
    assert "forward raised in `head`" in err
    code, out, _ = why("./net.py:Boom", SHAPE, "-f", "json")
    assert (code, as_json(out)["status"]) == (3, "failed")


def test_a_loss_without_a_graph_is_answered_too(why) -> None:
    code, out, _ = why("./net.py:Quiet", SHAPE, "-f", "json")
    data = as_json(out)
    assert (code, data["status"], data["error"]["kind"]) == (3, "failed", "no-grad-root")
    assert {a["cause"] for a in data["answers"]} == {"no-grad", "not-called"}


def test_ctrl_c(why) -> None:
    assert why("./net.py:Stopped", SHAPE)[0] == 130


def test_ctrl_c_in_the_deep_look_says_what_is_known(why) -> None:
    code, out, _ = why("./net.py:StoppedLater", SHAPE, "-f", "json")
    data = as_json(out)
    assert (code, data["status"]) == (130, "findings")
    (answer,) = data["answers"]
    assert (answer["state"], answer["cause"]) == ("missing", None)
    assert answer["upstream"] == ["stem.weight", "stem.bias", "spare.weight", "spare.bias"]
    assert "interrupted before the search for its cause" in answer["message"]
    assert answer["advice"] == "run it again, and let it finish"


def test_ctrl_c_in_the_deep_look_is_not_called_healthy(why) -> None:
    code, out, _ = why("./net.py:StoppedLater", SHAPE)
    assert code == 130
    assert "healthy:" not in out and "4 of them without a useful gradient" in out


def test_the_last_of_several_steps_is_answered(why) -> None:
    """As `inspect` does: what the first step does to the weights is what the last one runs into."""
    steps = ["optimizer={_target_: torch.optim.SGD, lr: 100}", SHAPE]
    assert why("./net.py:DiesLater", SHAPE)[0] == 0
    code, out, _ = why("./net.py:DiesLater", "steps=3", *steps, "-f", "json")
    data = as_json(out)
    assert (code, data["status"], data["run"]["steps"]) == (0, "findings", 3)
    (answer,) = data["answers"]
    assert (answer["cause"], answer["module"]) == ("dead-activation", "act")
    assert "healthy" in why("./net.py:DiesLater", "steps=1", *steps)[1]


def test_what_a_later_step_raises_is_told(why) -> None:
    code, out, err = why("./net.py:Carries", SHAPE, "steps=3")
    assert code == 3
    assert "backward-twice" in out and "step 2" in out + err
    assert why("./net.py:Carries", SHAPE)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fail-on", "errors"], "did you mean `error`"),
        (["-f", "jsonn"], "did you mean `json`"),
        (["-o", "why.png"], "names no format"),
        (["net.yaml", "./net.py:Net"], "one MODEL, please"),
        (["--width", "0"], "is too small"),
        (["net.yaml", "wieghts=1"], "unknown key"),
    ],
)
def test_it_refuses(why, arguments: list[str], said: str) -> None:
    code, out, err = why(*arguments)
    assert (code, out) == (2, "")
    assert said in err


# ---------------------------------------------------------------- from Python


def dead_net() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    nn.init.constant_(net[0].bias, -10.0)
    return net


def test_a_live_model_is_given_back_as_it_was(
    unchanged: Callable[[nn.Module], AbstractContextManager[None]],
) -> None:
    net = dead_net()
    net[3].weight.grad = torch.ones(2, 8)
    with unchanged(net):
        report = gradscope.why(net, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    assert {a.cause for a in report.answers} & {"dead-activation"}
    assert report.status == "findings"


def test_a_live_model_whose_partner_is_zero_is_stepped_on_a_copy(
    unchanged: Callable[[nn.Module], AbstractContextManager[None]],
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.zeros_(net[2].weight)
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    with unchanged(net):
        report = gradscope.why(net, x, "0.*", optimizer=lambda p: torch.optim.Adam(p, lr=0.1))
    (answer,) = report.answers
    assert (answer.cause, answer.recovers) == ("zero-weight", True)


def test_gradients_after_a_look_are_bit_identical() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))

    def gradients(look: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        net = dead_net()
        if look:
            gradscope.why(net, x)
        net(x).square().sum().backward()
        return [p.grad for p in net.parameters()]

    for plain, looked in zip(gradients(False), gradients(True), strict=True):
        assert plain is not None and looked is not None
        assert torch.equal(plain, looked)


def test_a_live_model_is_not_moved() -> None:
    with pytest.raises(OptionError):
        gradscope.why(nn.Linear(2, 2), torch.zeros(1, 2), device="cpu")
    with pytest.raises(ModelError) as raised:
        gradscope.why(nn.Linear(2, 2), torch.zeros(1, 3))
    assert isinstance(raised.value.report, WhyReport)


def test_how_bad_an_answer_is() -> None:
    def said(state: str, cause: str | None, recovers: bool | None = None) -> str | None:
        answer = Answer("w", "parameter", state, "m", cause, recovers=recovers)
        assert reaches([answer], "never") is False
        assert reaches([answer], "info") is (severity(answer) is not None)
        return severity(answer)

    assert said("missing", "detached") == "error"
    assert said("missing", "frozen") is None
    assert said("healthy", "frozen") == "warning"  # as GS406
    assert said("healthy", "misspelt") == "error"  # as GS405
    assert said("healthy", None) is None
    assert said("zero", "zero-weight") == "warning"
    assert said("zero", "zero-weight", False) == "error"
    assert said("zero", "masked", False) == said("zero", None) == "warning"
    assert said("zero", "dead-activation") == "error"
    assert said("non-finite", None) == "error"
