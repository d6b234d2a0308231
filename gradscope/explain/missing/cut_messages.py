"""Messages on cuts of the graph: one sentence, and the smallest fix."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import torch
from torch import nn

from gradscope.capture.names import modules_by_name, parameters_by_name
from gradscope.explain.missing.observed_tensors import DISABLING
from gradscope.explain.missing.values import Cut, Value
from gradscope.explain.shared.frames import source
from gradscope.records.answers import Answer

_ADVICE = {
    "detach": "drop the `detach()` if this path should train; otherwise freeze the parameters"
    " upstream",
    ".data": "use the tensor itself, not its `.data`",
    "tensor": "keep the tensor: `torch.stack` or arithmetic instead of `torch.tensor(…)`",
    "torch.Tensor": "keep the tensors: `torch.stack` or arithmetic instead of a new tensor",
    "nn.Parameter": "use the tensor itself: `nn.Parameter(…)` makes a new leaf",
    "item": "keep the tensor: use `.item()` only to print",
    "numpy": "do it in torch: NumPy has no graph",
    "grad": "pass `create_graph=True`",
    "__bool__": "use `torch.where`, or weight both branches, if this should train",
}
_SAME = {
    "detach_": "detach",
    "as_tensor": "tensor",
    "new_tensor": "tensor",
    "asarray": "tensor",
    "__array__": "numpy",
    "from_numpy": "numpy",
    "tolist": "item",
    "__float__": "item",
    "__int__": "item",
    "__index__": "item",
}
_SOFT = {
    "argmax": "use `softmax` for a soft choice, `gumbel_softmax(hard=True)` for a hard one, or the"
    " loss on the scores themselves",
    "argmin": "copy the gradient past it (straight-through: `z + (q - z).detach()`)",
    "multinomial": "train through the log-probability of the sample, or `gumbel_softmax`",
    "topk": "use the values that `topk` returns with the indices",
    "argsort": "use the values that `sort` returns with the indices",
}
#: Lines that read a ``state_dict`` without an explicit ``detach``.
_STATE = re.compile(r"^(?!.*detach).*state_dict\(")
#: The line that disabled gradients, at the end of a reason.
_DISABLED = re.compile(r"(?:`, |^switched off at |, called at )((\S+):(\d+))$")
_THRESHOLD = "use the scores themselves, or `sigmoid` of them for a soft threshold"
_CAST = "keep the floating-point values, or copy the gradient past the cast: `x + (q - x).detach()`"
_INDEX = "use the values that it returns with the indices"
_COMPARED = ("gt", "ge", "lt", "le", "eq", "ne")
_SOFT |= dict.fromkeys([*_COMPARED, *(f"__{name}__" for name in _COMPARED)], _THRESHOLD)
_SOFT |= dict.fromkeys(("int", "long", "short", "char", "byte", "bool", "to", "type"), _CAST)
_SOFT |= dict.fromkeys(("min", "max", "sort", "median", "mode", "kthvalue"), _INDEX)
_TITLES = {
    "__getitem__": "indexing",
    "__setitem__": "assignment to a part",
    "nn.Parameter": "`nn.Parameter(…)`",
    "grad": "`torch.autograd.grad`",
    ".data": "`.data`",
    "__float__": "`float(…)`",
    "__int__": "`int(…)`",
    "__bool__": "a branch",
    "__index__": "an index in Python",
    "__array__": "NumPy",
    "numpy": "`.numpy()`",
    "item": "`.item()`",
    "tolist": "`.tolist()`",
    "torch.Tensor": "a new tensor of its numbers",
    "tensor": "`torch.tensor(…)`",
}


def answer(cut: Cut, upstream: Sequence[str], start: str | None) -> Answer:
    """Return the answer for parameters that one operation cut off from ``start`` (None: the
    loss)."""
    value = cut.value
    site = value.site
    return Answer(
        name=upstream[0],
        kind="parameter",
        state="missing",
        message=_message(cut, start),
        cause=cut.cause,
        module=site.module,
        call=site.call,
        location=_fault_line(cut),
        upstream=tuple(upstream),
        advice=_advice(cut, start),
    )


def _fault_line(cut: Cut) -> str | None:
    """Return the line that disabled gradients, if it is known; else the operation's."""
    named = _DISABLED.search(cut.value.reason or "") if cut.cause == "no-grad" else None
    # For a decorated function only the line of its call is known, which is not at fault.
    text = source(named[2], int(named[3])) or "" if named else ""
    if named and any(word in text for word in (*DISABLING, "checkpoint")):
        return named[1]
    return cut.value.site.location


