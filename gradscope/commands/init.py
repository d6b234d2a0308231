"""``gradscope init``: a starter config that runs as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._options import Debug
from gradscope.commands._write import STDOUT, write_output
from gradscope.config import check_spec

_STARTER: Final = """\
# What flows through a model, forward and backward: gradscope inspect {path}
# Every key but `model` has a default; `gradscope schema` prints all that a key can be.

model: {model}
# model: torchvision:resnet18         # or timm:NAME, hf:DIR_OR_ID, ./net.py:Name, pkg.mod:Name
# model: {{_target_: torchvision.models.resnet18, num_classes: 10}}

# weights: DEFAULT                    # left out: random weights
# checkpoint: weights.safetensors     # .pt and .pth are read with weights_only=True
# replace: {{fc: {{_target_: torch.nn.Linear, in_features: 512, out_features: 10}}}}
# freeze: ["**", "!fc.**"]            # parameters that get no gradient, by pattern
mode: train                           # train | eval

# Left out, the input is inferred from the model, and the table says how.
# input: {{shape: [2, 3, 224, 224]}}    # also image, file, text, tokens, values; a mapping of
#                                     # these is keyword arguments, a list positional ones
# target: [3, 7]                      # class ids, values, a file, or random
# loss: cross_entropy                 # mse | bce_with_logits | nll | sum | mean | logit | output
# backward: {{repeats: 2, retain_graph: true}}

layers: ["**"]                        # which modules to show: "conv*", "layer4.**", "type:Conv2d"

# optimizer: {{_target_: torch.optim.SGD, lr: 0.01, momentum: 0.9}}
steps: 1
device: auto                          # auto | cpu | cuda | cuda:1 | mps | meta
dtype: float32                        # float64 | float16 | bfloat16
# autocast: bfloat16
seed: 0
"""

EXAMPLES = (
    ("gradscope init", "model.yaml, with the bundled network."),
    ("gradscope init net.yaml -m ./net.py:Net", "A config for your own class."),
)


def run(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The file to write; - is standard output.")
    ] = Path("model.yaml"),
    model: Annotated[
        str,
        typer.Option(
            "-m",
            "--model",
            metavar="SPEC",
            help="The model to put into it.",
            autocompletion=completing.models,
        ),
    ] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    debug: Debug = False,
) -> None:
    """Write a starter config: commented, and runnable as it is."""
    check_spec(model)
    folder = Path.cwd() if path == STDOUT else path.absolute().parent
    shown = "model.yaml" if path == STDOUT else shlex.quote(str(path))
    spec = _plain(_relative(model, folder))
    text = _STARTER.format(path=shown if shown.isprintable() else "FILE", model=spec)
    write_output(text, path, force=force)
    if path != STDOUT:
        print(f"wrote {path}; next: gradscope inspect {shown}", file=sys.stderr)


def _relative(spec: str, folder: Path) -> str:
    """The spec as a config in ``folder`` has to say it: its paths start there."""
    prefix, _, name = spec.rpartition(":") if ".py:" in spec else spec.partition(":")
    local, rest = (name, "") if prefix == "hf" else (prefix, f":{name}")
    if not (prefix == "hf" or prefix.endswith(".py")) or not Path(local).exists():
        return spec
    if Path(local).is_absolute() or folder == Path.cwd():
        return spec
    moved = Path(os.path.relpath(local, folder)).as_posix()
    moved = moved if moved.startswith(".") else f"./{moved}"
    return f"hf:{moved}" if prefix == "hf" else f"{moved}{rest}"


def _plain(spec: str) -> Any:
    """The spec as a YAML scalar, in quotes where it needs them."""
    return spec if re.fullmatch(r"[\w./][\w./:@-]*", spec) else json.dumps(spec)
