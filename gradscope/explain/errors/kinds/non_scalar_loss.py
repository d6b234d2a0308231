"""Explains a loss of several numbers, from which backward cannot start."""

from __future__ import annotations

from gradscope.explain.errors.explanation import Case, Explanation, Kind, line


def explain(case: Case) -> Explanation | None:
    """Explain a loss of several numbers: its shape, and its origin."""
    tracer = case.tracer
    if tracer is None or tracer.failing is None or tracer.failing.root is None:
        return None
    root = tracer.failing.root
    made = tracer.made.get(root.grad_fn) if root.grad_fn is not None else None
    fact = f"the loss is {list(root.shape)}, {root.numel()} numbers"
    site = made.site if made is not None else None
    op = made.op.strip("_") if made is not None else ""
    if made is not None and op:
        by = f" in `{site.module}`" if site is not None and site.module else ""
        fact += f", made by `{op}`{by}{made.site.at}"
    fix = "reduce it to one: `.mean()` or `.sum()`"
    if "loss" in op or "entropy" in op or op.startswith(("kl_div", "mse")):
        fix = 'leave out `reduction="none"`, or reduce its result: `.mean()` or `.sum()`'
    return Explanation(
        f"{fact}.",
        f"{fix}; else give `backward.gradient` of that shape",
        line("made", site) if site is not None else (),
        site if site is not None and site.file else None,
    )


_SIGN = r"grad can be implicitly created only for scalar outputs"
_ADVICE = (
    "reduce the loss (`loss=sum`, `loss=mean`) or give `backward.gradient` of the output's shape"
)
KIND = Kind({_SIGN: _ADVICE}, explain)
