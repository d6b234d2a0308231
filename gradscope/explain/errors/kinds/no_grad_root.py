"""Explains a loss without a graph: frozen parameters, or the place where their data left the
graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from gradscope.capture.names import named_parameters
from gradscope.explain.errors.explanation import Case, Explanation, Kind
from gradscope.explain.missing.explain_missing import explain_missing
from gradscope.explain.shared.frames import CallSite
from gradscope.records.answers import Answer

_SHOWN = 3


def explain(case: Case) -> Explanation | None:
    """Explain a loss without a graph: a frozen model, or an operation that cuts the graph."""
    if case.again is None:
        return None
    named = named_parameters(case.again.model)
    trainable = [one.name for p, one in named.items() if p.requires_grad]
    if not trainable:
        return _frozen([one.name for one in named.values()])
    if case.phase != "backward" or case.again.forward is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = explain_missing(case.again.model, case.again.forward, trainable)
    return _cut(answers) if answers else None


def _frozen(names: Sequence[str]) -> Explanation:
    """Explain a model in which no parameter can have a gradient."""
    if not names:
        return Explanation(
            "the model has no parameters, and the input does not require a gradient.",
            "set `requires_grad: true` on the input (`inputs.requires_grad_()`)",
        )
    owner = names[-1].rpartition(".")[0]
    last = f"model.get_submodule('{owner}')" if owner else "model"
    shown = _listed(names) + (", …" if len(names) > _SHOWN else "")
    return Explanation(
        f"all {len(names)} parameters are frozen (`requires_grad` is False): {shown}.",
        f"unfreeze the layers to train, for example by `{last}.requires_grad_()`; or set"
        " `requires_grad: true` on the input",
    )


def _cut(answers: Sequence[Answer]) -> Explanation:
    """Return the explanation from the answers, at the place of the one with the most parameters.

    Modules that never ran did not cut the graph, so they are reported only if there is no other
    answer.
    """
    cuts = [one for one in answers if one.cause != "not-called"] or answers
    ordered = sorted(cuts, key=lambda one: -len(one.upstream))
    details = []
    for one in ordered[:_SHOWN]:
        more = f" and {len(one.upstream) - _SHOWN} more" if len(one.upstream) > _SHOWN else ""
        details.append(f"{one.message} Upstream: {_listed(one.upstream)}{more}.")
    first = ordered[0]
    file, _, line = (first.location or "").rpartition(":")
    site = CallSite(first.module, first.call, file or None, int(line) if line else None)
    return Explanation(tuple(details), first.advice, site=site)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:_SHOWN])


_SIGN = r"does not require grad and does not have a grad_fn"
_ADVICE = (
    "nothing on the way to the loss requires a gradient: look for `no_grad`, `detach` or a"
    " frozen model, or set `requires_grad: true` on the input"
)
KIND = Kind({_SIGN: _ADVICE}, explain, traced=False)
