"""Dtypes and devices that do not meet: which tensor is which, and which of them to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from gradscope.explain import _refused
from gradscope.explain._meeting import Meeting, Operand, operand
from gradscope.explain._told import Case, Told, method, told

_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "mse_loss",
           "binary_cross_entropy_with_logits", "l1_loss")  # fmt: skip
_CASTS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16",
          "int64": "long"}  # fmt: skip


def explain(case: Case) -> Told | None:
    """Which dtypes met, and which cast joins them."""
    return told(case, (_refused.overflow, _target, _layer, _bool, _index, _integers, _sides))


def devices(case: Case) -> Told | None:
    """Which devices met, and what was left behind."""
    met = case.met
    if met is None:
        return None
    if met.layer is not None:
        met = replace(met, operands=(*met.operands, *_weights(met.layer, met.name)))
    if len({one.device for one in met.operands}) < 2:
        return None
    said = " and ".join(f"{_who(met, one)} is on {one.device}" for one in _one_each(met.operands))
    most = _home(met)
    odd = next((one for one in met.operands if one.device != most), met.operands[-1])
    return Told((f"{said}.",), _move(met, odd, most))


def _weights(layer: nn.Module, name: str | None) -> Iterator[Operand]:
    """A layer's own parameters and buffers."""
    for own, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        yield operand(tensor, f"{type(layer).__name__ if name is None else name}.{own}")


def _home(met: Meeting) -> str:
    """The device that the others come to: that of what was computed."""
    computed = (one for one in met.operands if one.computed)
    return next(computed, met.operands[0]).device


def _move(met: Meeting, odd: Operand, home: str) -> str:
    if met.layer is not None and met.name is None:
        return (
            "the layer is no submodule, so `model.to(device)` does not find it: keep layers in"
            " `nn.ModuleList`, not in a plain list"
        )
    if (
        met.layer is not None
        and odd.text
        and (met.name or "")
        and odd.text.startswith(met.name or "")
    ):
        return f"move the whole model once, `model.to('{home}')`, after `{met.name}` is in it"
    if odd.held:
        name = (odd.text or "").rpartition(".")[2]
        return (
            "a plain attribute does not move with the model: keep it by"
            f" `self.register_buffer('{name}', …)`"
        )
    if met.op in _LOSSES:
        return (
            "move it beside the output: `.to(output.device)`, or the loss itself: `loss.to(device)`"
        )
    return (
        f"make {_who(met, odd)} where the others are: `device=x.device`, `x.new_zeros(…)`, or"
        " `.to(x.device)`"
    )


def _one_each(operands: tuple[Operand, ...]) -> list[Operand]:
    """The first operand of each device, or of each dtype."""
    found: dict[str, Operand] = {}
    for one in operands:
        found.setdefault(one.device, one)
    return list(found.values())


def _who(met: Meeting, one: Operand) -> str:
    if met.op in _LOSSES and one.text in ("input", "target", "weight"):
        return {"input": "the output", "target": "the target", "weight": "the loss's weight"}[
            one.text
        ]
    if met.layer is not None and one is met.operands[0]:
        return f"the input{f' `{met.argument}`' if met.argument else ''}"
    if met.layer is not None and one.text == "hx":
        return "the hidden state"
    return f"`{one.text}`" if one.text else f"a tensor {list(one.shape)}"


def _target(case: Case) -> Told | None:
    met = case.met
    if met is None or met.op not in _LOSSES or len(met.operands) < 2:
        return None
    output, target = met.operands[:2]
    said = f"the output is {output.dtype} {list(output.shape)}, the target {target.dtype}"
    said += f" {list(target.shape)}."
    ids = met.op in ("cross_entropy", "nll_loss")
    if ids and target.shape == output.shape and "float" not in target.dtype:
        return Told(
            (said,),
            "give class ids instead of one-hot rows, `target.argmax(1)`, or probabilities as"
            " floats: `target.float()`",
        )
    if ids:
        return Told((said, "class ids are integers."), "cast the class ids: `target.long()`")
    return Told((said,), f"cast the target: `target.{_CASTS.get(output.dtype, 'float')}()`")


