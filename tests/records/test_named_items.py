"""Short ways to what a record holds: by name, by PyTorch's words, through a run's finding."""

from __future__ import annotations

import pytest

from gradscope.records.modules import ModuleCall, ParameterStats
from gradscope.records.report import Finding, Report
from gradscope.records.run import RunInfo
from gradscope.records.tensors import TensorRecord, TensorStats
from gradscope.records.training import TrainingFinding

VALUE, GRADIENT = (TensorStats((2,), "float32", 2, norm=norm) for norm in (1.0, 2.0))
WEIGHT = ParameterStats("fc.weight", (2,), True, VALUE, GRADIENT, aliases=("head.weight",))
CALLS = tuple(
    ModuleCall(name, "Linear", call=call, order=order, aliases=aliases)
    for order, (name, call, aliases) in enumerate(
        [("", 0, ()), ("fc", 0, ("head",)), ("act", 0, ()), ("act", 1, ())]
    )
)
RUN = RunInfo("net", "cpu", "float32", "train", seed=0, steps=1, loss="sum")
REPORT = Report("ok", RUN, calls=CALLS, parameters=(WEIGHT,))


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("fc.weight", WEIGHT),
        ("head.weight", WEIGHT),
        ("fc", CALLS[1]),
        ("head", CALLS[1]),
        ("", CALLS[0]),
        (("act", 0), CALLS[2]),
        (("act", 1), CALLS[3]),
    ],
)
def test_a_report_has_items_by_name(key: str | tuple[str, int], item: object) -> None:
    assert REPORT[key] is item


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("fc.wieght", "there is no parameter and no layer `fc.wieght`: did you mean `fc.weight`?"),
        ("zzz", "there is no parameter and no layer `zzz`"),
        ("act", "`act` ran 2 times: report['act', 0] is the first, report['act', 1] the last"),
        (("act", 2), "there is no call 2 of `act`"),
        (("fc.weight", 0), "there is no call 0 of `fc.weight`"),
        (0, "there is no parameter and no layer `0`"),
    ],
)
def test_a_name_that_is_none_is_told_what_is_near(key: object, message: str) -> None:
    with pytest.raises(KeyError) as caught:
        REPORT[key]  # type: ignore[index]
    assert caught.value.args == (message,)


def test_whether_a_name_is_there() -> None:
    assert "fc.weight" in REPORT
    assert "head" in REPORT
    assert "fc.bias" not in REPORT
    with pytest.raises(TypeError, match="not iterable"):
        iter(REPORT)  # type: ignore[call-overload]


def test_the_gradient_by_pytorchs_word() -> None:
    assert WEIGHT.grad is WEIGHT.gradient is GRADIENT
    assert TensorRecord("", VALUE, GRADIENT).grad is GRADIENT
    assert ParameterStats("w", (2,), False, VALUE).grad is None


def test_a_finding_of_a_run_says_what_its_finding_says() -> None:
    finding = Finding(
        "GS101", "vanishing-gradient", "error", "fc", "message", "advice", 1, 0.5, 0.1, "source",
        "depth", "net.py:3",
    )  # fmt: skip
    found = TrainingFinding(finding, ((1, 3),))
    for name in Finding.__dataclass_fields__:
        assert getattr(found, name) == getattr(finding, name)
