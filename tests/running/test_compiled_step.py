"""The line of generated code that computed what a probe was handed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.running.compiled_step import kernel_line

#: As inductor writes it.
GENERATED = """\
cpp_fused_gelu_0 = async_compile.cpp_pybinding(['float*'])
extern_kernels.addmm(primals_2, primals_5, buf0, out=buf0)
torch.ops.gradscope.observe.default(buf0, primals_4, primals_3, '', 6)
buf3 = empty_strided_cpu((5, 8), (8, 1), torch.float32)
cpp_fused_gelu_0(buf0, buf3)
torch.ops.gradscope.observe.default(buf3, primals_7, primals_3, '', 6)
del buf0
torch.ops.gradscope.observe.default(reinterpret_tensor(buf3, (8, 5), (1, 8), 0), p, q, '', 6)
torch.ops.gradscope.observe.default(primals_5, primals_7, primals_3, '0', 4)
"""


@pytest.mark.parametrize(("probe", "kernel"), [(3, 2), (6, 5), (8, 5), (9, None)])
def test_the_kernel_is_the_last_that_was_handed_the_buffer(
    probe: int, kernel: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "generated.py"
    text = GENERATED if kernel else GENERATED.replace("primals_5, buf0", "primals_6, buf0")
    file.write_text(text, encoding="utf-8")
    assert kernel_line(str(file), probe) == (kernel and f"{file}:{kernel}")
