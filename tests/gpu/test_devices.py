"""Every path that knows a device, compared with float64 on the processor: ``pytest -m gpu``.

Each test runs on the processor too, so that what is asked there is known to be right.
"""

from __future__ import annotations

import copy
import ctypes
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import gradscope
from gradscope.capture.differences import fingerprints
from gradscope.capture.one_pass import on_cuda
from gradscope.capture.reductions import exact, gradient_norms, in_memory_order
from gradscope.capture.stats import measure, resolve
from gradscope.records.tensors import TensorStats
from gradscope.runfile.reader import RunFile
from gradscope.running.sketching import projected

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    ],
)


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Net(nn.Module):
    """A convolution, statistics of the batch, dropout and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(8 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(torch.relu(self.norm(self.conv(x)))).flatten(1))


def batch(device: str) -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(device)


TARGET = [0, 1, 2, 3]
TENSORS = {
    "normal": torch.randn(100_000),
    "mean 1000 times the spread": 1000 + torch.randn(100_000),
    "1e30": torch.full((3000,), 1e30),
    "1e-30": torch.full((3000,), 1e-30),
    "float16 at its maximum": torch.full((3000,), 65504.0).half(),
    "bfloat16": torch.randn(30_000).bfloat16(),
    "float64": torch.randn(3000).double(),
    "int64": torch.randint(-9, 9, (1000,)),
    "bool": torch.rand(1000) > 0.5,
    "complex": torch.randn(500, dtype=torch.complex64),
    "a NaN and Inf": torch.tensor([1.0, math.nan, -math.inf, 0.0]),
    "0-dim": torch.tensor(2.5),
    "empty": torch.empty(0),
}


def stats_of(tensor: torch.Tensor) -> TensorStats:
    (stats,) = resolve([measure(tensor)]).values()
    return stats


@pytest.mark.parametrize("name", TENSORS)
def test_statistics_are_those_of_the_processor_in_float64(name, device):
    here, there = stats_of(TENSORS[name]), stats_of(TENSORS[name].to(device))
    for key in ("shape", "dtype", "numel", "zeros", "nan", "inf"):
        assert getattr(there, key) == getattr(here, key), key
    rounded = 1e-6 if name == "complex" else 0  # the processor's modulus is in float32
    bounds = (("min", rounded), ("max", rounded))
    for key, tolerance in (*bounds, ("norm", 1e-6), ("mean", 1e-5), ("std", 1e-4)):
        expected = getattr(here, key)  # there is none of nothing
        near = (
            None
            if expected is None
            else pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-3)
        )
        assert getattr(there, key) == near, key


def layouts(whole: torch.Tensor) -> list[torch.Tensor]:
    """Views of 32 × 12 × 10 elements: dense, at odd addresses, permuted, with gaps, repeated."""
    flat = whole.flatten()
    parts = [(0, 3000), (1, 3000), (8, 2999), (3, 1), (5, 2), (7, 9), (2, 17), (4, 300)]
    return [
        *(flat[start : start + length] for start, length in parts),
        whole.permute(0, 2, 1),
        whole[:, ::2, 1:],
        whole[:1].expand(6, -1, -1),
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., torch.Tensor]:
    """The kernels on the processor's threads."""
    folder = tmp_path_factory.mktemp("kernels")
    source = Path(on_cuda.__file__).with_name("on_cuda.cu").read_text(encoding="utf-8")
    source, replaced = re.subn(r"asm\(.*\);", "wide = float_of_half(bits);", source)
    assert replaced == 1
    (folder / "kernels.cu").write_text(source, encoding="utf-8")
    emulator = str(Path(__file__).with_name("on_threads.cpp"))
    path = f'-DKERNELS="{folder / "kernels.cu"}"'
    library = str(folder / "kernels.so")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", path, emulator, "-o", library]
    if shutil.which("g++") is None or subprocess.run(["g++", *flags], check=False).returncode:
        pytest.skip("there is no compiler of C++20")
    run = ctypes.CDLL(library).run

    def numbers(tensor: torch.Tensor, copies: int) -> torch.Tensor:
        tensor, blocks = tensor.contiguous(), 3
        partial, found = torch.empty(8 * blocks).double(), torch.empty(8).double()
        pointers = [ctypes.c_void_p(one.data_ptr()) for one in (tensor, partial, found)]
        counts = ctypes.c_double(tensor.numel()), ctypes.c_double(copies)
        kind = on_cuda.DTYPES.index(tensor.dtype)
        run(kind, pointers[0], *counts, blocks, *pointers[1:])
        return found

    return numbers


