"""Kinds of exceptions by what their messages say: one row for each, the first that matches wins."""

from __future__ import annotations

import dis
import re
from types import TracebackType

from gradscope.errors import GradscopeError
from gradscope.explain.frames import in_library, is_hidden

#: kind, what its message contains, the smallest fix
KINDS: list[tuple[str, str, str]] = [
    (
        "out-of-memory",
        r"out of memory|can't allocate memory|not enough memory",
        "use a smaller batch or input, `--dtype bfloat16`, or `--device meta` for shapes alone",
    ),
    (
        "inplace-modification",
        r"modified by an inplace operation|being modified inplace|used in an in-place operation"
        r"|leaf variable .* in-place",
        "replace the in-place operation (`x += y`, `inplace=True`, `x[i] = y`) by one that returns"
        " a new tensor",
    ),
    (
        "backward-twice",
        r"backward through the graph a second time|buffers have already been freed",
        "keep the graph with `backward.retain_graph=true`, or run forward again before each"
        " backward",
    ),
    (
        "no-grad-root",
        r"does not require grad and does not have a grad_fn",
        "nothing on the way to the loss requires a gradient: look for `no_grad`, `detach` or a"
        " frozen model, or set `requires_grad: true` on the input",
    ),
    (
        "non-scalar-loss",
        r"grad can be implicitly created only for scalar outputs",
        "reduce the loss (`loss=sum`, `loss=mean`) or give `backward.gradient` of the output's"
        " shape",
    ),
    (
        "target-out-of-range",
        r"target .* out of bounds|label .* out of range",
        "class ids, the config's `target`, run from 0 to the number of classes less one",
    ),
    (
        "index-out-of-range",
        r"device-side assert|index out of range in self|class values must be"
        r"|index -?\d+ is out of bounds|out of data bounds",
        "indices run from 0 to the size of what they choose from less one",
    ),
    (
        "device-mismatch",
        r"expected all tensors to be on the same device|not on the expected device"
        r"|not at the same device|input type \((torch\.)?\w*cuda"
        r"|weight type \((torch\.)?\w*cuda|two devices",
        "move what the layer makes or keeps itself to the input's device (`register_buffer`,"
        " `x.new_zeros(…)`)",
    ),
    (
        "dtype-mismatch",
        r"expected scalar type|same dtype|input type .* should be the same|expected .*scalar types?"
        r"|expected floating point type|not implemented for '(long|int|half|bfloat16|bool|byte)"
        r"|found dtype|dtype mismatch|only tensors of floating point|expected target dtype"
        r"|to have one of the following scalar types|bool tensors? is not supported|could not infer"
        r" output dtype|dtypes match|self.dtype to be equal|used as indices must be"
        r"|can't be cast to the desired output type|converted to type .* without overflow",
        "give the input or target the dtype that the layer wants: `input.dtype=…`, `dtype=…`",
    ),
    (
        "shape-mismatch",
        r"shapes? cannot be multiplied|size mismatch|must match the (size|existing size)"
        r"|sizes of tensors must match|shape '.*' is invalid|mismatch in shape|given groups="
        r"|to have \d+ channels|expected input batch_size|target size|normalized_shape"
        r"|input.size\(-1\) must be equal|expected \d+d|not broadcastable|dimension out of range"
        r"|should contain \d+ elements|kernel size can't be greater|inconsistent tensor size"
        r"|expected .*dimension|view size is not compatible|stack expects each|same number of dim"
        r"|expected hidden|first two dimensions of|expecting embedding dimension|multi-target not"
        r"|einsum\(\): |expanded size|divisible by num_groups|output size is too small|number of"
        r" dimensions in the tensor input|shape of the mask|padding length should|key_padded_mask"
        r"|expected input with shape|attn_mask.*should be|inconsistent input_size",
        "compare the shapes that meet here; what a layer's weights take, `gradscope layers` lists",
    ),
    (
        "model-error",
        r"expected more than 1 value per channel when training",
        "BatchNorm in train mode needs a batch of two or more: `input.batch=2` or `mode=eval`",
    ),
    (
        "model-error",
        r"all elements of input should be between 0 and 1",
        "use `nn.BCEWithLogitsLoss()` on scores (logits), or end the model with `torch.sigmoid`",
    ),
    (
        "model-error",
        r"inference tensor",
        "compute it under `torch.no_grad()` instead of `torch.inference_mode()`, or clone it",
    ),
]


def kind_of(failure: BaseException, text: str, phase: str) -> tuple[str, str | None]:
    """The kind of an exception, and the smallest fix for any of that kind."""
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted", None
    if isinstance(failure, GradscopeError):  # found before PyTorch could raise
        return getattr(failure, "kind", "model-error"), failure.problems[0].help
    if isinstance(failure, RecursionError):
        return "model-error", (
            "let what calls itself return in some case, or write it as a loop; nesting that ends is"
            " given room by `sys.setrecursionlimit`"
        )
    if isinstance(failure, MemoryError):
        return KINDS[0][0], KINDS[0][2]
    if isinstance(failure, RuntimeError | IndexError | ValueError | TypeError | AssertionError):
        if _is_own(failure.__traceback__):
            return "model-error", None
        for kind, pattern, advice in KINDS:
            if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
                if kind == "index-out-of-range" and phase == "loss":  # what it picks by is a target
                    kind = "target-out-of-range"
                return kind, advice
    return "model-error", None


def _is_own(trace: TracebackType | None) -> bool:
    """Whether a ``raise`` or an ``assert`` in the user's own code raised: its words are no sign."""
    last = None
    while trace is not None:
        last, trace = trace, trace.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    if is_hidden(code.co_filename) or in_library(code.co_filename):
        return False
    return code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
