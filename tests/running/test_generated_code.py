"""The line of generated code that computed what a probe was handed, or a parameter's gradient."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import nn
from training.corpus import cxx

import gradscope
from gradscope.running.compiled_step import gradient_kernel, probed_kernel

#: As inductor writes it. What a kernel only reads is not its result; a buffer has several names.
GENERATED = """\
cpp_fused_gelu_0 = async_compile.cpp_pybinding(['float*'])
buf0 = empty_strided_cpu((5, 8), (8, 1), torch.float32)
extern_kernels.addmm(primals_2, primals_5, buf0, out=buf0)
buf3 = empty_strided_cpu((5, 8), (8, 1), torch.float32)
cpp_fused_gelu_0(buf0, buf3)
torch.ops.gradscope.observe.default(buf0, primals_4, primals_3, '', 6)
torch.ops.gradscope.observe.default(buf3, primals_7, primals_3, '', 6)
buf4 = torch.ops.aten.sort.stable(buf3)
buf5 = buf4[0]
buf6 = buf0; del buf0  # reuse
torch.ops.gradscope.observe.default(reinterpret_tensor(buf5, (8, 5), (1, 8), 0), p, q, '', 6)
torch.ops.gradscope.observe.default(primals_5, primals_7, primals_3, '0', 4)
return (None, reinterpret_tensor(buf3, (8, 5), (1, 8), 0), primals_5, buf6, )
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "generated.py"
    path.write_text(GENERATED, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("probe", "kernel"), [(6, 3), (7, 5), (11, 8), (12, None)])
def test_the_kernel_is_the_one_that_writes_the_buffer(
    probe: int, kernel: int | None, file: str
) -> None:
    assert probed_kernel(file, probe) == (kernel and f"{file}:{kernel}")


@pytest.mark.parametrize(
    ("position", "kernel"), [(0, None), (1, 5), (2, None), (3, 3), (4, None), (5, None)]
)
def test_gradients_are_returned_in_the_order_of_the_inputs(
    position: int, kernel: int | None, file: str
) -> None:
    assert gradient_kernel(file, 6, position) == (kernel and f"{file}:{kernel}")


@pytest.mark.slow
@pytest.mark.skipif(cxx() is None, reason="no C++ compiler")
def test_the_kernel_of_a_wrong_backward_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a tanh, whose backward the compiler decomposes wrongly."""
    from torch._inductor import decomposition

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # right code may be in the other
    wrong = torch.ops.aten.tanh_backward.default
    monkeypatch.setitem(decomposition.decompositions, wrong, lambda g, y: g * (1 - 1.01 * y * y))
    # A compilation before has kept a copy of them; none after may keep this one.
    kept = functools.cache(decomposition.fast_random_decomps.__wrapped__)
    monkeypatch.setattr(decomposition, "fast_random_decomps", kept)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    torch._dynamo.reset()
    (found,) = gradscope.diff(net, torch.compile(net), torch.randn(5, 4)).findings
    torch._dynamo.reset()
    assert (found.code, found.name) == ("GD102", "1")
    assert found.message.startswith("the gradient that it sends back to `0` is ")
    file, _, line = str(found.location).rpartition(":")
    assert "tanh_backward" in Path(file).read_text().splitlines()[int(line) - 1]
