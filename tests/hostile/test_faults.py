"""Faults at any moment of any command that writes: a full file or none, and nothing forgotten."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

import processes
import pytest
from commands import run_files
from fuzz.attempts import _memory

from gradscope import demo, output_files
from hostile.commands import Outcome, gradscope

resource = pytest.importorskip("resource", reason="limits of POSIX")

DIGITS = Path(demo.__file__).parent / "digits"
DIGIT = str(DIGITS / "digit-3.png")
#: Commands that write, each with the file that it is asked for.
WRITERS = {
    "inspect": ("made.json", "inspect", "demo"),
    "check": ("made.sarif", "check", "demo"),
    "why": ("made.md", "why", "demo:lecture"),
    "graph": ("made.html", "graph", "demo"),
    "diff": ("made.json", "diff", "demo", "demo:lecture"),
    "show": ("made.csv", "show", "saved.json"),
    "show a run": ("made.json", "show", "saved.db"),
    "saliency": ("made.png", "saliency", DIGIT, "-m", "demo", "--method", "gradient"),
    "filters": ("made.png", "features", "filters", "-m", "demo"),
    "neighbors": ("made.json", "features", "neighbors", DIGIT, str(DIGITS), "-m", "demo"),
    "schema": ("made.json", "schema"),
}
_DIGITS = (str(DIGITS), "-m", "demo", "-o", "saved-too.json")  # not what is looked at
OTHERS = {
    "init": ("made.yaml", ("init", "made.yaml")),
    "export": ("made.csv", ("export", "saved.db", "--to", "csv", "made.csv")),
    "cache": (
        "made.safetensors",
        ("features", "neighbors", DIGIT, *_DIGITS, "--cache", "made.safetensors"),
    ),
    "vectors": (
        "made.safetensors",
        ("features", "embed", *_DIGITS, "--save-features", "made.safetensors"),
    ),
}
COMMANDS = {
    **{name: (file, (*words, "-o", file)) for name, (file, *words) in WRITERS.items()},
    **OTHERS,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report and a run to read."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "saved.json").write_text(gradscope(["inspect", "demo", "-f", "json"]).out)
    run_files.with_findings(folder / "saved.db")
    return folder


@pytest.fixture
def folder(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in saved.iterdir():
        (tmp_path / file.name).hardlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        # Python 3.11 takes the first 100 bytes of a compiled module for all of it.
        with mock.patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def as_it_writes(number: signal.Signals) -> Iterator[None]:
    """The signal comes when the new file is there and empty."""
    touch = Path.touch

    def then_signal(self: Path, *args: object, **options: bool) -> None:
        touch(self, **options)
        os.kill(os.getpid(), number)

    with mock.patch.object(Path, "touch", then_signal):
        yield


@contextmanager
def no_home() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name in [n for n in os.environ if n in ("HOME", "USER") or n.startswith("XDG_")]:
            del os.environ[name]
        yield


@contextmanager
def no_temporary_folder() -> Iterator[None]:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    with mock.patch.object(tempfile, "gettempdir", none):
        yield


@contextmanager
def no_working_directory() -> Iterator[None]:
    gone = Path("gone")
    gone.mkdir()
    os.chdir(gone)
    Path.cwd().rmdir()
    yield


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "a full disk": full_disk,
    "Ctrl-C": lambda: as_it_writes(signal.SIGINT),
    "SIGTERM": lambda: as_it_writes(signal.SIGTERM),
    "little memory": lambda: _memory(200 << 20),
    "no home": no_home,
    "no temporary folder": no_temporary_folder,
    "no working directory": no_working_directory,
}
#: What a fault ends with: the file is there or not, and the code says so.
CODES = {"a full disk": {2}, "Ctrl-C": {130}, "SIGTERM": {143}, "no working directory": {0, 2}}


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("saved"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_fault(command: str, fault: str, folder: Path) -> None:
    file, words = COMMANDS[command]
    with FAULTS[fault]():
        found: Outcome = gradscope(words)
    assert found.faults() == []
    assert found.code in CODES.get(fault, {0}), found.err
    whole = found.code == 0 and fault != "no working directory"
    assert left(folder) == ([file] if whole else [])
    if whole and file.endswith(".json"):
        json.loads(Path(file).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "saliency", "export"])
def test_a_kill_leaves_no_half_of_a_file(command: str, folder: Path) -> None:
    """Nobody can clear away behind it; what was asked for is there whole, or not."""
    file, words = COMMANDS[command]
    process = processes.context().Process(target=_killed, args=(words, str(folder)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not Path(file).exists()
    assert len([name for name in left(folder) if name.endswith(".tmp")]) == 1
    assert gradscope(words).code == 0
    assert left(folder) == [file]


def _killed(words: tuple[str, ...], folder: str) -> None:
    os.chdir(folder)
    with as_it_writes(signal.SIGKILL):
        gradscope(words)


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name, words in WRITERS.items() if "-m" not in words])
def test_a_terminal_of_ascii_alone(command: str, folder: Path) -> None:
    _, *words = WRITERS[command]
    found = gradscope([*words, "-o", "-"], encoding="ascii")
    assert (found.code, found.faults()) == (0, [])


def test_what_a_dead_process_left_goes_and_nothing_else(tmp_path: Path) -> None:
    gone = processes.context().Process(target=int)
    gone.start()
    gone.join()
    machine = output_files._machine()
    names = {
        f".gradscope-{machine}-{gone.pid}-0a.tmp": False,
        f".gradscope-{machine}-{os.getpid()}-0a.tmp": True,
        f".gradscope-{machine}-{os.getppid()}-0a.tmp": True,
        f".gradscope-{machine}-1-0a.tmp": True,
        f".gradscope-{machine}-{10**30}-0a.tmp": True,
        f".gradscope-{machine}-x-0a.tmp": True,
        f".gradscope-00000000-{gone.pid}-0a.tmp": True,  # of another machine
        f"{gone.pid}.tmp": True,
    }
    for name in names:
        (tmp_path / name).write_text("half")
    folder = tmp_path / f".gradscope-{machine}-{gone.pid}-0b.tmp"
    folder.mkdir()
    (folder / "half.csv").write_text("half")
    output_files.write_file(b"whole", tmp_path / "made")
    kept = {name for name, stays in names.items() if stays}
    assert {path.name for path in tmp_path.iterdir()} == {"made", *kept}
