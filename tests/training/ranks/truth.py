"""gradscope's figures of networks of the size that people have, under every kind of parallelism.

``python -m tests.training.ranks.truth`` trains ResNet-18, GPT-2 and a mixture of experts on 2 and
on 4 processes, for an hour on two cores and up to 12 GB. It prints for each case how far,
relatively, the worst figure of a parameter is from `full_tensor()`'s and from one process's on the
same global batch, and whether weights and collectives are those of a run without observation.
``--only 'gpt tp'`` is one case, ``--small`` the networks of the tests. It ends with 1 where
something is off by more than 1e-6.

In double precision, for several processes add up in another order than one, which float32 shows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from training.ranks.compared import Difference, Launch

FIGURES = ("grad_norm", "update_ratio", "gradient_norm", "loss")
WITHIN = 1e-6


def worst(differences: list[Difference], figure: str, against: str) -> str:
    """Return the largest error, and the number of missing values."""
    sizes = [one.size for one in differences if (one.figure, one.against) == (figure, against)]
    known = [size for size in sizes if size < float("inf")]
    missing = len(sizes) - len(known)
    shown = f"{max(known):.1e}" if known else "–"
    return f"{shown} ({missing} missing)" if missing else shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, action="append", help="2, 4")
    parser.add_argument("--only", default="", help="cases that begin so")
    parser.add_argument("--small", action="store_true", help="the networks of the tests")
    args = parser.parse_args()
    options = [f"--only={args.only}", *([] if args.small else ["--large"])]
    held = True
    print("| case | processes |", " | ".join(FIGURES), "| unchanged |")
    for processes in args.processes or (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            launch = Launch(Path(folder), processes, *options)
        for (_, case), plain in zip(launch.cases(), launch.plain[0], strict=False):
            of = [one for one in launch.differences() if one.case == case["case"]]
            cells = [
                ", ".join(worst(of, figure, against) for against in ("full_tensor", "one process"))
                for figure in FIGURES
            ]
            same = all(plain[key] == case[key] for key in ("weights", "collectives"))
            held = held and same and all(one.size <= WITHIN for one in of)
            print(
                "|", " | ".join([case["case"], str(processes), *cells, str(same)]), "|", flush=True
            )
    sys.exit(not held)


if __name__ == "__main__":
    main()
