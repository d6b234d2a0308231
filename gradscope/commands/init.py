"""``gradscope init``: a starter config that runs as it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gradscope.commands import _completing as completing
from gradscope.commands._options import Allow, Debug
from gradscope.commands._write import STDOUT, write_output
from gradscope.config import check_spec
from gradscope.config.specs import is_own
from gradscope.config.targets import MISSING
from gradscope.errors import visible

if TYPE_CHECKING:
    from gradscope.loading.signatures import Argument

_STARTER: Final = """\
# What flows through a model, forward and backward: gradscope inspect {path}
# Every key but `model` has a default; `gradscope schema` prints all that a key can be.

{model}
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
# call: training_step                 # a method in the place of forward, with the batch
# loss: cross_entropy                 # mse | bce_with_logits | nll | sum | mean | logit | output
# backward: {{repeats: 2, retain_graph: true}}

# accumulate: 4                       # micro-batches of each step
# interventions: [{{layers: conv1, at: grad_output, do: scale, value: 2}}]   # change what flows

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


#: What people call an object that holds all settings.
_CONFIGS: Final = ("args", "cfg", "conf", "config", "hparams", "opt", "opts", "params", "settings")


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
            help="The model to put into it. Of a class of your own the file is imported, and each "
            "argument gets a line.",
            autocompletion=completing.models,
        ),
    ] = "demo",
    allow: Allow = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    debug: Debug = False,
) -> None:
    """Write a starter config: commented, and runnable as it is.

    Arguments without a default stand as `???`, for you to write.
    """
    check_spec(model)
    folder = Path.cwd() if path == STDOUT else path.absolute().parent
    shown = "model.yaml" if path == STDOUT else shlex.quote(str(path))
    lines = list(_model(_relative(model, folder), folder, allow or []))
    block = "\n".join(lines)
    text = _STARTER.format(path=shown if shown.isprintable() else "FILE", model=block)
    write_output(text, path, force=force)
    if path != STDOUT:
        open_ = sum(f": {MISSING}" in line for line in lines)
        first = f"write a value for each of its {open_} `{MISSING}`, then" if open_ else "next:"
        print(visible(f"wrote {path}; {first} gradscope inspect {shown}"), file=sys.stderr)


def _model(spec: str, folder: Path, allow: Sequence[str]) -> Iterator[str]:
    """The lines of the key `model`: the spec, and what a class or function of one's own takes."""
    found: tuple[Argument, ...] = ()
    if is_own(spec):
        # Only these need torch, which takes seconds to import.
        from gradscope.loading import specs
        from gradscope.loading.targets import Targets

        found = specs.arguments(spec, Targets(folder, allow))
    if not found:
        yield f"model: {_plain(spec)}"
        return
    yield "model:"
    yield f"  _target_: {_plain(spec)}"
    for argument in found:
        yield from _argument(argument, "  ")


def _argument(argument: Argument, indent: str, *, written: bool = False) -> Iterator[str]:
    """One argument, with the fields of the dataclass that it asks for.

    One with a default is a comment, unless it is to be ``written``.
    """
    wants = " ".join(argument.wants.split())
    if argument.required and argument.fields:
        needed = any(one.required for one in argument.fields)
        block = [_argument(one, f"{indent}  ", written=not needed) for one in argument.fields]
        lines = [line for one in block for line in one]
        empty = all(line.lstrip().startswith("#") for line in lines)
        yield _line(f"{indent}{argument.name}:{' {}' if empty else ''}", wants)
        yield from [] if empty else lines
    elif argument.required:
        hint = "for attributes {_target_: types.SimpleNamespace, …}"
        wants = wants or (hint if argument.name in _CONFIGS else "")
        yield _line(f"{indent}{argument.name}: {MISSING}", wants)
    else:
        value, message = _default(argument.default)
        mark = "" if written and not message else "# "
        message = ", ".join(filter(None, (wants, message)))
        yield _line(f"{indent}{mark}{argument.name}: {value}", message)


def _line(text: str, comment: str) -> str:
    return f"{text:<37} # {comment}" if comment else text


def _default(value: Any) -> tuple[str, str]:
    """A default as YAML, and in words where it is no plain value."""
    try:
        return json.dumps(value, allow_nan=False), ""
    except (TypeError, ValueError):
        return "…", f"default {getattr(value, '__name__', type(value).__name__)}"


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
