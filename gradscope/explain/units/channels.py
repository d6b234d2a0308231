"""Which axis of a tensor holds its units: told by the operation that last made such a shape."""

from __future__ import annotations

from typing import Any

import torch

#: Channels stand on the second axis of what these give, features on the last of those.
_CHANNELS = frozenset(
    [
        "convolution",
        "_convolution",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_group_norm",
        "max_pool2d_with_indices",
        "_adaptive_avg_pool2d",
        "avg_pool2d",
        "upsample_nearest2d",
        "upsample_bilinear2d",
    ]
)
_FEATURES = frozenset(["addmm", "mm", "bmm", "baddbmm", "linear", "native_layer_norm", "embedding"])
_VIEWS = frozenset(["view", "_unsafe_view", "reshape"])


class Channels:
    """Follows shapes through a run; ``axis`` answers for a tensor of one of them."""

    def __init__(self) -> None:
        self._axes: dict[tuple[int, ...], int] = {}

    def saw(self, op: str, given: Any, result: Any) -> None:
        """``op`` made ``result``, or a tuple that begins with it, of ``given``."""
        made = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(made, torch.Tensor) or made.dim() < 2:
            return
        if op in _CHANNELS:
            self._axes[tuple(made.shape)] = 1
        elif op in _FEATURES:
            self._axes[tuple(made.shape)] = made.dim() - 1
        elif op in _VIEWS and isinstance(given, torch.Tensor) and given.dim() > 1:
            before = self._axes.get(tuple(given.shape))
            if before == given.dim() - 1 and given.shape[-1] == made.shape[-1]:
                self._axes[tuple(made.shape)] = made.dim() - 1

    def axis(self, tensor: torch.Tensor) -> int:
        """The axis of the units; without a sign, pictures have theirs second and the rest last."""
        known = self._axes.get(tuple(tensor.shape))
        if known is not None:
            return known
        return 1 if tensor.dim() in (4, 5) else tensor.dim() - 1
