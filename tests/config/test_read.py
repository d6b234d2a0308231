"""Results of read(): layers in their order, places, given values, targets in one form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradscope.config.loaded_config import read
from gradscope.config.schema import Config
from gradscope.config.targets import Target, parse_target
from gradscope.errors import ConfigError


def config(tmp_path, body):
    path = tmp_path / "model.yaml"
    path.write_text(body)
    return path


def test_the_defaults():
    loaded = read(None)
    assert loaded.config == Config(model="demo")
    assert (loaded.name, loaded.directory, loaded.given) == ("demo", Path.cwd(), frozenset())
    plain = loaded.config.model_dump()
    assert plain["layers"] == ["**"]
    assert plain["mode"] == "train"
    assert plain["backward"] == {"gradient": None, "repeats": 1, "retain_graph": False}
    assert loaded.place("model") is None


def test_flags_win_over_overrides_over_the_file(tmp_path):
    path = config(tmp_path, "model: demo\nsteps: 1\nseed: 1\ndevice: cpu\n")
    loaded = read(path, ["device=meta", "seed=3"], options={"device": "mps"})
    assert (loaded.config.steps, loaded.config.seed, loaded.config.device) == (1, 3, "mps")
    assert str(loaded.place("steps")) == f"{path}:2:8 (steps)"
    assert str(loaded.place("seed")) == "argument:3:6 (seed)"
    assert str(loaded.place("device")) == "--device mps (device)"
    assert loaded.place("dtype") is None
    assert loaded.given == {"model", "steps", "seed", "device"}


def test_a_mapping_is_a_file_without_lines():
    loaded = read({"model": "demo", "steps": 2, "layers": ("a",)}, ["seed=1"])
    assert (loaded.config.steps, loaded.config.seed, loaded.config.layers) == (2, 1, ["a"])
    with pytest.raises(ConfigError, match="unknown key `stpes`"):
        read({"model": "demo", "stpes": 2})


@pytest.mark.parametrize(
    "body",
    [
        "model: {_target_: net.Net, n: 3, cfg: {_target_: net.Cfg, _args_: [1], _partial_: true}}",
        "model: {class_path: net.Net, init_args: {n: 3, "
        "cfg: {_component_: net.Cfg, _args_: [1], _partial_: true}}}",
    ],
)
def test_three_spellings_are_one_target(tmp_path, body):
    loaded = read(config(tmp_path, body))
    inner = {"_target_": "net.Cfg", "_args_": [1], "_partial_": True}
    assert loaded.config.model == {"_target_": "net.Net", "n": 3, "cfg": inner}
    assert loaded.name == "model.yaml"
    assert loaded.place("model.n").line == 1
    assert parse_target(inner) == Target("net.Cfg", (1,), {}, True)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"_target_": 3},
            "`_target_` expects a name such as `torch.nn.Linear`, found the number 3",
        ),
        ({"_target_": "Net"}, "`Net` is not the full name of a class or function"),
        ({"_target_": "a..B"}, "`a..B` is not the full name"),
        ({"_target_": ""}, "the name is empty"),
        ({"_target_": "a.B", "class_path": "a.B"}, "`_target_` and `class_path` in one mapping"),
        ({"_target_": "a.B", "_args_": 3}, "`_args_` expects a list, found the number 3"),
        ({"_target_": "a.B", "_partial_": "yes"}, "`_partial_` expects true or false, found the"),
        ({"_target_": "a.B", "_recursive_": True}, "unknown key `_recursive_`"),
        ({"class_path": "a.B", "lr": 1}, "unknown key `lr`"),
        (
            {"class_path": "a.B", "init_args": [1]},
            "`init_args` expects a mapping, found a list of 1",
        ),
        ({"_target_": "a.B", "trust_remote_code": True}, "the argument `trust_remote_code` is"),
        ({"_target_": "a.B", "x": [{"weights_only": False}]}, "the argument `weights_only` is"),
        ({"_component_": "a.B", "x": {"pickle_module": 1}}, "the argument `pickle_module` is"),
    ],
)
def test_targets_that_fail(mapping, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_target(mapping)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read({"model": mapping})


def test_refused_arguments_are_free_outside_targets():
    assert read({"model": "demo", "input": {"weights_only": {"shape": [1]}}})


@pytest.mark.parametrize(
    ("model", "overrides", "key", "value"),
    [
        (
            "torchvision:resnet18",
            ["model.num_classes=10"],
            "model",
            {"_target_": "torchvision:resnet18", "num_classes": 10},
        ),
        (None, ["model=torchvision:vgg11"], "model", "torchvision:vgg11"),
        ("demo", ["input.shape=[1,3]"], "input", {"shape": [1, 3]}),
        ("demo", ["steps=1e1"], "steps", 10),
        ("demo", ["layers=**"], "layers", ["**"]),
        ("demo", ["layers=[a, b]", "layers.1=c"], "layers", ["a", "c"]),
        ("demo", ["freeze=!fc.**"], "freeze", ["!fc.**"]),
        ("demo", ["weights="], "weights", None),
        ("demo", ["weights='null'"], "weights", "null"),
        ("demo", ["checkpoint=a=b.pt"], "checkpoint", "a=b.pt"),
        (
            "demo",
            ["loss=cross_entropy", "loss.label_smoothing=.1"],
            "loss",
            {"_target_": "cross_entropy", "label_smoothing": 0.1},
        ),
        (
            "demo",
            ["optimizer=torch.optim.SGD", "optimizer.lr=1e-3"],
            "optimizer",
            {"_target_": "torch.optim.SGD", "lr": 0.001},
        ),
        (
            "demo",
            ["optimizer={class_path: torch.optim.SGD}", "optimizer.lr=1"],
            "optimizer",
            {"_target_": "torch.optim.SGD", "lr": 1},
        ),
        (
            "demo",
            ["replace.layer1.0.conv1._target_=torch.nn.Identity", "replace.layer1.0.conv1.a=1"],
            "replace",
            {"layer1.0.conv1": {"_target_": "torch.nn.Identity", "a": 1}},
        ),
    ],
)
def test_overrides_that_pass(model, overrides, key, value):
    assert getattr(read(model, overrides).config, key) == value


@pytest.mark.parametrize(
    ("override", "message", "help", "column", "length"),
    [
        ("stpes=1", "unknown key `stpes`", "did you mean `steps`?", 1, 5),
        ("backward.repeets=2", "unknown key `repeets` in `backward`", "did you", 10, 7),
        ("bakward.repeats=2", "unknown key `bakward`", "did you mean `backward`?", 1, 7),
        ("steps=[1", "not YAML: expected ',' or ']', but got the end", "close the", 9, 1),
        ("steps=a: b: c", "not YAML: a second `: ` in one value", "put a value", 11, 1),
        ("seed=abc", "`seed` expects an integer from 0", None, 6, 3),
        ("steps.x=3", "`steps` expects an integer from 1", None, 1, 5),
        ("target.0=3", "`target` is not set: `target.0` cannot be set", "set all of it", 8, 1),
        ("mode=eval=x", "`mode` expects train or eval", "did you mean `eval`?", 6, 6),
        ("Steps=1", "`Steps` is not the key of an override", "write `key=value`", 1, 5),
        ("a..b=1", "`a..b` is not the key of an override", "write `key=value`", 1, 4),
        ("steps", "`steps` is not the key of an override", "write `key=value`", 1, 5),
        ("weights={a: 1, a: 2}", "duplicate key `a`", "keep one of the two", 16, 1),
        ("weights=!!python/name:os.system", "unknown tag", "a config holds", 9, 23),
        ("model.weights_only=false", "the argument `weights_only` is refused", "delete", 7, 12),
        ("optimizer.lr=1", "`optimizer` has no `_target_`", "say what to build", 1, 9),
    ],
)
def test_overrides_that_fail(override, message, help, column, length):
    with pytest.raises(ConfigError) as caught:
        read("demo", [override])
    problem = caught.value.problems[0]
    assert problem.message.startswith(message)
    assert (problem.help or "").startswith(help or "")
    place = problem.place
    assert (place.file, place.line, place.column, place.length) == ("argument", 2, column, length)
    assert place.text == override


def test_an_index_beyond_the_list(tmp_path):
    with pytest.raises(ConfigError, match="`layers` is a list of 2: it has no `5`"):
        read(config(tmp_path, "model: demo\nlayers: [a, b]"), ["layers.5=x"])


def test_places_under_keys_with_dots(tmp_path):
    body = "model: demo\nreplace:\n  layer1.0.conv1: {_target_: torch.nn.Linear, out: 3}\n"
    place = read(config(tmp_path, body)).place("replace.layer1.0.conv1.out")
    assert (place.line, place.column) == (3, 52)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:GS_WORD}", "word"),
        ("a/${env:GS_WORD}/${env:GS_WORD}", "a/word/word"),
        ("${env:GS_NONE,other}", "other"),
        ("${env:GS_NONE,}", None),
        ("${env:GS_LOOP}", "${env:GS_WORD}"),
        ("x${env:GS_LOOP}", "x${env:GS_WORD}"),
        ("$${env:GS_WORD}", "${env:GS_WORD}"),
        ("costs $5", "costs $5"),
    ],
)
def test_the_environment(tmp_path, monkeypatch, text, value):
    monkeypatch.setenv("GS_WORD", "word")
    monkeypatch.setenv("GS_LOOP", "${env:GS_WORD}")
    monkeypatch.delenv("GS_NONE", raising=False)
    assert read(config(tmp_path, f"model: demo\ncheckpoint: {text}")).config.checkpoint == value


def test_a_value_from_the_environment_is_a_yaml_scalar_and_no_more(monkeypatch):
    monkeypatch.setenv("GS_STEPS", "1e1")
    assert read(None, ["steps=${env:GS_STEPS}"]).config.steps == 10
    monkeypatch.setenv("GS_STEPS", "[1, 2]")
    with pytest.raises(ConfigError, match=re.escape('found the text "${env:GS_STEPS}"')):
        read(None, ["steps=${env:GS_STEPS}"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:GS_NONE}", "the environment variable `GS_NONE` is not set"),
        ("${env:}", "`${env:}` is not an interpolation"),
        ("${oc.env:HOME}", "`${oc.env:HOME}` is not an interpolation"),
        ("${model.lr}", "`${model.lr}` is not an interpolation"),
        ("x${env:GS", "`${` is an interpolation that never ends"),
    ],
)
def test_interpolations_that_fail(monkeypatch, text, message):
    monkeypatch.delenv("GS_NONE", raising=False)
    with pytest.raises(ConfigError) as caught:
        read({"model": "demo", "checkpoint": text})
    assert [p.message for p in caught.value.problems] == [message]


SNIPPET = """
import sys
from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError
{extra}
try:
    read("demo", ["stpes=1"])
