"""Trains the bundled networks on scikit-learn's handwritten digits, and writes the bundled files.

``python -m gradscope.demo.train`` prints the networks' accuracy on digits held out of training;
``--output DIR`` also writes the weights and ten of the held-out digits.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from gradscope.demo import DIGITS, WEIGHTS, all_digits
from gradscope.demo.networks import LectureNet, SimpleNet
from gradscope.demo.scouter import NegativeScouterNet, ScouterNet

BATCH = 32


@dataclass(frozen=True)
class Recipe:
    """A network and its training, with Adam on the cross entropy.

    ``area`` is λ of SCOUTER's loss, cross entropy + λ · mean attention. λ is 0 for the first third
    of the epochs, and then grows linearly: with a large λ at the start, slots would learn to attend
    to nothing. SCOUTER's learning rate follows one cycle.
    """

    network: type[nn.Module]
    epochs: int = 15
    learning_rate: float = 1e-3
    area: float | None = None

    def area_at(self, epoch: int) -> float:
        """Return λ in an epoch, counted from 0."""
        start = self.epochs // 3
        return (self.area or 0.0) * max(0.0, (epoch - start) / (self.epochs - start))


RECIPES: dict[str, Recipe] = {
    "demo": Recipe(SimpleNet),
    "demo:lecture": Recipe(LectureNet),
    "demo:scouter": Recipe(ScouterNet, epochs=26, learning_rate=8e-3, area=8.0),
    "demo:scouter-negative": Recipe(NegativeScouterNet, epochs=26, learning_rate=8e-3, area=8.0),
}


@dataclass(frozen=True)
class Split:
    """Images [N, 1, 28, 28] in 0…1 and labels [N]; every fifth digit is held out of training."""

    train_images: Tensor
    train_labels: Tensor
    held_images: Tensor
    held_labels: Tensor


def load_split() -> Split:
    """Return the pictures of ``all_digits``, with every fifth one held out."""
    pictures, labels = all_digits()
    images = torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).unsqueeze(1) / 255
    held = torch.arange(len(labels)) % 5 == 0
    named = torch.tensor(labels)
    return Split(images[~held], named[~held], images[held], named[held])


def train(recipe: Recipe, split: Split, *, seed: int) -> nn.Module:
    """Initialise a network and train it. The same seed gives the same weights."""
    torch.manual_seed(seed)
    model = recipe.network()
    shuffle = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = None
    if recipe.area is not None:
        steps = recipe.epochs * math.ceil(len(split.train_labels) / BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, recipe.learning_rate, total_steps=steps
        )
    for epoch in range(recipe.epochs):
        order = torch.randperm(len(split.train_labels), generator=shuffle)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            images, labels = split.train_images[batch], split.train_labels[batch]
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, images, labels, recipe.area_at(epoch)))
            optimizer.step()
            if schedule:
                schedule.step()
    return model


def loss_of(model: nn.Module, images: Tensor, labels: Tensor, area: float) -> Tensor:
    """Return the cross entropy; for SCOUTER plus ``area`` times the mean attention."""
    if not isinstance(model, ScouterNet):
        return nn.functional.cross_entropy(model(images), labels)
    logits, attention = model.explained(images)
    return nn.functional.cross_entropy(logits, labels) + area * attention.mean()


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Return the share of held-out digits that the network classifies correctly."""
    right = model(split.held_images).argmax(1) == split.held_labels
    return float(right.double().mean())


@torch.no_grad()
def dead_logits(model: SimpleNet, split: Split) -> list[int]:
    """Return the classes whose logit is at most zero for every digit of both splits.

    A ReLU on the logits returns zero for them, and passes no gradient.
    """
    images = torch.cat([split.train_images, split.held_images])
    logits = SimpleNet.forward(model, images)  # either network: without the lecture's last ReLU
    return [int(label) for label in (logits <= 0).all(0).nonzero()]


@torch.no_grad()
def attention_area(model: ScouterNet, split: Split) -> float:
    """Return the mean attention of all slots to all positions of the held-out digits, 0…1."""
    _, attention = model.explained(split.held_images)
    return float(attention.double().mean())


def remark(model: nn.Module, split: Split) -> str:
    """Return a further remark on a trained network, or ""."""
    if isinstance(model, ScouterNet):
        return f"attention area {attention_area(model, split):.1%}"
    if isinstance(model, SimpleNet):
        return "dead logits " + (", ".join(map(str, dead_logits(model, split))) or "none")
    return ""


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: it is complete or absent."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_digits(folder: Path, split: Split) -> None:
    """Write the first held-out digit of each class, as 28×28 greyscale PNG."""
    (folder / "digits").mkdir(parents=True, exist_ok=True)
    for path, label in DIGITS:
        image = split.held_images[int((split.held_labels == label).nonzero()[0])]
        png = io.BytesIO()
        Image.fromarray((image[0] * 255).round().to(torch.uint8).numpy()).save(png, "PNG")
        write_atomic(folder / "digits" / path.name, png.getvalue())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, report, and write files if requested."""
    parser = argparse.ArgumentParser(prog="python -m gradscope.demo.train", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="DIR", help="write weights and digits here")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to try (default: 1)")
    parser.add_argument(
        "--only", choices=RECIPES, action="append", help="train this one (default: all; repeatable)"
    )
    options = parser.parse_args(arguments)
    # Sums in another order end in other weights: one thread gives one order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    split = load_split()
    print(f"trained on {len(split.train_labels)} digits, held out {len(split.held_labels)}")
    print(f"{'network':<22}{'seed':>4}  {'held-out accuracy':>17}  {'seconds':>7}")
    for seed in range(options.seed, options.seed + options.seeds):
        for spec in options.only or RECIPES:
            start = time.perf_counter()
            model = train(RECIPES[spec], split, seed=seed)
            seconds = time.perf_counter() - start
            right = f"{accuracy(model, split):>17.1%}  {seconds:>7.1f}"
            print(f"{spec:<22}{seed:>4}  {right}  {remark(model, split)}", flush=True)
            if options.output and seed == options.seed:
                options.output.mkdir(parents=True, exist_ok=True)
                weights = safetensors.torch.save(dict(model.state_dict()))
                write_atomic(options.output / WEIGHTS[spec].name, weights)
    if options.output:
        write_digits(options.output, split)
        print(f"written to {options.output}{os.sep}")


if __name__ == "__main__":
    main()
