"""Attribution maps: where in a picture the score of a class comes from, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.api.failing import is_own, problem
from gradscope.api.opened import live_model_kept
from gradscope.api.pictures import Picture, read_pictures, tensor_pictures
from gradscope.api.runs import versions
from gradscope.api.viewing import about, run_of, view
from gradscope.errors import ConfigError, GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain import explain_error
from gradscope.loading.classes import class_id
from gradscope.loading.kinds import require_constructed
from gradscope.loading.viewing import Viewer, live_viewer
from gradscope.records.saliency import ClassScore, ImageAttribution, SaliencyReport
from gradscope.running.state import run_eagerly
from gradscope.saliency import (
    AttributionPlan,
    RecordedMap,
    Subject,
    explain,
    method_names,
    options_of,
    read_options,
)
from gradscope.typeset.numbers import plural

if TYPE_CHECKING:
    from gradscope.images import Photo

#: The method where none is asked for.
USUAL = "grad-cam"
#: As many classes of each picture are listed.
TOP = 5
#: As many pictures are explained side by side.
BATCH = 8


@dataclass(frozen=True, slots=True)
class SaliencyRequest:
    """What to explain and how; ``None`` methods are the default one, alone or for the contrasts.

    Class names and numbers are as the user wrote them; without a target each picture's best class
    is explained.
    """

    methods: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    target: str | None = None
    versus: str | None = None
    why_not: str | None = None
    layer: str | None = None
    check: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Saliency:
    """The report, and for each of its pictures the photograph and the raw maps [H, W]."""

    report: SaliencyReport
    photos: tuple[Photo, ...]
    maps: tuple[tuple[Tensor, ...], ...]

    def __repr__(self) -> str:
        return repr(self.report)

    def __str__(self) -> str:
        return str(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def saliency(
    model: nn.Module | str | Path | None,
    pictures: Tensor | Sequence[str | Path] | str | Path,
    *,
    methods: Sequence[str] = (),
    target: int | str | None = None,
    versus: int | str | None = None,
    why_not: int | str | None = None,
    layer: str | None = None,
    options: Sequence[str] = (),
    check: bool = False,
    mode: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> Saliency:
    """Explain by maps where the score of a class comes from.

    Args:
        model: a live module, which is given back exactly as it was, a config, a spec, or None for
            torchvision's ResNet-18 with its ImageNet weights.
        pictures: files, patterns, or a tensor [N, C, H, W] that the model takes as it is.
        methods: names as ``gradscope saliency --methods`` lists them; none is Grad-CAM.
        target: the class, by number or name; None is each picture's best one.
        versus: also explain why the target rather than this class.
        why_not: also explain what speaks against this class.
        layer: the layer of the CAM kinds; None lets it be chosen.
        options: ``name=value`` for the methods, as ``n_steps=100``.
        check: also run the trust checks that cost further passes.
        mode: "eval" or "train"; None is a config's own, or else eval.
        device, dtype: where and in what precision a config's model runs; a live module stays.
        seed: of every random method; None is a config's own, or else 0.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The report, and the maps that it speaks of.

    Raises:
        GradscopeError: a name, a file or an option is not right, or the model raised.
    """
    request = SaliencyRequest(
        methods=tuple(methods),
        options=tuple(options),
        target=_word(target),
        versus=_word(versus),
        why_not=_word(why_not),
        layer=layer,
        check=check,
    )
    several = [pictures] if isinstance(pictures, str | Path) else pictures
    if isinstance(model, nn.Module):
        require_constructed(model)
        if not isinstance(pictures, Tensor):
            raise OptionError(
                "a live model has no transform for picture files",
                help="give a tensor [N, C, H, W] that the model takes",
            )
        with live_model_kept(model, mode or "eval"):
            return attribute(live_viewer(model), tensor_pictures(pictures), request, seed=seed)
    settings = {"mode": mode, "device": device, "dtype": dtype, "seed": seed}
    given = {key: value for key, value in settings.items() if value is not None}
    viewer = view(None if model is None else str(model), overrides, given, allow)
    if isinstance(several, Tensor):
        return attribute(viewer, tensor_pictures(several), request, seed=seed)
    return attribute(viewer, read_pictures(several, viewer), request, seed=seed)


def _word(given: int | str | None) -> str | None:
    return None if given is None else str(given)


def attribute(
    viewer: Viewer,
    pictures: Sequence[Picture],
    request: SaliencyRequest,
    *,
    seed: int | None = None,
) -> Saliency:
    """The maps of every picture.

    Raises:
        GradscopeError: as ``saliency``.
    """
    seed = int(viewer.config.get("seed") or 0) if seed is None else seed
    results: dict[int, tuple[ImageAttribution, Photo, tuple[Tensor, ...]]] = {}
    plan: AttributionPlan | None = None
    some: list[Picture] = []
    notices = list(viewer.notices)
    if viewer.random:
        notices.append(
            "weights: random, so the maps say nothing about pictures: `weights=DEFAULT` or "
            "`checkpoint=FILE` loads learnt ones"
        )
    try:
        with run_eagerly():
            for places in _batches(pictures):
                inputs = torch.stack([pictures[i].values for i in places])
                inputs = inputs.to(viewer.device, viewer.dtype)
                some = [pictures[i] for i in places]
                if plan is None:
                    plan = _plan(viewer, inputs[:1], request, seed)
                with progress.within(_which(len(results), places, len(pictures))):
                    subject, found = _explained(viewer, inputs, plan, some, len(pictures))
                results.update(zip(places, _recorded(viewer, subject, some, found), strict=True))
    except (GradscopeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if is_own(error):
            raise
        record = explain_error(error, "forward", [], viewer.model)
        run = run_of(viewer, notices, seed)
        report = SaliencyReport(run, status="failed", versions=versions(), error=record)
        during = f"while explaining {_names(some)}"
        raise ModelError(problem(record, during), report=report) from error
    notices += plan.notices if plan else []
    ordered = [results[i] for i in range(len(pictures))]
    report = SaliencyReport(
        run_of(viewer, notices, seed),
        tuple(image for image, _, _ in ordered),
        versions=versions(),
        config=viewer.config,
    )
    maps = tuple(values for _, _, values in ordered)
    return Saliency(report, tuple(photo for _, photo, _ in ordered), maps)


def _explained(
    viewer: Viewer, inputs: Tensor, plan: AttributionPlan, pictures: Sequence[Picture], whole: int
) -> tuple[Subject, list[list[RecordedMap]]]:
    """The maps of some pictures; of several sizes the ones that cannot be explained are named."""
    try:
        return explain(viewer.model, inputs, plan)
    except OptionError as error:
        if len(pictures) == whole:
            raise
        message = f"{_names(pictures)}: {error}"
        raise OptionError(message, help=error.problems[0].help) from error


def _which(done: int, places: Sequence[int], whole: int) -> str:
    """Which of all pictures are explained together; nothing of a single one."""
    if whole == 1:
        return ""
    last = done + len(places)
    return (
        f"picture {last} of {whole}"
        if len(places) == 1
        else f"pictures {done + 1}–{last} of {whole}"
    )


def _names(pictures: Sequence[Picture]) -> str:
    """Pictures that share a pass, by the first one's name."""
    more = f" and {len(pictures) - 1} more of its size" if len(pictures) > 1 else ""
    return f"{pictures[0].path}{more}"


