"""Findings in a healthy model: fresh, with a usual training loss."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import guards
import torch
import torch.nn.functional as F
from torch import Tensor
from truth.cases import _tensors as tensors

from gradscope.api.inspecting import check
from gradscope.records.report import Finding, Report
from zoo.entries import Entry
from zoo.observing import SEED, Gradients, hooks_counted, plain_step


def findings(entry: Entry) -> dict[str, Any]:
    """Return the counts of findings by severity and by code, and the errors in words.

    An error is ``confirmed`` where a plain step of the model shows what it says: a parameter that
    has no gradient, or one of zeros. Public models do have such parameters.
    """
    model, inputs = entry.build()
    with hooks_counted() as handles, guards.unchanged(model):
        report = check(model, inputs, loss=training_loss, seed=SEED)
    found = report.findings
    assert not any(map(guards.still_set, handles)), "hooks are still set"
    errors = [each for each in found if each.severity == "error"]
    gradients = plain_step(model, inputs, training_loss) if errors else {}
    true = [each for each in errors if _confirmed(each, report, gradients)]
    return {
        "findings": dict(collections.Counter(each.severity for each in found)),
        "codes": dict(collections.Counter(each.code for each in found)),
        "confirmed": [_said(each) for each in true],
        "errors": [_said(each) for each in errors if each not in true],
    }


def _said(finding: Finding) -> str:
    return f"{finding.code} {finding.name}: {finding.message}"


#: Rule → what a plain step's gradient then is.
_SHOWN: dict[str, Callable[[Tensor | None], bool]] = {
    "GS401": lambda gradient: gradient is None,
    "GS402": lambda gradient: gradient is None,
    "GS103": lambda gradient: gradient is not None and not bool(gradient.any()),
}


def _confirmed(finding: Finding, report: Report, gradients: Gradients) -> bool:
    """Return True if the gradients of every parameter named confirm the finding.

    A zero starts at an activation, and its parameters are those upstream of it.
    """
    behind = {n for a in report.answers if a.starts == finding.name for n in a.upstream}
    own = [
        gradient
        for name, gradient in gradients.items()
        if name in (behind or {finding.name}) or name.startswith(f"{finding.name}.")
    ]
    return finding.code in _SHOWN and bool(own) and all(map(_SHOWN[finding.code], own))


def training_loss(output: Any) -> Tensor:
    """The losses in the output; cross entropy of scores, and the distance of all else from noise.

    Every output counts, as in training: a head that no loss reads would have no gradient.
    """
    return torch.stack(list(_terms(output))).sum()


def _terms(output: Any) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    for tensor in tensors(output):
        if not (tensor.is_floating_point() and tensor.requires_grad):
            continue
        if tensor.ndim == 0:
            yield tensor
        elif tensor.ndim == 2 and tensor.shape[1] > 1:
            wanted = torch.randint(tensor.shape[1], tensor.shape[:1], generator=generator)
            yield F.cross_entropy(tensor, wanted)
        else:
            yield F.mse_loss(tensor, torch.randn(tensor.shape, generator=generator))
