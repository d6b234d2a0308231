"""Neighbours and planes beside scikit-learn's own answers."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from gradscope.errors import ConfigError, OptionError
from gradscope.features import space
from gradscope.features.space import (
    check_method,
    check_metric,
    knn_accuracy,
    laid_out,
    nearest,
    trust,
)


def cloud(count=60, width=12, seed=0):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize(("metric", "name"), [("cosine", "cosine"), ("l2", "euclidean")])
def test_neighbours_are_scikit_learns(metric, name):
    pool, queries = cloud(), cloud(7, seed=1)
    search = NearestNeighbors(n_neighbors=5, metric=name).fit(pool.astype(np.float64))
    distances, numbers = search.kneighbors(queries.astype(np.float64))
    found = nearest(pool, queries, 5, metric, [None] * 7)
    assert [[i for i, _ in row] for row in found] == numbers.tolist()
    np.testing.assert_allclose([[d for _, d in row] for row in found], distances, rtol=1e-9)


def test_a_picture_of_the_pool_is_not_its_own_neighbour_and_its_double_is():
    pool = cloud()
    pool[40] = pool[3]
    (found,) = nearest(pool, pool[[3]], 4, "l2", [3])
    assert 3 not in [i for i, _ in found]
    assert found[0] == (40, 0.0)
    (found,) = nearest(pool, pool[[3]], 4, "cosine", [None])
    assert found[:2] == [(3, 0.0), (40, 0.0)]


def test_fewer_pictures_than_neighbours():
    pool = cloud(3)
    assert len(nearest(pool, pool[[0]], 8, "l2", [0])[0]) == 2
    assert len(nearest(pool, cloud(1, seed=2), 8, "l2", [None])[0]) == 3


def test_knn_accuracy_is_that_of_leave_one_out():
    rows = cloud(80, 3)
    labels = ["b" if row[0] > 0.2 else "a" for row in rows]
    model = KNeighborsClassifier(5, algorithm="brute")
    wanted = cross_val_score(model, rows.astype(np.float64), labels, cv=LeaveOneOut()).mean()
    assert knn_accuracy(rows, labels) == pytest.approx(wanted)
    assert knn_accuracy(rows[:3], ["a", "a", "b"]) == pytest.approx(2 / 3)


def test_trustworthiness_is_scikit_learns_and_of_a_sample_where_there_are_many(monkeypatch):
    rows = cloud(50)
    places = rows[:, :2].astype(np.float64)
    assert trust(rows, places, 0) == (trustworthiness(rows, places, n_neighbors=5), 50)
    monkeypatch.setattr(space, "SAMPLE", 30)
    value, count = trust(rows, places, 0)
    assert count == 30 and 0 < value < 1
    assert trust(rows, places, 0) == (value, count)


def test_pca_is_scikit_learns():
    rows = cloud()
    wanted = PCA(2, random_state=0).fit_transform(rows.astype(np.float64))
    assert np.array_equal(laid_out(rows, "pca", 0), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(4, 12), (40, 80), (30, 1), (9, 2)], ids=str)
def test_tsne_of_any_shape_is_the_same_for_the_same_seed(shape):
    rows = cloud(*shape)
    first = laid_out(rows, "tsne", 5)
    assert first.shape == (shape[0], 2)
    assert np.isfinite(first).all()
    assert np.array_equal(laid_out(rows, "tsne", 5), first)


def test_clusters_stay_clusters():
    rows = cloud(60)
    rows[:30] += 20
    labels = ["a"] * 30 + ["b"] * 30
    assert knn_accuracy(laid_out(rows, "tsne", 0).astype(np.float32), labels) == 1.0


def test_one_dimension_has_a_second_of_zeros():
    assert np.array_equal(laid_out(cloud(20, 1), "pca", 0)[:, 1], np.zeros(20))


def test_duplicates_are_laid_out():
    rows = np.repeat(cloud(5), 4, axis=0)
    assert np.isfinite(laid_out(rows, "tsne", 0)).all()


def test_what_cannot_be_laid_out_is_refused():
    with pytest.raises(OptionError, match="3 pictures are too few"):
        laid_out(cloud(3), "tsne", 0)
    with pytest.raises(OptionError, match="same features"):
        laid_out(np.ones((9, 4), dtype=np.float32), "tsne", 0)
    with pytest.raises(OptionError, match="unknown method `tnse`"):
        check_method("tnse")
    with pytest.raises(OptionError, match="unknown metric `l1`"):
        check_metric("l1")


def test_umap_is_asked_where_it_is_installed(monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **options):
            asked.update(options)

        def fit_transform(self, rows):
            return rows[:, :2]

    monkeypatch.setitem(sys.modules, "umap", types.SimpleNamespace(UMAP=UMAP))
    check_method("umap")
    assert laid_out(cloud(), "umap", 3).shape == (60, 2)
    assert asked == {"n_neighbors": 15, "random_state": 3, "n_jobs": 1}


def test_without_umap_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match="needs umap") as caught:
        check_method("umap")
    assert caught.value.problems[0].help == "pip install umap-learn"