def _layer(case: Case) -> Told | None:
    met = case.met
    if met is None or met.layer is None or not met.operands:
        return None
    given = met.operands[0]
    weight = next(((n, p) for n, p in met.layer.named_parameters(recurse=False)), None)
    if weight is None:
        return None
    name = met.name if met.name is not None else type(met.layer).__name__
    wanted = str(weight[1].dtype).removeprefix("torch.")
    who = _who(met, given)
    x = met.argument or "x"
    if "indices" in case.text:
        advice = f"cast the ids: `{method(x, 'long()')}`"
        count = getattr(met.layer, "num_embeddings", None)
        if count is not None and not given.computed:
            drawn = f"{{shape: {list(given.shape)}, fill: randint({count})}}"
            advice = f"where the input is random, draw ids: `{drawn}`; else {advice}"
        return Told((f"{who} of `{name}` is {given.dtype}; indices are to be int64.",), advice)
    if given.dtype == wanted:
        return None
    said = f"`{name}.{weight[0]}` is {wanted}, {who} {given.dtype}."
    cast = f"{_CASTS.get(wanted, 'float')}()"
    if given.dtype == "uint8":
        return Told((said,), f"scale the pixels to floats: `{method(x, 'float()')} / 255`")
    if "int" in given.dtype:
        return Told(
            (said,),
            f"cast it, `{method(x, cast)}`; ids want `nn.Embedding` before `{name}`",
        )
    if wanted in ("float16", "bfloat16") and given.dtype == "float32":
        return Told(
            (said,),
            f"keep the model in one dtype: cast all of it or none; to mix, keep `{name}` in float32"
            " under `torch.autocast`",
        )
    return Told((said,), f"cast the input: `{method(x, cast)}`")


def _bool(case: Case) -> Told | None:
    if "bool tensor" not in case.text or case.met is None:
        return None
    masks = [one for one in case.met.operands if one.dtype == "bool"]
    if not masks:
        return None
    name = masks[0].text or "mask"
    return Told(
        (f"`{name}` {list(masks[0].shape)} is bool, and has no `-`.",),
        f"invert it: `~{name}`; or count with it: `{name}.float()`",
    )


def _index(case: Case) -> Told | None:
    met = case.met
    if met is None:
        return None
    if "used as indices" in case.text:
        odd = next((one for one in met.operands[1:] if "float" in one.dtype), None)
        if odd is None:
            return None
        return Told(
            (f"the index {odd.said} is {odd.dtype}.",), f"cast it: `{odd.text or 'x'}.long()`"
        )
    if re.search(r"source and destination dtypes match|self.dtype to be equal to src", case.text):
        if len(met.operands) < 2:
            return None
        into, values = met.operands[0], met.operands[-1]
        return Told(
            (f"`{into.text or 'the target'}` is {into.dtype}, what is written into it by index"
             f" {values.dtype}.",),
            "make both of one dtype: `torch.zeros(…, dtype=values.dtype)`, or"
            f" `.to({into.text or 'x'}.dtype)` on what is written",
        )  # fmt: skip
    return None


def _integers(case: Case) -> Told | None:
    """An operation that has no meaning for integers."""
    met = case.met
    if met is None or not re.search(r"not implemented for '|could not infer output", case.text):
        return None
    odd = next((one for one in met.operands if "int" in one.dtype or one.dtype == "bool"), None)
    if odd is None:
        return None
    name = odd.text or "x"
    return Told(
        (f"`{met.op}` got {odd.said}, which is {odd.dtype}.",),
        f"cast it first: `{method(name, 'float()')}`",
    )


def _sides(case: Case) -> Told | None:
    met = case.met
    if met is None or len({one.dtype for one in met.operands}) < 2:
        return None
    said = ", ".join(f"{_who(met, one)} is {one.dtype}" for one in met.operands)
    first, odd = met.operands[0], next(o for o in met.operands if o.dtype != met.operands[0].dtype)
    return Told(
        (f"{said}.",),
        f"cast one of them: `{odd.text or 'y'}.to({first.text or 'x'}.dtype)`",
    )
