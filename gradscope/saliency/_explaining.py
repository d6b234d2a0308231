"""Computes all maps of pictures of one size: each method on one shared subject, contrasts,
checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.errors import OptionError
from gradscope.records.saliency import Attribution
from gradscope.saliency import grad_cam, method, options_of
from gradscope.saliency._batching import Batches
from gradscope.saliency._checks import blank, completeness, curves, randomisation, spread
from gradscope.saliency._forward import ModelInputs, Objective, Pixels
from gradscope.saliency._layers import Choice
from gradscope.saliency._subject import Subject

#: The region is where the map is highest: this share of the image's pixels.
AREA = 0.2

#: Number of regions of the same form elsewhere, which show the effect of any such area.
ELSEWHERE = 8


@dataclass(frozen=True, slots=True)
class Contrast:
    """A map [N, H, W] and the measurement that goes with it; each number is per image, [N].

    ``quantity`` names the measured quantity. ``before`` is its value with the region, ``after``
    with the region set to zero in the model's input space. ``elsewhere`` is the mean of ``after``
    for regions of equal form at other places, ``area`` the region's share of the image.
    """

    map: Tensor
    quantity: str
    before: Tensor
    after: Tensor
    elsewhere: Tensor
    area: Tensor


def why_not(subject: Subject, class_id: int) -> Contrast:
    """Map the regions against class B: relu(Σ_k (1/Z Σ −∂S_B/∂A^k) A^k), and S_B without them.

    Selvaraju et al. 2017, arXiv 1610.02391, section on counterfactual explanations. If the map is
    right, B's logit rises once the region is removed.
    """
    against = Objective(target=_all(subject, class_id))
    against.check(subject.logits.shape[1])
    activation, gradient = subject.layer_gradient(against)
    found = subject.upsample(grad_cam.weighted(activation, -gradient).relu())
    return _measured(subject, found, against, f"logit of class {class_id}")


def versus(subject: Subject, other: int) -> Contrast:
    """Map the regions for target A rather than B: Grad-CAM on S_A − S_B, and the gap without them.

    If the map is right, the gap shrinks once the region is removed.
    """
    between = replace(subject.objective, versus=_all(subject, other))
    between.check(subject.logits.shape[1])
    activation, gradient = subject.layer_gradient(between)
    found = subject.upsample(grad_cam.weighted(activation, gradient).relu())
    return _measured(subject, found, between, f"logit gap to class {other}")


def _all(subject: Subject, class_id: int) -> Tensor:
    return torch.full((len(subject.inputs),), class_id, device=subject.inputs.device)


def _measured(subject: Subject, found: Tensor, objective: Objective, quantity: str) -> Contrast:
    """Measure the objective with the map's region removed, and with the region moved elsewhere."""
    flat = found.flatten(1)
    least = flat.topk(max(1, int(AREA * flat.shape[1])), dim=1).values[:, -1, None, None]
    region = (found >= least) & (found > 0)
    height, width = region.shape[1:]
    generator, images = subject.generator(), len(found)
    moves = [(0, 0)]
    for _ in range(ELSEWHERE):
        down = (
            int(torch.randint(1, height, (), generator=generator, device="cpu"))
            if height > 1
            else 0
        )
        right = (
            int(torch.randint(1, width, (), generator=generator, device="cpu")) if width > 1 else 0
        )
        moves.append((down, right))

    def make(rows: slice) -> Tensor:
        made = []
        for row in range(*rows.indices(images * len(moves))):
            move, image = moves[row // images], row % images
            removed = region[image].roll(move, dims=(0, 1))
            made.append(subject.inputs[image].masked_fill(removed, 0.0))
        return torch.stack(made)

    scores = subject.scores_of(make, images * len(moves), objective=objective)
    after, *others = scores.view(len(moves), images)
    everyone = torch.arange(images, device=subject.logits.device)
    return Contrast(
        map=found,
        quantity=quantity,
        before=objective(subject.logits, everyone),
        after=after,
        elsewhere=torch.stack(others).mean(dim=0),
        area=region.flatten(1).float().mean(dim=1),
    )


#: The checks that make a map again take no more samples than these.
FEWER = 400

#: A picture's record of one map, and the map [H, W].
RecordedMap = tuple[Attribution, Tensor]


@dataclass(slots=True)
class AttributionPlan:
    """Plan of the attributions, with facts found once for all pictures.

    ``methods`` are names with their options; with ``lenient`` those that cannot work on this model
    are left out, and ``notices`` say so. ``versus`` and ``why_not`` are class ids; ``background``
    is a class of a segmentation that is explained only if it is the target.
    """

    methods: Mapping[str, Mapping[str, Any]]
    lenient: bool = False
    target: int | None = None
    versus: int | None = None
    why_not: int | None = None
    background: int | None = None
    layer: str | Choice | None = None
    check: bool = False
    seed: int = 0
    notices: list[str] = field(default_factory=list)
    batches: Batches | None = None

    def say(self, notice: str) -> None:
        """Note a sentence, once."""
        if notice not in self.notices:
            self.notices.append(notice)


def explain(
    model: nn.Module,
    inputs: Tensor,
    plan: AttributionPlan,
    *,
    others: ModelInputs | None = None,
    pixels: Pixels | None = None,
) -> tuple[Subject, list[list[RecordedMap]]]:
    """Compute the maps of pictures [N, C, H, W], a list for each; the subject has scores and
    logits.

    ``others`` are the fixed inputs, ``pixels`` the pixels of a segmentation that count.

    Raises:
        OptionError: a method cannot work on this model, unless the plan is lenient.
    """
    images = len(inputs)
    target = None if plan.target is None else torch.full((images,), plan.target, device="cpu")
    found: list[list[RecordedMap]] = [[] for _ in range(images)]
    subject = Subject(
        model,
        inputs,
        Objective(target),
        layer=plan.layer,
        seed=plan.seed,
        total=_shares(plan),
        batches=plan.batches,
        others=others,
        pixels=pixels,
        background=plan.background,
    )
    with subject:
        for name, options in list(plan.methods.items()):
            progress.begin(name)
            try:
                made = _map(subject, name, options, plan)
            except OptionError as error:
                if not plan.lenient:
                    raise
                plan.say(f"{name} is skipped: {error}")
                plan.methods = {n: o for n, o in plan.methods.items() if n != name}
                continue
            for i in range(images):
                found[i].append(made[i])
        for i, pair in enumerate(_pairs(subject, plan)):
            found[i] += pair
        # Chosen on the first pictures, and kept: all maps are of one layer.
        plan.layer = subject.layer_choice or plan.layer
        plan.batches = subject.measured
        _ = subject.scores  # while the model is as the subject needs it
        if subject.segmentation is not None:
            plan.say(f"segmentation: the score is {subject.segmentation.score}")
            for i, records in enumerate(found):
                found[i] = _with_absence(subject, i, records)
    if any(record.layer for records in found for record, _ in records):
        plan.say(subject.choice.description)
    for note in subject.notes:
        plan.say(note)
    return subject, found


def _shares(plan: AttributionPlan) -> bool:
    """Return True if some methods read the layer and others the input's gradient."""
    reads = {what for name in plan.methods for what in method(name).reads}
    return {"layer", "input"} <= reads


def _map(
    subject: Subject, name: str, options: Mapping[str, Any], plan: AttributionPlan
) -> list[RecordedMap]:
    file = method(name)
    attribute = partial(file.attribute, **options)
    maps = attribute(subject)
    checks = [dict(one) for one in blank(subject, maps, file.reads)]
    if name == "integrated-gradients":
        _join(checks, completeness(subject, maps, baseline=options.get("baseline", 0.0)))
    if plan.check:
        progress.begin(f"{name}: trust checks")
        _join(checks, curves(subject, maps))
        lighter = _lighter(name, options)
        if lighter is not None:
            # The repeats and the map that they are compared with have the same number of samples.
            plan.say(
                f"{name}: randomisation and spread use maps of {FEWER} samples, as each "
                "check makes the map several times"
            )
            attribute = partial(file.attribute, **lighter)
        usual = maps if lighter is None else attribute(subject)
        _join(checks, randomisation(subject, attribute, usual))
        if getattr(file, "random", False):
            _join(checks, spread(subject, attribute, usual))
    layer = subject.layer if "layer" in file.reads else None
    values = {key: p.default for key, p in options_of(name).items()} | dict(options)
    return [
        _recorded(name, maps[i], checks[i], layer=layer, options=values, signed=file.signed)
        for i in range(len(maps))
    ]


def _lighter(name: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options with fewer samples; None if there are few already."""
    samples = options_of(name).get("n_samples")
    if samples is None or options.get("n_samples", samples.default) <= FEWER:
        return None
    return {**options, "n_samples": FEWER}


def _join(checks: list[dict[str, Any]], more: Sequence[Mapping[str, Any]]) -> None:
    for one, other in zip(checks, more, strict=True):
        one.update(other)


def _recorded(
    method: str,
    values: Tensor,
    checks: Mapping[str, Any],
    *,
    layer: str | None,
    options: Mapping[str, Any],
    signed: bool,
) -> RecordedMap:
    values = values.detach().float().cpu()
    finite = values[values.isfinite()]
    note = checks.get("blank")
    record = Attribution(
        method=method,
        layer=layer,
        options=dict(options),
        min=float(finite.min()) if finite.numel() else None,
        max=float(finite.max()) if finite.numel() else None,
        signed=signed,
        note=None if note is None else str(note),
        checks={key: value for key, value in checks.items() if key != "blank"},
    )
    return record, values


def _with_absence(subject: Subject, i: int, records: list[RecordedMap]) -> list[RecordedMap]:
    """Return the records, with a note if a segmentation has no pixel of the class in this
    picture."""
    if subject.segmentation is None or not bool(subject.segmentation.absent[i]):
        return records
    absent = f"no pixel is predicted as class {int(subject.target[i])}, so all of them count"
    return [
        (replace(record, note="; ".join(filter(None, (record.note, absent)))), values)
        for record, values in records
    ]


def _pairs(subject: Subject, plan: AttributionPlan) -> list[list[RecordedMap]]:
    """Return the requested contrasts: against B, and for A rather than B."""
    found: list[list[RecordedMap]] = [[] for _ in subject.inputs]
    contrasts: list[tuple[str, int, Callable[[Subject, int], Contrast]]] = []
    if plan.why_not is not None:
        contrasts.append(("why-not", plan.why_not, why_not))
    if plan.versus is not None:
        contrasts.append(("versus", plan.versus, versus))
    for name, other, contrast in contrasts:
        progress.begin(name)
        made = contrast(subject, other)
        blanks = [_why_blank(subject, made.map[i], i, name, other) for i in range(len(made.map))]
        for i, row in enumerate(found):
            checks = {
                "quantity": made.quantity,
                "before": float(made.before[i]),
                "after": float(made.after[i]),
                "elsewhere": float(made.elsewhere[i]),
                "area": float(made.area[i]),
                "blank": blanks[i],
            }
            options = {"class": other}
            row.append(
                _recorded(
                    name, made.map[i], checks, layer=subject.layer, options=options, signed=False
                )
            )
    return found


def _why_blank(subject: Subject, values: Tensor, i: int, name: str, other: int) -> str | None:
    """Return the reason for a blank contrast map; None if it is not blank."""
    if not bool(values.isfinite().all()):
        return "the map holds NaN or Inf: so does the score, or what it was computed from"
    if bool(values.any()):
        return None
    target = int(subject.target[i])
    if name == "versus" and target == other:
        return f"the class explained is class {other} itself; `--target` names another"
    what = f"against class {other}"
    if name == "versus":
        what = f"for class {target} rather than {other}"
    return f"the map is zero everywhere: nothing at layer `{subject.layer}` speaks {what}"
