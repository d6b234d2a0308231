"""The dtype that ``torch.autocast`` casts to at this moment."""

from __future__ import annotations

import torch
from torch import nn

#: Whether autocast is on for any kind of device: cheap enough to be asked at each call.
any_autocast = torch._C._is_any_autocast_enabled


def autocast_dtypes() -> list[tuple[str, torch.dtype]]:
    """The kinds of device that it is on for, with the dtype."""
    return [
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]


def autocast_name(module: nn.Module) -> str | None:
    """``bfloat16``: the dtype on the device of the module's parameters; None where it is off."""
    first = next(module.parameters(), None)
    wanted = "cpu" if first is None else first.device.type
    for device, dtype in autocast_dtypes():
        if device == wanted:
            return str(dtype).removeprefix("torch.")
    return None
