"""A file appears whole or not, and nothing is overwritten unasked."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gradscope.commands._write import check_output, say, write_output
from gradscope.errors import OptionError


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".gradscope")]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_output("naïve\n", tmp_path / "a.txt")
    finally:
        os.umask(old)
    assert (tmp_path / "a.txt").read_bytes() == "naïve\n".encode()
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    assert not leftovers(tmp_path)


def test_an_existing_file_stays_without_force(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OptionError, match="exists") as caught:
        write_output("new", path)
    assert caught.value.problems[0].help == "add `--force` to overwrite it"
    assert path.read_text() == "old"
    assert not leftovers(tmp_path)


def test_force_replaces_and_keeps_the_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a longer old text")
    path.chmod(0o600)
    write_output(b"new", path, force=True)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with pytest.raises(OptionError, match="exists"):
        write_output("new", tmp_path / "link.txt")
    write_output("new", tmp_path / "link.txt", force=True)
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to("gone.txt")
    with pytest.raises(OptionError, match="exists"):
        write_output("new", tmp_path / "link.txt")
    assert not (tmp_path / "gone.txt").exists()


def test_who_comes_second_in_a_race_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    original = Path.hardlink_to

    def late(self: Path, target: Path) -> None:
        path.write_text("theirs")
        original(self, target)

    monkeypatch.setattr(Path, "hardlink_to", late)
    with pytest.raises(OptionError, match="exists"):
        write_output("ours", path)
    assert path.read_text() == "theirs"
    assert not leftovers(tmp_path)


def test_without_hard_links_the_name_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(self: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", unsupported)
    write_output("text", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "text"
    with pytest.raises(OptionError, match="exists"):
        write_output("again", tmp_path / "a.txt")
    assert not leftovers(tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OptionError, match="No space left on device"):
        write_output("new", path, force=True)
    assert path.read_text() == "old"
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("force", [False, True])
def test_what_cannot_be_written_is_named_before_the_run(tmp_path: Path, force: bool) -> None:
    (tmp_path / "file").write_text("")
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "a.txt", "no such folder"),
        (tmp_path / "file" / "a.txt", "Not a directory|is not a folder"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for act in (check_output, lambda p, force: write_output("x", p, force=force)):
            with pytest.raises(OptionError, match=message):
                act(path, force=force)


def test_an_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the answer itself is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OptionError, match="the folder is not writable"):
        check_output(tmp_path / "a.txt", force=False)


def test_a_device_and_a_pipe_are_written_not_replaced(tmp_path: Path) -> None:
    null = Path(os.devnull)
    before = null.stat()
    write_output("text", null)
    assert null.stat().st_ino == before.st_ino
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_output("text", tmp_path / "pipe")
    reader.join()
    assert got == ["text"]


def test_standard_output_takes_any_text(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print("before")
    write_output("– \ud800\r\n", None)
    write_output(b"\x00", Path("-"))
    assert capsysbinary.readouterr().out == b"before\n\xe2\x80\x93 \\ud800\r\n\x00"


def test_a_closed_pipe_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        with pytest.raises(BrokenPipeError):
            write_output("text", None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())


def test_standard_output_by_its_name_though_it_is_a_regular_file(tmp_path):
    """As in `gradscope … -o /dev/stdout > out.json`: there is nothing to overwrite."""
    words = [sys.executable, "-c", "from pathlib import Path; from gradscope.output_files import "
             "write_file; write_file(b'data', Path('/dev/stdout'))"]  # fmt: skip
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(words, stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"data"


@pytest.mark.parametrize("width", [24, 60, 200])
def test_a_note_is_as_wide_as_asked_for(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notice = "up to 16 arms of 100 steps, at most 16.0 min; scratch copy: 3 files (2.1 KiB) copied"
    monkeypatch.setenv("COLUMNS", str(width))
    say(notice)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(line.strip() for line in lines) == f"note: {notice}"
