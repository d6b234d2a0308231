"""``--scale``: keys with a value for each width."""

from __future__ import annotations

import pytest

from gradscope.config import loaded_config as config
from gradscope.config.width_scales import full_key, overrides_at, parse_scales, widths_of
from gradscope.errors import OptionError


def test_values_are_yaml():
    found = parse_scales(["width=64,128", "input.shape=[2,64],[2,128]", "lr=1e-3,5e-4"])
    assert found == {"width": [64, 128], "input.shape": [[2, 64], [2, 128]], "lr": [1e-3, 5e-4]}
    assert widths_of(found) == (64, 128)
    assert overrides_at(found, 1) == ["width=128", "input.shape=[2, 128]", "lr=0.0005"]


def test_a_name_alone_is_an_argument_of_the_model_or_of_an_object_in_it():
    nested = {"_target_": "a.B", "config": {"_target_": "a.C", "n_embd": 8}}
    assert full_key("width", "./net.py:Net") == "model.width"
    assert full_key("n_embd", nested) == "model.config.n_embd"
    assert full_key("width", nested) == "model.width"
    assert full_key("optimizer.lr", nested) == "optimizer.lr"
    both = {**nested, "decoder": {"n_embd": 8}}
    with pytest.raises(OptionError, match="2 times"):
        full_key("n_embd", both)
    assert full_key("n_embd", {**both, "n_embd": 8}) == "model.n_embd"


def test_an_override_reaches_a_model_that_is_a_spec():
    scales = {"model.width": [64, 128], "optimizer.param_groups.0.lr": [1e-3, 5e-4]}
    groups = "optimizer={_target_: adam, param_groups: [{params: '**'}]}"
    found = config.read("./net.py:Net", [groups, *overrides_at(scales, 1)]).config
    assert found.model == {"_target_": "./net.py:Net", "width": 128}
    assert found.optimizer["param_groups"] == [{"params": "**", "lr": 5e-4}]


WRONG = {
    "nothing": ([], "nothing to scale"),
    "no values": (["width"], "is not KEY=VALUES"),
    "no key": (["=64,128"], "is not KEY=VALUES"),
    "one width": (["width=64"], "two or more widths"),
    "words": (["width=a,b"], "positive numbers in increasing order"),
    "falling": (["width=128,64"], "positive numbers in increasing order"),
    "zero": (["width=0,64"], "positive numbers in increasing order"),
    "twice": (["width=64,128", "width=64,128"], "given twice"),
    "too few of another": (["width=64,128", "depth=2"], "has 1 values, `width` has 2"),
    "no YAML": (["width=[64,128"], "--scale"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(words, message):
    with pytest.raises(OptionError, match=message.replace("[", r"\[")):
        widths_of(parse_scales(words))
