"""A program with another number of samples, for what the rules see of small batches."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from gradscope import nesting
from rules.rule_programs import Program

SIZES = (1, 2, 4, 8, 64)
_SHAPE = re.compile(r"(input\.shape=\[)\d+")


def with_samples(program: Program, samples: int) -> Program:
    """The program with this many samples: its first ones, repeated where it has fewer.

    A tensor belongs to the batch where it is as long as the first tensor of the inputs.
    """
    if program.inputs is None:
        overrides = program.options.get("overrides", ())
        shaped = [_SHAPE.sub(rf"\g<1>{samples}", one) for one in overrides]
        if not any(one.startswith("input.shape=") for one in overrides):
            shaped.append(f"input.batch={samples}")
        return replace(program, options={**program.options, "overrides": shaped})
    length = next(len(tensor) for _, tensor in nesting.find(program.inputs, torch.Tensor))

    def taken(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or len(tensor) != length:
            return tensor
        return tensor[torch.arange(samples) % length]

    inputs, target = (
        nesting.replaced(part, torch.Tensor, taken) for part in (program.inputs, program.target)
    )
    return replace(program, inputs=inputs, target=target)
