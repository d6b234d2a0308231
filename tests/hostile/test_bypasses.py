"""Libraries' ways to run code from a constructor, and that each kind is refused."""

from __future__ import annotations

import pytest
from loading.test_wall import DEEDS

from gradscope.errors import ConfigError, TargetError
from gradscope.loading.targets import Targets
from gradscope.loading.wall import Wall
from hostile.bypasses import KINDS, bypasses

#: The cases of the wall's tests, which run behind it with no name refused, by the kind of deed.
REFUSED = {
    "unpickles": ("unpickles", "unpickles a class", "loads a pickle"),
    "runs code": ("runs a file", "imports a file", "loads a library", "unmarshals"),
    "fetches": ("connects", "looks up a name", "fetches"),
    "starts a process": ("starts a process", "starts a shell", "spawns", "forks"),
    "asks": ("asks",),
    "writes": ("writes", "makes a folder", "removes", "clears a folder"),
}
FILES = {
    "__init__.py": "from .net import Net",
    "net.py": """
import subprocess
from .base import Base
from .tools import fetched as got, tools_of
from . import tools

class Net(Base):
    def __init__(self, path):
        super().__init__(path)
        self._start()
    def _start(self):
        subprocess.run(["true"])
    def save(self):
        open("x", "w").write_text("never in a constructor")

class Other:
    def __init__(self):
        tools.ask()
        got("x")
        self.eval()
    def eval(self):
        return self
""",
    "base.py": """
import torch
class Base:
    def __init__(self, path):
        self.weights = torch.load(path)
""",
    "tools.py": """
from urllib.request import urlopen
def fetched(url):
    return urlopen(url)
def ask():
    return input("?")
def tools_of():
    return eval("1")
""",
}


def test_every_kind_has_its_cases():
    assert set(REFUSED) == set(KINDS)
    assert {case for cases in REFUSED.values() for case in cases} <= set(DEEDS)


def test_ways_through_files_bases_and_imports(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    found = {(one.kind, one.call, one.way) for one in bypasses("lib", tmp_path)}
    assert found == {
        ("starts a process", "subprocess.run", ("Net.__init__", "Net._start")),
        ("unpickles", "torch.load", ("Base.__init__",)),
        ("asks", "input", ("Other.__init__", "ask")),
        ("fetches", "urlopen", ("Other.__init__", "fetched")),
    }


@pytest.mark.parametrize(
    "name",
    [
        "timm.utils.ModelEma",
        "timm.models.load_checkpoint",
        "torchvision.models.detection._utils.retrieve_out_channels",
        "transformers.OneFormerImageProcessor",
        "transformers.RagRetriever",
        "transformers.Trainer",
    ],
)
def test_what_is_listed_and_no_config_may_name(name, tmp_path):
    pytest.importorskip(name.partition(".")[0])
    with pytest.raises(TargetError, match="may not be imported"):
        Targets(tmp_path).names.locate(name, "model")


def test_one_of_them_behind_the_second_wall(tmp_path, monkeypatch):
    """An image processor that fetches what its classes are called."""
    module = pytest.importorskip("transformers.models.oneformer.image_processing_pil_oneformer")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="was about to connect to"), Wall("a processor"):
        module.OneFormerImageProcessorPil(repo_path="evil/model", class_info_file="a.json")