def uncalled(model: nn.Module, names: Sequence[str], called: Collection[nn.Module]) -> list[Answer]:
    """Return the answers for parameters that no operation used, one for each module that owns
    them."""
    groups: dict[str, list[str]] = {}
    modules = modules_by_name(model)
    unused = set(names)
    for name in names:
        owner = name.rpartition(".")[0]
        while isinstance(modules[owner], nn.ParameterList | nn.ParameterDict) and owner:
            owner = owner.rpartition(".")[0]  # these never run
        if not isinstance(modules[owner], torch.jit.ScriptModule):
            groups.setdefault(_unrun(owner, modules, called, unused), []).append(name)
    answers = []
    for owner, upstream in groups.items():
        ran = not owner or modules[owner] in called
        one = len(upstream) == 1
        named = (
            f"`{upstream[0]}`" if one else f"{len(upstream)} parameters of `{owner or 'the model'}`"
        )
        text = (
            f"no operation used {named}, but the module ran."
            if ran
            else f"`{owner}` never ran, so no operation used its parameter{'' if one else 's'}."
        )
        answers.append(
            Answer(
                name=upstream[0],
                kind="parameter",
                state="missing",
                message=text,
                cause="not-called",
                module=owner or None,
                upstream=tuple(upstream),
                advice=f"use {'it' if one else 'them'} in `forward`, or remove"
                f" {'it' if one else 'them'}",
            )
        )
    return answers


def _unrun(
    owner: str, modules: dict[str, nn.Module], called: Collection[nn.Module], unused: set[str]
) -> str:
    """Return the outermost module around a parameter that never ran and owns no parameter that was
    used."""
    if modules[owner] in called:
        return owner
    while above := owner.rpartition(".")[0]:
        inside = (f"{above}.{name}" for name in parameters_by_name(modules[above]))
        if modules[above] in called or not all(name in unused for name in inside):
            break
        owner = above
    return owner


def _message(cut: Cut, start: str | None) -> str:
    cause, value = cut.cause, cut.value
    at = _at(value)
    text = _TITLES.get(value.op, f"`{value.op}`")
    reason = value.reason
    if _is_copied(value):
        return f"`state_dict()`{at} returns copies without a graph: no gradient passes them."
    if cause == "no-grad":
        return f"{text}{at} ran while gradients were disabled{_by(reason)}."
    if cause == "detached":
        return f"{text}{at} cut the graph: {reason or 'no gradient passes it'}."
    if cause == "non-differentiable":
        text = reason or text
        return f"{text}{at} returns a result without a gradient."
    goal = "the loss" if start is None else f"`{start}`, where the graph starts,"
    ends = f"its last use is {text}{at}"
    left = cut.left
    if left is not None and left.op == "__bool__":
        return f"{ends}, which only selects a branch{_at(left)}: no gradient passes."
    if left is not None:
        by = _TITLES.get(left.op, f"`{left.op}`")
        return f"{ends}, which becomes a Python number by {by}{_at(left)}: no gradient passes."
    return f"{ends}, and {goal} does not use it."


def _is_copied(value: Value) -> bool:
    """Return True if PyTorch's own ``state_dict()`` detached the value."""
    return value.op == "detach" and _STATE.search(value.site.code) is not None


def _at(value: Value) -> str:
    """Return the place of an operation, with the text of the line."""
    site = value.site
    if site.location or site.module is None:
        return site.at_code
    return f" in `{site.module or 'the model'}`"


def _by(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _advice(cut: Cut, start: str | None) -> str:
    cause, value = cut.cause, cut.value
    reason = value.reason or ""
    if cause == "no-grad":
        if "checkpoint" in reason:
            return "pass `use_reentrant=False` to the checkpoint"
        if "`sample`" in reason:
            return "draw with `rsample()`, or train through `log_prob` of the sample"
        return "run it with gradients enabled; if it should not train, set `requires_grad` to False"
    if cause == "detached":
        if "requires_grad" in reason:
            return "set `requires_grad` to True before it is used"
        return _kept(value)
    if cause == "non-differentiable":
        if reason:
            return "give the function a backward for this output"
        return _SOFT.get(value.op, "compute the loss from the input of this operation")
    if cut.left is not None:
        return _kept(cut.left)
    if start is not None:
        return "start the graph from the loss, or from an output downstream of it"
    return "add it to the loss, or remove it (or freeze the parameters upstream)"


def _kept(value: Value) -> str:
    """Return the advice for an operation that leaves the graph."""
    if _is_copied(value):
        return "call the module with the tensors themselves: `torch.func.functional_call`"
    op = _SAME.get(value.op, value.op)
    return _ADVICE.get(op) or "keep the tensor itself, not a copy of its numbers"
