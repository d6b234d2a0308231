"""What holds in every test: a plain terminal, few threads, no hook of gradscope's left behind."""

from __future__ import annotations

import gc
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

# Before torch starts its pool. Test workers beside each other would otherwise fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

# A shell's job in the background ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import guards
import pytest
import torch
from torch.utils.hooks import RemovableHandle


def pytest_collection_finish() -> None:
    """What is there before the first test stays: nobody need search it for garbage or tensors."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed width and no colour, here and in every process that a test starts."""
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GRADSCOPE_ALLOW"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user would not wait for is done all the same, however busy the machine."""
    for room in ("gradscope.api.failing", "gradscope.diagrams.html"):
        monkeypatch.setattr(f"{room}.PATIENCE", math.inf)


@pytest.fixture(scope="session", autouse=True)
def few_threads() -> None:
    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Iterator[None]:
    """The process-wide settings of torch that a run may turn are turned back."""
    before = guards.switches()
    yield
    assert guards.switches() == before


@pytest.fixture(autouse=True)
def handles(monkeypatch: pytest.MonkeyPatch) -> list[RemovableHandle]:
    """The handle of every hook that gradscope sets during the test."""
    handles: list[RemovableHandle] = []
    original = RemovableHandle.__init__

    def recorded(self: RemovableHandle, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if guards.set_by_gradscope():
            handles.append(self)

    monkeypatch.setattr(RemovableHandle, "__init__", recorded)
    return handles


@pytest.fixture(autouse=True)
def no_hooks_are_left(handles: list[RemovableHandle]) -> Iterator[None]:
    """Every hook that gradscope set is removed, or gone with the tensor that carried it."""
    yield
    left = sum(guards.still_set(handle) for handle in handles)
    assert not left, f"{left} of {len(handles)} hooks are still set"


@pytest.fixture
def unchanged() -> Callable[[torch.nn.Module], AbstractContextManager[None]]:
    """``with unchanged(model): …`` asserts that the model and the random state stay as they are."""
    return guards.unchanged
