"""An exception from the user's step, named: its kind, the layer, the user's own lines, the fix.

A new kind is one more row of ``_KINDS``; the first row that matches wins.
"""

from __future__ import annotations

import os
import re
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from gradscope.capture.calls import Call
from gradscope.capture.stats import resolve
from gradscope.explain.frames import PACKAGE, in_library, user_frames
from gradscope.records import ErrorRecord

_SHOWN = 8

#: kind, what its message contains, the smallest fix
_KINDS: list[tuple[str, str, str]] = [
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
        r"target .* out of bounds|label .* out of range|device-side assert",
        "class ids, the config's `target`, run from 0 to the number of classes less one",
    ),
    (
        "device-mismatch",
        r"expected all tensors to be on the same device|input type \((torch\.)?\w*cuda"
        r"|weight type \((torch\.)?\w*cuda|two devices",
        "move what the layer makes or keeps itself to the input's device (`register_buffer`,"
        " `x.new_zeros(…)`)",
    ),
    (
        "dtype-mismatch",
        r"expected scalar type|same dtype|input type .* should be the same|expected .*scalar types?"
        r"|expected floating point type|not implemented for '(long|int|half|bfloat16|bool|byte)"
        r"|found dtype|dtype mismatch|only tensors of floating point",
        "give the input or target the dtype that the layer wants: `input.dtype=…`, `dtype=…`",
    ),
    (
        "shape-mismatch",
        r"shapes? cannot be multiplied|size mismatch|must match the (size|existing size)"
        r"|sizes of tensors must match|shape '.*' is invalid|mismatch in shape|given groups="
        r"|to have \d+ channels|expected input batch_size|target size|normalized_shape"
        r"|input.size\(-1\) must be equal|expected \d+d|not broadcastable|dimension out of range"
        r"|should contain \d+ elements|kernel size can't be greater|inconsistent tensor size"
        r"|expected .*dimension",
        "compare the shapes that meet here; what a layer's weights take, `gradscope layers` lists",
    ),
    (
        "model-error",
        r"expected more than 1 value per channel when training",
        "BatchNorm in train mode needs a batch of two or more: `input.batch=2` or `mode=eval`",
    ),
]


def explain_error(failure: BaseException, phase: str, executing: list[Call]) -> ErrorRecord:
    """The record of what stopped a run.

    Args:
        failure: the exception, with its traceback.
        phase: construction, input, forward, loss, backward or step.
        executing: calls that had not returned, outermost first.
    """
    text = str(failure).strip() or type(failure).__name__
    kind, advice = _kind(failure, text)
    frames = user_frames(failure.__traceback__)
    own = [frame for frame in frames if not in_library(frame.file)]
    nearest = (own or frames)[-1:]
    layer = _innermost(executing, failure.__traceback__)
    inputs = [met.measured for met in layer.inputs] if layer else []
    done = resolve(inputs)
    return ErrorRecord(
        kind=kind,
        message=text,
        phase=phase,
        name=layer.named.name if layer else None,
        call=layer.number if layer else None,
        location=f"{nearest[0].file}:{nearest[0].line}" if nearest else None,
        advice=advice,
        exception=type(failure).__name__,
        inputs=tuple(done[id(item)] for item in inputs),
        frames=tuple(frames[-_SHOWN:]),
    )


def is_own_bug(failure: BaseException) -> bool:
    """Whether the exception came out of gradscope's own recording, not of the user's step."""
    frames = traceback.extract_tb(failure.__traceback__)
    own = str(Path(PACKAGE, "capture")) + os.sep
    return bool(frames) and frames[-1].filename.startswith(own)


def _kind(failure: BaseException, text: str) -> tuple[str, str | None]:
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted", None
    if isinstance(failure, MemoryError):
        return _KINDS[0][0], _KINDS[0][2]
    if isinstance(failure, RuntimeError | IndexError | ValueError | TypeError):
        for kind, pattern, advice in _KINDS:
            if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
                return kind, advice
    return "model-error", None


def _innermost(executing: list[Call], trace: TracebackType | None) -> Call | None:
    """The innermost call that the exception passed through.

    A call whose error the user's code caught may still be listed: the traceback tells.
    """
    passed: set[int] = set()
    frame: FrameType
    for frame, _ in traceback.walk_tb(trace):
        passed.add(id(frame.f_locals.get("self")))
    return next((call for call in reversed(executing) if id(call.module) in passed), None)
