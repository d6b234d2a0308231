"""``spike``: which sample caused a spike, from the capsules beside a run, and a config that repeats
the step of a capsule. Without torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradscope.errors import ConfigError, OptionError
from gradscope.output_files import atomic_file, check_file, write_file
from gradscope.records.spike import CallState, Capsule, SpikeReport, SpikeSample, Without
from gradscope.reporters.header import listed
from gradscope.rules import AFTERMATH, has_unusual_input, spike_cause
from gradscope.runfile.capsules import changed, every_capsule, metadata, read_capsule, read_tensors
from gradscope.runfile.folder import files_of
from gradscope.typeset.numbers import number


def spike(run: Path, step: int | None = None, *, without: Sequence[int] = ()) -> SpikeReport:
    """Return the verdict on one spike of a run.

    Args:
        run: its file, or the folder with the files of all ranks.
        step: the step of a capsule; None: the largest spike.
        without: indices of samples: also show the step without each of them.

    Raises:
        ConfigError: the run or the capsule does not exist, or the capsule is damaged.
        OptionError: no capsule has that step, or the sample does not exist.
    """
    path, capsule, steps = chosen_capsule(run, step)
    return spike_report(run, path, capsule, steps, without)


def spike_report(
    run: Path, path: Path, capsule: Capsule, steps: Sequence[int], without: Sequence[int]
) -> SpikeReport:
    """Return the verdict on a capsule; ``path`` is its file, ``steps`` has those of all capsules.

    Raises:
        OptionError: a sample of ``without`` does not exist, or the gradient was not split.
    """
    cause, message = spike_cause(capsule)
    return SpikeReport(
        capsule.step,
        cause,
        message,
        run=str(run),
        file=str(path),
        reason=capsule.reason,
        model=capsule.model,
        norm=capsule.norm,
        samples=capsule.samples,
        signals=capsule.signals,
        state=capsule.state,
        mixing=capsule.mixing,
        notes=capsule.notes,
        without=tuple(_without(capsule, index) for index in without),
        others=tuple(one for one in steps if one != capsule.step),
        rank=capsule.rank,
        earlier=capsule.earlier,
        calls=capsule.calls,
        bytes=path.stat().st_size,
    )


def export_sample(run: Path, step: int | None, file: Path, *, force: bool = False) -> SpikeSample:
    """Write the tensors of the worst sample of a spike, as safetensors or by ``torch.save``.

    A ``.pt`` file holds a dict of tensors, which ``torch.load(weights_only=True)`` reads.

    Raises:
        ConfigError, OptionError: as ``spike``, and if no tensors were kept or the file cannot be
            written.
    """
    if file.suffix not in _TENSORS:
        raise OptionError(f"`--export {file}`: tensors are written as {' or '.join(_TENSORS)}")
    path, capsule, _ = chosen_capsule(run, step)
    if not capsule.samples or not capsule.tensors:
        raise ConfigError(f"`{path}` has no tensors of samples")
    import safetensors.torch  # only this needs torch
    import torch

    worst = capsule.samples[0]
    count = sum(one.call == worst.call for one in capsule.samples)
    own = (f"call{worst.call}.", f"loss{worst.call}.")
    rows = {}
    for name, tensor in read_tensors(path).items():
        if ".random." in name:
            continue
        if name.startswith(own) and tensor.dim() and tensor.shape[0] % count == 0:
            each = tensor.shape[0] // count
            rows[name] = tensor[worst.index * each : (worst.index + 1) * each].clone()
    with atomic_file(file, force=force) as temporary:
        if file.suffix == ".pt":
            torch.save(rows, temporary)
        else:
            safetensors.torch.save_file(rows, temporary, metadata(capsule))
    return worst


#: Suffixes of a file with tensors.
_TENSORS = (".safetensors", ".pt")


def chosen_capsule(run: Path, step: int | None) -> tuple[Path, Capsule, list[int]]:
    """Return the capsule of a step, or of the largest spike: its file, the capsule, the steps of
    all.

    Raises:
        ConfigError, OptionError: as ``spike``.
    """
    files_of(run)  # whether there is a run
    found = every_capsule(run)
    if not found:
        raise ConfigError(
            f"`{run}` has no capsule: no step stood out (GS601, GS602, NaN), or capsules were off",
            help="`gradscope run --capsule STEP SCRIPT.py` keeps a step in any case",
        )
    steps = list(dict.fromkeys(number for number, _ in found))
    if step is not None and step not in steps:
        raise OptionError(
            f"`{run}` has no capsule of step {step}",
            help=f"its capsules are of steps {listed(steps)}",
        )
    capsules = []
    for of, path in found:
        try:
            capsules.append((path, read_capsule(path)))
        except ConfigError:
            if step in (None, of):
                raise
    capsules = [one for one in _with_later(capsules) if step in (None, one[1].step)]
    # Ranks share a gradient; the rank whose samples caused the spike has the evidence.
    worst = max(capsules, key=lambda one: (*_size(one[1]), _blames(one[1]), -one[1].step))
    # No sample writes to the weights.
    evident = has_unusual_input(worst[1]) and _blames(worst[1])  # whatever came before the step
    if step is None and not (evident or spike_cause(worst[1])[0] == "weights"):
        worst = _made_by(worst, capsules)
    return *worst, steps


def _with_later(capsules: Sequence[tuple[Path, Capsule]]) -> list[tuple[Path, Capsule]]:
    """Return the capsules, corrected by later ones: inputs that repeat one value are usual if
    several later steps have such inputs.
    """
    found = []
    for path, one in capsules:
        later = [c.history for _, c in capsules if c.step > one.step and c.rank == one.rank]
        usual = [h.constant or 0 for h in later if h.constant_steps > 1]
        if usual and one.history.constant == 0:
            one = replace(one, history=replace(one.history, constant=max(usual)))
        found.append((path, one))
    return found


def _made_by(
    worst: tuple[Path, Capsule], capsules: Sequence[tuple[Path, Capsule]]
) -> tuple[Path, Capsule]:
    """Return the spike that began the series of the largest one, if a sample caused it. If the
    cause of the largest one is undetermined, return the first with any other cause.
    """
    step = worst[1].step
    # If only a sample's loss is unusual, it did not cause the spike of another sample.
    others = ("asked", "sample") if _blames(worst[1]) else ("asked",)
    before = [
        one
        for one in capsules
        if step - AFTERMATH <= one[1].step < step and one[1].kind not in others
    ]
    found = [one for one in before if _blames(one[1])]
    if spike_cause(worst[1])[0] == "undetermined":
        found += [one for one in before if spike_cause(one[1])[0] != "undetermined"]
    return next(iter(found), worst)


def _blames(capsule: Capsule) -> bool:
    """Return True if a sample caused the spike."""
    return spike_cause(capsule)[0] in ("samples", "labels")


def _size(capsule: Capsule) -> tuple[int, bool, float]:
    """Return the rank of a step: the first NaN or Inf, then spikes, then the most unusual other
    steps; of these, first those with a cause. Damage to the weights is as sure as a spike.
    """
    cause = spike_cause(capsule)[0]
    found = cause != "undetermined"
    if capsule.kind == "non-finite":
        return 3, found, 0.0
    if capsule.kind == "asked":
        return 0, found, 0.0
    unusual = (capsule.kind == "highest" and cause != "weights") or (
        capsule.kind in ("input", "sample") and not found
    )
    return 1 if unusual else 2, found, _score(capsule)


def _score(capsule: Capsule) -> float:
    """Return how far a step stands out; of an older capsule, by its loss and its gradient."""
    if capsule.score is not None:
        return capsule.score
    now = capsule.signals[-1] if capsule.signals else None
    ratios = [1.0]
    if now is not None and now.loss and capsule.usual_loss:
        ratios.append(now.loss / capsule.usual_loss)
    if capsule.norm and capsule.usual_norm:
        ratios.append(capsule.norm / capsule.usual_norm)
    return max(ratios)


def _without(capsule: Capsule, index: int) -> Without:
    found = [one for one in capsule.samples if one.index == index]
    if not found:
        raise OptionError(f"`--without {index}`: the step has no such sample")
    one, norm = found[0], capsule.norm
    if one.share is None or one.gradient_norm is None or not norm:
        raise OptionError(f"`--without {index}`: the gradient was not split into samples")
    along = one.share * norm**2
    rest = math.sqrt(max(0.0, norm**2 - 2 * along + one.gradient_norm**2))
    return Without(index, rest, (norm**2 - along) / (norm * rest) if rest else 0.0)


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
    if call < len(capsule.calls):
        state = capsule.calls[call]
        lines += _state_lines(state, notes)
        if state.random:
            kept = {name: tensors[f"call{call}.random.{name}"] for name in state.random}
            lines.append(f"random_state: {beside('random', kept)}")
    else:
        notes.append(
            "the capsule is of an older gradscope: the mode, autocast and the random state of the "
            "step are not known"
        )
    if len(capsule.calls) > 1:
        notes.append(
            f"the step has {len(capsule.calls)} calls of models: the config repeats the one with "
            "the worst sample"
        )
    scale = capsule.signals[-1].loss_scale if capsule.signals else None
    if parts["gradients"] and scale not in (None, 1.0):
        notes.append(f"the gradient at the output includes the loss scale {number(scale)}")
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
        with atomic_file(each, force=force) as temporary:
            safetensors.torch.save_file(dict(content), temporary)
    write_file("\n".join([*lines, ""]).encode("utf-8"), file, force=force)
    return capsule, notes


def _state_lines(state: CallState, notes: list[str]) -> Iterator[str]:
    """Yield the config's keys for the state around a call; a note names state without a key."""
    if not state.training and not state.others:
        yield "mode: eval"
    elif not state.training:
        others = ["**", *(f"!{name}" for name in state.others)]
        yield f"eval_modules: {json.dumps(others)}"
    elif state.others:
        yield f"eval_modules: {json.dumps(list(state.others))}"
    if state.frozen:
        yield f"freeze: {json.dumps(list(state.frozen))}"
    if state.dtype not in ("", "float32"):
        yield f"dtype: {state.dtype}"
    elif not state.dtype:
        notes.append("the model's parameters have several dtypes: set the key `dtype`")
    dtypes = sorted(set(state.autocast.values()))
    if len(dtypes) == 1:
        yield f"autocast: {dtypes[0]}"
    elif dtypes:
        each = ", ".join(f"{dtype} on {device}" for device, dtype in state.autocast.items())
        notes.append(f"autocast was {each}: set the key `autocast`")
    if state.random is None:
        notes.append("a random state of the step is not known: the forward may draw other numbers")


def _parts(tensors: Mapping[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    """Return the tensors of a call, by their kind and then by name."""
    found: dict[str, dict[str, Any]] = {"args": {}, "kwargs": {}, "gradients": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and kind in found:
            found[kind][rest] = tensor
    return found
