"""Words for devices and dtypes, and what is reported where there is none of them."""

from __future__ import annotations

import pytest
import torch

from gradscope.errors import ConfigError, OptionError, Place
from gradscope.loading import devices

PLACE = Place("argument", 1, key="device")


@pytest.fixture
def cuda(monkeypatch):
    """A machine with a number of CUDA devices."""

    def present(count: int) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda index: f"Card {index}")

    return present


@pytest.mark.parametrize(("text", "kind"), [("cpu", "cpu"), ("meta", "meta"), ("CPU", "cpu")])
def test_devices_that_are_everywhere(text, kind):
    assert devices.resolve_device(text, PLACE).type == kind


@pytest.mark.parametrize(("count", "kind"), [(0, "cpu"), (1, "cuda")])
def test_auto(cuda, count, kind):
    cuda(count)
    assert devices.resolve_device("auto").type == kind


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_where_there_is_none(cuda, text):
    cuda(0)
    with pytest.raises(OptionError) as caught:
        devices.resolve_device(text, PLACE)
    problem = caught.value.problems[0]
    assert caught.value.exit_code == 2
    assert f"device `{text}` is not there" in problem.message
    assert "here there is cpu" in str(problem.help)
    assert problem.place == PLACE


def test_a_torch_without_cuda_says_so(cuda, monkeypatch):
    cuda(0)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.version.hip", None)
    with pytest.raises(OptionError, match="built without CUDA"):
        devices.resolve_device("cuda")


def test_a_number_too_high(cuda):
    cuda(2)
    assert devices.resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(OptionError, match="numbered 0 to 1") as caught:
        devices.resolve_device("cuda:2")
    assert "cuda:1 (Card 1)" in str(caught.value.problems[0].help)


@pytest.mark.parametrize("text", ["gpu", "cdua", "cuda:x", "cuda:-1", "tpu", "", "cuda:"])
def test_unknown_devices(text):
    with pytest.raises(OptionError, match="unknown device") as caught:
        devices.resolve_device(text, PLACE)
    assert caught.value.problems[0].help


def test_gpu_means_cuda():
    with pytest.raises(OptionError) as caught:
        devices.resolve_device("gpu")
    assert caught.value.problems[0].help == "did you mean `cuda`?"


def test_mps_where_there_is_none(monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(OptionError, match="mps"):
        devices.resolve_device("mps", PLACE)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("float32", torch.float32),
        ("torch.float64", torch.float64),
        ("bf16", torch.bfloat16),
        ("half", torch.float16),
    ],
)
def test_dtypes(text, dtype):
    assert devices.resolve_dtype(text) is dtype


@pytest.mark.parametrize("text", ["float3", "int64", "complex64"])
def test_unknown_dtypes(text):
    with pytest.raises(ConfigError, match="unknown dtype") as caught:
        devices.resolve_dtype(text, PLACE)
    assert "float32" in str(caught.value.problems[0].help)


def test_autocast():
    assert devices.resolve_autocast(None) is None
    assert devices.resolve_autocast("bfloat16") is torch.bfloat16
    with pytest.raises(ConfigError, match="does nothing"):
        devices.resolve_autocast("float32")


def test_mps_has_no_float64():
    devices.check_pair(torch.device("cpu"), torch.float64)
    with pytest.raises(ConfigError, match="float64"):
        devices.check_pair(torch.device("mps"), torch.float64)
