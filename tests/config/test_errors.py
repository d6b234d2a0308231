"""Mistakes in a config: exact sentences, all at once, at the right line and column."""

from __future__ import annotations

import pytest

from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError


@pytest.fixture
def problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(body: str, *overrides: str, **options):
        (tmp_path / "model.yaml").write_text(body)
        with pytest.raises(ConfigError) as caught:
            read("model.yaml", overrides, options=options)
        return caught.value.problems

    return run


NUMBER = "expects an integer from 1, found"
TABLE = [
    ("wieghts: DEFAULT", "unknown key `wieghts`", "did you mean `weights`?", 1),
    ("Device: cpu", "unknown key `Device`", "did you mean `device`?", 1),
    ("repeats: 2", "unknown key `repeats`", "did you mean `backward.repeats`?", 1),
    ("shape: [1]", "unknown key `shape`", "did you mean `input.shape`?", 1),
    ("experiments: []", "unknown key `experiments`", "the keys are model, weights, ", 1),
    (
        "backward: {repeatss: 2}",
        "unknown key `repeatss` in `backward`",
        "did you mean `repeats`?",
        12,
    ),
    ("steps: zero", f'`steps` {NUMBER} the text "zero"', None, 8),
    ("steps: '3'", f'`steps` {NUMBER} the text "3"', "write it without quotes and", 8),
    ("steps: 1_000", f'`steps` {NUMBER} the text "1_000"', "write it without quotes and", 8),
    ("steps: 0", f"`steps` {NUMBER} the number 0", None, 8),
    ("steps: 1.5", f"`steps` {NUMBER} the number 1.5", None, 8),
    ("steps: true", f"`steps` {NUMBER} `true`", None, 8),
    ("steps:", f"`steps` {NUMBER} nothing (null)", None, 1),
    ("steps: [1]", f"`steps` {NUMBER} a list of 1", None, 8),
    ("steps: {a: 1}", f"`steps` {NUMBER} a mapping with the key `a`", None, 8),
    ("backward: {repeats: 0}", f"`backward.repeats` {NUMBER} the number 0", None, 21),
    (
        "backward: {retain_graph: yes}",
        '`backward.retain_graph` expects true or false, found the text "yes"',
        "write `true` or `false`: YAML 1.2 reads any other word as text",
        26,
    ),
    (
        "backward: 3",
        "`backward` expects a mapping with gradient, repeats, retain_graph, ",
        None,
        11,
    ),
    (
        "compile: {backend: inductr}",
        "`compile.backend` expects one of inductor, aot_eager, eager, cudagraphs, found",
        "did you mean `inductor`?",
        20,
    ),
    ("compile: 3", "`compile` expects a mapping with backend, mode, dynamic, fullgraph", None, 10),
    (
        "compile: {backend: eager, mode: max-autotune}",
        "`compile.mode` is for inductor, and the backend is eager",
        "leave it out",
        33,
    ),
    ("fullgraph: true", "unknown key `fullgraph`", "did you mean `compile.fullgraph`?", 1),
    ("seed: -1", "`seed` expects an integer from 0 to 4294967295, found the number", None, 7),
    ("seed: 4294967296", "`seed` expects an integer from 0 to 4294967295, found", None, 7),
    ("mode: trian", '`mode` expects train or eval, found the text "trian"', "did you mean `tr", 7),
    ("dtype: fp16", "`dtype` expects float32, float64, float16 or", "did you mean `float16`?", 8),
    ("dtype: float8", "`dtype` expects float32, float64, float16 or bfloat16, found", "did you", 8),
    ("autocast: float32", "`autocast` expects bfloat16, float16 or null, found", "did you", 11),
    ("device: gpu", "`device` expects auto, cpu, cuda, cuda:N, mps or", "did you mean `cuda`?", 9),
    ("device: cuda:x", "`device` expects auto, cpu, cuda, cuda:N, mps or meta", "did you mean", 9),
    ("device: 0", "`device` expects auto, cpu, cuda, cuda:N, mps or meta, found the", None, 9),
    (
        "weights: true",
        "`weights` expects DEFAULT, the name of weights, or null, found `t",
        None,
        10,
    ),
    (
        "checkpoint: [a]",
        "`checkpoint` expects the path of a file, or null, found a list of",
        None,
        13,
    ),
    ("loss: cros_entropy", "`loss` expects the name of a loss", "did you mean `cross_entropy`?", 7),
    ("loss: {x: 1}", "`loss` has no `_target_`", "say what to build: `loss: {_target_: ", 7),
    ("loss: {_target_: mean, x: 1}", "the loss `mean` takes no arguments", None, 7),
    ("optimizer: {lr: 1}", "`optimizer` has no `_target_`", "say what to build", 12),
    (
        "optimizer: lion",
        "`lion` is not the full name of a class or function",
        "write the module too",
        12,
    ),
    (
        "optimizer: {_targt_: a.B}",
        "unknown key `_targt_` in `optimizer`",
        "did you mean `_target_`?",
        13,
    ),
    ("optimizer: 3", "`optimizer` expects the name of an optimizer, a mapping", None, 12),
    ("layers: 3", "`layers` expects a list of patterns, found the number 3", None, 9),
    (
        "layers: [a, 3]",
        "`layers.1` expects a pattern, which is text, found the number",
        "put it",
        13,
    ),
    ("layers: ['re:[']", "pattern `re:[` is not a regular expression", "drop `re:`", 10),
    ("freeze: {a: 1}", "`freeze` expects a list of patterns, found a mapping", None, 9),
    ("replace: {fc: 3}", "`replace.fc` expects a mapping with `_target_`, found the num", None, 15),
    ("replace: {fc: {a: 1}}", "`replace.fc` has no `_target_`", "say what to build", 15),
    ("replace: [a]", "`replace` expects a mapping of module names to", None, 10),
    ("input: {shpe: [1]}", "unknown key `shpe` in `input`", "did you mean `shape`?", 9),
    ("lr: ${env:GRADSCOPE_NONE}", "unknown key `lr`", "did you mean `optimizer.lr`?", 1),
]


