"""Which features lie nearest to which: scikit-learn's search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.metrics.pairwise import paired_distances
from sklearn.neighbors import NearestNeighbors

from gradscope.errors import refuse_unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The command's word and scikit-learn's.
METRICS = {"cosine": "cosine", "l2": "euclidean"}


def check_metric(metric: str) -> None:
    """Refuse what is no metric.

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
    """For each query [Q, D] the ``k`` nearest rows of the pool [N, D] with their distances.

    ``own`` is each query's row in the pool, which is no neighbour of it; None where it has none.
    Computed in float64; the distance of equal rows is exactly 0.
    """
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
