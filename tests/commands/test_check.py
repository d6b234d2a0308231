"""``gradscope check``: many models, exit codes, baselines, formats. Ends as the process would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hostile import commands as hostile
from reporters.sarif_schema import SARIF

import gradscope
from gradscope import cli
from gradscope.api import inspecting
from gradscope.errors import ModelError
from gradscope.records import json as record_json
from gradscope.records.report import CheckReport

pytestmark = pytest.mark.slow

NETS = '''
import torch
from torch import nn


class Sound(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.mid = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        x = self.mid(x).detach()  # cut
        return self.head(x)


class Softmaxed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(-1))


class Normed(nn.Sequential):
    """A bias that the normalisation cancels: info."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Mismatched(nn.Sequential):
    """A NaN, and after it a layer that raises."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), Log(), nn.Linear(9, 3))


class Own(nn.Module):
    """Its own loss beside its scores, cut off."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        scores = self.fc(x)
        return scores, self.kept(scores.square().mean())

    def kept(self, loss):
        return loss


class Cut(Own):
    def kept(self, loss):
        return loss.detach()  # cut


class CutByName(Cut):
    def forward(self, x):
        scores, loss = super().forward(x)
        return {"loss": loss, "scores": scores}


class Picture(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Unflatten(1, (2, 4)), nn.Linear(4, 4))


class Unbuilt(nn.Module):
    def __init__(self):
        raise RuntimeError("no such file: vocabulary")