@pytest.mark.parametrize(("line", "message", "help", "column"), TABLE, ids=lambda v: str(v)[:30])
def test_one_line_that_is_wrong(problems, line, message, help, column):
    problem = next(p for p in problems(f"model: demo\n{line}\n") if p.message.startswith(message))
    assert (problem.place.line, problem.place.column) == (2, column)
    assert (problem.help or "").startswith(help or "")
    assert bool(problem.help) == bool(help)


@pytest.mark.parametrize(
    "line",
    [
        "steps: 1e3",
        "steps: 2.0",
        "device: cuda:1",
        "device: meta",
        "layers: conv*",
        "layers: []",
        "freeze: ['**', '!fc.**']",
        "optimizer: torch.optim.SGD",
        "optimizer: null",
        "loss: ./losses.py:mine",
        "loss: {_target_: cross_entropy, label_smoothing: 0.1}",
        "replace: {layer1.0.conv1: torch.nn.Identity}",
        "backward: {}",
        "backward: {repeats: 2}",
        "backward: {gradient: [100, 0.1]}",
        "autocast: bfloat16",
        "weights: DEFAULT",
        "seed: 4294967295",
    ],
)
def test_one_line_that_is_right(tmp_path, line):
    path = tmp_path / "model.yaml"
    path.write_text(f"model: demo\n{line}\n")
    read(path)


def test_the_whole_rendering_of_several_problems(problems, tmp_path, monkeypatch):
    monkeypatch.delenv("CHECKPOINT", raising=False)
    body = (
        "model: resnet18\n"
        "backward: {repeatss: 2, repeats: yes}\n"
        "checkpoint: runs/${env:CHECKPOINT}  # the newest\n"
        "wieghts: DEFAULT\n"
        "wieghts: null\n"
    )
    rendered = ConfigError(*problems(body, "stpes=3", device="gpu")).render()
    assert (
        rendered
        == """\
error: `resnet18` is not a model spec
  --> model.yaml:1:8 (model)
 1 | model: resnet18
   |        ^^^^^^^^
   = help: did you mean `torchvision:resnet18`?

error: unknown key `repeatss` in `backward`
  --> model.yaml:2:12 (backward.repeatss)
 2 | backward: {repeatss: 2, repeats: yes}
   |            ^^^^^^^^
   = help: the keys here are gradient, repeats, retain_graph

error: `backward.repeats` expects an integer from 1, found the text "yes"
  --> model.yaml:2:34 (backward.repeats)
 2 | backward: {repeatss: 2, repeats: yes}
   |                                  ^^^

error: the environment variable `CHECKPOINT` is not set
  --> model.yaml:3:13 (checkpoint)
 3 | checkpoint: runs/${env:CHECKPOINT}  # the newest
   |             ^^^^^^^^^^^^^^^^^^^^^^
   = help: set it, or give a default: `${env:CHECKPOINT,default}`

error: unknown key `wieghts`
  --> model.yaml:4:1 (wieghts)
 4 | wieghts: DEFAULT
   | ^^^^^^^
   = help: did you mean `weights`?

error: duplicate key `wieghts`
  --> model.yaml:5:1
 5 | wieghts: null
   | ^^^^^^^
   = note: `wieghts` was first given at line 4, column 1
   = help: keep one of the two

error: `device` expects auto, cpu, cuda, cuda:N, mps or meta, found the text "gpu"
  --> --device gpu (device)
  = help: did you mean `cuda`?

error: unknown key `stpes`
  --> argument:2:1 (stpes)
 2 | stpes=3
   | ^^^^^
   = help: did you mean `steps`?"""
    )


def test_a_mistyped_model_is_one_problem(problems):
    (problem,) = problems("modle: demo")
    assert (problem.message, problem.help) == ("unknown key `modle`", "did you mean `model`?")


def test_a_missing_model(problems):
    (problem,) = problems("steps: 3")
    assert problem.message == "the key `model` is missing"
    assert str(problem.place) == "model.yaml"


def test_no_word_of_the_validator_reaches_the_user(problems):
    body = "model: 3\n" + "\n".join(line for line, *_ in TABLE[::7])
    text = ConfigError(*problems(body)).render().lower()
    for word in (
        "pydantic",
        "input should",
        "type=",
        "validation error",
        "traceback",
        "extra inputs",
    ):
        assert word not in text


def test_control_characters_are_shown_and_not_sent(problems):
    found = problems('model: demo\n"st\\e[31meps": "\\e]0;x\\a"\nmode: "\\u202e"\n')
    text = ConfigError(*found).render()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "unknown key `st\\x1b[31meps`" in text
