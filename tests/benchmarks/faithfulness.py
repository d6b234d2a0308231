"""Measures how well each method's map finds what the bundled networks use, on held-out digits.

``python -m tests.benchmarks.faithfulness`` prints a Markdown table for each network, best first:
the deletion and insertion areas of every method that works on it and of random maps. Networks bear
missing pixels differently well, so that areas of one do not compare with those of another.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor

from gradscope import plugins
from gradscope.demo import WEIGHTS
from gradscope.demo import train as training
from gradscope.errors import OptionError
from gradscope.saliency._checks import Areas, areas
from gradscope.saliency._subject import Subject

ROOM = "gradscope.saliency"

#: ``scouter`` works on the second alone.
SPECS = ("demo", "demo:scouter")

#: Random maps for each image; their areas are averaged.
RANDOMS = 5


@dataclass(frozen=True)
class Row:
    """One method, or chance: an area for each image."""

    method: str
    areas: Areas
    gain: Tensor | None = None  # deletion below chance plus insertion above it, image by image


def subject_of(spec: str, images: Tensor, seed: int) -> Subject:
    """The bundled network, trained, on the images; each is explained by its highest logit."""
    net = training.RECIPES[spec].network()
    net.load_state_dict(safetensors.torch.load_file(WEIGHTS[spec]))
    return Subject(net.eval(), images, seed=seed)


def chance(subject: Subject, steps: int) -> Areas:
    """The mean areas of random maps."""
    draw = subject.generator()
    shape = (len(subject.inputs), *subject.inputs.shape[-2:])
    drawn = [areas(subject, torch.rand(shape, generator=draw), steps=steps) for _ in range(RANDOMS)]
    return Areas(*(torch.stack(each).mean(0) for each in zip(*drawn, strict=True)))


def rows_of(
    spec: str, images: Tensor, options: argparse.Namespace
) -> tuple[list[Row], dict[str, str]]:
    """Chance and each method on one network, and why those that are missing do not work on it."""
    refused: dict[str, str] = {}
    with subject_of(spec, images, options.seed) as subject:
        random = chance(subject, options.steps)
        rows = [Row("random", random)]
        for method in plugins.names(ROOM):
            began = time.perf_counter()
            attribute = plugins.load(ROOM, method).attribute
            given = {"n_samples": options.masks} if method == "rise" else {}
            try:
                found = areas(subject, attribute(subject, **given), steps=options.steps)
            except OptionError as error:
                refused[method] = str(error)
                continue
            gain = random.deletion - found.deletion + found.insertion - random.insertion
            rows.append(Row(method, found, gain))
            print(f"{spec}, {method}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return rows, refused


def mean(values: Tensor, digits: int = 3) -> str:
    """The mean and its standard error."""
    error = float(values.std()) / math.sqrt(len(values))
    return f"{float(values.mean()):.{digits}f} ± {error:.{digits}f}"


def table(rows: list[Row]) -> str:
    """Markdown, the largest gain first."""
    ranked = sorted(rows, key=lambda row: 0.0 if row.gain is None else -float(row.gain.mean()))
    lines = [
        "| | method | deletion ↓ | insertion ↑ | better than random by ↑ |",
        "| ---: | --- | ---: | ---: | ---: |",
    ]
    rank = 0
    for row in ranked:
        rank += row.gain is not None
        cells = [
            str(rank) if row.gain is not None else "",
            row.method,
            mean(row.areas.deletion),
            mean(row.areas.insertion),
            "–" if row.gain is None else mean(row.gain),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--images", type=int, default=200, help="how many digits")
    parser.add_argument("--masks", type=int, default=1000, help="for rise, whose default is 4000")
    parser.add_argument("--steps", type=int, default=20, help="points along each curve")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images = training.load_split().held_images[: options.images]
    print(
        f"{len(images)} held-out digits, each for the class that the network names; mean ± "
        f"standard error; {options.steps} steps, baseline black; random: {RANDOMS} maps for each "
        f"image; rise with {options.masks} masks. Better than random by: how much lower the "
        "deletion and how much higher the insertion is, added up."
    )
    for spec in SPECS:
        rows, refused = rows_of(spec, images, options)
        print(f"\n`{spec}`:\n\n{table(rows)}\n")
        for method, why in refused.items():
            print(f"Without {method}: {why}.")


if __name__ == "__main__":
    main()
