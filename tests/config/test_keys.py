"""The list of keys against the schema and the grammar that it documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.config.inputs import SOURCES
from gradscope.config.python_files import attributes_of, classes_of, names_of
from gradscope.config.schema import GROUPS, LISTS, Config, expected, keys


def test_every_key_is_listed_with_what_it_takes_and_means() -> None:
    listed = {key.name: key for key in keys()}
    groups = {f"{group}.{name}" for group, model in GROUPS.items() for name in model.model_fields}
    groups |= {f"{key}.0.{name}" for key, model in LISTS.items() for name in model.model_fields}
    beside = {word for words in SOURCES.values() for word in words}
    inputs = {f"input.{name}" for name in {*SOURCES, *beside}}
    assert set(listed) == {*Config.model_fields, *groups, *inputs}
    assert all(key.takes and key.description for key in listed.values())
    assert listed["steps"].default == "1"
    assert listed["layers"].default == '["**"]'
    assert listed["model"].default == ""


def test_what_a_key_takes() -> None:
    found = expected("rules.fail_on")
    assert found is not None and "never" in found.choices
    assert expected("rules.nothing") is None
    assert expected("nothing") is None
    assert expected("model.num_classes") is None


def test_names_of_installed_models_without_importing_them() -> None:
    models = pytest.importorskip("torchvision.models")
    assert set(names_of("torchvision")) == set(models.list_models())
    assert names_of("hf") == []


def test_a_file_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n"
        "raise SystemExit\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        self.stem = nn.Linear(2, 2)\n"
        "        self.depth = 3\n"
        "class Plain:\n"
        "    pass\n"
    )
    assert classes_of(path) == ["Net"]
    assert attributes_of(path, "Net") == ["stem"]
    assert attributes_of(path, "Other") == []
    assert classes_of(tmp_path / "none.py") == []
    path.write_text("class (:\n")
    assert classes_of(path) == []
