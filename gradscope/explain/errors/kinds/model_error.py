"""Explains all other errors: plain Python mistakes, refused values, gradients of custom
functions."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node

from gradscope.errors import did_you_mean
from gradscope.explain.errors.explanation import Case, Explanation, Kind, first_explanation, method
from gradscope.explain.errors.read_traceback import local_tensors
from gradscope.explain.shared.frames import CallSite, is_hidden, is_ours, user_frames
from gradscope.loading.imports import missing_key

_INSTEAD = {"tuple", "list", "dict", "NoneType", "str"}


def _modules(trace: TracebackType | None) -> list[nn.Module]:
    """Return the modules whose code the exception passed through, innermost last."""
    owners = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(trace))
    return list(dict.fromkeys(one for one in owners if isinstance(one, nn.Module)))


def _batch_norm(case: Case) -> Explanation | None:
    failed = case.failed
    if "more than 1 value per channel" not in case.text or not failed.operands:
        return None
    return Explanation(
        f"in train mode `{failed.layer_name}`, a BatchNorm, takes mean and variance over the batch,"
        f" and {list(failed.operands[0].shape)} has one value for each channel."
    )


def _forward(case: Case) -> Explanation | None:
    found = re.search(r'Module \[(\w+)\] is missing the required "forward" function', case.text)
    if found is None:
        return None
    modules = _modules(case.failure.__traceback__)
    module = modules[-1] if modules else None
    names = [n for n in vars(type(module)) if not n.startswith("__")] if module else []
    close = did_you_mean("forward", names)
    held = isinstance(module, nn.ModuleList | nn.ModuleDict)
    if held:
        return Explanation(
            f"{found[1]} only holds modules: it has no `forward`.",
            "call its modules one by one, or use `nn.Sequential`",
        )
    fact = f"{found[1]} has no method `forward`"
    other = re.search("`(.+?)`", close or "")
    fact += f", but one named `{other[1]}`." if other else "."
    return Explanation(fact, "define `def forward(self, …)` with that spelling, inside the class")


def _argument(case: Case) -> Explanation | None:
    found = re.search(
        r"(\w+)\(\) (?:missing \d+ required positional arguments?: (.+)|takes (.+) positional"
        r" arguments? but (\d+) (?:was|were) given|got an unexpected keyword argument '(\w+)')",
        case.text,
    )
    if found is None or not isinstance(case.failure, TypeError):
        return None
    modules = _modules(case.failure.__traceback__)
    name, lacking, takes, given, extra = found.groups()
    signature = ""
    if name == "forward" and modules:
        signature = _signature(modules[-1])
    what = f"`{signature or name + '(…)'}`"
    if lacking:
        words = lacking.replace("'", "`")
        fix = "give it in the input: a tuple for several arguments, or a mapping by their names"
        return Explanation(f"{what} was called without {words}.", f"{fix}; or give it a default")
    if extra:
        close = did_you_mean(extra, re.findall(r"\w+", signature)[1:])
        return Explanation(
            f"{what} has no argument `{extra}`.", close or "rename or drop the argument"
        )
    fact = f"{what} takes {takes} positional arguments, but got {given} (with `self`)."
    return Explanation(fact, "give as many as it takes")


def _signature(module: nn.Module) -> str:
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return ""
    return f"forward({', '.join(str(p) for p in parameters.values())})"


def _attribute(case: Case) -> Explanation | None:
    found = re.search(r"'(\w+)' object has no attribute '(\w+)'", case.text)
    if found is None or found[1] == "NoneType":
        return None
    owner = getattr(case.failure, "obj", None)
    modules = _modules(case.failure.__traceback__)
    if owner is None:
        owner = next((m for m in reversed(modules) if type(m).__name__ == found[1]), None)
    if isinstance(owner, torch.Tensor):
        close = did_you_mean(found[2], [n for n in dir(torch.Tensor) if not n.startswith("_")])
        return Explanation(f"a tensor {list(owner.shape)} has no `{found[2]}`.", close)
    tensors = hasattr(torch.Tensor, found[2]) and case.phase != "construction"
    if isinstance(owner, dict) and not tensors:
        keys = ", ".join(f"`{key}`" for key in list(owner)[:12]) or "none"
        return Explanation(
            f"`.{found[2]}` is read from a dict; its keys ({keys}) are not attributes."
        )
    if not isinstance(owner, nn.Module):
        return _container(found[1], found[2])
    names = [n for n in (*owner._modules, *owner._parameters, *owner._buffers, *vars(owner)) if
             not n.startswith("_") and n != "training"]  # fmt: skip
    close = did_you_mean(found[2], names)
    has = ", ".join(f"`{n}`" for n in dict.fromkeys(names))
    return Explanation(
        f"`self.{found[2]}` was never made in {found[1]}, which has {has or 'no parts'}.",
        close or f"make it in `__init__`, after `super().__init__()`: `self.{found[2]} = …`",
    )


def _container(kind: str, name: str) -> Explanation | None:
    if kind not in ("tuple", "list", "dict"):
        return None
    return Explanation(
        f"expected a tensor, got a {kind}: only tensors have `.{name}`.",
        "take the tensor out of it first, for example `output[0]`",
    )


def _none(case: Case) -> Explanation | None:
    """Explain a forward that returned nothing."""
    if "NoneType" not in case.text:
        return None
    call = re.search(r"(self\.[\w.]+)\(", _line(case))
    who = f"`{call[1]}`" if call and "." in call[1] else "the call before"
    inner = re.findall(r"(self\.[\w.]+)\(", _line(case))
    who = f"`{inner[-1]}`" if inner else who
    return Explanation(
        f"expected a tensor, got None; {who} may return None: a `forward` without"
        " `return`, or without one on this path.",
        "end the `forward` with `return` and its result",
    )


def _line(case: Case) -> str:
    frames = user_frames(case.failure.__traceback__)
    return frames[-1].code or "" if frames else ""


def _type(case: Case) -> Explanation | None:
    found = re.search(r"argument '(\w+)'.* must be (\w+), not (\w+)", case.text)
    if found is None or found[3] not in _INSTEAD:
        return None
    modules = [m for m in _modules(case.failure.__traceback__) if not isinstance(m, nn.Sequential)]
    kind = type(modules[-1]).__name__ if modules else "the operation"
    given = f"a {found[3]}"
    shapes = [list(one.shape) for one in case.failed.operands]
    holds = f" of tensors {', '.join(map(str, shapes))}" if shapes and found[3] != "str" else ""
    return Explanation(
        f"{kind} expects a tensor as `{found[1]}` and got {given}{holds}.",
        "take the tensor out of it: LSTM, GRU and attention return a tuple, of which `[0]` is the"
        " output"
        if found[3] == "tuple"
        else "take the tensor out of it first",
    )


def _key(case: Case) -> Explanation | None:
    if not isinstance(case.failure, KeyError) or not case.failure.args:
        return None
    key, keys = missing_key(case.failure) or (case.failure.args[0], [])
    if not keys:
        return Explanation(f"there is no key `{key}`.", "check the keys of the input")
    has = ", ".join(f"`{k}`" for k in keys[:12])
    return Explanation(
        f"there is no `{key}`; the mapping has {has}.",
        did_you_mean(str(key), keys) or f"give `{key}` in the input, or read one that is there",
    )


def _cause(case: Case) -> Explanation | None:
    """Explain an exception that the user's code raised because of an earlier exception."""
    cause = case.failure.__cause__
    first = str(cause).strip().splitlines()
    if cause is None or not first:
        return None
    return Explanation(f"it was raised because of {type(cause).__name__}: {first[0]}")


