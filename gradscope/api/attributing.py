"""Saliency options of one model, and the records of its maps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.api.failing import is_own, problem
from gradscope.api.opened import live_model_restored, versions
from gradscope.api.viewing import (
    Picture,
    Saliency,
    about,
    pixel_in_input,
    read_pictures,
    run_of,
    tensor_pictures,
    view,
)
from gradscope.errors import ConfigError, GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.loading.specs import require_constructed
from gradscope.loading.vision_models import Viewer, class_id, live_viewer, picture_input
from gradscope.records.saliency import ClassScore, ImageAttribution, SaliencyReport
from gradscope.running.state import run_eagerly
from gradscope.saliency import (
    AttributionPlan,
    ModelInputs,
    RecordedMap,
    Subject,
    explain,
    method_names,
    options_of,
    probabilities,
    read_options,
    read_pixels,
)
from gradscope.typeset.numbers import plural

if TYPE_CHECKING:
    from gradscope.images.photos import Photo

#: The default method.
USUAL = "grad-cam"
#: Number of classes listed for each picture.
TOP = 5


@dataclass(frozen=True, slots=True)
class SaliencyRequest:
    """The methods, their options and the classes to explain; without methods, the default one runs.

    A method may have the name of its file: ``grad_cam``. Classes are as the user wrote them, by
    name or number. Without a target, each picture's best class is explained.
    """

    methods: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    target: str | None = None
    versus: str | None = None
    why_not: str | None = None
    layer: str | None = None
    pixels: str | None = None
    check: bool = False

    def __post_init__(self) -> None:
        methods = tuple(name.replace("_", "-") for name in self.methods)
        object.__setattr__(self, "methods", methods)


def pixels_of(word: str | None, pictures: Sequence[Picture]) -> str | Tensor | None:
    """Return the pixels of a segmentation that count: the way to choose them, or one pixel per
    picture [N, 2].

    Raises:
        OptionError: an unknown way, or a picture without that pixel.
    """
    found = None if word is None else read_pixels(word)
    if not isinstance(found, tuple):
        return found
    return torch.tensor([pixel_in_input(picture, *found) for picture in pictures], device="cpu")


def planned(
    viewer: Viewer,
    inputs: Tensor,
    request: SaliencyRequest,
    seed: int,
    which: Mapping[str, Any],
) -> AttributionPlan:
    """Resolve names to class ids and methods; the model's output for the first pictures gives the
    number of classes.

    ``which`` has the other inputs and the pixels, as ``explain`` takes them.
    """
    lenient = "all" in request.methods
    pair = request.versus is not None or request.why_not is not None
    methods = method_names() if lenient else list(dict.fromkeys(request.methods))
    if not methods and not pair:
        methods = [USUAL]
    chosen = {name: options_of(name) for name in methods}  # unknown ones are refused here
    classes = 0
    words = (request.target, request.versus, request.why_not, viewer.named)
    if any(word is not None for word in words):
        with Subject(viewer.model, inputs, seed=seed, **which) as subject:
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
        background=_background(viewer.classes),
        layer=request.layer,
        check=request.check,
        seed=seed,
    )


def _background(classes: Sequence[str] | None) -> int | None:
    """Return the background class, which means no object; None without one."""
    names = [name.strip("_ ").casefold() for name in classes or ()]
    return names.index("background") if "background" in names else None


def recorded(
    viewer: Viewer,
    subject: Subject,
    pictures: Sequence[Picture],
    found: Sequence[Sequence[RecordedMap]],
    pixels: str | None,
) -> Iterator[tuple[ImageAttribution, Photo, tuple[Tensor, ...]]]:
    """Yield each picture's record, its drawing, and its maps."""
    classes = subject.logits.shape[1]
    names = viewer.classes if viewer.classes and len(viewer.classes) == classes else None
    counted = (pixels or "predicted") if subject.segmentation is not None else None
    where = {None: "", "predicted": ", its pixels", "all": ", all pixels"}
    for i, (picture, maps) in enumerate(zip(pictures, found, strict=True)):
        target, score = int(subject.target[i]), float(subject.scores[i])
        name = names[target] if names else None
        top = tuple(_top(subject, i, names))
        image = ImageAttribution(
            *(picture.path, target, score, name, top),
            maps=tuple(record for record, _ in maps),
            pixels=counted,
        )
        shown = f"class {target}" if name in (None, str(target)) else f"{name} (class {target})"
        shown += where.get(counted, f", pixel {counted}")
        remarks = (about(viewer), *picture.photo.remarks)
        photo = replace(picture.photo, target=shown, score=score, remarks=remarks)
        if isinstance(at := subject.pixels, Tensor):
            row, column = at[i].tolist()
            photo = replace(photo, pixel=(row, column))
        yield image, photo, tuple(values for _, values in maps)


