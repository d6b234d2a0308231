"""Explains tensors on different devices: the device of each, and the tensor that was not moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from gradscope.capture.names import buffer_names, first_names
from gradscope.explain.errors.explanation import (
    Case,
    Explanation,
    FailedOperation,
    Kind,
    Operand,
    operand,
)
from gradscope.explain.shared.operations import Trait, by_function


def explain(case: Case) -> Explanation | None:
    """Explain a device error: the devices that differ, and the tensor that was not moved."""
    failed = case.failed
    if failed.layer is not None:
        failed = replace(
            failed, operands=(*failed.operands, *_weights(failed.layer, failed.layer_name))
        )
    if len({one.device for one in failed.operands}) < 2:
        return None
    fact = " and ".join(
        f"{failed.title_of(one)} is on {one.device}" for one in _one_each(failed.operands)
    )
    most = _home(failed)
    odd = next((one for one in failed.operands if one.device != most), failed.operands[-1])
    return Explanation(f"{fact}.", _move(failed, odd, most))


def _weights(layer: nn.Module, name: str | None) -> Iterator[Operand]:
    """Yield a layer's own parameters and buffers."""
    for own, tensor in (*first_names(layer), *buffer_names(layer)):
        yield operand(tensor, f"{type(layer).__name__ if name is None else name}.{own}")


def _home(failed: FailedOperation) -> str:
    """Return the device to move to: the device of a computed operand."""
    computed = (one for one in failed.operands if one.computed)
    return next(computed, failed.operands[0]).device


def _move(failed: FailedOperation, odd: Operand, home: str) -> str:
    if failed.layer is not None and failed.layer_name is None:
        return (
            "the layer is not a submodule, so `model.to(device)` does not find it: keep layers in"
            " `nn.ModuleList`, not in a plain list"
        )
    if (
        failed.layer is not None
        and odd.text
        and (failed.layer_name or "")
        and odd.text.startswith(failed.layer_name or "")
    ):
        return (
            f"move the full model once, `model.to('{home}')`, after `{failed.layer_name}` is in it"
        )
    if odd.held:
        name = (odd.text or "").rpartition(".")[2]
        return (
            "a plain attribute does not move with the model: keep it by"
            f" `self.register_buffer('{name}', …)`"
        )
    if by_function(failed.function).has(Trait.LOSS):
        return (
            "move it to the output's device: `.to(output.device)`, or the loss itself: "
            "`loss.to(device)`"
        )
    return (
        f"make {failed.title_of(odd)} on the device of the others: `device=x.device`, "
        "`x.new_zeros(…)`, or `.to(x.device)`"
    )


def _one_each(operands: tuple[Operand, ...]) -> list[Operand]:
    """Return the first operand of each device, or of each dtype."""
    found: dict[str, Operand] = {}
    for one in operands:
        found.setdefault(one.device, one)
    return list(found.values())


_SIGN = (
    r"expected all tensors to be on the same device|not on the expected device"
    r"|not at the same device|input type \((torch\.)?\w*cuda"
    r"|weight type \((torch\.)?\w*cuda|two devices"
)
_ADVICE = (
    "move tensors that the layer makes or keeps to the input's device (`register_buffer`,"
    " `x.new_zeros(…)`)"
)
KIND = Kind({_SIGN: _ADVICE}, explain)
