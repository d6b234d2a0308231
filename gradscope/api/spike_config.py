"""Writes a config that repeats the step of a capsule: ``spike --as-config``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradscope.api.spiking import chosen_capsule
from gradscope.errors import ConfigError, OptionError
from gradscope.output_files import check_file, whole_file, write_file
from gradscope.records.spike import Capsule
from gradscope.runfile.capsules import changed, read_tensors

_SUFFIXES = (".yaml", ".yml")


def write_spike_config(
    run: Path, step: int | None, file: Path, *, force: bool = False
) -> tuple[Capsule, list[str]]:
    """Write a config that repeats the step of a spike, and its tensors beside it.

    The input is the input of the call with the worst sample. Backward starts at the model's output,
    with the gradient that arrived there, so the script's loss is not needed. The capsule does not
    know how the model is built, so the user fills in ``model``.

    Returns:
        The capsule, and notices on missing parts of the config.

    Raises:
        ConfigError: there is no capsule, it has no tensors, or no config can express its inputs.
        OptionError: the suffix is not ``.yaml``, or a file cannot be written.
    """
    if file.suffix not in _SUFFIXES:
        raise OptionError(f"`--as-config {file}`: a config is a .yaml file")
    path, capsule, _ = chosen_capsule(run, step)
    import safetensors.torch

    tensors: dict[str, Any] = read_tensors(path) if capsule.tensors else {}
    call = capsule.samples[0].call if capsule.samples else 0
    parts = _parts(tensors, f"call{call}.")
    if not parts["args"] and not parts["kwargs"]:
        raise ConfigError(f"`{path}` has no tensors of the model's inputs")
    if (parts["args"] and parts["kwargs"]) or any(
        "." in name for own in parts.values() for name in own
    ):
        raise ConfigError(
            f"`{path}`: a config has positional inputs or keyword inputs, each a tensor, not both",
            help="`--export FILE.safetensors` writes the tensors of the worst sample",
        )
    files: dict[Path, Mapping[str, Any]] = {}

    def beside(name: str, content: Mapping[str, Any]) -> str:
        target = file.with_name(f"{file.stem}.{re.sub(r'[^0-9A-Za-z_-]', '_', name)}.safetensors")
        files[target] = content
        return json.dumps(target.name)

    lines = [
        f"# Step {capsule.step} of {run.name}: the model's inputs, and the gradient at its output.",
        f"model: ???  # how `{capsule.model or 'the model'}` is built, as in ./train.py:Net",
    ]
    weights = {
        n.removeprefix("weights."): t for n, t in tensors.items() if n.startswith("weights.")
    }
    notes = []
    if weights:
        lines.append(f"checkpoint: {beside('weights', weights)}")
    else:
        notes.append("the capsule has no weights: `gradscope run --capsule-weights` keeps them")
    notes += [
        f"`{one}` has changed since the run: the step may not repeat"
        for one in changed(capsule.sources)
    ]
    lines.append("input:")
    for name, tensor in sorted(parts["args"].items(), key=lambda item: int(item[0])):
        lines.append(f"  - {{file: {beside(f'input-{name}', {'tensor': tensor})}}}")
    for name, tensor in parts["kwargs"].items():
        lines.append(f"  {name}: {{file: {beside(f'input-{name}', {'tensor': tensor})}}}")
    gradients = list(parts["gradients"].values())
    if len(gradients) == 1:
        gradient = beside("gradient", {"tensor": gradients[0]})
        lines.append(f"backward: {{gradient: {{file: {gradient}}}}}")
    else:
        notes.append(
            f"{len(gradients)} gradients arrived at the model's outputs: set the key `loss`"
        )
    for each in (file, *files):
        check_file(each, force=force)
    for each, content in files.items():
        with whole_file(each, force=force) as temporary:
            safetensors.torch.save_file(dict(content), temporary)
    write_file("\n".join([*lines, ""]).encode("utf-8"), file, force=force)
    return capsule, notes


def _parts(tensors: Mapping[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    """Return the tensors of a call, by their kind and then by name."""
    found: dict[str, dict[str, Any]] = {"args": {}, "kwargs": {}, "gradients": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and kind in found:
            found[kind][rest] = tensor
    return found