def _plan(viewer: Viewer, first: Tensor, request: SaliencyRequest, seed: int) -> AttributionPlan:
    """Names become class ids and methods; the first picture tells how many classes there are."""
    lenient = "all" in request.methods
    pair = request.versus is not None or request.why_not is not None
    methods = method_names() if lenient else list(dict.fromkeys(request.methods))
    if not methods and not pair:
        methods = [USUAL]
    chosen = {name: options_of(name) for name in methods}  # unknown ones are refused here
    classes = 0
    words = (request.target, request.versus, request.why_not, viewer.named)
    if any(word is not None for word in words):
        with Subject(viewer.model, first, seed=seed) as subject:
            classes = subject.logits.shape[1]
    if viewer.named is not None and viewer.classes and len(viewer.classes) != classes:
        raise ConfigError(
            f"`classes` has {plural(len(viewer.classes), 'name')}, the model has {classes} classes",
            place=viewer.named,
            help="give a name for each class, in the order of their numbers",
        )

    def number(word: str | None) -> int | None:
        return None if word is None else class_id(word, viewer.classes, classes)

    target, versus = number(request.target), number(request.versus)
    if target is not None and target == versus:
        raise OptionError(
            f"class {target} cannot be compared with itself",
            help="`--versus` takes another class than `--target`",
        )
    return AttributionPlan(
        methods=read_options(request.options, list(chosen)),
        lenient=lenient,
        target=target,
        versus=versus,
        why_not=number(request.why_not),
        layer=request.layer,
        check=request.check,
        seed=seed,
    )


def _recorded(
    viewer: Viewer,
    subject: Subject,
    pictures: Sequence[Picture],
    found: Sequence[Sequence[RecordedMap]],
) -> Iterator[tuple[ImageAttribution, Photo, tuple[Tensor, ...]]]:
    classes = subject.logits.shape[1]
    names = viewer.classes if viewer.classes and len(viewer.classes) == classes else None
    shares = subject.logits.float().softmax(1)
    for i, (picture, maps) in enumerate(zip(pictures, found, strict=True)):
        target, score = int(subject.target[i]), float(subject.scores[i])
        best = subject.logits[i].float().topk(min(TOP, classes))
        top = tuple(
            ClassScore(c, float(v), float(shares[i, c]), names[c] if names else None)
            for v, c in zip(best.values, best.indices.tolist(), strict=True)
        )
        name = names[target] if names else None
        image = ImageAttribution(
            picture.path, target, score, name, top, tuple(record for record, _ in maps)
        )
        shown = f"class {target}" if name in (None, str(target)) else f"{name} (class {target})"
        remarks = (about(viewer), *picture.photo.remarks)
        photo = replace(picture.photo, target=shown, score=score, remarks=remarks)
        yield image, photo, tuple(values for _, values in maps)


def _batches(pictures: Sequence[Picture]) -> Iterator[list[int]]:
    """Pictures of one shape side by side, a few at a time."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, picture in enumerate(pictures):
        by_shape.setdefault(tuple(picture.values.shape), []).append(i)
    for places in by_shape.values():
        yield from (places[i : i + BATCH] for i in range(0, len(places), BATCH))
