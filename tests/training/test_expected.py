"""The table of right answers is itself right: an unrelated observer finds the same.

Of each script the first bad step, whether the loss was bad or only gradients, and an operation
and a line among those that made a NaN or Inf of better numbers.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import processes
import pytest

from training.expected import ALL, BACKWARD, NAN_SCRIPTS, Expected
from training.non_finite_steps import NonFiniteStep, first_non_finite

pytestmark = pytest.mark.slow


def _in_its_own_process(expected: Expected, *arguments: str) -> NonFiniteStep:
    with ProcessPoolExecutor(1, mp_context=processes.context()) as pool:
        return pool.submit(
            first_non_finite,
            expected.path,
            arguments,
            located=None if arguments else expected.step,
        ).result()


@pytest.mark.parametrize("expected", [pytest.param(e, id=e.script) for e in ALL])
def test_the_table(expected: Expected):
    found = _in_its_own_process(expected)
    assert found.step == expected.step
    assert found.loss == (expected not in BACKWARD)
    if expected.ops:
        made = [b for b in found.non_finite if any(_same(op, b.op) for op in expected.ops)]
        assert made, found.non_finite
        assert any(expected.line in b.line for b in made), made
        # In backward its gradient is bad, its result was not, or was thrown away.
        assert made[0].in_backward == (expected in BACKWARD) or expected.script == "where_trap"


@pytest.mark.parametrize("expected", [pytest.param(e, id=e.script) for e in ALL])
def test_the_healthy_twin(expected: Expected):
    assert _in_its_own_process(expected, "--healthy").step is None


def test_every_script_is_in_the_table():
    assert {e.script for e in ALL} == {path.stem for path in NAN_SCRIPTS.glob("*.py")}
    assert all(e.lines for e in ALL if e.line)


def _same(op: str, name: str) -> bool:
    """``sqrt`` is ``SqrtBackward0``, ``aten::sqrt_`` and ``_sqrt``."""
    return plain_name(op) == plain_name(name)


def plain_name(op: str) -> str:
    plain = op.rpartition("::")[2].rpartition("torch.")[2].lower()
    return plain.removesuffix("0").removesuffix("backward").replace("_", "")
