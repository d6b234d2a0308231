"""Runs a model for the ``gradscope features`` commands, and makes the report: pictures of filters,
activations and inputs that maximise channels; neighbours and the plane of pictures in the space of
a layer's features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.api.failing import is_own, problem
from gradscope.api.opened import live_model_restored, versions
from gradscope.api.viewing import about, run_of, view
from gradscope.errors import (
    ConfigError,
    GradscopeError,
    ModelError,
    OptionError,
    refuse_unknown,
)
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.features.channels import ChannelSweep, as_channels, filter_bank
from gradscope.features.maximize import channel_count, input_range, maximized
from gradscope.features.sheets import (
    excitation_sheet,
    filter_sheet,
    map_rows,
    maximized_sheet,
    neighbor_sheet,
    plane,
)
from gradscope.features.space import (
    NEIGHBORS,
    check_method,
    check_metric,
    knn_accuracy,
    laid_out,
    nearest,
    trust,
)
from gradscope.features.streaming import (
    Layer,
    Source,
    batches,
    last_features,
    last_map,
    layers_matching,
    naming,
    one_layer,
    require_called,
    run,
    sources,
    tensor_sources,
)
from gradscope.features.vectors import POOLINGS, FeatureArray, FeatureCache, features_of
from gradscope.images.sheets import sheets
from gradscope.loading.specs import require_constructed
from gradscope.loading.vision_models import Viewer, live_viewer
from gradscope.records.features import (
    EmbeddedImage,
    FeaturesReport,
    MaximizedChannel,
    Neighbor,
    SkippedImage,
)
from gradscope.running.state import run_eagerly
from gradscope.typeset.numbers import count, figure_words, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeatureResult:
    """The report. ``draw`` makes its pictures; ``features`` are the features that it describes, if
    any."""

    report: FeaturesReport
    draw: Callable[[], list[Image]]
    features: FeatureArray | None = None


@dataclass(slots=True)
class FeatureRun:
    """One command on one model: collects notices and results for the report.

    Raises:
        OptionError: a model without numbers, or one of several inputs.
    """

    viewer: Viewer
    action: str
    notices: list[str] = field(default_factory=list)
    skipped: list[SkippedImage] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.viewer.device.type == "meta":
            raise OptionError(
                "on the meta device tensors have no numbers", help="use `--device cpu`"
            )
        if self.viewer.inputs is not None:
            raise OptionError(
                "the model takes several inputs, and `gradscope features` gives it pictures only",
                help="wrap it in one that takes [N, C, H, W]; `saliency` takes several",
            )

    @property
    def seed(self) -> int:
        """Return the seed of all random draws."""
        return int(self.viewer.config.get("seed") or 0)

    def report(self, layers: Sequence[str], **found: Any) -> FeaturesReport:
        """Make the report; a notice counts skipped pictures."""
        notices = [*self.viewer.notices, *self.notices]
        if self.viewer.random:
            notices.append(
                "weights: random, so the features mean nothing: `weights=DEFAULT` or "
                "`checkpoint=FILE` loads trained ones"
            )
        return FeaturesReport(
            run_of(self.viewer, notices, self.seed),
            self.action,
            tuple(layers),
            skipped=tuple(self.skipped),
            versions=versions(),
            config=self.viewer.config,
            **found,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the model in the block; turn its exception into an error with a report.

        Raises:
            ModelError: the model raised.
        """
        try:
            with run_eagerly():
                yield
        except (GradscopeError, KeyboardInterrupt):
            raise
        except Exception as error:
            if is_own(error):
                raise
            record = explain_error(error, "forward", [], self.viewer.model)
            run = run_of(self.viewer, [*self.viewer.notices, *self.notices], self.seed)
            report = FeaturesReport(
                run, self.action, status="failed", versions=versions(), error=record
            )
            where = ", ".join(getattr(error, "__notes__", ()))
            during = f"while `gradscope features {self.action}` ran the model {where}".rstrip()
            raise ModelError(problem(record, during), report=report) from error

    def require_pictures(self, used: int) -> None:
        """Refuse to go on without a single picture.

        Raises:
            ConfigError: every picture was skipped; the message gives the first reason.
        """
        if not used:
            first = self.skipped[0]
            raise ConfigError(
                f"none of {len(self.skipped)} pictures can be used; the first, {first.image}: "
                f"{first.reason}"
            )