_SHAPE = re.compile(
    r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*?\]) but"
    r" expected shape compatible with (\[.*?\])"
)
_COUNT = re.compile(
    r"function (\w+)Backward returned an incorrect number of gradients \(expected (\d+), got (\d+)"
)


def _of_a_function(text: str) -> bool:
    """Return True for an error of a custom autograd function, which needs a second run to
    locate."""
    return bool(_SHAPE.search(text) or _COUNT.search(text))


def _custom_function(case: Case) -> Explanation | None:
    """Explain an error of a custom autograd function: its place, and the gradients that its
    ``backward`` must return."""
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
        " an argument without a gradient, such as a number",
        site=site,
    )


def _node(case: Case, name: str) -> Node | None:
    """Return the node that raised: the first of the function's nodes in the order of backward."""
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
    """Return the place of the function's ``backward``, which must be fixed, in the module that
    applied it."""
    code = getattr(getattr(function, "backward", None), "__code__", None)
    if code is None:
        return applied if applied.file else None
    start = code.co_firstlineno
    lines = [line for _, _, line in code.co_lines() if line is not None and line > start]
    return CallSite(applied.module, applied.call, code.co_filename, min(lines, default=start))


def _refused_values(case: Case) -> Explanation | None:
    """Explain values that are not probabilities, and tensors of inference mode."""
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
            "find the origin of the NaN: the input, or a logarithm, a root or a division in the"
            " forward",
        )
    low, high = values.aminmax()
    return Explanation(
        f"the output {list(given.shape)} has values from {low.item():.4g} to {high.item():.4g}:"
        " these are scores (logits), and `BCELoss` takes probabilities.",
        "use `nn.BCEWithLogitsLoss()`, which takes them as they are, or end the model with"
        " `torch.sigmoid`",
    )


def _inference(case: Case) -> Explanation | None:
    """Return the innermost names in the user's code that hold an inference tensor."""
    for tensors in _arguments(case, users=True):
        odd = [name for name, tensor in tensors.items() if tensor.is_inference()]
        if odd:
            x = odd[-1]
            return Explanation(
                f"`{x}` {list(tensors[x].shape)} was computed under `torch.inference_mode()`,"
                " and backward takes no such tensor.",
                f"compute `{x}` under `torch.no_grad()` instead, or pass on a copy:"
                f" `{method(x, 'clone()')}`",
            )
    return None


def _arguments(case: Case, *, users: bool = False) -> Iterator[Mapping[str, torch.Tensor]]:
    """Yield the tensors in the frames of the error, innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(case.failure.__traceback__)]
    for frame in reversed(frames):
        file = frame.f_code.co_filename
        if not (is_hidden(file) if users else is_ours(file)):
            yield local_tensors(frame)


#: Errors of plain Python: missing names, and wrong types.
_MISTAKES = (_batch_norm, _forward, _argument, _attribute, _none, _type, _key, _cause)


def explain(case: Case) -> Explanation | None:
    """Explain an error from the exception's text and its frames alone."""
    return first_explanation(case, (_custom_function, _refused_values, *_MISTAKES))


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
    r"No working C\+\+ compiler found": (
        "torch.compile needs a C++ compiler here: install one, or set CXX to it; "
        "`compile.backend=aot_eager` needs none"
    ),
}
KIND = Kind(_SIGNS, explain, worth_repeating=_of_a_function)
