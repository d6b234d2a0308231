"""``gradscope show RUN``, ``--step`` and ``why RUN`` on files as a run writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from csv import DictReader
from dataclasses import replace
from pathlib import Path

import pytest
from commands.run_files import ENDED, STEPS, with_findings, written
from reporters.run_samples import gan, series
from runfile.made import FINDINGS

from gradscope import cli, plugins
from gradscope.api.reading import read_history
from gradscope.reporters.run.findings import answers
from gradscope.reporters.views import View
from gradscope.rules._commands import CALLS
from gradscope.runfile.reader import RunFile

terminal = plugins.load("gradscope.reporters.training", "terminal")

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_findings(tmp_path_factory.mktemp("runs") / "train.db")


@pytest.fixture
def gradscope(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command as the process runs it: exit code, standard output, standard error."""

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


def test_a_run_is_shown(recorded: Path, gradscope: Command) -> None:
    code, out, err = gradscope("show", recorded)
    assert (code, err) == (0, "")
    with RunFile.open(recorded) as run:
        assert out == terminal.render(read_history(run), View())
    for part in ("train.py --lr 0.1 模型 · 40 steps in 8.000 s", "finished: exit code 0",
                 "layers were sampled at steps 1, 2, 3, 10, 20, 30, at the end every 10th",
                 "gradscope took 2.0 % of the time: 10.00 ms a plain step, 20.00 ms a sampled one",
                 "error GS101 vanishing-gradient steps 1–2, 4 netG.layer1.conv: message",
                 "origin of the NaN: at step 20, in the forward of fc, by `sqrt`",
                 "step 7, skipped-step: the gradient scaler skipped a step",
                 "netD.layer2.conv.weight"):  # fmt: skip
        assert part in out


@pytest.mark.parametrize("format", ["terminal", "markdown", "json", "csv", "github", "sarif"])
@pytest.mark.parametrize("table", ["steps", "parameters", "calls", "findings", "events"])
def test_every_table_in_every_format(
    format: str, table: str, recorded: Path, gradscope: Command
) -> None:
    code, out, err = gradscope("show", recorded, "-f", format, "--table", table)
    assert (code, err) == (0, "")
    assert out.strip()


def test_csv_and_json_hold_what_was_recorded(recorded: Path, gradscope: Command) -> None:
    rows = list(DictReader(gradscope("show", recorded, "-f", "csv")[1].splitlines()))
    data = json.loads(gradscope("show", recorded, "-f", "json")[1])
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert data["step_metrics"]["loss"] == [float(row["loss"]) for row in rows]
    assert {(one["model"], one["name"]) for one in data["parameters"]} == {
        (model, f"layer{i}.conv.weight") for model in (0, 1) for i in range(3)
    }
    assert data["parameters"][0]["shape"] == [64, 64]
    assert data["calls"][0]["type"] == "Conv2d"
    assert data["findings"][0]["steps"] == [[1, 2], [4, 4]]


@pytest.mark.parametrize(
    ("patterns", "shown"),
    [
        (["layer0.**"], ["netG.layer0.conv.weight", "netD.layer0.conv.weight"]),
        (["netD.**"], [f"netD.layer{i}.conv.weight" for i in range(3)]),
        (["netD.layer1.conv"], ["netD.layer1.conv.weight"]),
        (["layer2.conv.weight", "!netG.**"], ["netD.layer2.conv.weight"]),
        (["type:Conv2d"], [f"{m}.layer{i}.conv.weight" for m in ("netG", "netD") for i in (0, 1)]),
    ],
)
def test_patterns_select_layers(
    patterns: list[str], shown: list[str], recorded: Path, gradscope: Command
) -> None:
    options = [word for pattern in patterns for word in ("-l", pattern)]
    _, out, _ = gradscope("show", recorded, "--table", "parameters", *options)
    assert sorted(w for w in out.split() if w.endswith(".weight")) == sorted(shown)


def test_csv_of_steps_takes_columns_and_an_order(recorded: Path, gradscope: Command) -> None:
    _, out, _ = gradscope(
        "show", recorded, "-f", "csv", "--columns", "loss", "--sort", "loss:asc", "--top", "2"
    )
    header, *rows = out.splitlines()
    assert header == "step,loss"
    losses = [float(row.split(",")[1]) for row in rows]
    assert len(losses) == 2
    assert losses == sorted(losses)


def test_exclude_takes_layers_away(recorded: Path, gradscope: Command) -> None:
    _, out, _ = gradscope("show", recorded, "--exclude", "netG.**", "--table", "parameters")
    assert "netD.layer0" in out
    assert "netG.layer0" not in out


