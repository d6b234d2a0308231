"""Causes that keep torch from being imported, and errors that only look like it."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from gradscope.commands import _model
from gradscope.commands._model import importing_torch
from gradscope.errors import ConfigError, OptionError

SEGMENT = "libtorch_cpu.so: failed to map segment from shared object"
NUMPY = f"\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: {SEGMENT}\n"
FAILURES = {
    "no memory": (MemoryError(), "not enough memory to import torch: MemoryError"),
    "no address space": (ImportError(SEGMENT), f"not enough memory to import torch: {SEGMENT}"),
    "within numpy": (ImportError(NUMPY), f"import torch: Original error was: {SEGMENT}"),
    "of the system": (OSError(errno.ENOMEM, "no room"), "not enough memory to import torch"),
    "no thread": (RuntimeError("can't start new thread"), "not enough memory to import torch"),
    "not installed": (ModuleNotFoundError("No module named 'torch'"), "torch cannot be imported"),
    "broken": (OSError("libcudnn.so: undefined symbol"), "torch cannot be imported: OSError: libc"),
}


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("gc.freeze", lambda: None)


@pytest.mark.parametrize(("error", "said"), FAILURES.values(), ids=FAILURES)
def test_what_fails(error: Exception, said: str, without_torch: None) -> None:
    with pytest.raises(OptionError) as caught, importing_torch():
        raise error
    assert said in caught.value.problems[0].message
    assert caught.value.__cause__ is error


OTHERS = {
    "a bug of ours": ImportError("cannot import name 'x'", name="gradscope.api"),
    "a config": ConfigError("no"),
    "a bug": TypeError("no"),
}


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_what_is_something_else(error: Exception, without_torch: None) -> None:
    with pytest.raises(type(error)) as caught, importing_torch():
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("code", "said", "refused"),
    [
        (0, b"", False),
        (-11, b"", True),
        (-6, b"cannot allocate memory for thread-local data: ABORT", True),
        (1, b"Traceback\nMemoryError", True),
        (1, SEGMENT.encode(), True),
        (1, b"ModuleNotFoundError: No module named 'torch'", False),
    ],
)
def test_a_trial(code, said, refused, without_torch, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2 << 30, 4 << 30))
    done = subprocess.CompletedProcess([], code, b"", said)
    monkeypatch.setattr(_model.subprocess, "run", lambda *args, **options: done)
    if not refused:
        with importing_torch():
            return
    with pytest.raises(OptionError, match=r"within 2\.000 GiB of address space"), importing_torch():
        pass


def test_no_trial_without_a_limit(without_torch, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(_model.subprocess, "run", pytest.fail)
    with importing_torch():
        pass
