"""Healthy models get no error; their other findings are counted."""

from __future__ import annotations

import pytest

import gradscope
from rules.healthy import healthy

pytestmark = pytest.mark.slow

MODELS = dict(healthy())
#: The larger ones take seconds each; `python -m tests.rules.calibrate` runs them all.
QUICK = [
    "demo",
    "demo:scouter",
    "torchvision:resnet18",
    "torchvision:squeezenet1_1",
    "torchvision:mobilenet_v3_small",
    "torchvision:googlenet",
    "timm:resnet10t",
    "timm:mixer_s32_224",
    *(name for name in MODELS if name.startswith(("torch ", "transformers "))),
]
#: Codes of the warnings and remarks that are right: zero-initialised branches, a loss that leaves
#: the auxiliary heads out, gates that training has closed.
SAID = {
    "demo:scouter": {"GS202"},
    "timm:resnet10t": {"GS103"},
    "timm:mixer_s32_224": {"GS103"},
    "torchvision:googlenet": {"GS401"},
}


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_an_error(name):
    program = MODELS[name]()
    report = gradscope.check(program.model, **program.arguments())
    found = [(f.code, f.severity, f.name, f.message) for f in report.findings]
    assert [f for f in found if f[1] == "error"] == []
    assert {code for code, *_ in found} == SAID.get(name, set()), found
