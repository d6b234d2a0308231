"""``gradscope spike``: one capsule in every format, and what it says where it cannot."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands.run_files import written
from PIL import Image
from safetensors.torch import load_file, save_file

from gradscope import cli
from gradscope.api.spiking import spike
from gradscope.records.answers import Judgement
from gradscope.records.spike import (
    CallState,
    Capsule,
    OptimizerState,
    SpikeSample,
    SpikeSignals,
    SpikeToken,
)
from gradscope.records.training import TrainingRun
from gradscope.reporters.spike import panels
from gradscope.reporters.verdict import Verdict
from gradscope.runfile.capsules import RECORD, capsule_path, digests, metadata

SAMPLES = (
    SpikeSample(1, 91204, 19.4, 9.5, 0.9, 0.1, ("embed.weight",), call=0),
    *(SpikeSample(n, n, 2.1, 0.5, 0.1 / 3, 0.5, ("head.weight",)) for n in (0, 2, 3)),
)
CAPSULE = Capsule(
    12,
    "opt",
    "the loss is 6.4, after a median of 2.1",
    "loss",
    model="net",
    samples=SAMPLES,
    norm=10.0,
    usual_norm=1.0,
    high_norm=2.0,
    usual_loss=2.1,
    counted=11,
    signals=tuple(SpikeSignals(n, 2.1, 1.0, 1.0, 1e-3) for n in range(1, 13)),
    state=OptimizerState("SGD"),
    tensors=("call0.args.0",),
)
INPUTS = torch.arange(8.0).reshape(4, 2)


@pytest.fixture
def gradscope(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """A command as the process runs it: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gradscope", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return (int(caught.value.code or 0), *capsys.readouterr())

    return command


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = written(tmp_path / "one.db")
    save_file({"call0.args.0": INPUTS}, capsule_path(path, 12), metadata(CAPSULE))
    return path


def test_it_names_the_sample(gradscope, run: Path) -> None:
    code, out, _ = gradscope("spike", str(run), "--width", "200")
    assert code == 0
    assert "samples: sample 1 of 4 (index 91204): 90.0 % of the gradient" in out
    assert "Its loss is 19.40 (median 2.100)." in out
    for format in ("markdown", "html"):
        code, out, _ = gradscope("spike", str(run), "-f", format)
        assert code == 0
        assert "91204" in out


def test_its_json_is_the_contract(gradscope, run: Path) -> None:
    code, out, _ = gradscope("spike", str(run), "--step", "12", "-f", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["schema"], found["step"], found["cause"]) == ("gradscope.spike/1", 12, "samples")
    assert found["message"].startswith("sample 1 of 4 (index 91204)")
    assert found["samples"][0] == {
        "index": 1,
        "dataset_index": 91204,
        "loss": 19.4,
        "gradient_norm": 9.5,
        "share": 0.9,
        "cosine": 0.1,
        "layers": ["embed.weight"],
    }
    assert found["signals"][-1]["step"] == 12


def test_without_a_sample_the_gradient_is_that_of_the_others(gradscope, run: Path) -> None:
    code, out, _ = gradscope("spike", str(run), "--without", "1", "-f", "json")
    assert code == 0
    (one,) = json.loads(out)["without"]
    # |G - g|² = |G|² - 2 share |G|² + |g|²
    assert one["norm"] == pytest.approx((100 - 180 + 9.5**2) ** 0.5)
    assert one["cosine"] == pytest.approx(10 / (10 * one["norm"]))


