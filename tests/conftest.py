"""Setting of every test: a plain terminal, few threads, no hook of gradscope's left."""

from __future__ import annotations

import gc
import importlib
import math
import operator
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

# Before torch starts its pool: one thread in each process, also in workers and in all that a test
# starts, which inherit it. With two each on two cores, threads wait for one another in a loop, and
# small networks take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch's compiler imports triton, whose binding prints two screens below pytest's summary when the
# process ends. Without a GPU nothing here needs it; the processes that tests start do have triton.
if shutil.which("nvidia-smi") is None:
    sys.modules.setdefault("triton", None)

# A shell's job in the background ignores Ctrl-C, and one below `nohup` the end of the terminal. So
# would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import pytest  # what is above must come before any of these

from gradscope import references
from gradscope.machine import machine_memory

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

#: A worker that imports everything and trains a large network takes so much memory, in bytes.
_OF_A_WORKER = 3 << 30

_frozen_modules = 0


def pytest_xdist_auto_num_workers() -> int:
    """As many workers as there are cores that this process may use, and memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = machine_memory()
    room = cores if memory is None else memory // _OF_A_WORKER
    return max(1, min(cores or 1, room or 1))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the objects before the first test: no search for garbage or tensors needs them."""
    gc.disable()
    try:
        return (yield)
    finally:
        _freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give each test and its fixtures the same random numbers, in whatever order tests run."""
    random.seed(0)
    for library, seed in (("numpy", "random.seed"), ("torch", "default_generator.manual_seed")):
        if library in sys.modules:
            operator.attrgetter(seed)(sys.modules[library])(0)


def pytest_runtest_logfinish() -> None:
    """Freeze what a test's imports made: a library, which stays for all tests to come."""
    if len(sys.modules) >= _frozen_modules + 100:
        _freeze()


def _freeze() -> None:
    """Take the objects there are out of every later search."""
    global _frozen_modules
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width, as in a pipe, and no colour, here and in every process that a test starts.

    No time limit, however busy the machine is.
    """
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GRADSCOPE_ALLOW", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    if "torch" in sys.modules:
        for room in ("gradscope.api.failing", "gradscope.diagrams.html"):
            monkeypatch.setattr(importlib.import_module(room), "PATIENCE", math.inf)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test's search paths, imports of configs' code and values from the environment are gone.

    The process-wide settings of torch that a run may turn are turned back.
    """
    imports = sys.modules.get("gradscope.loading.imports")
    if imports is not None:
        path, folders, known = list(sys.path), list(imports._folders), set(imports._imported)
    before = None
    if "torch" in sys.modules:
        import guards

        before = guards.switches()
    yield
    references.forget()
    if imports is not None:
        sys.path[:], imports._folders[:] = path, folders
        for name in imports._imported.keys() - known:
            sys.modules.pop(name, None)
            del imports._imported[name]
    if before is not None:
        assert guards.switches() == before


@pytest.fixture(autouse=True)
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RemovableHandle]]:
    """The handle of every hook that gradscope sets during the test.

    At its end each is removed, or gone with the tensor that carried it.
    """
    handles: list[RemovableHandle] = []
    if "torch" not in sys.modules:
        yield handles
        return
    import guards
    from torch.utils.hooks import RemovableHandle

    original = RemovableHandle.__init__

    def recorded(self: RemovableHandle, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if guards.set_by_gradscope():
            handles.append(self)

    monkeypatch.setattr(RemovableHandle, "__init__", recorded)
    yield handles
    left = sum(guards.still_set(handle) for handle in handles)
    assert not left, f"{left} of {len(handles)} hooks are still set"


@pytest.fixture
def unchanged() -> Callable[[torch.nn.Module], AbstractContextManager[None]]:
    """``with unchanged(model): …`` asserts that the model and the random state stay as they are."""
    import guards

    return guards.unchanged