ON_THREADS = pytest.param("cpu", marks=pytest.mark.slow, id="on threads")
ODD = {"usual": [], "NaN": [math.nan], "Inf": [math.inf, -math.inf, 0.0], "large": [6e4]}
ODD |= {"small": [1e-7], "no number": [math.nan] * 100}


@pytest.mark.parametrize("device", [ON_THREADS, GPU])
@pytest.mark.parametrize("dtype", on_cuda.DTYPES, ids=str)
@pytest.mark.parametrize("odd", ODD)
def test_one_read_has_the_numbers_of_the_exact_path(device, dtype, odd, request):
    one_read = on_cuda.numbers if device == "cuda" else request.getfixturevalue("kernels")
    generator = torch.Generator().manual_seed(4)
    whole = 3 + torch.randn(32, 12, 10, generator=generator)
    for value in ODD[odd]:
        whole.view(-1)[torch.randint(0, 3840, (200,), generator=generator)] = value
    for view in layouts(whole.to(dtype).to(device)):
        ordered, copies = in_memory_order(view)
        found, expected = one_read(ordered, copies), exact(ordered, copies)
        if int(expected[6] + expected[7]) < view.numel():  # otherwise none is finite
            torch.testing.assert_close(found[:5], expected[:5], rtol=1e-9, atol=1e-12)
        assert found[5:].tolist() == expected[5:].tolist()


def test_the_kernels_compile_for_every_device_that_pytorch_serves():
    try:
        for architecture in ("sm_80", "sm_90"):
            assert on_cuda.compiled(architecture)
    except OSError:
        pytest.skip("PyTorch brings no NVRTC")


@pytest.mark.parametrize("name", [n for n, t in TENSORS.items() if t.is_floating_point()])
def test_norms_fingerprints_and_sketches_do_not_depend_on_the_device(name, device):
    tensor = TENSORS[name]
    assert fingerprints([tensor.to(device)]) == fingerprints([tensor])
    assert torch.equal(projected(tensor.to(device)).numbers, projected(tensor).numbers)
    here, there = gradient_norms([tensor])[0], gradient_norms([tensor.to(device)])[0]
    assert there == pytest.approx(here, rel=1e-5, nan_ok=True)


def test_inspect_records_the_gradients_that_a_plain_step_makes(device):
    model, x = Net().double().to(device).eval(), batch(device).double()
    report = gradscope.inspect(model, x, target=TARGET, mode="eval", verify=True)
    plain = copy.deepcopy(model)
    loss = nn.functional.cross_entropy(plain(x), torch.tensor(TARGET, device=device))
    loss.backward()
    assert report.loss == pytest.approx(loss.item(), rel=1e-9)
    for name, parameter in plain.named_parameters():
        (row,) = [one for one in report.parameters if one.name == name]
        assert row.gradient.norm == pytest.approx(parameter.grad.norm().item(), rel=1e-6)
    assert report.run.verified.identical
    assert report.run.device.startswith(device)


def test_random_numbers_are_put_back(device):
    model, x = Net().to(device), batch(device)
    torch.manual_seed(3)
    before = torch.rand(4, device=device)
    torch.manual_seed(3)
    gradscope.inspect(model, x, target=TARGET, verify=True, costs=True)
    assert torch.equal(torch.rand(4, device=device), before)


def test_why_names_what_cuts_a_gradient(device):
    class Cut(Net):
        def forward(self, x):
            return self.fc(torch.relu(self.norm(self.conv(x))).detach().flatten(1))

    report = gradscope.why(Cut().to(device), batch(device), target=TARGET)
    assert [(one.cause, one.state) for one in report.answers] == [("detached", "missing")]


def test_a_graph_has_the_gradients(device):
    graph = gradscope.graph(Net().to(device), batch(device), target=TARGET)
    assert any(node.name == "conv.weight" and node.grad_norm for node in graph.nodes)