def test_the_worst_sample_is_exported(gradscope, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.safetensors"
    code, _, err = gradscope("spike", str(run), "--export", str(file))
    assert code == 0
    assert "wrote sample 1 of step 12" in err
    assert torch.equal(load_file(file)["call0.args.0"], INPUTS[1:2])
    code, _, err = gradscope("spike", str(run), "--export", "bad.pt")
    assert (code, "wrote sample 1 of step 12 to bad.pt" in err) == (0, True)
    assert torch.equal(torch.load("bad.pt", weights_only=True)["call0.args.0"], INPUTS[1:2])
    code, _, err = gradscope("spike", str(run), "--export", "bad.npy")
    assert (code, "tensors are written as .safetensors or .pt" in err) == (2, True)


def test_random_states_are_of_no_sample(gradscope, run: Path) -> None:
    state = torch.zeros(5056, dtype=torch.uint8)  # a multiple of the samples
    calls = (CallState("net", dtype="float32", random=("torch",)),)
    record = metadata(replace(CAPSULE, calls=calls))
    save_file({"call0.args.0": INPUTS, "call0.random.torch": state}, capsule_path(run, 12), record)
    assert gradscope("spike", str(run), "--export", "bad.pt")[0] == 0
    assert list(torch.load("bad.pt", weights_only=True)) == ["call0.args.0"]


def test_a_config_has_the_state_around_the_call(gradscope, run: Path) -> None:
    gradient = torch.ones(4, 3)
    tensors = {"call0.args.0": INPUTS, "call0.gradients.0": gradient}
    first = CallState("net", False, ("drop",), ("head.bias",), "bfloat16", {"cpu": "float16"})
    scaled = (*CAPSULE.signals[:-1], replace(CAPSULE.signals[-1], loss_scale=1024.0))
    for calls, lines, notes in (
        (
            (first,),
            'eval_modules: ["**", "!drop"]\nfreeze: ["head.bias"]\ndtype: bfloat16\n'
            "autocast: float16\ninput:",
            ["the gradient at the output includes the loss scale 1024"],
        ),
        ((replace(first, others=(), frozen=()),), "mode: eval\ndtype: bfloat16\n", []),
        (
            (CallState("net", True, autocast={"cpu": "bfloat16", "cuda": "float16"}, random=None),),
            "input:",
            [
                "the model's parameters have several dtypes: set the key `dtype`",
                "autocast was bfloat16 on cpu, float16 on cuda: set the key `autocast`",
                "a random state of the step is not known: the forward may draw other numbers",
            ],
        ),
        (
            (CallState("net", dtype="float32"),) * 2,
            "input:",
            ["the step has 2 calls of models: the config repeats the one with the worst sample"],
        ),
        (
            (),
            "input:",
            [
                "the capsule is of an older gradscope: the mode, autocast and the random state "
                "of the step are not known"
            ],
        ),
    ):
        record = metadata(replace(CAPSULE, calls=calls, signals=scaled))
        save_file(tensors, capsule_path(run, 12), record)
        code, _, err = gradscope("spike", str(run), "--as-config", "again.yaml", "--force")
        assert code == 0
        head = "model: ???  # how `net` is built, as in ./train.py:Net\n"
        assert head + lines in Path("again.yaml").read_text()
        assert all(f"note: {note}\n" in err for note in notes), err


def test_it_is_drawn(gradscope, run: Path) -> None:
    report = spike(run)
    titles = ["loss", "gradient norm", "learning rate", "gradient norm of each sample"]
    assert [panel.title for panel in panels(report)] == titles
    steps, samples = panels(report)[0], panels(report)[-1]
    assert [(p.x, p.y) for p in steps.points] == [(n, 2.1) for n in range(1, 13)]
    assert [(p.x, p.y) for p in samples.points] == [(0, 0.5), (1, 9.5), (2, 0.5), (3, 0.5)]
    code, _, _ = gradscope("spike", str(run), "--plot", "spike.svg")
    assert code == 0
    assert "gradient norm of each sample" in Path("spike.svg").read_text(encoding="utf-8")


def test_a_config_repeats_the_step(gradscope, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 3)
    gradient = torch.randn(4, 3)
    model(INPUTS).backward(gradient)
    run = written(tmp_path / "one.db")
    tensors = {"call0.args.0": INPUTS, "call0.gradients.0": gradient}
    weights = {f"weights.{name}": p.detach() for name, p in model.named_parameters()}
    save_file({**tensors, **weights}, capsule_path(run, 12), metadata(CAPSULE))
    code, _, err = gradscope("spike", str(run), "--as-config", "again.yaml")
    assert code == 0
    assert "wrote step 12 as again.yaml: put the model in place of `???`" in err
    code, out, err = gradscope("inspect", "again.yaml", "-f", "json")
    assert (code, out) == (2, "")
    assert "again.yaml:2:8 (model)" in err
    linear = "model={_target_: torch.nn.Linear, in_features: 2, out_features: 3}"
    code, out, _ = gradscope("inspect", "again.yaml", linear, "-f", "json")
    found = {one["name"]: one["gradient"]["norm"] for one in json.loads(out)["parameters"]}
    assert found == {n: pytest.approx(p.grad.norm().item()) for n, p in model.named_parameters()}
    code, _, err = gradscope("spike", str(run), "--as-config", "again.yaml")
    assert code == 2
    assert "exists" in err


def test_a_config_says_what_it_lacks(gradscope, run: Path) -> None:
    code, _, err = gradscope("spike", str(run), "--as-config", "again.yaml")
    assert code == 0
    assert "the capsule has no weights: `gradscope run --capsule-weights` keeps them" in err
    assert "0 gradients arrived at the model's outputs: set the key `loss`" in err
    nested = {"call0.args.0.x": INPUTS}
    save_file(nested, capsule_path(run, 12), metadata(CAPSULE))
    code, _, err = gradscope("spike", str(run), "--as-config", "other.yaml")
    assert code == 2
    assert "each a tensor, not both" in err
    assert not Path("other.yaml").exists()


def test_the_worst_token_is_shown(gradscope, run: Path) -> None:
    token = SpikeToken(31, 44.5, 4127, 2.0)
    samples = (replace(SAMPLES[0], token=token), *SAMPLES[1:])
    record = metadata(replace(CAPSULE, samples=samples))
    save_file({"call0.args.0": INPUTS}, capsule_path(run, 12), record)
    code, out, _ = gradscope("spike", str(run), "--width", "200")
    assert code == 0
    says = "Its token 31 (target 4127) has a loss of 44.50 (median of its tokens 2.000)."
    assert says in " ".join(out.split())
    assert "31: loss 44.50 (target 4127)" in out
    code, out, _ = gradscope("spike", str(run), "-f", "json")
    known = {"position": 31, "loss": 44.5, "target": 4127, "median": 2.0}
    assert json.loads(out)["samples"][0]["token"] == known


def test_the_page_has_pictures_of_images(gradscope, run: Path) -> None:
    images = torch.rand(4, 3, 8, 8)
    images[1, 0, 0, 0] = torch.nan
    save_file({"call0.args.0": images}, capsule_path(run, 12), metadata(CAPSULE))
    code, out, _ = gradscope("spike", str(run), "-f", "html")
    assert code == 0
    files = re.findall(r"data:image/png;base64,([^\"]+)", out)
    worst = Image.open(io.BytesIO(base64.b64decode(files[0])))
    assert (len(files), worst.size) == (4, (96, 96))
    # The worst first, each pixel of it a square.
    known = images[1].nan_to_num(-1.0)
    low, high = known[known >= 0].min(), known.max()
    expected = ((known - low) / (high - low) * 255).clamp_min(0).permute(1, 2, 0)
    drawn = torch.from_numpy(np.array(worst.resize((8, 8), Image.Resampling.NEAREST)))
    assert (drawn.float() - expected).abs().max() <= 0.51
    save_file(
        {"call0.args.0": images[:, :2].contiguous()}, capsule_path(run, 12), metadata(CAPSULE)
    )
    assert "data:image/png" not in gradscope("spike", str(run), "-f", "html")[1]


def test_of_several_ranks_the_one_with_the_evidence_is_taken(gradscope, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    alike = tuple(replace(one, share=0.25, gradient_norm=5.0) for one in SAMPLES)
    for rank, samples in enumerate((alike, SAMPLES)):
        path = written(folder / f"rank-{rank}.db")
        record = metadata(replace(CAPSULE, rank=rank, samples=samples))
        save_file({"call0.args.0": INPUTS}, capsule_path(path, 12), record)
    for words in ([], ["--step", "12"], ["--rank", "1"]):
        code, out, _ = gradscope("spike", str(folder), *words, "-f", "json")
        assert code == 0
        found = json.loads(out)
        assert (found["rank"], found["cause"]) == (1, "samples")
    code, out, _ = gradscope("spike", str(folder), "--rank", "0")
    assert (code, out[:20]) == (0, "step 12 · rank 0 · n")


def test_the_first_spike_of_a_series_is_the_one_of_the_sample(gradscope, run: Path) -> None:
    alike = tuple(replace(one, share=0.25, gradient_norm=500.0) for one in SAMPLES)
    later = replace(CAPSULE, step=14, norm=1000.0, samples=alike)
    save_file({"call0.args.0": INPUTS}, capsule_path(run, 14), metadata(later))
    code, out, _ = gradscope("spike", str(run), "-f", "json")
    assert code == 0
    assert (json.loads(out)["step"], json.loads(out)["cause"]) == (12, "samples")


def test_a_config_says_that_the_source_has_changed(gradscope, run: Path, tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text("a = 1")
    record = metadata(replace(CAPSULE, sources=digests([str(source)])))
    save_file({"call0.args.0": INPUTS}, capsule_path(run, 12), record)
    code, _, err = gradscope("spike", str(run), "--as-config", "same.yaml")
    assert (code, "has changed" in err) == (0, False)
    source.write_text("a = 2")
    code, _, err = gradscope("spike", str(run), "--as-config", "again.yaml")
    assert code == 0
    assert f"`{source}` has changed since the run: the step may not repeat" in err


def test_why_leads_to_it(gradscope, run: Path) -> None:
    code, _, err = gradscope("why", str(run))
    assert code == 0
    assert f"note: the samples of step 12: `gradscope spike {run}`" in err


def test_a_run_without_a_capsule_says_how_to_get_one(gradscope, tmp_path: Path) -> None:
    path = written(tmp_path / "plain.db")
    code, out, err = gradscope("spike", str(path))
    assert (code, out) == (2, "")
    assert "has no capsule: no step stood out" in err
    assert "`gradscope run --capsule STEP SCRIPT.py`" in err


def test_an_unknown_step_or_sample_is_refused(gradscope, run: Path) -> None:
    code, _, err = gradscope("spike", str(run), "--step", "13")
    assert code == 2
    assert "no capsule of step 13" in err
    code, _, err = gradscope("spike", str(run), "--without", "9")
    assert code == 2
    assert "no such sample" in err


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({RECORD: '{"schema": "gradscope.capsule/2"}'}, "of another version"),
        ({"other": "x"}, "is not a capsule"),
        ({RECORD: '{"schema": "gradscope.capsule/1"}'}, "lacks `step`"),
    ],
)
def test_another_version_and_a_damaged_file_are_named(
    gradscope, run: Path, record: dict[str, str], says: str
) -> None:
    save_file({"a": INPUTS}, capsule_path(run, 12), record)
    code, out, err = gradscope("spike", str(run))
    assert (code, out) == (2, "")
    assert says in err
    capsule_path(run, 12).write_bytes(b"\xff" * 30)
    code, out, err = gradscope("spike", str(run))
    assert (code, out) == (2, "")
    assert "is not a capsule" in err


def test_a_truncated_file_is_named(gradscope, run: Path) -> None:
    path = capsule_path(run, 12)
    whole = path.read_bytes()
    for words, kept in (([], 200), (["--export", "a.safetensors"], len(whole) - 8)):
        path.write_bytes(whole[:kept])
        code, out, err = gradscope("spike", str(run), *words)
        assert (code, out) == (2, "")
        assert "is damaged" in err
    code, _, err = gradscope("spike", str(run), "--as-config", "a.yaml")
    assert code == 2
    assert "is damaged" in err


def test_a_run_without_findings_names_its_spikes() -> None:
    run = TrainingRun("train.py", 0.0, steps=100, options={"capsule": [5]})
    verdict = Verdict(run, judgement=Judgement(("GS601",)), capsules=(5, 76))
    first = str(next(verdict.lines()))
    assert first.endswith("; but loss or gradient spiked at step 76")
    asked = replace(verdict, capsules=(5,))
    assert "spiked" not in str(next(asked.lines()))