def features(
    model: nn.Module | str | Path | None,
    images: Tensor | Sequence[str | Path] | str | Path,
    layer: str | None = None,
    *,
    pool: str = "mean",
    cache: str | Path | None = None,
    mode: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> NDArray[np.float32]:
    """Return a layer's features for pictures, as ``gradscope features`` compares them.

    Args:
        model: a spec or a YAML path; a live module, whose state is restored; or None: ResNet-18
            with its weights.
        images: files, patterns, folders with their subfolders, or a tensor [N, C, H, W] that the
            model takes unchanged. A live module takes a tensor only.
        layer: the layer to read, at its last call; None: the input of the last linear layer.
        pool: the reduction over the places of a map or the steps of a sequence: ``mean``, ``max``,
            or ``none``, which keeps them all.
        cache: a ``.safetensors`` file with features of earlier calls; created if it does not exist.
        mode: "eval" or "train"; None: as in the config, else "eval".
        device, dtype: the device and dtype of a config's model; a live module stays.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        [N, D] float32, in the order of the pictures; folders are sorted.

    Raises:
        GradscopeError: a name or an option is wrong, a picture cannot be read, or the model raised.
    """
    if isinstance(model, nn.Module):
        require_constructed(model)
        if not isinstance(images, Tensor):
            raise OptionError(
                "a live model has no transform for picture files",
                help="give a tensor [N, C, H, W] that the model takes",
            )
        kept: AbstractContextManager[None] = live_model_restored(model, mode or "eval")
        viewer = live_viewer(model)
    else:
        settings = {"mode": mode, "device": device, "dtype": dtype}
        given = {key: value for key, value in settings.items() if value is not None}
        viewer = view(None if model is None else str(model), overrides, given, allow)
        kept = nullcontext()
    several = [images] if isinstance(images, str | Path) else images
    pictures = tensor_sources(several) if isinstance(several, Tensor) else sources(several)
    task = FeatureRun(viewer, "features")
    with kept:
        found = collected(task, pictures, layer, pool, None if cache is None else Path(cache))
    if task.skipped:
        first, more = task.skipped[0], len(task.skipped) - 1
        raise ConfigError(
            f"{first.image}: {first.reason}" + (f" (and {more} more)" if more else ""),
            help="leave it out; `gradscope features` skips such pictures",
        )
    return found.values


def collected(
    task: FeatureRun,
    pictures: Sequence[Source],
    pattern: str | None,
    pooling: str,
    cache: Path | None,
) -> FeatureArray:
    """Return the features of every usable picture; ``task`` gets notes on the layer and on skipped
    pictures.

    Raises:
        GradscopeError: as ``features``.
    """
    refuse_unknown("pooling", pooling, POOLINGS)
    opened = FeatureCache.open(cache, task.viewer, pattern, pooling) if cache else nullcontext()
    with task.running(), opened as file:
        found = features_of(
            pictures, task.viewer, pattern, task.skipped, pooling=pooling, cache=file
        )
    if pattern is None and found.layer:
        task.notices.append(f"features: {found.layer}, the last linear layer")
    if file is not None:
        task.notices.append(f"cache {cache}: {file.hits} of {len(pictures)} pictures were in it")
    return found


def usable(task: FeatureRun, found: FeatureArray, *, directions: bool) -> FeatureArray:
    """Return the features that can be compared; ``task`` gets a note on each skipped picture.

    With ``directions``, features that are all 0 are skipped too, because they have no angle.
    """
    finite = np.asarray(np.isfinite(found.values).all(axis=1))
    kept = finite & found.values.any(axis=1) if directions else finite
    for i in np.flatnonzero(~kept):
        reason = "all its features are 0: it has no direction" if finite[i] else ""
        reason = reason or "its features have NaN or Inf"
        task.skipped.append(SkippedImage(found.names[i], reason))
    return found if kept.all() else found.only(np.flatnonzero(kept).tolist())


_METHOD_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}


