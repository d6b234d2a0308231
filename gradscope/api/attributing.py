"""Attribution maps: where in a picture the score of a class comes from, and how far to trust it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.api.attributions import SaliencyRequest, pixels_of, planned, recorded
from gradscope.api.failing import is_own, problem
from gradscope.api.opened import live_model_restored, versions
from gradscope.api.viewing import Picture, Saliency, read_pictures, run_of, tensor_pictures, view
from gradscope.errors import GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.loading.kinds import require_constructed
from gradscope.loading.viewing import Viewer, live_viewer, picture_input
from gradscope.records.saliency import ImageAttribution, SaliencyReport
from gradscope.running.state import run_eagerly
from gradscope.saliency import AttributionPlan, ModelInputs, RecordedMap, Subject, explain

if TYPE_CHECKING:
    from gradscope.images.photos import Photo

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
