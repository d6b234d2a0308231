"""Results of the rules that count values, for a batch of a few samples."""

from __future__ import annotations

import pytest

from rules.all_programs import CASES
from rules.batch_sizes import with_samples
from rules.calibrate import checked

pytestmark = pytest.mark.slow

COUNTING = [name for name, case in CASES.items() if case.code.startswith("GS2")]
#: With two samples or fewer it cannot be told from a layer whose units are on once in a while; and
#: a few numbers may be close together by chance.
MORE = {"units_killed_in_training": 4, "pixels_normalized_with_the_statistics_of_bytes": 8}


@pytest.mark.parametrize("samples", [1, 2, 4, 8])
@pytest.mark.parametrize("name", COUNTING)
def test_few_samples(name, samples):
    case = CASES[name]
    assert case.as_bad(checked(with_samples(case.build(True), samples)).findings) == []
    if samples >= MORE.get(name, 1):
        assert case.found_in(checked(with_samples(case.build(False), samples)).findings)


def test_a_batch_is_cut_and_repeated():
    program = CASES["biases_after_a_bad_step"].build(False)
    few, many = with_samples(program, 3), with_samples(program, 100)
    assert (len(few.inputs), len(few.target)) == (3, 3)
    assert (len(many.inputs), len(many.target)) == (100, 100)
    assert many.inputs[64].equal(program.inputs[0])
