"""Saliency options of one model, and the records of its maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradscope.api.viewing import Picture, about, pixel_in_input
from gradscope.errors import ConfigError, OptionError
from gradscope.loading.viewing import Viewer, class_id
from gradscope.records.saliency import ClassScore, ImageAttribution
from gradscope.saliency import (
    AttributionPlan,
    RecordedMap,
    Subject,
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
    """Return which pixels of a segmentation count: the way to choose them, or one pixel per picture
    [N, 2].

    Raises:
        OptionError: an unknown way, or a picture without that pixel.
    """
    found = None if word is None else read_pixels(word)
    if not isinstance(found, tuple):
        return found
    return torch.tensor([pixel_in_input(picture, *found) for picture in pictures])


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
