"""A loss that backward cannot start from: it has no graph, or more than one number."""

from __future__ import annotations

from gradscope.explain._told import Case, Told, at, line
from gradscope.records.answers import Answer


def scalar(case: Case) -> Told | None:
    """A loss of several numbers: its shape, and who made it."""
    watch = case.watch
    if watch is None or watch.failing is None or watch.failing.root is None:
        return None
    root = watch.failing.root
    made = watch.made.get(root.grad_fn) if root.grad_fn is not None else None
    said = f"the loss is {list(root.shape)}, {root.numel()} numbers"
    place = made.place if made is not None else None
    op = made.op.strip("_") if made is not None else ""
    if made is not None and op:
        by = f" in `{place.module}`" if place is not None and place.module else ""
        said += f", made by `{op}`{by}{at(made.place)}"
    fix = "reduce it to one: `.mean()` or `.sum()`"
    if "loss" in op or "entropy" in op or op.startswith(("kl_div", "mse")):
        fix = 'leave out `reduction="none"`, or reduce what it gives: `.mean()` or `.sum()`'
    return Told(
        (f"{said}.",),
        f"{fix}; else give `backward.gradient` of that shape",
        line("made", place) if place is not None else (),
        place if place is not None and place.file else None,
    )


def frozen(total: int, trainable: int, names: list[str]) -> Told | None:
    """Where nothing could have a gradient at all."""
    if not total:
        return Told(
            ("the model has no parameters, and the input does not require a gradient.",),
            "set `requires_grad: true` on the input (`inputs.requires_grad_()`)",
        )
    if trainable:
        return None
    owner = names[-1].rpartition(".")[0]
    last = f"model.get_submodule('{owner}')" if owner else "model"
    shown = ", ".join(f"`{name}`" for name in names[:3]) + (", …" if len(names) > 3 else "")
    return Told(
        (f"all {total} parameters are frozen (`requires_grad` is False): {shown}.",),
        f"unfreeze what is to be trained, as by `{last}.requires_grad_()`; or set"
        " `requires_grad: true` on the input",
    )


def rootless(answers: tuple[Answer, ...]) -> tuple[tuple[str, ...], Answer | None]:
    """The sentences for a loss without a graph, and the answer that speaks for most parameters."""
    ordered = sorted(answers, key=lambda one: -len(one.behind))
    said = []
    for one in ordered[:3]:
        names = ", ".join(f"`{name}`" for name in one.behind[:3])
        more = f" and {len(one.behind) - 3} more" if len(one.behind) > 3 else ""
        said.append(f"{one.message} Behind it: {names}{more}.")
    return tuple(said), ordered[0] if ordered else None
