"""Compares ``gradscope features`` on 1,797 digits with scikit-learn, and measures its cost.

``python -m tests.benchmarks.features`` computes the bundled network's features by a plain loop, one
digit at a time, and has scikit-learn search them: the neighbours and distances must be the
command's. It prints k-NN accuracy and t-SNE's trustworthiness in feature space beside those of raw
pixels. ``--memory`` generates pictures in a folder and reads them with ResNet-18 at 64², each time
in its own process: the peak of its memory with 100, 1,000 and 10,000 pictures, and what the
cache saves.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.neighbors import NearestNeighbors

import gradscope
from gradscope.api.features import neighbors
from gradscope.api.viewing import view
from gradscope.demo import all_digits
from gradscope.features.space import METRICS, knn_accuracy, laid_out, trust
from gradscope.features.streaming import digits

K = 8
MODEL, TRANSFORM = "torchvision:resnet18", "input.transform={resize: 64, crop: 64}"


def by_loop(pixels: np.ndarray) -> np.ndarray:
    """Return the inputs of the network's last layer, digit by digit, by a hook of our own."""
    model, found = view("demo").model, []
    handle = model.out.register_forward_pre_hook(lambda _, args: found.append(args[0].clone()))
    with torch.no_grad():
        for one in pixels:
            model(torch.from_numpy(one)[None, None])
    handle.remove()
    return torch.cat(found).numpy()


def agreement(features: np.ndarray) -> None:
    """The command's neighbours of every digit, beside scikit-learn's of the loop's features."""
    sources = digits()
    for metric, name in METRICS.items():
        search = NearestNeighbors(n_neighbors=K, metric=name, algorithm="brute")
        distances, numbers = search.fit(features.astype(np.float64)).kneighbors()
        options = {"k": K, "metric": metric, "pooling": "mean", "cache": None}
        result = neighbors(view("demo"), sources, sources, None, **options)
        rows = result.report.neighbors
        ours = np.array([int(one.image.split()[1]) for one in rows]).reshape(-1, K)
        theirs = np.array([one.distance for one in rows]).reshape(-1, K)
        same, apart = float((ours == numbers).mean()), float(np.abs(theirs - distances).max())
        print(f"{metric}: {ours.size:,} neighbours, {same:.4%} the same, in the same order;")
        print(f"  distances up to {distances.max():.4g} differ by {apart:.1e} at most")


def space(name: str, values: np.ndarray, labels: list[str]) -> None:
    """k-NN accuracy in a space, and how far t-SNE's plane of it can be trusted."""
    began = time.perf_counter()
    places = laid_out(values, "tsne", 0)
    trusted, _ = trust(values, places, 0)
    held = slice(0, None, 5)
    print(
        f"{name:<28}{values.shape[1]:>6}{knn_accuracy(values, labels):>13.4f}"
        f"{knn_accuracy(values[held], labels[held]):>16.4f}{trusted:>17.4f}"
        f"{time.perf_counter() - began:>10.1f} s"
    )


def reading(folder: Path, count: int, cache: Path | None) -> None:
    """Read so many pictures, and print what it took; for its own process."""
    files = sorted(folder.glob("*.png"))[:count]
    began = time.perf_counter()
    values = gradscope.features(MODEL, files, overrides=[TRANSFORM], cache=cache)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = time.perf_counter() - began
    print(f"{count:>8,}{values.nbytes / 2**20:>14.1f}{peak:>12.0f}{took:>12.1f}", flush=True)


def memory() -> None:
    """The peak memory of more and more pictures."""
    with tempfile.TemporaryDirectory() as made:
        folder, noise = Path(made), np.random.default_rng(0)
        for i in range(10_000):
            pixels = noise.integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((96, 96)).save(folder / f"{i:05}.png")
        print("pictures  features MiB    peak MiB     seconds")
        runs = [(count, "") for count in (100, 1_000, 10_000)]
        for count, cache in [*runs, (10_000, "c.safetensors"), (10_000, "c.safetensors")]:
            words = [str(folder), str(count), *([str(folder / cache)] if cache else [])]
            subprocess.run([sys.executable, "-m", __spec__.name, "--reading", *words], check=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memory", action="store_true", help="the peak memory of many pictures")
    parser.add_argument("--reading", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reading:
        folder, count, *cache = options.reading
        reading(Path(folder), int(count), Path(cache[0]) if cache else None)
        return
    if options.memory:
        memory()
        return
    pictures, numbers = all_digits()
    labels = list(map(str, numbers))
    pixels = np.stack([np.asarray(one) for one in pictures]).astype(np.float32) / 255
    features = by_loop(pixels)
    apart = np.abs(gradscope.features("demo", torch.from_numpy(pixels)[:, None]) - features).max()
    print(f"1,797 digits: features [1797, {features.shape[1]}], largest difference {apart:.1e}")
    agreement(features)
    print("space                          size  k-NN accuracy  of 360 held out  trustworthiness")
    space("input of out", features, labels)
    space("raw pixels", pixels.reshape(len(pixels), -1), labels)


if __name__ == "__main__":
    main()
