"""Files of weights: what is read, what is refused, what is undone, and what does not fit."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from gradscope.errors import ConfigError, Place
from gradscope.loading import checkpoints
from gradscope.loading.sources.tensor_files import read

PLACE = Place("model.yaml", 3, key="checkpoint")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


class Planted:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".PT"])
def test_every_kind_of_file(tmp_path, suffix):
    path, saved, model = tmp_path / f"weights{suffix}", net(1), net(2)
    save = safetensors.torch.save_file if suffix == ".safetensors" else torch.save
    save(saved.state_dict(), path)
    assert checkpoints.load(model, path, PLACE) == []
    assert same(model, saved)


def wrapped(state, *keys):
    for key in keys:
        state = {key: state, "epoch": 3, "loss": torch.tensor(1.0)}
    return state


def prefixed(state, prefix):
    return {prefix + name: value for name, value in state.items()}


WRAPPED = {
    "state_dict": lambda s: wrapped(s, "state_dict"),
    "model": lambda s: wrapped(s, "model"),
    "model_state_dict": lambda s: wrapped(s, "model_state_dict"),
    "two wrappers": lambda s: wrapped(s, "state_dict", "model"),
    "DataParallel": lambda s: prefixed(s, "module."),
    "torch.compile": lambda s: prefixed(s, "_orig_mod."),
    "both": lambda s: prefixed(prefixed(s, "_orig_mod."), "module."),
    "both, the other way round": lambda s: prefixed(prefixed(s, "module."), "_orig_mod."),
    "Lightning": lambda s: wrapped(prefixed(s, "model."), "state_dict"),
    "a wrapper and a prefix": lambda s: wrapped(prefixed(s, "module."), "model"),
    "compiled parts": lambda s: {k.replace(".", "._orig_mod.", 1): v for k, v in s.items()},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_wrappers_are_undone_and_said(tmp_path, wrap):
    path, saved, model = tmp_path / "weights.pt", net(1), net(2)
    torch.save(wrap(saved.state_dict()), path)
    notices = checkpoints.load(model, path, PLACE)
    assert same(model, saved)
    assert len(notices) == 1
    assert "undone" in notices[0]


def test_names_that_only_look_like_wrappers_stay(tmp_path):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.model = nn.Linear(2, 2), nn.Linear(2, 2)

    path, saved, model = tmp_path / "weights.pt", Parts(), Parts()
    torch.save(saved.state_dict(), path)
    assert checkpoints.load(model, path, PLACE) == []
    assert same(model, saved)


class TestMisfits:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "weights.pt"

    def fail(self, model, state, path):
        torch.save(state, path)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(ConfigError) as caught:
            checkpoints.load(model, path, PLACE)
        after = model.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert caught.value.exit_code == 2
        assert caught.value.problems[0].place == PLACE
        return caught.value.render()

    def test_another_shape(self, path):
        state = net(1).state_dict()
        state["2.weight"] = torch.zeros(7, 4)
        text = self.fail(net(2), state, path)
        assert "0 missing, 0 unexpected, 1 of another shape" in text
        assert "`2.weight`: [7, 4] in the file, [2, 4] in the model" in text
        assert "replace" in text

    def test_missing_and_unexpected(self, path):
        state = net(1).state_dict()
        state["extra"] = state.pop("0.weight")
        text = self.fail(net(2), state, path)
        assert "of 9 names 1 missing, 1 unexpected, 0 of another shape" in text
        assert "missing from the file: `0.weight`" in text
        assert "unknown to the model: `extra`" in text

    def test_another_model(self, path):
        text = self.fail(net(2), {f"layer{i}.weight": torch.zeros(1) for i in range(9)}, path)
        assert "9 missing, 9 unexpected" in text
        assert "`layer0.weight`, `layer1.weight`, `layer2.weight`, …" in text

    def test_tied_names_that_disagree(self, path):
        state = {"embed.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)}
        assert "one tensor in the model" in self.fail(Tied(), state, path)

    def test_no_dict(self, path):
        assert "holds no weights by name, but a Tensor" in self.fail(net(), torch.ones(2), path)

    def test_no_tensors(self, path):
        assert "holds no weights" in self.fail(net(), {"epoch": 3}, path)


def test_tied_weights_that_safetensors_keeps_once(tmp_path):
    path, saved, model = tmp_path / "weights.safetensors", Tied(), Tied()
    safetensors.torch.save_file({"embed.weight": saved.embed.weight.detach()}, path)
    notices = checkpoints.load(model, path, PLACE)
    assert torch.equal(model.head.weight, saved.embed.weight)
    assert model.head.weight is model.embed.weight
    assert "`head.weight`" in notices[0]


def test_another_dtype_is_said(tmp_path):
    path, saved, model = tmp_path / "weights.pt", net(1), net(2)
    torch.save(
        {k: v.half() if v.is_floating_point() else v for k, v in saved.state_dict().items()}, path
    )
    assert "torch.float16 values cast" in checkpoints.load(model, path, PLACE)[0]


def test_modules_may_rename_old_keys_themselves(tmp_path):
    class Renaming(nn.Linear):
        def _load_from_state_dict(self, state, prefix, *args):
            state[f"{prefix}weight"] = state.pop(f"{prefix}kernel")
            super()._load_from_state_dict(state, prefix, *args)

    path, model = tmp_path / "weights.pt", Renaming(2, 2)
    torch.save({"kernel": torch.ones(2, 2), "bias": torch.zeros(2)}, path)
    checkpoints.load(model, path, PLACE)
    assert torch.equal(model.weight, torch.ones(2, 2))


def test_meta_is_checked_and_not_loaded(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(net(1).state_dict(), path)
    with torch.device("meta"):
        model, other = net(), nn.Linear(2, 2)
    assert "not loaded" in checkpoints.load(model, path, PLACE)[0]
    with pytest.raises(ConfigError, match="does not fit"):
        checkpoints.load(other, path, PLACE)


class TestFiles:
    def refuse(self, path):
        with pytest.raises(ConfigError) as caught:
            read(path, PLACE)
        problem = caught.value.problems[0]
        assert problem.place == PLACE
        assert problem.help
        return caught.value.render()

    @pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
    def test_a_pickle_that_runs_code(self, tmp_path, suffix):
        path = tmp_path / f"evil{suffix}"
        torch.save({"weight": torch.ones(2), "x": Planted(tmp_path / "ran")}, path)
        text = self.refuse(path)
        assert "system" in text
        assert "weights_only=True" in text
        assert "convert it" in text
        assert not (tmp_path / "ran").exists()

    def test_a_plain_pickle_that_runs_code(self, tmp_path):
        path = tmp_path / "evil.pt"
        path.write_bytes(pickle.dumps(Planted(tmp_path / "ran")))
        self.refuse(path)
        assert not (tmp_path / "ran").exists()

    def test_a_whole_model(self, tmp_path):
        path = tmp_path / "model.pt"
        torch.save(net(), path)
        text = self.refuse(path)
        assert "torch.nn.modules.container.Sequential" in text
        assert "it holds a full model" in text

    @pytest.mark.parametrize("zipped", [True, False])
    def test_a_whole_model_of_the_users_own(self, tmp_path, zipped):
        path = tmp_path / "model.pt"
        torch.save(Tied(), path, _use_new_zipfile_serialization=zipped)
        assert "torch.load(FILE, weights_only=False).state_dict()" in self.refuse(path)
        torch.save({"model": Tied(), "epoch": 3}, path, _use_new_zipfile_serialization=zipped)
        assert "weights_only=False)[KEY].state_dict()" in self.refuse(path)
        torch.save({"state_dict": {}, "x": Planted("x")}, path)
        assert "weights_only=False)['state_dict']" in self.refuse(path)

    @pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
    @pytest.mark.parametrize("keep", [1, 9, 100, -1])
    def test_cut_off(self, tmp_path, suffix, keep):
        path = tmp_path / f"weights{suffix}"
        save = safetensors.torch.save_file if suffix == ".safetensors" else torch.save
        save(net().state_dict(), path)
        path.write_bytes(path.read_bytes()[:keep])
        assert "cannot be read" in self.refuse(path)

    def test_noise(self, tmp_path):
        for suffix in (".safetensors", ".pt"):
            path = tmp_path / f"noise{suffix}"
            path.write_bytes(b"<html>not found</html>" * 9)
            assert "cannot be read" in self.refuse(path)

    def test_some_other_archive(self, tmp_path):
        path = tmp_path / "weights.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
        assert "cannot be read" in self.refuse(path)

    def test_nothing_in_it(self, tmp_path):
        path = tmp_path / "weights.pt"
        path.touch()
        assert "0 bytes" in self.refuse(path)

    def test_a_folder(self, tmp_path):
        path = tmp_path / "weights.pt"
        path.mkdir()
        with pytest.raises(ConfigError, match="folder"):
            read(path, PLACE)

    def test_missing(self, tmp_path):
        (tmp_path / "weights.pt").touch()
        assert "did you mean `weights.pt`?" in self.refuse(tmp_path / "weight.pt")

    def test_another_suffix(self, tmp_path):
        path = tmp_path / "weights.h5"
        path.write_bytes(b"x")
        assert ".safetensors" in self.refuse(path)

    def test_a_git_lfs_pointer(self, tmp_path):
        path = tmp_path / "weights.safetensors"
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
        assert "git lfs pull" in self.refuse(path)


@pytest.mark.parametrize("kept", [("net",), ("generator", "discriminator")])
def test_weights_under_a_key_of_ones_own_are_found(tmp_path: Path, kept: tuple[str, ...]) -> None:
    state = torch.nn.Linear(2, 2).state_dict()
    adam = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}
    content = {"epoch": 3, "optimizer": adam, **dict.fromkeys(kept, state)}
    torch.save(content, path := tmp_path / "last.pt")
    with pytest.raises(ConfigError, match="holds no weights by name") as caught:
        checkpoints.load(torch.nn.Linear(2, 2), path)
    advice = caught.value.problems[0].help or ""
    assert advice.startswith(" and ".join(f"`{key}`" for key in kept) + " in it do")
    assert f"[{kept[0]!r}], 'weights.pt')" in advice