def test_an_intervention_changes_and_a_difference_is_found(device):
    model, x = Net().double().to(device).eval(), batch(device).double()
    clip = {"layers": "fc", "at": "parameter_grad", "do": "clip_norm", "value": 0.01}
    report = gradscope.inspect(model, x, target=TARGET, mode="eval", interventions=[clip])
    norms = [p.gradient.norm for p in report.parameters if p.name.startswith("fc.")]
    assert max(norms) <= 0.01 * (1 + 1e-6)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.conv.weight.mul_(1.01)
    assert gradscope.diff(model, model, x, target=TARGET).findings == ()
    assert gradscope.diff(model, other, x, target=TARGET).findings


def trained(device: str, path: Path | None, *, poison: int | None = None) -> list[float]:
    """The losses of a training, watched where there is a path."""
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(5)
    losses = []

    def steps() -> None:
        for step in range(1, 7):
            x = batch(device)
            if step == poison:
                with torch.no_grad():
                    model.norm.weight.fill_(math.nan)
            loss = nn.functional.cross_entropy(model(x), torch.tensor(TARGET, device=device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())

    if path is None:
        steps()
    else:
        with gradscope.watch(model, optimizer, every=2, out=path):
            steps()
    return losses


def test_a_watched_training_is_the_same_to_the_last_bit(device, tmp_path):
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.deterministic, before = True, torch.backends.cudnn.deterministic
    try:
        losses = trained(device, tmp_path / "run.db")
        assert trained(device, None) == losses
    finally:
        torch.backends.cudnn.deterministic = before
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    with RunFile.open(tmp_path / "run.db") as run:
        assert [step.loss for step in run.steps()] == losses
        assert all(step.gradient_norm for step in run.steps())


def test_a_nan_is_located_in_its_step(device, tmp_path):
    trained(device, tmp_path / "run.db", poison=4)
    with RunFile.open(tmp_path / "run.db") as run:
        (found,) = [one for one in run.findings if one.finding.code == "GS301"]
    assert found.steps[0][0] in (4, 5)  # on a GPU it may come one step late
    assert "norm" in found.finding.name


@pytest.mark.parametrize("method", ["gradient", "integrated-gradients", "grad-cam"])
def test_a_saliency_map_is_that_of_the_processor(method, device):
    model = Net().eval()
    model.fc.weight.data.copy_(torch.randn_like(model.fc.weight))
    options = {"methods": [method], "target": 1, "layer": "conv" if "cam" in method else None}
    here = gradscope.saliency(copy.deepcopy(model).double(), batch("cpu").double(), **options)
    there = gradscope.saliency(model.double().to(device), batch(device).double(), **options)
    (one,), (other,) = here.maps[0], there.maps[0]
    assert torch.allclose(one.cpu(), other.cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_memory_that_runs_out_is_explained():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).sum() + torch.zeros(1 << 42, device=x.device).sum()

    with pytest.raises(gradscope.GradscopeError) as caught:
        gradscope.inspect(Large().cuda(), torch.randn(2, 4, device="cuda"), loss="sum")
    assert caught.value.report.error.kind == "out-of-memory"


@pytest.mark.slow
@pytest.mark.parametrize("device", [pytest.param("cpu", id="gloo"), GPU])
def test_one_process_of_a_launcher(device, tmp_path):
    """gloo, and NCCL where there is a GPU: the numbers are those without a launcher."""
    (tmp_path / "train.py").write_text(_SCRIPT.format(device=device), encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    launcher += ["--local-addr=localhost", "-m", "gradscope", "run", "--every", "1", "-o", "run"]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    done = subprocess.run(
        [*launcher, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **loopback, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with RunFile.open(tmp_path / "run.db") as run:
        norms = [step.gradient_norm for step in run.steps()]
    torch.manual_seed(0)
    net = nn.Linear(8, 2).double()
    for norm in norms:
        net.zero_grad()
        net(torch.ones(4, 8).double()).square().mean().backward()
        grads = [p.grad for p in net.parameters()]
        assert norm == pytest.approx(nn.utils.get_total_norm(grads).item(), rel=1e-9)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad


_SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl" if "{device}" == "cuda" else "gloo")
torch.manual_seed(0)
net = torch.nn.Linear(8, 2).double().to("{device}")
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 8).double().to("{device}")).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
