"""What broke the contract once, as small as it gets: found by the fuzzer, or by somebody."""

from __future__ import annotations

import pytest

from fuzz.attempts import Attempt, faults

LARGE = (2**63, 10**24)
DIGITS = f"0x{'f' * 5000}"
FOUND = [
    *(f"input.shape=[1, {n}]" for n in LARGE),
    *(f"input.batch={n}" for n in (10**12, 2**63 - 1, *LARGE)),
    *(f"input={{shape: [3], batch: {n}}}" for n in (10**12, 2**63)),
    *(f"input={{values: [3], batch: {n}}}" for n in (10**12, 2**63)),
    *(f"input.tokens=[[{n}]]" for n in LARGE),
    *(f"{key}={DIGITS}" for key in ("seed", "input.batch", "target")),
    f"input.shape=[{DIGITS}]",
    f"rules.thresholds={{GS101: {{ratio: {DIGITS}}}}}",
    f"interventions=[{{layers: '**', do: scale, value: {DIGITS}}}]",
    f"a{'.b' * 10_000}=1",
]


@pytest.mark.parametrize("word", FOUND, ids=lambda word: word[:50])
def test_the_contract_holds(word: str) -> None:
    assert faults(Attempt("key", ("inspect", "demo", word))) == []
