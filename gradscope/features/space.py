"""Computes nearest neighbours in feature space, and features in the plane, with scikit-learn, which
takes more than a second to import: only what computes one of the two imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradscope.errors import OptionError, refuse_unknown
from gradscope.loading.imports import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The command's word and scikit-learn's.
METRICS = {"cosine": "cosine", "l2": "euclidean"}


def check_metric(metric: str) -> None:
    """Refuse an unknown metric.

    Raises:
        OptionError: it is none of ``METRICS``.
    """
    refuse_unknown("metric", metric, METRICS)


def nearest(
    pool: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
    metric: str,
    own: Sequence[int | None],
) -> list[list[tuple[int, float]]]:
    """Return for each query [Q, D] the ``k`` nearest rows of the pool [N, D] with their
    distances.

    ``own`` is each query's own row in the pool, which does not count as a neighbour; None without
    one. Distances are computed in float64; for equal rows they are exactly 0.
    """
    from sklearn.metrics.pairwise import paired_distances
    from sklearn.neighbors import NearestNeighbors

    rows, wanted = pool.astype(np.float64), queries.astype(np.float64)
    search = NearestNeighbors(metric=METRICS[metric], algorithm="brute").fit(rows)
    found = search.kneighbors(wanted, min(k + 1, len(rows)), return_distance=False)
    result = []
    for query, neighbors, itself in zip(wanted, found, own, strict=True):
        others = [int(i) for i in neighbors if i != itself]
        # The search expands the square, which leaves rounding where rows are equal.
        distances = paired_distances(
            np.repeat(query[None], len(others), axis=0), rows[others], metric=METRICS[metric]
        )
        ranked = sorted(zip(distances.tolist(), others, strict=True))[:k]
        result.append([(i, distance) for distance, i in ranked])
    return result


METHODS = ("tsne", "umap", "pca")
#: Fewer pictures have no neighbourhoods.
FEWEST = 4
#: t-SNE and UMAP get this many principal components of the features, as van der Maaten & Hinton
#: 2008 (https://jmlr.org/papers/v9/vandermaaten08a.html) do with thirty.
COMPONENTS = 50
#: Neighbours that are asked for k-NN accuracy and trustworthiness.
NEIGHBORS = 5
#: Trustworthiness needs n² memory: above this number of pictures it takes a sample.
SAMPLE = 2000


def check_method(method: str) -> None:
    """Refuse a method that is unknown or not installed.

    Raises:
        OptionError: it is none of ``METHODS``.
        ConfigError: UMAP is not installed.
    """
    refuse_unknown("method", method, METHODS)
    if method == "umap":
        require("umap", wanted_by="--method umap")


def laid_out(values: NDArray[np.float32], method: str, seed: int) -> NDArray[np.float64]:
    """Return positions [N, 2] of features [N, D], equal for equal seeds.

    Raises:
        OptionError: there are too few pictures, or all have the same features.
    """
    count = len(values)
    if count < FEWEST:
        raise OptionError(f"{count} pictures are too few to lay out", help=f"give {FEWEST} or more")
    rows = values.astype(np.float64)
    if not np.ptp(rows, axis=0).any():
        raise OptionError(
            "all pictures have the same features: there is nothing to lay out",
            help="another layer may separate them; `gradscope features activations` shows what "
            "this one responds to",
        )
    most = 2 if method == "pca" else COMPONENTS
    if rows.shape[1] > most:
        from sklearn.decomposition import PCA

        rows = PCA(min(most, count), random_state=seed).fit_transform(rows)
    if method == "umap":
        umap: Any = require("umap", wanted_by="--method umap")
        neighbors = min(15, count - 1)
        rows = umap.UMAP(n_neighbors=neighbors, random_state=seed, n_jobs=1).fit_transform(rows)
    elif method == "tsne":
        from sklearn.manifold import TSNE

        rows = TSNE(
            perplexity=min(30.0, (count - 1) / 3),
            init="pca" if rows.shape[1] > 1 else "random",
            random_state=seed,
        ).fit_transform(rows)
    if rows.shape[1] == 1:
        rows = np.concatenate([rows, np.zeros_like(rows)], axis=1)
    places: NDArray[np.float64] = rows[:, :2].astype(np.float64)
    return places


def knn_accuracy(values: NDArray[np.float32], labels: Sequence[str]) -> float:
    """Return the accuracy of k-NN by L2, leave-one-out: the share of pictures whose class is the
    most common among their nearest neighbours.

    In a tie, the class of the nearest wins.
    """
    from sklearn.neighbors import NearestNeighbors

    k = min(NEIGHBORS, len(labels) - 1)
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(values.astype(np.float64))
    near = search.kneighbors(return_distance=False)
    right = 0
    for label, neighbors in zip(labels, near, strict=True):
        votes = [labels[i] for i in neighbors]
        right += max(votes, key=votes.count) == label
    return right / len(labels)


def trust(values: NDArray[np.float32], places: NDArray[np.float64], seed: int) -> tuple[float, int]:
    """Return the trustworthiness of the positions (1: no neighbour is new), and its number of
    pictures.

    Venna & Kaski 2001; for more than ``SAMPLE`` pictures it is computed on a random sample.
    """
    from sklearn.manifold import trustworthiness

    count = len(values)
    if count > SAMPLE:
        chosen = np.random.default_rng(seed).choice(count, SAMPLE, replace=False)
        values, places, count = values[chosen], places[chosen], SAMPLE
    neighbors = max(1, min(NEIGHBORS, (count - 1) // 2))
    found = trustworthiness(values.astype(np.float64), places, n_neighbors=neighbors)
    return float(found), count