except ConfigError as error:
    assert "did you mean `steps`?" in error.render()
heavy = {{"torch", "torchvision", "numpy", "PIL", "timm", "transformers"}} & set(sys.modules)
sys.exit(f"imported {{sorted(heavy)}}" if heavy else 0)
"""


@pytest.mark.parametrize(("extra", "clean"), [("", True), ("import PIL", False)])
def test_a_config_error_imports_nothing_heavy_and_this_test_can_fail(extra, clean):
    done = subprocess.run([sys.executable, "-c", SNIPPET.format(extra=extra)], capture_output=True)
    assert (done.returncode == 0) is clean, done.stderr.decode()


def test_what_was_typed_and_what_stands_in_a_file(tmp_path, monkeypatch):
    """The word of the command line, and of no file, whatever the file is called."""
    monkeypatch.chdir(tmp_path)
    Path("argument").write_text("model: {_target_: ../a.py:Net}\nloss: {_target_: b.c}")
    named = read("../a.py:Net")
    assert named.typed("model") and not named.typed("loss")
    filed = read("argument")
    assert not filed.typed("model") and not filed.typed("loss")
    deeper = read("argument", ["model.width=3", "loss._target_=d.e"])
    assert not deeper.typed("model") and deeper.typed("loss")
    assert read("argument", ["model={class_path: d.e}"]).typed("model")
    Path("argument").write_text("model: {class_path: b.c}")
    assert not read("argument").typed("model")
    assert read("argument", ["model.class_path=d.e"]).typed("model")
    assert not read({"model": "../a.py:Net"}).typed("model")
