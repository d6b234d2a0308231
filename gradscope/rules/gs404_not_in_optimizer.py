"""GS404: a parameter that trains, and that no optimizer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradscope.records.loop import (
    LoopModel,
    LoopOptimizer,
    LoopParameter,
    LoopRecord,
    PlainTensor,
)
from gradscope.records.modules import Unregistered
from gradscope.records.report import Finding, Report
from gradscope.rules._loop import (
    LoopFindings,
    at,
    concerned,
    enough,
    full_names,
    gathered,
    in_steps,
)
from gradscope.rules._reading import Tree
from gradscope.rules._rule import Findings, Limits, Rule, Runs
from gradscope.rules._words import listed, plural
from gradscope.typeset.numbers import shape

RULE = Rule(
    code="GS404",
    name="not-in-optimizer",
    severity="error",
    summary="a trainable parameter is in no group of the optimizer",
    what=(
        "Compares the parameters that require a gradient with those in the optimizer's groups, "
        "and names the outermost module that has none there. This needs an optimizer. It always "
        "reports tensors that get a gradient but are in a plain list, dict or attribute of a "
        "module: `model.parameters()` does not have them. In a run, it leaves out a parameter "
        "that got no gradient since an optimizer began with other parameters: its phase is over."
    ),
    why=(
        "The gradient is computed, but no step uses it. Most often the optimizer was made before "
        "a layer was replaced, and holds the old layer's parameters."
    ),
    fix=(
        "Make the optimizer after the last change to the model, or add the parameters with "
        "`optimizer.add_param_group`; freeze them if they should not train."
    ),
    sources=("PyTorch, torch.optim: construct the optimizer after the model is complete",),
    runs=Runs(loop=True),
    explains=("GS103", "GS805"),
)


def find(report: Report, limits: Limits) -> Findings:
    """Yield one finding per outermost module, or per parameter if the optimizer holds a part of a
    module."""
    left = [p.name for p in report.parameters if p.requires_grad and p.in_optimizer is False]
    for name, names_inside in Tree(report).gathered(left):
        these = "it" if len(names_inside) == 1 else f"its {plural(len(names_inside), 'parameter')}"
        shown = "" if len(names_inside) == 1 else f" ({listed(names_inside)})"
        yield RULE.finding(
            name,
            f"no group of {report.run.optimizer or 'the optimizer'} holds {these}{shown}, though "
            f"{'it requires' if len(names_inside) == 1 else 'they require'} a gradient.",
            value=float(len(names_inside)),
        )
    for kept in report.unregistered:
        yield _unregistered(kept)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each module that runs and that none of the optimizers holds."""
    if not loop.optimizers or not enough(loop, _all_steps(loop)):
        return
    unheld = [one for one in loop.parameters if {"unheld", "graded"} <= one.facts]
    unheld = [one for one in unheld if enough(loop, _steps([one.model], loop))]
    yield from _plain_tensors(loop)
    counts = Counter(one.model for one in unheld)
    outside = {one.name: one.kind for one in loop.models if counts[one.name] == one.trainable}
    kinds: dict[str, list[LoopParameter]] = {}
    for one in unheld:
        if one.model in outside:
            kinds.setdefault(outside[one.model], []).append(one)
    for kind, members in kinds.items():
        single = len({one.model for one in members}) == 1
        double = _double(loop) if single else None
        twice = [] if double is None else _twice(loop)
        yield at(
            _outside(kind, members, loop, double),
            loop,
            parameters=concerned([*members, *twice], loop),
        )
    for model, module, members in gathered([one for one in unheld if one.model not in outside]):
        names, steps = listed(full_names(members, loop)), _steps([model], loop)
        finding = RULE.finding(
            module or model,
            f"no optimizer holds {names}, though {'it gets' if len(members) == 1 else 'they get'} "
            f"gradients {in_steps(steps, steps)}; {_made(loop)}.",
            value=float(len(members)),
            location=_place(members, loop),
        )
        yield at(finding, loop, model=model, parameters=concerned(members, loop))


def _all_steps(loop: LoopRecord) -> int:
    """Return the largest number of steps of one optimizer; optimizers that one line made for the
    same parameters count together."""
    return max(one.steps + one.anew for one in loop.optimizers)


def _steps(models: Sequence[str], loop: LoopRecord) -> int:
    """Return the number of steps in which these models ran; all steps if their calls are
    unknown."""
    ran = max((one.steps for one in loop.models if one.name in models), default=0)
    return min(ran or _all_steps(loop), _all_steps(loop))


def _plain_tensors(loop: LoopRecord) -> LoopFindings:
    for model in loop.models:
        modules: dict[str, list[PlainTensor]] = {}
        for kept in model.plain_tensors:
            modules.setdefault(kept.module, []).append(kept)
        for several in modules.values():
            found = _plain_tensor(several[0], model, several[1:])
            yield at(found, loop, model=model.name, parameters=())


def _plain_tensor(kept: PlainTensor, model: LoopModel, more: Sequence[PlainTensor]) -> Finding:
    way = ".".join(filter(None, (model.name, kept.module, kept.attribute)))
    shown = shape(kept.shape)
    made = "it" if kept.leaf else "what it was made of"
    names = listed([one.attribute for one in more])
    others = f" So {'is' if len(more) == 1 else 'are'} {names}." if more else ""
    return RULE.finding(
        ".".join(filter(None, (kept.module, kept.attribute))),
        f"`{way}` {shown} is a plain tensor, not a parameter: {made} gets gradients, and no "
        f"optimizer holds it.{others}",
        advice="Keep `nn.Parameter(…)` itself in the attribute: the result of an operation on it "
        "(`unsqueeze`, `to`, `* 0.1`) is not a parameter.",
        value=1.0 + len(more),
        cause="unregistered",
        location=kept.location,
    )