def _top(subject: Subject, i: int, names: Sequence[str] | None) -> Iterator[ClassScore]:
    """Yield the best classes of one picture; for a segmentation, the classes with the largest
    area."""
    logits, found = subject.logits[i].float(), subject.segmentation
    many = len(logits)
    by = logits if found is None else found.shares[i]
    likely = probabilities(subject.logits)[i] if found is None and many > 1 else None
    for c in by.topk(min(TOP, many)).indices.tolist():
        share = None if likely is None else float(likely[c])
        pixels = None if found is None else float(found.shares[i, c])
        if pixels != 0:
            yield ClassScore(c, float(logits[c]), share, names[c] if names else None, pixels)


#: Number of pictures that are explained side by side.
BATCH = 8


def saliency(
    model: nn.Module | str | Path | None,
    pictures: Tensor | Mapping[str, Any] | tuple[Any, ...] | Sequence[str | Path] | str | Path,
    *,
    input: str | int | None = None,
    methods: Sequence[str] = (),
    target: int | str | None = None,
    versus: int | str | None = None,
    why_not: int | str | None = None,
    layer: str | None = None,
    pixels: str | tuple[int, int] | None = None,
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
        model: a live module, whose state is restored; a config; a spec; or None: torchvision's
            ResNet-18 with its ImageNet weights.
        pictures: files, patterns, or a tensor [N, C, H, W] that the model takes unchanged. For a
            live model with several inputs: a tuple of all of them, or a mapping of keyword
            arguments.
        input: the input to explain, by its number or name; the others stay fixed. None: the only
            one that is a picture.
        methods: names as ``gradscope saliency --methods`` lists them; without any, Grad-CAM.
        target: the class, by number or name; None: each picture's best one.
        versus: also explain why the target rather than this class.
        why_not: also explain the evidence against this class.
        layer: the layer for CAM methods; None: gradscope chooses it.
        pixels: the pixels of a segmentation that count: "predicted", those that the model predicts
            as the class (the default); "all"; or one, as (row, column) of the picture.
        options: ``name=value`` for the methods, such as ``n_steps=100``.
        check: also run the trust checks that cost further passes.
        mode: "eval" or "train"; None: as in the config, else "eval".
        device, dtype: the device and dtype of a config's model; a live module stays.
        seed: the seed of every random method; None: as in the config, else 0.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        The report and its maps.

    Raises:
        GradscopeError: a name, a file or an option is wrong, or the model raised.
    """
    request = SaliencyRequest(
        methods=tuple(methods),
        options=tuple(options),
        target=_word(target),
        versus=_word(versus),
        why_not=_word(why_not),
        layer=layer,
        pixels=",".join(map(str, pixels)) if isinstance(pixels, tuple) else pixels,
        check=check,
    )
    several = [pictures] if isinstance(pictures, str | Path) else pictures
    if isinstance(model, nn.Module):
        require_constructed(model)
        viewer, tensor = _live(model, pictures, _word(input))
        with live_model_restored(model, mode or "eval"):
            return attribute(viewer, tensor_pictures(tensor), request, seed=seed)
    if isinstance(several, Mapping) or any(isinstance(one, Tensor) for one in _items(several)):
        raise OptionError(
            "a config's model takes its other inputs from the config",
            help="name them under `input:`, and give here the pictures alone",
        )
    settings = {"mode": mode, "device": device, "dtype": dtype, "seed": seed}
    given = {key: value for key, value in settings.items() if value is not None}
    viewer = view(
        None if model is None else str(model), overrides, given, allow, input=_word(input)
    )
    if isinstance(several, Tensor):
        return attribute(viewer, tensor_pictures(several), request, seed=seed)
    return attribute(viewer, read_pictures(several, viewer), request, seed=seed)


def _items(given: Any) -> Collection[Any]:
    """Return the items of a container of inputs or files; none for a tensor."""
    if isinstance(given, Tensor):
        return ()
    return given.values() if isinstance(given, Mapping) else given


def _live(model: nn.Module, given: Any, name: str | None) -> tuple[Viewer, Tensor]:
    """Return the caller's module, and the input tensor to explain."""
    if isinstance(given, Tensor):
        given = (given,)
    if isinstance(given, str | Path) or all(isinstance(one, str | Path) for one in _items(given)):
        raise OptionError(
            "a live model has no transform for picture files",
            help="give a tensor [N, C, H, W] that the model takes",
        )
    args, kwargs = ((), given) if isinstance(given, Mapping) else (tuple(given), {})
    if name is None and len(args) == 1 and isinstance(args[0], Tensor):
        return live_viewer(model), args[0]
    inputs = picture_input(args, kwargs, name)
    return live_viewer(model, inputs), inputs.pictures


def _word(given: int | str | None) -> str | None:
    return None if given is None else str(given)


def attribute(
    viewer: Viewer,
    pictures: Sequence[Picture],
    request: SaliencyRequest,
    *,
    seed: int | None = None,
) -> Saliency:
    """Compute the maps of every picture.

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
            "weights: random, so the maps mean nothing: `weights=DEFAULT` or "
            "`checkpoint=FILE` loads trained ones"
        )
    others = _others(viewer, len(pictures), notices)
    pixels = pixels_of(request.pixels, pictures)
    try:
        with run_eagerly():
            for places in _batches(pictures):
                inputs = torch.stack([pictures[i].values for i in places])
                inputs = inputs.to(viewer.device, viewer.dtype)
                some = [pictures[i] for i in places]
                which: dict[str, Any] = {
                    "others": None if others is None else others.some(places),
                    "pixels": pixels[places] if isinstance(pixels, Tensor) else pixels,
                }
                if plan is None:
                    plan = planned(viewer, inputs, request, seed, which)
                with progress.within(_which(len(results), places, len(pictures))):
                    subject, found = _explained(viewer, inputs, plan, some, len(pictures), which)
                made = recorded(viewer, subject, some, found, request.pixels)
                results.update(zip(places, made, strict=True))
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


def _others(viewer: Viewer, pictures: int, notices: list[str]) -> ModelInputs | None:
    """Return the model's other inputs, one row per picture; None if there are none."""
    given = viewer.inputs
    if given is None:
        return None
    found = ModelInputs.of(given.args, given.kwargs, given.pictures)
    if found.names:
        listed = ", ".join(f"`{name}`" for name in found.names)
        row = found.rows not in (1, pictures)
        held = f"{listed} kept fixed" + (", the first row for every picture" if row else "")
        notices.append(f"input: `{given.name}` is explained; {held}")
    return found if found.rows == pictures else found.first(pictures)


def _explained(
    viewer: Viewer,
    inputs: Tensor,
    plan: AttributionPlan,
    pictures: Sequence[Picture],
    full: int,
    which: dict[str, Any],
) -> tuple[Subject, list[list[RecordedMap]]]:
    """Return the maps of some pictures; if they have several sizes, an error names those that
    failed."""
    try:
        return explain(viewer.model, inputs, plan, **which)
    except OptionError as error:
        if len(pictures) == full:
            raise
        message = f"{_names(pictures)}: {error}"
        raise OptionError(message, help=error.problems[0].help) from error


def _which(done: int, places: Sequence[int], full: int) -> str:
    """Name the pictures that are explained together; "" for a single one."""
    if full == 1:
        return ""
    last = done + len(places)
    return (
        f"picture {last} of {full}" if len(places) == 1 else f"pictures {done + 1}–{last} of {full}"
    )


def _names(pictures: Sequence[Picture]) -> str:
    """Name pictures that share a pass by the first one's name."""
    more = f" and {len(pictures) - 1} more of its size" if len(pictures) > 1 else ""
    return f"{pictures[0].path}{more}"


def _batches(pictures: Sequence[Picture]) -> Iterator[list[int]]:
    """Yield batches of pictures of one shape, a few at a time."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, picture in enumerate(pictures):
        by_shape.setdefault(tuple(picture.values.shape), []).append(i)
    for places in by_shape.values():
        yield from (places[i : i + BATCH] for i in range(0, len(places), BATCH))
