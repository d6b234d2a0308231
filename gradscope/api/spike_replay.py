"""Replays the step of a capsule with a model of the user's, and splits its gradient by sample.

A run splits the steps that stand out while it has the model. A capsule with weights has all that a
later replay needs except the model's code.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradscope.api.opened import Options, opened, read
from gradscope.api.spiking import chosen_capsule, spike_report, write_spike_config
from gradscope.errors import ConfigError, ModelError, OptionError, Place, Problem, TargetError
from gradscope.loading.workload import Workload
from gradscope.per_sample.contributions import NotSeparable, SampleGradients
from gradscope.per_sample.step import gradients_by_sample
from gradscope.records.report import Report
from gradscope.records.spike import Capsule, SpikeReport
from gradscope.rules import with_worst_first
from gradscope.runfile.capsules import changed, read_tensors
from gradscope.training.spikes.samples import input_sizes, with_parts, worst_first
from gradscope.typeset.numbers import number

#: Two norms of one gradient differ by at most this share, from other kernels and other machines.
_SAME, _SAME_LOW = 1e-3, 3e-2
#: The tensors of a capsule that its one call was given.
_INPUTS = ("call0.args.", "call0.kwargs.")


def replayed_spike(
    run: Path, step: int | None, model: str, *, without: Sequence[int] = ()
) -> SpikeReport:
    """Return the verdict on a spike after a replay with a model; see ``spike``.

    Args:
        run: its file, or the folder with the files of all ranks.
        step: the step of a capsule; None: the largest spike.
        model: the model in the notation of a config's ``model``, such as ``./net.py:Net``.
        without: indices of samples: also show the step without each of them.

    Raises:
        ConfigError: as ``spike``; or the capsule lacks what a replay needs, or the replay's
            gradient is not that of the step.
        OptionError: as ``spike``.
        GradscopeError: the model cannot be imported or built, or it raised.
    """
    path, capsule, steps = chosen_capsule(run, step)
    return spike_report(run, path, _replayed(run, path, capsule, model), steps, without)


def _replayed(run: Path, path: Path, capsule: Capsule, model: str) -> Capsule:
    """Return a capsule with its gradient split by sample."""
    _check(capsule)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.yaml"
        _, notes = write_spike_config(run, capsule.step, file)
        # From the user's folder, not from that of the config.
        here = re.sub(r"(?<![\w./~-])(?:\./|(?=\.\./))", f"{Path.cwd()}/", model)
        options = Options(overrides=[f"model={here}"])
        with (
            _no_training(),
            _as_typed(model, here, folder),
            _weights_fit(folder, capsule.step, model),
            opened(read(file, options), options, Report) as workload,
        ):
            found = _split(workload, capsule.step)
    scale = (capsule.signals[-1].loss_scale if capsule.signals else None) or 1.0
    check = _compared(capsule, found.norm / scale, model)
    own = [one for one in notes if "loss scale" not in one]
    kept = [one for one in capsule.notes if not one.startswith("not split by sample")]
    inputs = [t for name, t in read_tensors(path).items() if name.startswith(_INPUTS)]
    sizes = input_sizes(inputs, len(capsule.samples))
    split = replace(
        capsule,
        samples=worst_first(with_parts(capsule.samples, found, sizes, scale)),
        norm=found.norm / scale,
        mixing=found.mixing,
        notes=tuple(
            dict.fromkeys([*kept, f"split by sample in a replay with `{model}`: {check}", *own])
        ),
    )
    return with_worst_first(split)


def _check(capsule: Capsule) -> None:
    """Refuse a capsule that lacks what a replay needs."""
    step = f"step {capsule.step} cannot be replayed"
    if capsule.kind == "non-finite":
        raise ConfigError(f"{step}: a gradient with NaN or Inf has no parts")
    if len(capsule.calls) > 1:
        raise ConfigError(f"{step}: it has {len(capsule.calls)} calls of models, a replay has one")
    if not any(name.startswith("weights.") for name in capsule.tensors):
        raise ConfigError(
            f"{step}: the capsule has no weights",
            help="`gradscope run --capsule-weights` keeps them",
        )
    if sum(name.startswith("call0.gradients.") for name in capsule.tensors) != 1:
        raise ConfigError(f"{step}: not one gradient arrived at the model's outputs")


def _split(workload: Workload, step: int) -> SampleGradients:
    try:
        return gradients_by_sample(workload)[0]
    except NotSeparable as why:
        raise ConfigError(f"step {step} cannot be split by sample: {why}") from None


def _compared(capsule: Capsule, norm: float, model: str) -> str:
    """Return how the replay's gradient compares with that of the step.

    Raises:
        ConfigError: it is another.
    """
    step = capsule.signals[-1].gradient_norm if capsule.signals else None
    known = capsule.norm if capsule.norm is not None else step
    if known is None:
        return f"the gradient norm is {number(norm)}; that of the step is not known to compare"
    low = any(one.autocast or one.dtype in ("float16", "bfloat16") for one in capsule.calls)
    if abs(norm - known) > (_SAME_LOW if low else _SAME) * known:
        files = ", ".join(f"`{one}`" for one in changed(capsule.sources))
        raise ConfigError(
            f"the replay of step {capsule.step} with `{model}` has a gradient norm of "
            f"{number(norm)}, the step had {number(known)}: this is not the model of the step",
            help=f"changed since the run: {files}" if files else "check the model's arguments",
        )
    return f"the gradient norm is that of the step, {number(known)}"


@contextmanager
def _weights_fit(folder: str, step: int, model: str) -> Iterator[None]:
    """Say it of the capsule if its weights do not fit the model, not of a temporary file."""
    try:
        yield
    except ConfigError as error:
        problem = error.problems[0]
        if folder not in problem.message:
            raise
        _, _, reason = problem.message.partition(" does not fit the model, ")
        raise ConfigError(
            Problem(
                f"the weights of step {step} do not fit `{model}`: {reason or problem.message}",
                help="give its arguments, as in `--replay '{_target_: ./net.py:Net, width: 64}'`",
                notes=problem.notes,
            )
        ) from None


@contextmanager
def _as_typed(model: str, here: str, temporary: str) -> Iterator[None]:
    """Say errors of the option ``--replay``, with its paths as typed.

    Args:
        model: the option's value.
        here: the same with absolute paths.
        temporary: the folder of the step's config, whose problems repeat those of the option.
    """
    folder = f"{Path.cwd()}/"

    def typed(text: str) -> str:
        return text if model == here else text.replace(f"{folder}..", "..").replace(folder, "./")

    try:
        yield
    except (ConfigError, OptionError, TargetError, ModelError) as error:
        place = Place(f"--replay {model}")
        problems = [
            replace(
                one,
                message=typed(one.message),
                place=place if one.place and one.place.file == "argument" else one.place,
                help=one.help and typed(one.help),
                notes=tuple(map(typed, one.notes)),
            )
            for one in error.problems
            if len(error.problems) == 1
            or one.place is None
            or not one.place.file.startswith(temporary)
        ]
        if isinstance(error, ModelError):
            raise ModelError(*problems, report=error.report) from error.__cause__
        raise type(error)(*problems) from error.__cause__


@contextmanager
def _no_training() -> Iterator[None]:
    """Stop a file whose import trains at the first step of an optimizer."""

    def refuse(*_: Any) -> None:
        raise RuntimeError(
            "the file trains while it is imported: put the training under "
            '`if __name__ == "__main__":`, or the class into a file of its own'
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
