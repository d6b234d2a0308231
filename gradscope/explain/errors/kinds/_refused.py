"""What PyTorch refuses for the values or the mode of a tensor: which one, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import FrameType

import torch

from gradscope.explain.errors.explanation import Case, Told, method
from gradscope.explain.errors.failed_operation import at_hand
from gradscope.explain.shared.frames import is_hidden, is_ours


def explain(case: Case) -> Told | None:
    """Probabilities that are none, and tensors of inference."""
    if "all elements of input should be between 0 and 1" in case.text:
        return _probabilities(case)
    if "nference tensor" in case.text:
        return _inference(case)
    return None


def overflow(case: Case) -> Told | None:
    """A number that a narrow dtype does not reach, as a mask's -1e9 in float16."""
    if not re.search(r"converted to type .* without overflow", case.text):
        return None
    met = case.met
    narrow = ("float16", "bfloat16", "int8", "uint8", "int16")
    into = next((o for o in met.operands if o.dtype in narrow), None) if met else None
    if met is None or into is None:
        return None
    name = into.text or "x"
    value = next((v for v in met.values if isinstance(v, int | float) and v is not True), None)
    number = "a number" if value is None else f"{value:g}"
    if "int" in into.dtype:
        return Told((f"`{name}` is {into.dtype}, which does not reach {number}.",), None)
    last = torch.finfo(getattr(torch, into.dtype)).max
    fill = f"torch.finfo({name}.dtype).min" if name.isidentifier() else "float('-inf')"
    return Told(
        (
            f"`{met.op}` is to put {number} into {into.said}, which is {into.dtype} and ends at"
            f" ±{last:g}.",
        ),
        f"fill with what the dtype has: `{fill}`; or mask before the cast to {into.dtype}",
    )


def _probabilities(case: Case) -> Told | None:
    given = next((f["input"] for f in _arguments(case) if "input" in f), None)
    if given is None or given.device.type == "meta" or not given.numel():
        return None
    values = given.detach()
    if values.isnan().any():
        return Told(
            (f"the output {list(given.shape)} has nan: that is no probability either.",),
            "look for where the nan comes from, in the input, or in a logarithm, a root or a"
            " division of the forward",
        )
    low, high = values.aminmax()
    return Told(
        (
            f"the output {list(given.shape)} has values from {low.item():.4g} to {high.item():.4g}:"
            " these are scores (logits), and `BCELoss` takes probabilities.",
        ),
        "use `nn.BCEWithLogitsLoss()`, which takes them as they are, or end the model with"
        " `torch.sigmoid`",
    )


def _inference(case: Case) -> Told | None:
    """The innermost names of the user's that hold such a tensor."""
    for tensors in _arguments(case, users=True):
        odd = [name for name, tensor in tensors.items() if tensor.is_inference()]
        if odd:
            x = odd[-1]
            return Told(
                (
                    f"`{x}` {list(tensors[x].shape)} was computed under `torch.inference_mode()`,"
                    " and backward takes no such tensor.",
                ),
                f"compute `{x}` under `torch.no_grad()` instead, or give on a copy:"
                f" `{method(x, 'clone()')}`",
            )
    return None


def _arguments(case: Case, *, users: bool = False) -> Iterator[Mapping[str, torch.Tensor]]:
    """The tensors at hand in the frames of the error, innermost first."""
    frames: list[FrameType] = []
    trace = case.failure.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        file = frame.f_code.co_filename
        if not (is_hidden(file) if users else is_ours(file)):
            yield at_hand(frame)