'''
SHAPE = "input: {shape: [4, 8]}\ntarget: [0, 1, 2, 0]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a user's, with a config for each of its models."""
    (tmp_path / "nets.py").write_text(NETS, encoding="utf-8")
    for name in ("Sound", "Detached", "Softmaxed", "Normed", "Mismatched", "Unbuilt"):
        text = f"model: ./nets.py:{name}\n{SHAPE}"
        (tmp_path / f"{name.lower()}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Runs a command; gives its exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        code = stop.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def check(command: Check) -> Check:
    return lambda *arguments: command("check", *arguments)


def data(text: str) -> Any:
    return json.loads(text)


def codes(model: Any) -> list[str]:
    return [finding["code"] for finding in model["findings"]]


def test_a_sound_model_is_one_line_and_exits_with_0(check: Check) -> None:
    code, out, err = check("sound.yaml")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == "sound.yaml: ok · loss cross_entropy (inferred)"
    assert second.startswith("1 model, no findings; ")
    assert second.endswith(" rules ran")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Sound", "cross_entropy (inferred)"),
        ("Own", "output[1] (inferred, the model's own)"),
        ("Picture", "sum of the output (inferred, a stand-in)"),
    ],
)
def test_a_verdict_says_which_loss_was_taken(model: str, said: str, check: Check) -> None:
    spec = [f"./nets.py:{model}", "input.shape=[4, 8]"]
    assert check(*spec)[1].splitlines()[0] == f"./nets.py:{model}: ok · loss {said}"
    given = check(*spec, "loss=mean")[1].splitlines()[0]
    assert given == f"./nets.py:{model}: ok · loss mean"


def test_an_own_loss_without_a_graph_is_never_ok(check: Check) -> None:
    code, out, _ = check("./nets.py:Cut", "input.shape=[4, 8]")
    assert code == 0
    assert out.startswith("./nets.py:Cut: 1 warning · loss cross_entropy (inferred)\n")
    assert "warning GS507 loss-without-graph (root): `output[1]` has no graph" in out
    assert "another loss, `cross_entropy`" in " ".join(out.split())
    line = 1 + NETS.splitlines().index("        return loss.detach()  # cut")
    for arguments in (["./nets.py:CutByName"], ["./nets.py:Cut", "loss=output"]):
        code, out, _ = check(*arguments, "input.shape=[4, 8]")
        assert code == 3
        assert "error: no-grad-root, in the backward" in out
        assert f"`detach` at nets.py:{line}" in out


def test_meta_has_no_values_that_a_rule_could_look_at(check: Check) -> None:
    _, out, _ = check("sound.yaml", "--device", "meta")
    assert out.splitlines()[-1].endswith("the device `meta` has no values for rules that read them")


def test_an_interrupt_names_what_was_not_looked_at(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = inspecting.check

    def stopped(loaded: Any, **options: Any) -> Any:
        if loaded.name == "detached.yaml":
            raise KeyboardInterrupt
        return real(loaded, **options)

    monkeypatch.setattr(inspecting, "check", stopped)
    code, out, err = check("sound.yaml", "detached.yaml", "normed.yaml")
    assert code == 130
    assert out.startswith("sound.yaml: ok · ")
    assert "not checked: `detached.yaml`, `normed.yaml`" in err
    assert "sound" not in err


def test_without_a_model_the_demo_is_checked(check: Check) -> None:
    code, out, _ = check()
    assert code == 0
    assert out.startswith("demo: ok · loss cross_entropy (inferred)\n")


def test_an_error_names_the_cause_and_the_line_and_exits_with_1(check: Check) -> None:
    code, out, _ = check("detached.yaml")
    assert code == 1
    line = 1 + NETS.splitlines().index("        x = self.mid(x).detach()  # cut")
    assert "error GS401 no-gradient" in out
    assert f"at nets.py:{line}" in out
    assert "1 model, 1 error" in out
    assert "`gradscope rules GS401`" in out


def test_many_models_are_one_check(check: Check) -> None:
    code, out, err = check("sound.yaml", "detached.yaml", "softmaxed.yaml", "-f", "json")
    assert (code, err) == (1, "")
    found = data(out)
    assert (found["schema"], found["status"]) == ("gradscope.check/2", "findings")
    models = found["models"]
    assert [m["run"]["file"] for m in models] == ["sound.yaml", "detached.yaml", "softmaxed.yaml"]
    assert [codes(m) for m in models] == [[], ["GS401"], ["GS501"]]
    assert [m["status"] for m in models] == ["ok", "findings", "findings"]
    assert {"GS101", "GS401", "GS506"} <= set(found["rules"])
    assert record_json.loads(out, CheckReport).models[1].answers[0].cause == "detached"


def test_overrides_apply_to_all_models(check: Check) -> None:
    _, out, _ = check("sound.yaml", "normed.yaml", "seed=7", "--set", "mode=eval", "-f", "json")
    assert [(m["run"]["seed"], m["run"]["mode"]) for m in data(out)["models"]] == [(7, "eval")] * 2


def test_a_model_that_raises_keeps_no_other_from_being_checked(check: Check) -> None:
    code, out, err = check("mismatched.yaml", "unbuilt.yaml", "detached.yaml", "-f", "json")
    assert code == 3
    failed, unbuilt, other = data(out)["models"]
    assert (failed["status"], failed["error"]["kind"]) == ("failed", "shape-mismatch")
    assert (unbuilt["status"], unbuilt["error"]["phase"]) == ("failed", "construction")
    assert codes(other) == ["GS401"]
    assert data(out)["status"] == "failed"
    assert err.count("error: ") == 2
    assert "forward raised in `2`" in err
    assert "= note: of the model mismatched.yaml" in err


@pytest.mark.parametrize("more", [[], ["-f", "markdown"]])
def test_a_failure_is_told_once(check: Check, more: list[str]) -> None:
    code, out, err = check("mismatched.yaml", *more)
    assert code == 3
    assert (out + err).count("cannot be multiplied") == 1
    assert "cannot be multiplied" in out
    assert err.strip() == "error: mismatched.yaml: forward raised in `2`"


def test_a_report_in_a_file_leaves_the_failure_to_be_told(check: Check) -> None:
    _, out, err = check("mismatched.yaml", "-o", "report.md")
    assert out == ""
    assert "cannot be multiplied" in err
    assert "= note: of the model mismatched.yaml" in err


def test_debug_shows_where_each_model_raised(check: Check) -> None:
    err = check("mismatched.yaml", "unbuilt.yaml", "--debug")[2]
    assert "no such file: vocabulary" in err
    assert err.count("RuntimeError: ") >= 2
    assert "Traceback" not in check("mismatched.yaml", "unbuilt.yaml")[2]


def test_what_was_found_before_the_model_raised_is_said(check: Check) -> None:
    code, out, _ = check("mismatched.yaml")
    assert code == 3
    assert " GS301 non-finite" in out
    assert "shape-mismatch, in the forward of 2" in out
    with pytest.raises(ModelError) as caught:
        gradscope.check("mismatched.yaml")
    report = caught.value.report
    assert report is not None
    assert report.status == "failed"
    assert [finding.code for finding in report.findings] == ["GS301"]


def test_a_missing_gradient_is_no_finding_where_backward_never_ran(check: Check) -> None:
    _, out, _ = check(
        "mismatched.yaml", "unbuilt.yaml", "--select", "GS1,GS2,GS4,GS5", "-f", "json"
    )
    assert [codes(m) for m in data(out)["models"]] == [[], []]


# What is wrong with the wish is reported before anything runs.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--select", "GX9"], "unknown rule `GX9`"),
        (["--ignore", "no-gradiant"], "did you mean `no-gradient`?"),
        (["--preset", "sagemake"], "did you mean `sagemaker`?"),
        (["--fail-on", "warn"], "did you mean `warning`?"),
        (["--baseline", "none.json"], "there is no baseline `none.json`"),
        (["-f", "sariff"], "did you mean `sarif`?"),
        (["-o", "nets.py"], "`.py` of `nets.py` names no format"),
        (["--write-baseline", "nets.py"], "`nets.py` exists"),
        (["--write-baseline", "-"], "a baseline needs a file"),
        (["--write-baseline", "no/where.json"], "no such folder"),
        (["-o", "a.json", "--write-baseline", "./a.json"], "both name `a.json`"),
        (["wieghts=1"], "did you mean `weights`?"),
    ],
)
def test_a_wrong_wish_exits_with_2(arguments: list[str], said: str, check: Check) -> None:
    code, out, err = check("sound.yaml", *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.fixture
def mistaken(folder: Path) -> list[str]:
    """Configs that cannot be read, each for another reason."""
    (folder / "typo.yaml").write_text("model: demo\nwieghts: 1\nsteps: no\n", encoding="utf-8")
    rules = "model: demo\nrules: {select: [GS777], thresholds: {GS101: {ration: 1}}}\n"
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    (folder / "torn.yaml").write_text("model: [\n", encoding="utf-8")
    return ["typo.yaml", "rules.yaml", "torn.yaml", "nowhere.yaml"]


def test_nothing_runs_where_no_config_can_be_read(check: Check, mistaken: list[str]) -> None:
    code, out, err = check(*mistaken, "-f", "json")
    assert (code, out) == (2, "")
    for said in ("unknown key `wieghts`", "unknown rule `GS777`", "no file `nowhere.yaml`"):
        assert said in err
    assert "GS101 has no threshold `ration`" in err


def test_a_config_that_cannot_be_read_spares_the_others(
    check: Check, mistaken: list[str], folder: Path
) -> None:
    first, second, *rest = mistaken
    models = [first, "detached.yaml", second, *rest, "sound.yaml"]
    code, out, err = check(*models, "-f", "json", "--select", "GS401")
    assert code == 2
    assert err.count("error: unknown key `wieghts`") == 1
    found = {model["run"]["model"]: model for model in data(out)["models"]}
    assert list(found) == models
    assert [model["status"] for model in found.values()] == [
        *("failed", "findings", "failed", "failed", "failed", "ok"),
    ]
    typo, nowhere = found["typo.yaml"]["error"], found["nowhere.yaml"]["error"]
    assert (typo["kind"], typo["phase"]) == ("config-error", "config")
    assert typo["message"] == "unknown key `wieghts` (and 1 more)"
    assert typo["location"] == "typo.yaml:2"
    assert nowhere["location"] is None
    (folder / "saved.json").write_text(out, encoding="utf-8")
    assert "nowhere.yaml: failed" in hostile.gradscope(["show", "saved.json"]).out


ANNOTATED = {
    "terminal": "typo.yaml: failed\nerror: config-error\n  unknown key `wieghts` (and 1 more)",
    "github": "::error file=typo.yaml,line=2,title=config-error::",
    "csv": "typo.yaml,error,,config-error,,,config-error: unknown key `wieghts` (and 1 more)",
    "markdown": "### typo.yaml: failed",
    "sarif": '"uri": "typo.yaml"',
    "html": "config-error",
}


@pytest.mark.parametrize(("format", "text"), ANNOTATED.items(), ids=ANNOTATED)
def test_a_config_that_cannot_be_read_in_each_format(
    format: str, text: str, check: Check, mistaken: list[str]
) -> None:
    code, out, err = check("sound.yaml", mistaken[0], "--select", "GS401", "-f", format)
    assert code == 2
    assert text in out
    assert "typo.yaml:2:1 (wieghts)" in err


def test_findings_and_failures_beside_a_config_that_cannot_be_read(
    check: Check, mistaken: list[str]
) -> None:
    """The worst of the codes: a config that is wrong."""
    assert check("mismatched.yaml", mistaken[0])[0] == 2
    assert check("detached.yaml", mistaken[0])[0] == 2


def test_a_mistake_in_an_override_is_said_once(check: Check) -> None:
    _, _, err = check("sound.yaml", "normed.yaml", "wieghts=1")
    assert err.count("unknown key `wieghts`") == 1


def test_a_config_that_cannot_be_loaded_spares_the_others(check: Check, folder: Path) -> None:
    (folder / "missing.yaml").write_text("model: ./nets.py:Nowhere\n", encoding="utf-8")
    code, out, err = check("missing.yaml", "detached.yaml", "-f", "json")
    assert code == 2
    missing, other = data(out)["models"]
    assert (missing["error"]["kind"], codes(other)) == ("config-error", ["GS401"])
    assert "Nowhere" in err
    code, out, err = check("missing.yaml", "-f", "json")
    assert (code, out) == (2, "")
    code, out, err = check("sound.yaml", "-l", "nothing.*")
    assert (code, out) == (2, "")
    assert "pattern `nothing.*` matches no layer" in err


# Which findings count.


@pytest.mark.parametrize(
    ("model", "worst"), [("sound", None), ("normed", "info"), ("detached", "error")]
)
@pytest.mark.parametrize("bar", ["error", "warning", "info", "never"])
@pytest.mark.parametrize("how", ["option", "config"])
def test_fail_on(model: str, worst: str | None, bar: str, how: str, check: Check) -> None:
    order = ["error", "warning", "info"]
    fails = bar != "never" and worst is not None and order.index(worst) <= order.index(bar)
    said = ["--fail-on", bar] if how == "option" else [f"rules.fail_on={bar}"]
    only = ["--select", "GS401,GS505"]
    assert check(f"{model}.yaml", *said, *only)[0] == int(fails)


def test_the_option_wins_over_the_config(check: Check) -> None:
    assert check("detached.yaml", "rules.fail_on=never")[0] == 0
    assert check("detached.yaml", "rules.fail_on=never", "--fail-on", "error")[0] == 1


def test_each_model_has_its_own_bar(check: Check, folder: Path) -> None:
    config = folder / "detached.yaml"
    config.write_text(config.read_text() + "rules: {fail_on: never}\n", encoding="utf-8")
    assert check("detached.yaml")[0] == 0
    assert check("detached.yaml", "softmaxed.yaml")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], ["GS401"]),
        (["--select", "GS4"], ["GS401"]),
        (["--select", "no-gradient"], ["GS401"]),
        (["--select", "GS1, GS5"], []),
        (["--ignore", "gs401"], []),
        (["--select", "GS401", "--ignore", "GS4"], []),
        (["--select", "GS1", "--select", "GS401"], ["GS401"]),
        (["rules.ignore=[GS401]"], []),
        (["-l", "head"], []),
        (["-l", "stem"], ["GS401"]),
        (["--exclude", "stem"], []),
    ],
)
def test_select_ignore_and_layers(arguments: list[str], found: list[str], check: Check) -> None:
    _, out, _ = check("detached.yaml", "-f", "json", *arguments)
    assert codes(data(out)["models"][0]) == found


def test_the_layers_that_a_config_shows_do_not_narrow_the_check(check: Check) -> None:
    _, out, _ = check("detached.yaml", "layers=[head]", "-f", "json")
    assert codes(data(out)["models"][0]) == ["GS401"]


# Baselines.


def test_known_findings_do_not_count(check: Check, folder: Path) -> None:
    code, _, err = check("detached.yaml", "sound.yaml", "--write-baseline", "known.json")
    assert code == 0
    assert err == "note: 1 finding written; `--baseline known.json` ignores them\n"
    assert data((folder / "known.json").read_text()) == {
        "schema": "gradscope.baseline/1",
        "findings": [
            {"model": "detached.yaml", "code": "GS401", "name": "stem.weight", "cause": "detached"}
        ],
    }
    code, out, _ = check("detached.yaml", "sound.yaml", "--baseline", "known.json")
    assert code == 0
    assert out.splitlines()[:2] == [
        "detached.yaml: ok (1 known finding) · loss cross_entropy (inferred)",
        "sound.yaml: ok · loss cross_entropy (inferred)",
    ]
    assert "1 finding in the baseline not counted" in out
    code, out, _ = check("detached.yaml", "softmaxed.yaml", "--baseline", "known.json")
    assert code == 1
    assert "GS501" in out
    assert "GS401" not in out


def test_a_baseline_outlives_other_figures_and_other_folders(
    check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "ci"
    inner.mkdir()
    check("detached.yaml", "--write-baseline", "ci/known.json")
    assert check("detached.yaml", "seed=5", "dtype=float64", "--baseline", "ci/known.json")[0] == 0
    monkeypatch.chdir(inner)
    assert check("../detached.yaml", "--baseline", "known.json")[0] == 0
    assert check(str(folder / "detached.yaml"), "--baseline", "known.json")[0] == 0


def test_figures_in_a_cause_make_no_difference(check: Check, folder: Path) -> None:
    nan = NETS + "\n\nclass Rooted(nn.Sequential):\n    def __init__(self):\n"
    nan += "        super().__init__(nn.Linear(8, 8), Log(), nn.Linear(8, 3))\n"
    (folder / "nets.py").write_text(nan, encoding="utf-8")
    (folder / "rooted.yaml").write_text(f"model: ./nets.py:Rooted\n{SHAPE}", encoding="utf-8")
    assert check("rooted.yaml")[0] == 1
    check("rooted.yaml", "--write-baseline", "known.json")
    for seed in range(1, 4):
        assert check("rooted.yaml", f"seed={seed}", "--baseline", "known.json")[0] == 0


def test_another_cause_is_another_finding(check: Check, folder: Path) -> None:
    check("detached.yaml", "--write-baseline", "known.json")
    nets = NETS.replace("x = self.mid(x).detach()", "x = self.mid(x).round().long().float()")
    (folder / "nets.py").write_text(nets, encoding="utf-8")
    code, out, _ = check("detached.yaml", "--baseline", "known.json")
    assert code == 1
    assert "matches no finding any more: detached.yaml GS401 stem.weight detached" in out


def test_stale_entries_are_said_only_of_what_was_looked_at(check: Check, folder: Path) -> None:
    check("detached.yaml", "--write-baseline", "known.json")
    nets = NETS.replace("x = self.mid(x).detach()", "x = self.mid(x)")
    (folder / "nets.py").write_text(nets, encoding="utf-8")
    for arguments, stale in (
        (["detached.yaml"], 1),
        (["sound.yaml"], 0),
        (["detached.yaml", "--ignore", "GS401"], 0),
    ):
        code, out, _ = check(*arguments, "--baseline", "known.json", "-f", "json")
        assert code == 0
        assert len(data(out)["stale"]) == stale
    nets = NETS.replace("x = self.mid(x).detach()", "raise ValueError(x)")
    (folder / "nets.py").write_text(nets, encoding="utf-8")
    code, out, _ = check("detached.yaml", "--baseline", "known.json", "-f", "json")
    assert (code, data(out)["stale"]) == (3, [])


def test_no_baseline_is_written_of_half_a_check(check: Check, folder: Path) -> None:
    code, _, err = check("detached.yaml", "mismatched.yaml", "--write-baseline", "known.json")
    assert code == 3
    assert "`known.json` was not written" in err
    assert not (folder / "known.json").exists()


def test_a_baseline_is_replaced_only_by_force(check: Check, folder: Path) -> None:
    check("sound.yaml", "--write-baseline", "known.json")
    assert data((folder / "known.json").read_text())["findings"] == []
    assert check("detached.yaml", "--write-baseline", "known.json")[0] == 2
    both = ("--baseline", "known.json", "--write-baseline", "known.json", "--force")
    assert check("detached.yaml", *both)[0] == 0
    assert check("detached.yaml", *both)[0] == 0
    assert len(data((folder / "known.json").read_text())["findings"]) == 1


ENTRY = {"model": "a", "code": "GS401", "name": "b", "cause": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("[1]", "it has no `schema`"),
        ("{}", "it has no `schema`"),
        ('{"schema": "gradscope.baseline/2", "findings": []}', "it is of another version"),
        ('{"schema": "gradscope.report/2"}', "it is another of gradscope's files"),
        ('{"schema": "gradscope.baseline/1"}', "its `findings` are not a list"),
        (
            '{"schema": "gradscope.baseline/1", "findings": [3]}',
            "`findings[0]` is not a mapping",
        ),
        (
            json.dumps({"schema": "gradscope.baseline/1", "findings": [ENTRY | {"nam": "x"}]}),
            "did you mean `name`?",
        ),
        (
            json.dumps({"schema": "gradscope.baseline/1", "findings": [ENTRY | {"code": 401}]}),
            "`findings[0].code` is not a string",
        ),
        (
            '{"schema": "gradscope.baseline/1", "findings": [{"code": "GS401"}]}',
            "`findings[0]` lacks `model`",
        ),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_a_file_that_is_no_baseline(text: str, said: str, check: Check, folder: Path) -> None:
    (folder / "known.json").write_text(text, encoding="utf-8")
    code, out, err = check("sound.yaml", "--baseline", "known.json")
    assert (code, out) == (2, "")
    assert said in err
    assert "--> known.json" in err


def test_a_folder_or_bytes_are_no_baseline(check: Check, folder: Path) -> None:
    (folder / "known.json").write_bytes(b"\xff\xfe\x00")
    assert "it is not UTF-8 text" in check("sound.yaml", "--baseline", "known.json")[2]
    assert "cannot read the baseline `.`" in check("sound.yaml", "--baseline", ".")[2]


# Formats.


def test_every_format_of_one_check(check: Check, folder: Path) -> None:
    models = ("sound.yaml", "detached.yaml", "mismatched.yaml")
    for name in ("c.json", "c.sarif", "c.md", "c.csv", "c.github", "c.txt"):
        assert check(*models, "-o", name)[0] == 3
    jsonschema.validate(data((folder / "c.sarif").read_text()), SARIF)
    assert (folder / "c.md").read_text().startswith("## gradscope check\n\n3 models, ")
    assert "detached.yaml,error,GS401,no-gradient,stem.weight" in (folder / "c.csv").read_text()
    [first, *_] = (folder / "c.github").read_text().splitlines()
    assert first.startswith("::error file=nets.py,line=")
    assert check("sound.yaml", "-o", "c.json")[0] == 2
    assert check("sound.yaml", "-o", "c.json", "--force")[0] == 0


def test_a_saved_check_is_shown_again(command: Check, folder: Path) -> None:
    _, out, _ = command("check", "detached.yaml")
    command("check", "detached.yaml", "-o", "c.json")
    assert command("show", "c.json") == (0, out, "")
    for format in ("github", "sarif", "markdown", "csv", "json"):
        made = command("check", "detached.yaml", "-f", format)[1]
        again = command("show", "c.json", "-f", format)[1]
        if format == "sarif":  # the rules' texts are those of the one that shows
            made, again = (data(text)["runs"][0]["results"] for text in (made, again))
        if format != "json":
            assert made == again
    assert "GS401" in command("show", "c.json", "-f", "github")[1]


def test_annotations_are_placed_in_the_checkout(
    check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    out = check("detached.yaml", "-f", "github")[1]
    assert out.startswith(f"::error file={folder.name}/nets.py,line=")


def test_the_precision_forecast(check: Check) -> None:
    code, out, _ = check("sound.yaml", "--precision")
    assert code == 0
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        assert f"\n{dtype}  " in out
    assert "loss scale" in out
    [model] = data(check("sound.yaml", "--precision", "-f", "json")[1])["models"]
    scales = {f["scale"] for f in model["precision"] if f["kind"] == "gradient"}
    assert scales == {1.0, 256.0, 65536.0}
    assert "precision" not in data(check("sound.yaml", "-f", "json")[1])["models"][0]


# The same findings in ``inspect``.


def test_inspect_shows_findings_and_fails_only_when_asked(command: Check) -> None:
    code, out, _ = command("inspect", "detached.yaml")
    assert code == 0
    assert "\nfindings\nerror GS401 no-gradient" in out
    assert command("inspect", "detached.yaml", "--fail-on", "error")[0] == 1
    assert command("inspect", "detached.yaml", "rules.fail_on=error")[0] == 1
    assert command("inspect", "sound.yaml", "--fail-on", "info")[0] == 0
    assert "GS401" not in command("inspect", "detached.yaml", "--ignore", "GS401")[1]


def test_inspect_and_check_find_the_same(command: Check) -> None:
    for name in ("detached", "softmaxed", "normed", "sound"):
        inspected = data(command("inspect", f"{name}.yaml", "-f", "json")[1])
        [checked] = data(command("check", f"{name}.yaml", "-f", "json")[1])["models"]
        assert inspected["findings"] == checked["findings"]
        assert inspected["status"] == checked["status"]


def test_a_narrowed_report_keeps_to_its_layers(command: Check) -> None:
    found = data(command("inspect", "detached.yaml", "-l", "head", "-f", "json")[1])
    assert found["findings"] == []
    assert [p["name"] for p in found["parameters"]] == ["head.weight", "head.bias"]
    found = data(command("inspect", "detached.yaml", "-l", "stem", "-f", "json")[1])
    assert [f["code"] for f in found["findings"]] == ["GS401"]


def test_show_prints_the_findings_of_a_report(command: Check, folder: Path) -> None:
    command("inspect", "detached.yaml", "-o", "r.json")
    assert "::error file=nets.py" in command("show", "r.json", "-f", "github")[1]
    jsonschema.validate(data(command("show", "r.json", "-f", "sarif")[1]), SARIF)
    table = command("show", "r.json", "--table", "findings")[1]
    assert "GS401" in table
    assert "\ncalls" not in table
