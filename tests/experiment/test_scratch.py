"""The scratch copy holds what a script reads, and keeps what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.experiment import scratch
from gradscope.experiment.scratch import Scratch, Writes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    (folder / "train.py").write_text("print()")
    (folder / "pkg" / "net.py").write_text("x = 1")
    (folder / "data.bin").write_bytes(bytes(scratch.LARGEST + 1))
    (tmp_path / "home" / "shared").mkdir()
    (tmp_path / "home" / "shared" / "labels.txt").write_text("a b")
    return folder


def test_small_files_are_copied_and_large_ones_linked(project: Path, tmp_path: Path) -> None:
    found = Scratch.of(project)
    assert {str(path) for path in found.copied} == {"train.py", "pkg/net.py"}
    assert {str(path) for path in found.linked} == {"data.bin", ".git"}
    copy = found.make(tmp_path / "root")
    assert copy.name == "project"
    assert not (copy / "train.py").is_symlink()
    assert (copy / "data.bin").is_symlink()
    assert (copy / "data.bin").stat().st_size == scratch.LARGEST + 1
    assert (copy / ".git" / "HEAD").read_text() == "ref"


def test_paths_upwards_lead_where_they_did(project: Path, tmp_path: Path) -> None:
    copy = Scratch.of(project).make(tmp_path / "root")
    assert (copy / ".." / "shared" / "labels.txt").read_text() == "a b"
    assert (copy / ".." / "project" / "train.py").read_text() == "print()"


def test_a_folder_of_very_many_files_is_linked_as_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MOST_ENTRIES", 20)
    (project / "images").mkdir()
    for number in range(30):
        (project / "images" / f"{number}.png").write_bytes(b"png")
    found = Scratch.of(project)
    assert Path("images") in found.linked
    assert Path("pkg/net.py") in found.copied


def test_writes_stay_in_the_copy(project: Path, tmp_path: Path) -> None:
    copy = Scratch.of(project).make(tmp_path / "root")
    refused: list[str] = []
    writes = Writes(tmp_path / "root", project, refused.append)
    writes.check(copy / "model.pt")
    writes.check(copy / "pkg" / "new.txt")
    writes.check(3)  # a descriptor
    assert not refused
    for outside in (project / "model.pt", copy / ".git" / "HEAD", "/usr/share/model.pt"):
        with pytest.raises(PermissionError, match="scratch copy"):
            writes.check(outside)
    assert refused == [str(project / "model.pt"), str(copy / ".git/HEAD"), "/usr/share/model.pt"]


def test_a_temporary_folder_in_the_source_may_be_written(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(project / "tmp"))
    writes = Writes(tmp_path / "root", project, lambda _: None)
    writes.check(project / "tmp" / "cache.bin")
    with pytest.raises(PermissionError, match="scratch copy"):
        writes.check(project / "model.pt")


def test_a_linked_file_is_copied_before_it_is_written(project: Path, tmp_path: Path) -> None:
    copy = Scratch.of(project).make(tmp_path / "root")
    Writes(tmp_path / "root", project, lambda _: None).check(copy / "data.bin")
    assert not (copy / "data.bin").is_symlink()
    (copy / "data.bin").write_bytes(b"other")
    assert (project / "data.bin").stat().st_size == scratch.LARGEST + 1
