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
import yaml

from gradscope.commands import _completing as completing
from gradscope.commands._model import importing_torch
from gradscope.commands._options import Allow, Debug, flag, option
from gradscope.commands._running import keep_stdout_clean
from gradscope.commands._write import STDOUT, write_output
from gradscope.config.loaded_config import check_spec, read
from gradscope.config.targets import MISSING, is_own
from gradscope.errors import visible
from gradscope.output_files import expanded

if TYPE_CHECKING:
    from gradscope.loading.starter import Start
    from gradscope.loading.targets import Argument

_STARTER: Final = """\
# What flows through a model, forward and backward: gradscope inspect {path}
# Every key but `model` has a default; `gradscope schema` prints all values of a key.

{model}
# model: torchvision:resnet18         # or timm:NAME, hf:DIR_OR_ID, ./net.py:Name, pkg.mod:Name
# model: {{_target_: torchvision.models.resnet18, num_classes: 10}}

# weights: DEFAULT                    # left out: random weights
# checkpoint: weights.safetensors     # .pt and .pth are read with weights_only=True
# replace: {{fc: {{_target_: torch.nn.Linear, in_features: 512, out_features: 10}}}}
# freeze: ["**", "!fc.**"]            # parameters that get no gradient, by pattern
mode: train                           # train | eval

{input}
# target: [3, 7]                      # class ids, values, a file, or random
# call: training_step                 # a method to call instead of forward, with the batch
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

_INPUT: Final = """\
# Left out, the input is inferred from the model, and the table says how.
# input: {shape: [2, 3, 224, 224]}    # also image, file, text, tokens, values; a mapping of
#                                     # these is keyword arguments, a list positional ones"""

EXAMPLES = (
    ("gradscope init", "model.yaml, with the bundled network."),
    ("gradscope init net.yaml -m ./net.py:Net", "A config for your own class."),
)


#: Usual names of an object with all settings.
_CONFIGS: Final = ("args", "cfg", "conf", "config", "hparams", "opt", "opts", "params", "settings")


def run(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The file to write; - is standard output.")
    ] = Path("model.yaml"),
    model: Annotated[
        str,
        option(
            "SPEC",
            "The model of the config. For a class of your own, its file is imported, and each "
            "argument gets a line.",
            "-m",
            "--model",
            complete=completing.models,
        ),
    ] = "demo",
    allow: Allow = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    debug: Debug = False,
) -> None:
    """Write a starter config: commented, and ready to run.

    Write a value for each `???`: an argument without a default.
    """
    check_spec(model)
    folder = Path.cwd() if path == STDOUT else path.absolute().parent
    shown = "model.yaml" if path == STDOUT else shlex.quote(str(path))
    start = _start(model, allow or [])
    text = _STARTER.format(
        path=shown if shown.isprintable() else "FILE",
        model="\n".join(_model(_relative(model, folder), start.arguments if start else ())),
        input=_input(start),
    )
    write_output(text, path, force=force)
    if path != STDOUT:
        open_ = text.count(f": {MISSING}")
        first = f"write a value for each of its {open_} `{MISSING}`, then" if open_ else "next:"
        run = f"gradscope inspect {shown}{_permission(model, folder)}"
        print(visible(f"wrote {path}; {first} {run}"), file=sys.stderr)


def _start(spec: str, allow: Sequence[str]) -> Start | None:
    """Return facts on the user's own model; None for a library's."""
    if not is_own(spec):
        return None
    # Only these need torch, which takes seconds to import.
    with importing_torch():
        from gradscope.loading.starter import start_of
    with keep_stdout_clean():
        return start_of(read(spec), allow)


def _permission(spec: str, folder: Path) -> str:
    """Return the ``--allow`` option that the config needs to name its model's file; "" if it needs
    none."""
    file = spec.rpartition(":")[0]
    if not file.endswith(".py"):
        return ""
    from gradscope.loading.imports import OwnCode  # it was imported to read the class

    path = expanded(file).resolve()
    own = OwnCode([folder, Path.cwd()]).offers(path)
    return "" if own else f" --allow {shlex.quote(os.path.relpath(path))}"


def _model(spec: str, arguments: Sequence[Argument]) -> Iterator[str]:
    """Yield the lines of the key `model`: the spec, and the arguments of the user's class."""
    if not arguments:
        yield f"model: {_plain(spec)}"
        return
    yield "model:"
    yield f"  _target_: {_plain(spec)}"
    for argument in arguments:
        yield from _argument(argument, "  ")


def _input(start: Start | None) -> str:
    """Return the key `input`; a comment if the run infers it."""
    if start is None or start.input is None:
        return _INPUT
    first, *rest = _block("input", start.input)
    return "\n".join([_line(first, start.comment), *rest])


def _block(key: str, value: Any, indent: str = "") -> Iterator[str]:
    """Yield a key with its value; a source is on one line, unless a part of it is missing."""
    inner = list(value.values()) if isinstance(value, dict) else []
    if value == MISSING:
        yield f"{indent}{key}: {MISSING}"
    elif any(isinstance(part, dict) or part == MISSING for part in inner):
        yield f"{indent}{key}:"
        for name, part in value.items():
            yield from _block(name, part, f"{indent}  ")
    else:
        written = yaml.safe_dump(
            {key: value}, default_flow_style=True, sort_keys=False, width=10_000
        )
        yield f"{indent}{written.strip()[1:-1]}"


def _argument(argument: Argument, indent: str, *, written: bool = False) -> Iterator[str]:
    """Yield one argument, with the fields of its dataclass.

    An argument with a default is a comment, unless ``written``.
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
    """Return a default as YAML; in words if it is no plain value."""
    try:
        return json.dumps(value, allow_nan=False), ""
    except (TypeError, ValueError):
        return "…", f"default {getattr(value, '__name__', type(value).__name__)}"


def _relative(spec: str, folder: Path) -> str:
    """Return the spec for a config in ``folder``: its paths start there."""
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
    """Return the spec as a YAML scalar, in quotes if needed."""
    return spec if re.fullmatch(r"[\w./][\w./:@-]*", spec) else json.dumps(spec)
