"""Neighbours and the plane of pictures in the space of a layer's features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradscope import progress
from gradscope.api.feature_arrays import FeatureResult, FeatureRun, collected, usable
from gradscope.api.viewing import about
from gradscope.errors import ConfigError
from gradscope.features.pictures import Source
from gradscope.features.sheets import neighbor_sheet, plane
from gradscope.features.space import (
    NEIGHBORS,
    check_method,
    check_metric,
    knn_accuracy,
    laid_out,
    nearest,
    trust,
)
from gradscope.features.vectors import FeatureArray
from gradscope.loading.viewing import Viewer
from gradscope.records.features import EmbeddedImage, Neighbor
from gradscope.typeset.numbers import count, figure_words, plural

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
    """Classes, k-NN accuracy in feature space, and the trustworthiness of the plane."""
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
        task.notices.append("one class: k-NN accuracy would be 1 whatever the features")
    else:
        task.notices.append("no classes: put pictures in sub-folders, one for each")
    progress.begin("measuring trustworthiness")
    figures["trustworthiness"], sample = trust(found.values, places, task.seed)
    if sample < len(found.values):
        task.notices.append(
            f"trustworthiness: of {count(sample)} pictures, drawn from {count(len(found.values))}"
        )
    return figures
