"""Each broken program is located at its step; its mended twin is silent."""

from __future__ import annotations

import pytest
import torch

from training.nan_detector import programs
from training.nan_detector.loop import BAD, CASES, Loop

pytestmark = [
    pytest.mark.filterwarnings("ignore:std.*degrees of freedom is <= 0:UserWarning"),
]

#: Where it breaks by itself, not at the step that was chosen.
BY_ITSELF = {"weights_that_explode"}
#: Whose line was not seen in an earlier step.
NO_LINE = {"a_loss_of_another_shape_at_the_bad_step"}


def loop(name: str, *, mended: bool) -> Loop:
    torch.manual_seed(0)
    return Loop(CASES[name].build(mended))


def test_the_table_is_whole() -> None:
    assert {case.build.__module__ for case in CASES.values()} == {programs.__name__}
    phases = [case.expected.phase for case in CASES.values()]
    assert {p: phases.count(p) for p in set(phases)} == {
        "forward": 15,
        "loss": 9,
        "backward": 5,
        "input": 2,
        "parameter": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_broken_program(name: str) -> None:
    case, run = CASES[name], loop(name, mended=False)
    step = run.run()
    assert step == BAD if name not in BY_ITSELF else step is not None
    (origin,) = run.non_finite
    expected = case.expected
    assert (origin.phase, origin.op, origin.name) == (expected.phase, expected.op, expected.module)
    assert expected.reason in (origin.reason or ""), origin
    if name in NO_LINE:
        assert origin.location is None
    elif expected.line:
        assert origin.location == case.line()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_mended_twin(name: str) -> None:
    assert loop(name, mended=True).run() is None