def _place(members: Sequence[LoopParameter], loop: LoopRecord) -> str | None:
    """Return the line of the optimizer, or of a parameter made after it."""
    late = (one.made for one in members if one.late)
    return next(late, loop.optimizers[0].location)


def _outside(
    kind: str,
    members: Sequence[LoopParameter],
    loop: LoopRecord,
    double: tuple[LoopOptimizer, LoopOptimizer] | None,
) -> Finding:
    """Return the finding on modules that are in no other module and in no optimizer."""
    names = list(dict.fromkeys(one.model for one in members))
    steps = _steps(names, loop)
    which = f"`{names[0]}`" if len(names) == 1 else f"{plural(len(names), 'module')} `{kind}`"
    if double is not None:
        first, second = double
        return RULE.finding(
            names[0],
            f"no optimizer holds any of the {plural(len(members), 'parameter')} of {which}, though "
            f"they get gradients {in_steps(steps, steps)}: `{second.name}` holds the same "
            f"{plural(second.parameters, 'parameter')} as `{first.name}`.",
            advice=f"Make `{second.name}` with the parameters of {which}.",
            value=float(len(members)),
            cause="same-parameters",
            location=second.location,
        )
    return RULE.finding(
        names[0] if len(names) == 1 else kind,
        f"no optimizer holds any of the {plural(len(members), 'parameter')} of {which}, though "
        f"they get gradients {in_steps(steps, steps)}; {_made(loop)}. "
        f"{_outside_of(names, loop)}".rstrip(),
        advice="Keep modules in an attribute, an nn.ModuleList or an nn.ModuleDict of the model, "
        "or give their parameters to the optimizer.",
        value=float(len(members)),
        location=_made_at(names, loop),
    )


def _twice(loop: LoopRecord) -> list[LoopParameter]:
    return [one for one in loop.parameters if "held-twice" in one.facts]


def _double(loop: LoopRecord) -> tuple[LoopOptimizer, LoopOptimizer] | None:
    """Return two optimizers that hold the same parameters; None without such a pair."""
    if len(loop.optimizers) != 2:
        return None
    first, second = loop.optimizers
    twice = _twice(loop)
    same = all({first.name, second.name} == set(one.optimizers) for one in twice)
    if first.name == second.name or not same:
        return None
    held = {first.parameters, second.parameters}
    return (first, second) if held == {len(twice)} else None


def _made_at(names: Sequence[str], loop: LoopRecord) -> str | None:
    """Return the line of the container or of the models if other models run them, else the line of
    the last optimizer."""
    kept = next((one.kept_at for one in loop.models if one.name in names and one.kept_at), None)
    if kept is not None:
        return kept
    inside = _is_run_by_others(names, loop)
    made = (one.made for one in loop.models if inside and one.name in names and one.made)
    return next(made, loop.optimizers[-1].location)


def _is_run_by_others(names: Sequence[str], loop: LoopRecord) -> bool:
    """Return True if they are in a plain container, or another model trains beside them."""
    if any(one.kept_in for one in loop.models if one.name in names):
        return True
    return any(one.calls and one.held for one in loop.models if one.name not in names)


def _outside_of(names: Sequence[str], loop: LoopRecord) -> str:
    """Return the sentence that no module has them, and their owner."""
    one = len(names) == 1
    kept = next((m.kept_in for m in loop.models if m.name in names and m.kept_in), None)
    if kept is not None:
        return (
            f"`{kept.partition(' ')[0]}` is a plain {kept.partition(' ')[2].strip('()')}: what is "
            "in it is not registered, so `parameters()` does not have it."
        )
    if not _is_run_by_others(names, loop):
        return ""
    return (
        f"{'It is' if one else 'They are'} part of no other module, so a model that "
        f"calls {'it' if one else 'them'} does not have these in its `parameters()`."
    )


def _made(loop: LoopRecord) -> str:
    """Return a sentence on the existing optimizers, by name."""
    names = list(dict.fromkeys(one.name for one in loop.optimizers))
    if len(names) == 1:
        return f"there is one optimizer: `{names[0]}`"
    return f"there are {len(names)} optimizers: {listed(names)}"


def _unregistered(kept: Unregistered) -> Finding:
    shapes = [list(shape) for shape in dict.fromkeys(kept.shapes)]
    shown = ", ".join(map(str, shapes[:3])) + (" and others" if len(shapes) > 3 else "")
    one = len(kept.shapes) == 1
    return RULE.finding(
        kept.name,
        f"{plural(len(kept.shapes), 'tensor')} of shape{'' if len(shapes) == 1 else 's'} {shown} "
        f"in its plain attribute `{kept.attribute}` get{'s' if one else ''} gradients and "
        f"{'is no parameter' if one else 'are no parameters'} of the model: neither "
        "`model.parameters()` nor `state_dict()` has them.",
        advice=(
            "Keep modules in nn.ModuleList or nn.ModuleDict, and tensors in nn.ParameterList, "
            "nn.ParameterDict or nn.Parameter."
        ),
        value=float(len(kept.shapes)),
        cause="unregistered",
    )
