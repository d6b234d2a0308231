"""The options that change a run: one for each action, read as a config would say it."""

from __future__ import annotations

import json

import processes
import pytest

from gradscope.actions import ACTIONS
from gradscope.commands.inspect import InterventionOptions, parsed
from gradscope.errors import OptionError

READ = {
    "clip_norm layer1.*=1": {"layers": ["layer1.*"], "do": "clip_norm", "value": 1.0},
    "zero fc": {"layers": ["fc"], "do": "zero"},
    "zero fc@activation": {"layers": ["fc"], "do": "zero", "at": "activation"},
    "scale fc.weight@parameter_grad=1e-3": {
        "layers": ["fc.weight"],
        "do": "scale",
        "at": "parameter_grad",
        "value": 1e-3,
    },
    "scale re:a=b=2": {"layers": ["re:a=b"], "do": "scale", "value": 2.0},
}


@pytest.mark.parametrize("text", READ)
def test_what_an_option_says(text):
    do, _, given = text.partition(" ")
    assert parsed(do, given) == READ[text]


REFUSED = {
    "scale fc": "has no value",
    "scale fc=": "has no value",
    "scale fc=two": "`two` is not a number",
    "clip_norm fc=0": "`0` is not a number above 0",
    "zero fc@here": "`here` is not a valid place",
    "detach fc@grad_output": "`grad_output` is not a valid place",
    "scale =2": "names no layer",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_an_option_cannot_say(text):
    do, _, given = text.partition(" ")
    with pytest.raises(OptionError, match=REFUSED[text]):
        parsed(do, given)


def test_every_action_has_its_option():
    given = {name: [f"fc{'=1' if name not in ('zero', 'detach') else ''}"] for name in ACTIONS}
    wanted = InterventionOptions(**given).wanted()
    assert [one["do"] for one in wanted] == list(ACTIONS)


@pytest.mark.slow
def test_options_add_to_the_configs_own(tmp_path):
    config = "model: demo\ninterventions:\n  - {layers: conv1, do: scale, value: 2}\n"
    (tmp_path / "model.yaml").write_text(config)
    words = ["inspect", "model.yaml", "--zero", "fc1", "-f", "json"]
    done = processes.gradscope(words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(c["name"], c["do"]) for c in report["interventions"]] == [
        ("conv1", "scale"),
        ("fc1", "zero"),
    ]
    assert [one["do"] for one in report["config"]["interventions"]] == ["scale", "zero"]


@pytest.mark.slow
def test_a_pattern_that_matches_nothing_has_its_place_where_it_has_one(tmp_path):
    config = "model: demo\ninterventions:\n  - {layers: conv1, do: scale, value: 2}\n"
    (tmp_path / "model.yaml").write_text(config)
    done = processes.gradscope(["inspect", "model.yaml", "--zero", "fc9"], cwd=tmp_path)
    assert done.returncode == 2
    assert "pattern `fc9` matches no layer" in done.stderr
    assert "model.yaml" not in done.stderr
    (tmp_path / "model.yaml").write_text(config.replace("conv1", "conv9"))
    done = processes.gradscope(["inspect", "model.yaml"], cwd=tmp_path)
    assert "--> model.yaml:3:14 (interventions.0.layers)" in done.stderr
