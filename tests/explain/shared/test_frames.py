"""Places in code are written as the user would type them, or as an import would."""

from __future__ import annotations

import ast
import functools
import importlib
import sysconfig
from pathlib import Path

import pytest
import torch
import torchvision

import gradscope
from gradscope.errors import ModelError
from gradscope.explain.shared.frames import locate, raised_at, shown, source, tree_of, user_line
from gradscope.records.report import Report


def test_a_path_below_the_working_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(str(tmp_path / "nets" / "net.py")) == str(Path("nets", "net.py"))
    assert shown(str(tmp_path.parent / "net.py")) == str(tmp_path.parent / "net.py")


def test_a_relative_path_is_of_the_working_directory_of_today(tmp_path: Path, monkeypatch) -> None:
    for name, text in (("a", "x = 1"), ("b", "y = 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text + "\n")
        monkeypatch.chdir(tmp_path / name)
        tree = tree_of("train.py")
        assert source("train.py", 1) == text
        assert tree is not None and ast.unparse(tree) == text
    assert source("<a cell>", 1) is None


def test_installed_code_goes_by_its_package() -> None:
    resnet = str(Path(torchvision.__file__).parent / "models" / "resnet.py")
    library = Path(sysconfig.get_path("stdlib"), "json", "decoder.py")
    assert shown(resnet) == "torchvision/models/resnet.py"
    assert shown(str(library)) == "json/decoder.py"
    stack = [f'  File "{resnet}", line 97, in forward\n    x = 1\n']
    assert locate(stack) == "torchvision/models/resnet.py:97"
    assert locate([*stack, f'  File "{Path.cwd() / "net.py"}", line 3, in f\n']) == "net.py:3"


@pytest.mark.parametrize("module", ["capture/transformer/patches.py", "training/loop/patches.py"])
def test_what_observes_a_function_is_between_it_and_the_script(module: str) -> None:
    package = Path(gradscope.__file__).parent
    frames = [Path.cwd() / "train.py", package / "training" / "steps.py", Path.cwd() / "net.py"]
    frames += [package / module, Path(torch.__file__).parent / "nn" / "functional.py"]
    assert (package / module).exists()
    stack = [f'  File "{file}", line {i}, in softmax\n' for i, file in enumerate(frames)]
    assert user_line(stack) == (str(Path.cwd() / "net.py"), 2, "softmax")
    assert user_line(stack[:2]) is None


def test_the_demo_goes_by_its_package_wherever_it_is(tmp_path: Path, monkeypatch) -> None:
    networks = str(Path(gradscope.__file__).parent / "demo" / "networks.py")
    for folder in (tmp_path, Path(gradscope.__file__).parent):
        monkeypatch.chdir(folder)
        assert shown(networks) == "gradscope/demo/networks.py"
        assert source(shown(networks), 1) == source(networks, 1) is not None
    (answer,) = gradscope.why("demo:lecture").answers
    assert (answer.location or "").startswith("gradscope/demo/networks.py:")
    assert f"{answer.location} (`" in answer.message


def test_what_an_error_says_is_the_same_place() -> None:
    with pytest.raises(ModelError) as caught:
        gradscope.why("torchvision:resnet18", overrides=["input.shape=[1, 4, 32, 32]"])
    error = caught.value.report.error
    assert error is not None
    assert error.location is not None
    assert error.location.startswith("torchvision/models/resnet.py:")
    assert {frame.file for frame in error.frames} == {"torchvision/models/resnet.py"}
    assert raised_at(None) is None


def test_pythons_own_library_is_not_the_users() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(8, 3)

        @functools.singledispatchmethod
        def apply_to(self, x: object) -> torch.Tensor:
            raise TypeError

        @apply_to.register
        def _(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            importlib.import_module("json")
            return self.apply_to(x)

    with pytest.raises(ModelError) as caught:
        gradscope.inspect(Net(), torch.ones(2, 9))
    report = caught.value.report
    assert isinstance(report, Report)
    assert report.error is not None
    assert {Path(frame.file).name for frame in report.error.frames} == {"test_frames.py"}
    assert len(report.error.frames) == 2


@pytest.mark.slow
def test_what_is_said_of_a_missing_gradient_is_the_same_place() -> None:
    found = gradscope.why("torchvision:googlenet", overrides=["input.shape=[2, 3, 64, 64]"])
    assert found.answers
    for answer in found.answers:
        assert answer.location is not None
        assert answer.location.startswith("torchvision/models/googlenet.py:")
        assert answer.location in answer.message