def test_a_step_is_shown_as_inspect_shows_it(recorded: Path, gradscope: Command) -> None:
    code, out, _ = gradscope("show", recorded, "--step", 20)
    assert code == 0
    assert out.startswith("train.py --lr 0.1 模型, step 20 of 40 · loss ")
    assert out.count("\nparameters\n") == 2  # of each model
    _, one, _ = gradscope("show", recorded, "--step", 20, "-l", "netD.layer1.**")
    assert one.count("\nparameters\n") == 1
    assert "layer1.conv.weight" in one
    assert "layer0" not in one


def test_a_step_of_several_models_as_json_names_them(recorded: Path, gradscope: Command) -> None:
    code, out, err = gradscope("show", recorded, "--step", 20, "-f", "json")
    assert (code, out) == (2, "")
    assert "step 20 has 2 models, and json holds one report" in err
    assert "name one of netG, netD: `-l 'netG.**'`" in err
    _, out, _ = gradscope("show", recorded, "--step", 20, "-f", "json", "-l", "netG.**")
    assert json.loads(out)["schema"] == "gradscope.report/2"


@pytest.mark.parametrize(
    ("words", "message", "help"),
    [
        (["--step", "15"], "step 15 was not sampled", "the nearest sampled steps: 10 and 20"),
        (["--step", "40"], "step 40 was not sampled", "the nearest sampled steps: 30"),
        (["--step", "41"], "the run has no step 41", "the run has steps 1 to 40"),
        (["--step", "0"], "the run has no step 0", "the run has steps 1 to 40"),
        (["-l", "layer9"], "pattern `layer9` matches no layer", "the names start with"),
        (["--table", "stesp"], "unknown table `stesp`", "did you mean `steps`?"),
        (["--columns", "gard"], "unknown column `gard`", "did you mean `grad`?"),
        (["--sort", "norm:up"], "unknown direction `up`", "write `:asc` or `:desc`"),
        (["--top", "0"], "`--top 0` would show nothing", "give 1 or more"),
        (["-f", "sraif"], "unknown format `sraif`", "did you mean `sarif`?"),
        (["--table", "events", "--sort", "step"], "the events have fixed columns", "-f csv"),
        (["-f", "csv", "--table", "calls", "--top", "3"], "csv has a row for each", "`-l PATTERN`"),
        (["-f", "csv", "--sort", "grad"], "unknown column `grad`", "gradient_norm"),
        (["--step", "20", "--table", "steps"], "unknown table `steps`", "one of calls"),
    ],
)
def test_a_mistake_is_named(
    words: list[str], message: str, help: str, recorded: Path, gradscope: Command
) -> None:
    code, out, err = gradscope("show", recorded, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert help in err


def test_a_step_that_was_not_sampled_has_its_step_metrics(
    recorded: Path, gradscope: Command
) -> None:
    _, _, err = gradscope("show", recorded, "--step", 15)
    assert "= note: its metrics: loss 0." in err
    assert "gradient norm" in err


@pytest.mark.parametrize("option", [["--step", "3"], ["-l", "fc"], ["--exclude", "fc"]])
def test_options_of_runs_are_refused_for_reports(
    option: list[str], tmp_path: Path, gradscope: Command
) -> None:
    code, _, err = gradscope("show", tmp_path / "report.json", *option)
    assert code == 2
    assert err.startswith(f"error: `{option[0]}` is for a run, and `")


def test_what_is_no_run_is_named(tmp_path: Path, gradscope: Command) -> None:
    (tmp_path / "notes.db").write_text("not a database, but some text that is long enough")
    assert "is not a run: it is not a SQLite file" in gradscope("show", tmp_path / "notes.db")[2]
    assert "there is no run" in gradscope("show", tmp_path / "missing.db")[2]
    assert "is empty" in gradscope("show", _touched(tmp_path / "empty.db"))[2]


def _touched(path: Path) -> Path:
    path.touch()
    return path


def test_a_run_without_its_suffix_is_known_by_its_first_bytes(
    recorded: Path, tmp_path: Path, gradscope: Command
) -> None:
    shutil.copy(recorded, tmp_path / "what")
    assert gradscope("show", tmp_path / "what")[1] == gradscope("show", recorded)[1]


def test_a_folder_of_ranks_shows_the_first_and_names_the_others(
    tmp_path: Path, gradscope: Command
) -> None:
    for rank, exit in ((0, "0"), (1, "RuntimeError: peer")):
        written(
            tmp_path / "run" / f"rank-{rank}.db",
            replace(ENDED, rank=rank, world_size=3, exit=exit),
        )
    _, out, _ = gradscope("show", tmp_path / "run")
    # One of the two models is a stage of a pipeline.
    assert "note: reduced over ranks 0, 1 of 3; activations: the lowest rank of each" in out
    assert "note: the file of rank 2 is missing: tensors with a shard there have no norm\n" in out
    assert "note: rank 1: 40 steps, exit RuntimeError: peer\n" in out


def test_help_names_this_run_and_leads_further(tmp_path: Path, gradscope: Command) -> None:
    """Not the command that was just run, and not one that would be about the demo."""
    first, _ = FINDINGS
    advice = f"`{CALLS}` shows where the graph is cut"
    finding = replace(first.finding, code="GS401", rule="no-gradient", advice=advice)
    path = written(tmp_path / "cut.db", ENDED, replace(first, finding=finding, steps=((9, 40),)))
    command = f"gradscope show {path} --step 10 --table calls"
    for words in (["why"], ["show"], ["why", "-f", "json"], ["show", "-f", "json"]):
        out = gradscope(words[0], path, *words[1:])[1]
        assert f"`{command}` shows where the graph is cut" in out
    code, out, _ = gradscope(*command.split()[1:])
    assert code == 0
    assert "\ncalls\n" in out


class TestWhy:
    def test_all_findings_with_their_steps(self, recorded: Path, gradscope: Command) -> None:
        code, out, _ = gradscope("why", recorded)
        assert code == 0
        assert "vanishing-gradient, depth, steps 1–2, 4: netG.layer1.conv\n" in out
        assert "non-finite, steps 20–40: fc\n" in out or "steps 20–40: fc" in out
        said = "2 findings in 6 parameters in steps 1, 2, 3, 10, 20, 30 of 40\n"
        assert said + "No calls are recorded for GS101, " in out
        assert "samples for GS602, GS604, GS605 (need 11 to 16, 6 recorded): --every 2\n" in out
        assert "The run is too short for GS603" in out

    def test_of_a_name(self, recorded: Path, gradscope: Command) -> None:
        _, out, _ = gradscope("why", recorded, "netG.layer1.conv.weight", "netD.layer1.**")
        assert "netG.layer1.conv\n" in out
        assert "netD.layer1.conv.weight: no problem found; gradient norm" in out
        assert "steps 20–40" not in out

    def test_a_layer_that_a_nan_reached_is_not_healthy(self) -> None:
        """It is in the answer on the NaN; one that nobody names is reported by its figures."""
        told, untold, sound = "main.0.weight", "main.9.weight", "main.0.bias"
        history = gan()
        lost = history.parameters[0].values["nonfinite"]
        looked = history.sampled
        layers = (
            series(told, looked, nonfinite=lost),
            series(untold, looked, nonfinite=lost),
            series(sound, looked),
        )
        report = answers(replace(history, parameters=layers), patterns=[told, untold, sound])
        assert [(one.name, one.state) for one in report.answers] == [
            ("netD", "non-finite"),
            (f"netD.{untold}", "non-finite"),
            (f"netD.{sound}", "healthy"),
        ]
        assert "NaN or Inf in 1 of 8 sampled steps, first at step 89" in report.answers[1].message

    def test_of_a_step(self, recorded: Path, gradscope: Command) -> None:
        data = json.loads(gradscope("why", recorded, "--step", 30, "-f", "json")[1])
        assert data["schema"] == "gradscope.why/2"
        assert [one["steps"] for one in data["answers"]] == [[[20, 40]]]
        assert data["scope"] == "at step 30"
        assert (
            "No problem found in 6 parameters at step 3; judged: GS103, GS104, "
            in gradscope("why", recorded, "--step", 3)[1]
        )

    def test_saved_answers_come_back(
        self, recorded: Path, tmp_path: Path, gradscope: Command
    ) -> None:
        saved = tmp_path / "why.json"
        gradscope("why", recorded, "-o", saved)
        assert gradscope("why", saved)[1] == gradscope("why", recorded)[1]

    def test_fails_on_what_the_rule_calls_an_error(
        self, recorded: Path, gradscope: Command
    ) -> None:
        assert gradscope("why", recorded, "--fail-on", "error")[0] == 1
        assert gradscope("why", recorded, "netD.**", "--fail-on", "info")[0] == 0

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--step", "15"], "step 15 was not sampled"),
            (["--step", "99"], "the run has no step 99"),
            (["layer9"], "pattern `layer9` matches no layer"),
            (["lr=3"], "a run cannot run again, which `lr=3` needs"),
            (["--seed", "3"], "a run cannot run again, which `--seed` needs"),
        ],
    )
    def test_a_mistake_is_named(
        self, words: list[str], message: str, recorded: Path, gradscope: Command
    ) -> None:
        code, out, err = gradscope("why", recorded, *words)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {message}")

    def test_a_step_of_a_model_is_refused(self, gradscope: Command) -> None:
        assert "`--step` is for a run" in gradscope("why", "demo", "--step", "3")[2]
