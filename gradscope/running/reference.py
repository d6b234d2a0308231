"""A run in float64, by which two others are judged: how far each is from what is nearly exact."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from gradscope.errors import OptionError
from gradscope.loading.workload import Workload
from gradscope.running.compared_step import Comparison
from gradscope.running.handover import hand_batch


@dataclass(frozen=True, slots=True)
class Reference:
    """Two runs compared with a third, all by A's names.

    Attributes:
        a: A as it is, and ``own`` with every call given what the reference's call was given.
        b: B as it is.
    """

    a: Comparison
    own: Comparison
    b: Comparison


def in_float64(workload: Workload) -> Workload:
    """A copy of a workload that computes in float64, on the same batch.

    Raises:
        OptionError: the model cannot be copied, or its device has no float64.
    """
    if workload.device.type == "mps":
        raise OptionError("`mps` has no float64", help="run the reference with `--device cpu`")
    try:
        model, criterion = copy.deepcopy((workload.model, workload.criterion))
    except Exception as failure:
        name = type(failure).__name__
        raise OptionError(
            f"the model cannot be copied for a reference: `copy.deepcopy` raised {name}",
            help="leave `--reference` away",
        ) from failure
    if isinstance(criterion.spec, nn.Module):
        criterion.spec.double()
    wide = replace(
        workload,
        model=model.double(),
        criterion=criterion,
        dtype=torch.float64,
        autocast=None,
    )
    hand_batch(workload, wide)
    return wide