def neighbors(
    viewer: Viewer,
    queries: Sequence[Source],
    pool: Sequence[Source],
    pattern: str | None,
    *,
    k: int,
    metric: str,
    pooling: str,
    cache: Path | None,
) -> FeatureResult:
    """Find the ``k`` pictures of a pool with the nearest features, for each query; never the query
    itself.

    Raises:
        GradscopeError: the layer does not exist, a query or all pictures of the pool cannot be
            used, or the model raised.
    """
    check_metric(metric)
    task = FeatureRun(viewer, "neighbors")
    numbers = {_identity(source): i for i, source in enumerate(pool)}
    own = [numbers.get(_identity(query)) for query in queries]
    # A picture in the pool has its class there.
    queries = [q if i is None else pool[i] for q, i in zip(queries, own, strict=True)]
    extra = [query for query, i in zip(queries, own, strict=True) if i is None]
    pictures = [*pool, *extra]
    found = usable(
        task, collected(task, pictures, pattern, pooling, cache), directions=metric == "cosine"
    )
    rows = {number: row for row, number in enumerate(found.numbers)}
    task.require_pictures(len(rows))
    last = iter(range(len(pool), len(pictures)))
    asked = [rows.get(next(last) if i is None else i) for i in own]
    for query, row in zip(queries, asked, strict=True):
        if row is None:
            reasons = {one.image: one.reason for one in task.skipped}
            raise ConfigError(f"{query.name} cannot be used: {reasons[query.name]}")
    searched = found.only([row for number, row in rows.items() if number < len(pool)])
    task.require_pictures(len(searched.values))
    if len(searched.values) < k + any(i is not None for i in own):
        held = plural(len(searched.values), "picture")
        task.notices.append(f"there are fewer neighbours than {k}: only {held} to search")
    wanted = found.only([row for row in asked if row is not None])
    among = {number: i for i, number in enumerate(searched.numbers)}
    near = nearest(
        searched.values,
        wanted.values,
        k,
        metric,
        [None if i is None else among.get(i) for i in own],
    )
    sheet: list[tuple[Source, list[tuple[Source, Neighbor]]]] = []
    for query, ranked in zip(queries, near, strict=True):
        sheet.append((query, []))
        for rank, (i, distance) in enumerate(ranked, 1):
            source, same = pool[searched.numbers[i]], distance == 0
            record = Neighbor(query.name, rank, source.name, distance, source.label, same)
            sheet[-1][1].append((source, record))
    report = task.report(
        [found.layer],
        images=len(searched.values),
        figures={"features": found.values.shape[1], "metric": metric},
        neighbors=tuple(record for _, near in sheet for _, record in near),
    )
    what = f"nearest by {metric} in {found.layer}, of {plural(len(searched.values), 'picture')}"
    title = [f"{what} ({plural(found.values.shape[1], 'feature')})", about(viewer)]
    return FeatureResult(report, lambda: neighbor_sheet(sheet, title), searched)


def _identity(source: Source) -> object:
    """Return the identity of a picture: its file, or its object."""
    return source.name if source.path is None else source.path.resolve()


def embed(
    viewer: Viewer,
    pictures: Sequence[Source],
    pattern: str | None,
    *,
    method: str,
    pooling: str,
    cache: Path | None,
) -> FeatureResult:
    """Place pictures in the plane by their features, and measure how far the plane can be trusted.

    Raises:
        GradscopeError: the layer does not exist, too few pictures can be used, or the model raised.
    """
    check_method(method)
    task = FeatureRun(viewer, "embed")
    found = usable(task, collected(task, pictures, pattern, pooling, cache), directions=False)
    task.require_pictures(len(found.values))
    shown = _METHOD_NAMES[method]
    progress.begin(f"{shown} of {plural(len(found.values), 'picture')}")
    places = laid_out(found.values, method, task.seed)
    figures = _figures(task, found, places)
    report = task.report(
        [found.layer],
        images=len(found.values),
        figures=figures,
        embedded=tuple(
            EmbeddedImage(name, float(x), float(y), label)
            for name, (x, y), label in zip(found.names, places, found.labels, strict=True)
        ),
    )
    title = [
        f"{shown} of {found.layer}: {plural(len(found.values), 'picture')}, "
        f"{plural(found.values.shape[1], 'feature')}",
        about(viewer),
    ]
    foot = " · ".join([*figure_words(figures), "the axes have no unit"])
    sources = [pictures[i] for i in found.numbers]
    return FeatureResult(report, lambda: [plane(places, sources, title, foot)], found)


