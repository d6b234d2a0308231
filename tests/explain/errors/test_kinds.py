"""A message of PyTorch's has signs of one kind, so that the order of the files is no matter."""

from __future__ import annotations

import re

import pytest

from gradscope.explain.errors.explanation import kind_of, kinds
from gradscope.plugins import names

MESSAGES = {
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1.00 GiB of"
    " which 0 bytes is free. See documentation for Memory Management": "out-of-memory",
    "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side"
    " assertions.": "out-of-memory",
    "one of the variables needed for gradient computation has been modified by an inplace"
    " operation: [torch.cuda.FloatTensor [3, 4]], which is output 0 of ReluBackward0, is at"
    " version 1; expected version 0 instead.": "inplace-modification",
    "a leaf Variable that requires grad is being used in an in-place"
    " operation.": "inplace-modification",
    "Trying to backward through the graph a second time (or directly access saved tensors after"
    " they have already been freed).": "backward-twice",
    "element 0 of tensors does not require grad and does not have a grad_fn": "no-grad-root",
    "grad can be implicitly created only for scalar outputs": "non-scalar-loss",
    "Target 5 is out of bounds.": "target-out-of-range",
    "index 3 is out of bounds for dimension 0 with size 3": "index-out-of-range",
    "CUDA error: device-side assert triggered": "index-out-of-range",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and"
    " cpu!": "device-mismatch",
    "mat1 and mat2 must have the same dtype, but got Float and Double": "dtype-mismatch",
    "expected scalar type Long but found Float": "dtype-mismatch",
    "\"addmm_impl_cpu_\" not implemented for 'Long'": "dtype-mismatch",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)": "shape-mismatch",
    "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension"
    " 1": "shape-mismatch",
    "Expected input batch_size (4) to match target batch_size (3).": "shape-mismatch",
    "Expected more than 1 value per channel when training, got input size torch.Size([1,"
    " 4])": "model-error",
    "Inference tensors cannot be saved for backward.": "model-error",
    "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None,"
    " 'g++')": "model-error",
}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[:40])
def test_a_message_has_signs_of_one_kind(message: str) -> None:
    assert kind_of(RuntimeError(message), message, "forward")[0] == MESSAGES[message]
    found = [
        name
        for name, kind in kinds().items()
        if any(re.search(sign, message, re.IGNORECASE | re.DOTALL) for sign in kind.signs)
    ]
    # A GPU's memory error may end with advice on its asserts, which are asked about later.
    assert found[:1] == [MESSAGES[message]]
    assert len(found) == 1 or "TORCH_USE_CUDA_DSA" in message


def test_a_weight_on_another_device_is_no_matter_of_dtypes() -> None:
    text = (
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same"
    )
    assert kind_of(RuntimeError(text), text, "forward")[0] == "device-mismatch"


def test_a_kind_is_a_file() -> None:
    assert list(kinds()) == names("gradscope.explain.errors.kinds")
    assert all(kind.signs for kind in kinds().values())


def test_what_has_no_sign_is_the_models_own_error() -> None:
    assert kind_of(RuntimeError("so it goes"), "so it goes", "forward") == ("model-error", None)
