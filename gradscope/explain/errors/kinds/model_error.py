"""All other errors: refused values, custom functions, mistakes of plain Python."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping

import torch

from gradscope.explain.errors.explanation import Case, Explanation, first_explanation, method
from gradscope.explain.errors.kind import Kind
from gradscope.explain.errors.kinds import _custom_functions, _python_mistakes
from gradscope.explain.errors.read_traceback import local_tensors
from gradscope.explain.shared.frames import is_hidden, is_ours


def _refused_values(case: Case) -> Explanation | None:
    """Probabilities that are none, and tensors of inference."""
    if "all elements of input should be between 0 and 1" in case.text:
        return _probabilities(case)
    if "nference tensor" in case.text:
        return _inference(case)
    return None


def _probabilities(case: Case) -> Explanation | None:
    given = next((f["input"] for f in _arguments(case) if "input" in f), None)
    if given is None or given.device.type == "meta" or not given.numel():
        return None
    values = given.detach()
    if values.isnan().any():
        return Explanation(
            f"the output {list(given.shape)} has NaN, which is not a probability.",
            "look for where the nan comes from, in the input, or in a logarithm, a root or a"
            " division of the forward",
        )
    low, high = values.aminmax()
    return Explanation(
        f"the output {list(given.shape)} has values from {low.item():.4g} to {high.item():.4g}:"
        " these are scores (logits), and `BCELoss` takes probabilities.",
        "use `nn.BCEWithLogitsLoss()`, which takes them as they are, or end the model with"
        " `torch.sigmoid`",
    )


def _inference(case: Case) -> Explanation | None:
    """The innermost names of the user's that hold such a tensor."""
    for tensors in _arguments(case, users=True):
        odd = [name for name, tensor in tensors.items() if tensor.is_inference()]
        if odd:
            x = odd[-1]
            return Explanation(
                f"`{x}` {list(tensors[x].shape)} was computed under `torch.inference_mode()`,"
                " and backward takes no such tensor.",
                f"compute `{x}` under `torch.no_grad()` instead, or give on a copy:"
                f" `{method(x, 'clone()')}`",
            )
    return None


def _arguments(case: Case, *, users: bool = False) -> Iterator[Mapping[str, torch.Tensor]]:
    """The tensors at hand in the frames of the error, innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(case.failure.__traceback__)]
    for frame in reversed(frames):
        file = frame.f_code.co_filename
        if not (is_hidden(file) if users else is_ours(file)):
            yield local_tensors(frame)


def explain(case: Case) -> Explanation | None:
    """What was wrong, as far as the exception and its frames tell."""
    return first_explanation(
        case, (_custom_functions.explain, _refused_values, _python_mistakes.explain)
    )


_SIGNS = {
    r"expected more than 1 value per channel when training": (
        "BatchNorm in train mode needs a batch of two or more: `input.batch=2` or `mode=eval`"
    ),
    r"all elements of input should be between 0 and 1": (
        "use `nn.BCEWithLogitsLoss()` on scores (logits), or end the model with `torch.sigmoid`"
    ),
    r"inference tensor": (
        "compute it under `torch.no_grad()` instead of `torch.inference_mode()`, or clone it"
    ),
}
KIND = Kind(_SIGNS, explain, worth_repeating=_custom_functions.concerns)