def _figures(task: FeatureRun, found: FeatureArray, places: Any) -> dict[str, Any]:
    """Return the classes, the k-NN accuracy in feature space, and the plane's trustworthiness."""
    figures: dict[str, Any] = {"features": found.values.shape[1]}
    named = [i for i, label in enumerate(found.labels) if label is not None]
    classes = {found.labels[i] for i in named}
    if classes:
        figures["classes"] = len(classes)
    if len(classes) > 1:
        some = found.only(named)
        figures["knn_accuracy"] = knn_accuracy(some.values, [one or "" for one in some.labels])
        task.notices.append(
            f"k-NN accuracy: each picture's class by its {min(NEIGHBORS, len(named) - 1)} nearest "
            "neighbours, by L2 in feature space"
        )
    elif classes:
        task.notices.append("one class: k-NN accuracy would always be 1")
    else:
        task.notices.append("no classes: put pictures in sub-folders, one for each")
    progress.begin("measuring trustworthiness")
    figures["trustworthiness"], sample = trust(found.values, places, task.seed)
    if sample < len(found.values):
        task.notices.append(
            f"trustworthiness: of {count(sample)} pictures, drawn from {count(len(found.values))}"
        )
    return figures


#: Number of pictures kept that excite a channel most.
BEST = 6


def filters(viewer: Viewer, pattern: str | None, top: int) -> FeatureResult:
    """Draw the ``top`` filters of a convolution; without a pattern, of the first one.

    Raises:
        GradscopeError: the layer does not exist, or has no filters.
    """
    task = FeatureRun(viewer, "filters")
    bank = filter_bank(viewer.model, pattern)
    if pattern is None:
        task.notices.append(f"layer `{bank.layer}`: the first convolution")
    figures = {
        "filters": len(bank.filters),
        "dead": sum(one.dead for one in bank.filters),
        "near_duplicates": sum(one.duplicate for one in bank.filters),
    }
    report = task.report([bank.layer], figures=figures, filters=bank.strongest)
    return FeatureResult(report, lambda: filter_sheet(bank, about(viewer), top))


def activations(
    viewer: Viewer, pictures: Sequence[Source], patterns: Sequence[str], top: int
) -> FeatureResult:
    """Draw the ``top`` channels of layers with the strongest responses to pictures.

    For one picture: its maps in each layer. For several: the pictures, and places in them, that
    excite each channel of one layer most. The default is the last layer with a map.

    Raises:
        GradscopeError: the layer does not exist, no picture is usable, or the model raised.
    """
    task = FeatureRun(viewer, "activations")
    layers: list[Layer] = layers_matching(viewer.model, patterns) if patterns else []
    sweeps: dict[str, ChannelSweep] = {}
    kept: dict[str, Tensor] = {}
    sizes: list[tuple[int, int]] = []
    used = 0
    progress.begin("running pictures through the model")
    with task.running():
        for numbers, inputs in batches(pictures, viewer, task.skipped):
            with naming(pictures, numbers):
                if not layers:
                    layers = [last_map(viewer.model, inputs[:1])]
                    title = layers[0].title
                    task.notices.append(f"layer `{title}`: the last one with a spatial map")
                found = _maps(viewer, inputs, layers)
            for layer, maps, is_map in found:
                sweeps.setdefault(layer.name, ChannelSweep(layer, BEST)).add(maps, is_map, numbers)
                if len(pictures) == 1:
                    kept[layer.name] = maps[0]
            sizes.append((inputs.shape[2], inputs.shape[3]))
            used += len(numbers)
    task.require_pictures(used)
    without = [sweep.layer.title for sweep in sweeps.values() if not sweep.is_map]
    if without:
        task.notices.append(
            f"no map: {', '.join(without)} has units, but no positions in the picture"
        )
    names = [one.name for one in pictures]
    report = task.report(
        [layer.title for layer in layers],
        images=used,
        figures={"dead": sum(one.dead for s in sweeps.values() for one in s.stats())},
        channels=tuple(one for sweep in sweeps.values() for one in sweep.stats()),
    )
    if len(pictures) > 1:
        strongest = [(s, one.channel) for s in sweeps.values() for one in s.stats()[:top]]
        best = tuple(e for sweep, channel in strongest for e in sweep.excitations(channel, names))
        report = replace(report, excitations=best)

    def draw() -> list[Image]:
        if len(pictures) > 1:
            return [
                page
                for sweep in sweeps.values()
                for page in excitation_sheet(sweep, pictures, viewer, about(viewer), top, used)
            ]
        photo = pictures[0].photo(viewer)
        maps = [(s, kept[name]) for name, s in sweeps.items() if s.is_map]
        return sheets(map_rows(photo, maps, sizes[0], about(viewer), top))

    return FeatureResult(report, draw)


