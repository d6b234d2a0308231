"""Messages on common mistakes in the user's file or constructor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gradscope
from gradscope.errors import GradscopeError, ModelError, TargetError
from gradscope.loading.targets import Targets

NETS = """
from torch import nn


class NoSuper(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(8, 3)


class Bare(nn.Module):
    def __init__(self):
        self.width = 3

    def forward(self, x):
        return x


class OnCuda(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3).cuda()


class Configured(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, self.fc = cfg, nn.Linear(cfg["dim"], 3)

    def forward(self, x):
        return self.fc(x) * self.cfg.scale


class ByAttribute(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg.dim, cfg.widht)


class ByKey(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg["dmi"], 3)


class AsANumber(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.fc = nn.Linear(cfg, 3)


class TwiceAsMany(AsANumber):
    def __init__(self, cfg):
        super().__init__(cfg // 2)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Bare()
"""
RAN = "from pathlib import Path\nwith Path('ran').open('a') as file:\n    file.write('x')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "remedied.py").write_text(NETS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failed(model: str, *overrides: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        gradscope.check(f"./remedied.py:{model}", overrides=("input.shape=[2, 8]", *overrides))
    return caught.value


def help_of(error: GradscopeError) -> str:
    return error.problems[0].help or ""


def test_a_constructor_that_forgets_the_one_above_it() -> None:
    assert "`super().__init__()` as the first line" in help_of(failed("NoSuper"))
    bare = failed("Bare")
    assert "`Bare.__init__` never calls `super().__init__()`" in str(bare)
    assert "as its first line" in help_of(bare)


def test_a_part_whose_constructor_forgets_it() -> None:
    error = failed("Around")
    assert "`Bare.__init__` never calls" in str(error)
    assert "(it is `part` in `Around`)" in str(error)
    assert "as its first line" in help_of(error)


@pytest.mark.parametrize(
    "look", [gradscope.inspect, gradscope.check, gradscope.why, gradscope.graph]
)
@pytest.mark.parametrize("name", ["Bare", "Around"])
def test_a_live_module_without_torchs_constructor(name: str, look: Any) -> None:
    made: dict[str, Any] = {}
    exec(NETS, made)
    with pytest.raises(ModelError, match=r"`Bare\.__init__` never calls") as caught:
        look(made[name](), torch.ones(2, 8))
    assert "as its first line" in help_of(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it works where there is a GPU")
def test_a_constructor_that_moves_to_a_gpu() -> None:
    assert "`--device cuda` moves all of it" in help_of(failed("OnCuda"))


def test_a_dict_in_a_constructor_is_no_tensor() -> None:
    error = failed("ByAttribute", "model.cfg={dim: 8, width: 3}")
    assert "read it by `['dim']`" in help_of(error)
    assert "{_target_: types.SimpleNamespace, dim: …}" in help_of(error)


def test_a_key_that_a_dict_in_a_constructor_has_not() -> None:
    assert "did you mean `dim`?" in help_of(failed("ByKey", "model.cfg={dim: 8, width: 3}"))
    assert "it has `a`, `b`" in help_of(failed("ByKey", "model.cfg={a: 8, b: 3}"))


@pytest.mark.parametrize("name", ["AsANumber", "TwiceAsMany"])
def test_a_dict_where_a_constructor_wants_a_number(name: str) -> None:
    advice = help_of(failed(name, "model.cfg={dim: 8, width: 3}"))
    assert "read its values by `['…']`" in advice
    assert "{_target_: …, width: 64}" in advice


def test_a_dict_that_is_read_by_attribute_in_forward() -> None:
    report = failed("Configured", "model.cfg={dim: 8, scael: 3}").report
    assert report is not None
    assert report.error is not None
    assert report.error.details == (
        "`.scale` is read from a dict; its keys (`dim`, `scael`) are not attributes.",
    )
    assert report.error.advice == "did you mean `scael`?"


def located(name: str) -> TargetError:
    with pytest.raises(TargetError) as caught:
        Targets(Path.cwd()).names.locate(name, "model")
    return caught.value


def test_a_relative_import_without_a_package(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "net.py").write_text("from .blocks import Block\n", encoding="utf-8")
    (folder / "parts" / "blocks.py").write_text("class Block: pass\n", encoding="utf-8")
    assert "an empty `__init__.py` in it" in help_of(located("./parts/net.py:Block"))
    (folder / "parts" / "__init__.py").touch()
    assert Targets(folder).names.locate("./parts/net.py:Block", "model").__name__ == "Block"


@pytest.mark.parametrize(
    "end", ["raise SystemExit(3)", "import nowhere_at_all", "raise RuntimeError('no')"]
)
@pytest.mark.parametrize("name", ["./ends.py:Net", "ends.Net"])
def test_a_file_that_cannot_be_imported_runs_once(folder: Path, end: str, name: str) -> None:
    (folder / "ends.py").write_text(f"{RAN}{end}\n", encoding="utf-8")
    targets = Targets(folder)
    said = []
    for again in (name, "./ends.py:loss", "ends.loss"):
        with pytest.raises(GradscopeError) as caught:
            targets.names.locate(again, "model")
        said.append(caught.value.problems[0].place)
    assert (folder / "ran").read_text() == "x"
    assert said == [said[0]] * 3


def test_a_spec_whose_file_ends_the_process_runs_it_once(folder: Path) -> None:
    (folder / "ends.py").write_text(f"{RAN}raise SystemExit(3)\nclass Net: ...\n", encoding="utf-8")
    with pytest.raises(TargetError, match="the file ends the process"):
        gradscope.check("./ends.py:Net")
    assert (folder / "ran").read_text() == "x"
