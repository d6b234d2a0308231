"""Detection of a batch that never changes, and of one that is all of the data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gradscope.training.loop.batches import Batches

DATA = torch.randn(64, 4)
GIVEN: dict[str, tuple[Callable[[], torch.Tensor], bool]] = {
    "all of it": (lambda: DATA, True),
    "most of it": (lambda: DATA[:48], True),
    "a small part": (lambda: DATA[:8], False),
    # A copy has the address of the one before it, which is freed by then.
    "another tensor at its address": (lambda: torch.empty(0).set_(DATA.data), False),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_same_numbers_are_the_same_tensor_where_nobody_made_them_anew(name: str) -> None:
    make, same_tensor = GIVEN[name]
    batches = Batches()
    for _ in range(20):
        batches.called(0, (make(),), {})
    assert (batches.same, batches.same_tensor) == (20, same_tensor)


def test_two_parts_of_the_same_numbers_are_not_the_same_tensor() -> None:
    batches, data = Batches(), torch.ones(64, 4)
    for number in range(20):
        batches.called(0, (data[number % 2 :][:48],), {})
    assert (batches.same, batches.same_tensor) == (20, False)
