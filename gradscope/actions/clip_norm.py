"""Scale down to an L2 norm of at most VALUE, each tensor separately.

As ``torch.nn.utils.clip_grad_norm_`` does for the gradients of one tensor, without its 1e-6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradscope.actions import Action, is_positive

if TYPE_CHECKING:
    from torch import Tensor


def change(tensor: Tensor, limit: float) -> Tensor:
    """Return the tensor times limit / norm if its norm is above the limit."""
    real = tensor.abs() if tensor.is_complex() else tensor
    # A norm in float16 overflows, so compute it in float64; Apple's devices have no float64.
    wide = real.float() if tensor.device.type == "mps" else real.double()
    norm: Tensor = wide.norm()
    return tensor * (limit / norm.clamp(min=limit)).to(real.dtype)


ACTION = Action(change, "a number above 0", is_positive)
