"""Files that are no config: each an error with its place and a remedy, never a traceback."""

from __future__ import annotations

import os

import pytest

from gradscope.config.loaded_config import read
from gradscope.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def problem(model):
    with pytest.raises(ConfigError) as caught:
        read(model)
    assert caught.value.exit_code == 2
    return caught.value.problems[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the config is empty"),
        (b"# a comment\n\n", "the config is empty"),
        (b"---\n", "the config is empty"),
        (b"~", "the config is empty"),
        (b"- a\n- b\n", "a config is a mapping of keys, found a list of 2"),
        (b"demo", 'a config is a mapping of keys, found the text "demo"'),
        (b"3", "a config is a mapping of keys, found the number 3"),
        (b"model: caf\xe9\n", "not UTF-8 text"),
        ("model: demo".encode("utf-16"), "not UTF-8 text"),
        (b"\x80\x04\x95", "not UTF-8 text"),
        (b"model: a\x00b", "not YAML: a NUL byte"),
        (b"x: 1\n" * 250_000, "`m.yaml` has 1.2 MB, a config at most 1 MB"),
    ],
)
def test_contents_that_are_no_config(tmp_path, content, message):
    (tmp_path / "m.yaml").write_bytes(content)
    found = problem("m.yaml")
    assert found.message == message
    assert found.place is not None
    assert found.help


def test_bad_bytes_are_placed(tmp_path):
    (tmp_path / "m.yaml").write_bytes("model: demo\n# é ".encode() + b"\xff\n")
    place = problem("m.yaml").place
    assert (place.line, place.column) == (2, 5)


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path):
    (tmp_path / "m.yaml").write_bytes(b"\xef\xbb\xbfmodel: demo\r\nsteps: 2\r\n")
    assert read("m.yaml").config.steps == 2


def test_a_missing_file_offers_the_one_beside_it(tmp_path):
    (tmp_path / "model.yaml").write_text("model: demo")
    assert problem("modle.yaml").message == "there is no file `modle.yaml`"
    assert problem("modle.yaml").help == "did you mean `model.yaml`?"
    assert problem("qqqqqq.yml").help == "there is `model.yaml`"


def test_a_missing_file_in_another_folder(tmp_path):
    (tmp_path / "configs").mkdir()
    assert problem("configs/a.yaml").help == "`gradscope init` writes a starter"
    (tmp_path / "configs" / "net.yaml").write_text("")
    assert problem("configs/nat.yaml").help == "did you mean `configs/net.yaml`?"
    assert problem("nowhere/net.yaml").help == "there is no folder `nowhere`"


def test_a_folder(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.yaml").write_text("")
    assert problem("configs").message == "`configs` is a folder"
    assert problem("configs").help == "there is `configs/a.yaml`"
    (tmp_path / "x.yaml").mkdir()
    assert problem("x.yaml").message == "`x.yaml` is a folder"


@pytest.mark.parametrize("name", ["a\0b.yaml", "a" * 5000 + ".yaml", "a" * 5000, "m.yaml/x.yaml"])
def test_names_that_no_file_can_have(tmp_path, name):
    (tmp_path / "m.yaml").write_text("model: demo")
    assert problem(name).help


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.yaml")
    assert problem("p.yaml").message == "`p.yaml` is not a regular file"


def test_an_unreadable_file(tmp_path, monkeypatch):
    (tmp_path / "m.yaml").write_text("model: demo")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    found = problem("m.yaml")
    assert found.message == "`m.yaml` cannot be read: Permission denied"
    assert found.help == "check its permissions and its name"


def test_a_file_without_the_suffix_is_read_too(tmp_path):
    (tmp_path / "config").write_text("model: demo\nsteps: 2")
    loaded = read("config")
    assert (loaded.name, loaded.config.steps, loaded.directory) == ("config", 2, tmp_path)
