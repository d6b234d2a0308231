"""All other errors: refused values, gradients of custom functions, mistakes of plain Python."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.explain.errors.explanation import Case, Explanation, Kind, first_explanation, method
from gradscope.explain.errors.kinds import _python_mistakes
from gradscope.explain.errors.read_traceback import local_tensors
from gradscope.explain.shared.frames import CallSite, is_hidden, is_ours

_SHAPE = re.compile(
    r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*?\]) but"
    r" expected shape compatible with (\[.*?\])"
)
_COUNT = re.compile(
    r"function (\w+)Backward returned an incorrect number of gradients \(expected (\d+), got (\d+)"
)


def _of_a_function(text: str) -> bool:
    """Whether an exception is of this sort, which only a second run can place."""
    return bool(_SHAPE.search(text) or _COUNT.search(text))


def _custom_function(case: Case) -> Explanation | None:
    """Which function, where it was applied, and what its ``backward`` is to return."""
    shape, count = _SHAPE.search(case.text), _COUNT.search(case.text)
    found = shape or count
    if found is None:
        return None
    node = _node(case, found[1])
    function = getattr(type(node), "_forward_cls", None)
    applied = case.tracer.applied.get(node, CallSite()) if case.tracer and node else CallSite()
    where = f", applied{applied.within}{applied.at}," if applied.file or applied.module else ""
    names = _argument_names(function)
    site = _backward(function, applied)
    if shape is not None:
        index, got, wanted = int(shape[2]), shape[3], shape[4]
        name = f"`{names[0]}`" if len(names) == 1 else f"tensor argument {index}"
        return Explanation(
            f"`{found[1]}.backward`{where} returned {got} as the gradient of {name}, which is"
            f" {wanted}.",
            f"return a gradient of the shape that {name} has in `forward`: {wanted}",
            site=site,
        )
    expected, given = int(found[2]), int(found[3])
    takes = f" ({', '.join(names)})" if names else ""
    return Explanation(
        f"`{found[1]}.forward`{where} takes {expected} arguments after `ctx`{takes}, and its"
        f" `backward` returned {given}.",
        f"return {expected} values from `backward`, one for each argument of `forward`: None for"
        " what needs no gradient, such as a number",
        site=site,
    )


def _node(case: Case, name: str) -> Node | None:
    """The node that raised: the first of that function as backward takes them."""
    if case.tracer is None or case.tracer.failing is None:
        return None
    nodes = case.tracer.failing.nodes
    return next((node for node in nodes if type(node).__name__ == f"{name}Backward"), None)


def _argument_names(function: Any) -> list[str]:
    forward = getattr(function, "forward", None)
    if forward is None:
        return []
    names = list(inspect.signature(forward).parameters)
    split = "setup_context" in vars(function)  # then `forward` has no `ctx`
    return names if split else names[1:]


def _backward(function: Any, applied: CallSite) -> CallSite | None:
    """The function's ``backward``, which is to be mended, in the module that applied it."""
    code = getattr(getattr(function, "backward", None), "__code__", None)
    if code is None:
        return applied if applied.file else None
    start = code.co_firstlineno
    lines = [line for _, _, line in code.co_lines() if line is not None and line > start]
    return CallSite(applied.module, applied.call, code.co_filename, min(lines, default=start))


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
    return first_explanation(case, (_custom_function, _refused_values, _python_mistakes.explain))


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
KIND = Kind(_SIGNS, explain, worth_repeating=_of_a_function)