def maximize(
    viewer: Viewer,
    pattern: str | None,
    channels: Sequence[int] | None,
    *,
    top: int,
    steps: int,
    size: int | None,
) -> FeatureResult:
    """Make pictures that maximise channels of a layer; without channels, of the first ``top``.

    Without a pattern the layer is the last linear one, whose channels are the classes.

    Raises:
        GradscopeError: the layer or channel does not exist, there is no gradient, or the model
            raised.
    """
    task = FeatureRun(viewer, "maximize")
    within, remark = input_range(viewer, size)
    task.notices += [remark] * bool(remark)
    grey = (within.input(torch.full_like(within.black, 0.5))[None]).to(viewer.device, viewer.dtype)
    with task.running():
        if pattern is None:
            layer = replace(last_features(viewer.model, grey), reads=False)
            task.notices.append(f"layer `{layer.title}`: the last linear layer")
        else:
            layer = one_layer(viewer.model, pattern)
        full = channel_count(viewer, layer, grey)
        wanted = list(range(min(top, full))) if channels is None else list(channels)
        for channel in wanted:
            if not 0 <= channel < full:
                raise OptionError(
                    f"layer `{layer.title}` has no channel {channel}",
                    help=f"its channels are 0 to {full - 1}",
                )
        progress.begin("climbing")
        found = maximized(viewer, layer, wanted, within, steps=steps, seed=task.seed)
    stuck = [str(c) for c, a, b in zip(wanted, found.start, found.reached, strict=True) if a == b]
    if stuck:
        task.notices.append(
            f"channel {', '.join(stuck)}: no gradient at the start; try another `--seed"
        )
    if channels is None and full > len(wanted):
        task.notices.append(f"the first {len(wanted)} of {full} channels: `--top` takes more")
    report = task.report(
        [layer.title],
        figures={"channels": full, "steps": steps},
        maximized=tuple(
            MaximizedChannel(layer.title, *row)
            for row in zip(wanted, found.start, found.reached, strict=True)
        ),
    )
    classes = viewer.classes or ()
    are_classes = pattern is None and len(classes) == full
    names = [f"class {classes[c]}" if are_classes else "" for c in wanted]
    title = [
        f"pictures that maximise channels of {layer.title}: {plural(steps, 'step')} of gradient "
        "ascent",
        about(viewer),
    ]
    foot = [
        "below each picture: the channel's mean activation on noise, and on the picture",
        "smooth steps (1/f), the picture shifted at random before each (Olah et al. 2017, Distill)",
    ]
    return FeatureResult(report, lambda: maximized_sheet(found, wanted, names, title, foot))


def _maps(
    viewer: Viewer, inputs: Tensor, layers: Sequence[Layer]
) -> list[tuple[Layer, Tensor, bool]]:
    """Yield each layer's output for a batch as channels [N, K, h, w], and whether it is a map."""
    found: dict[str, tuple[Tensor, bool]] = {}

    def read(layer: Layer, values: Tensor) -> None:
        maps, is_map = as_channels(values, layer, viewer.model, inputs)
        # The last call counts, and its values as they are now.
        found[layer.name] = maps.cpu().float().clone(), is_map

    run(viewer.model, inputs, layers, read)
    for layer in layers:
        require_called(layer.name in found, layer)
    return [(layer, *found[layer.name]) for layer in layers]
