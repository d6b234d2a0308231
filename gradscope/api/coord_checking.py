"""``coord-check``: how activations, and their change in training, scale with a model's width."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gradscope import progress
from gradscope.api.failing import explained_failure, fail
from gradscope.api.opened import Options, opened, read, run_info, versions, without
from gradscope.capture.hooks import select_layers
from gradscope.capture.parameters import parameter_count
from gradscope.comparison.alignment import CallKey
from gradscope.comparison.scaling import THRESHOLD, judged
from gradscope.config.loaded_config import LoadedConfig
from gradscope.config.width_scales import full_key, overrides_at, widths_of
from gradscope.errors import OptionError, few
from gradscope.loading.workload import Workload
from gradscope.records.coord_check import CoordCheckReport, LayerScaling, ScaledKey, Series
from gradscope.reporters.header import label
from gradscope.running.coordinates import CoordinateObserver, Coordinates
from gradscope.running.handover import hand_batch
from gradscope.running.step import run
from gradscope.typeset.numbers import count

#: The default numbers of optimizer steps and of initialisations.
STEPS, SEEDS = 4, 3
#: The measurements of one forward.
Entries = dict[CallKey, Coordinates]


def coord_check(
    model: str | Path,
    scale: Mapping[str, Sequence[Any]],
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    layers: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    target: Any = None,
    loss: str | None = None,
    optimizer: Any = None,
    mode: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> CoordCheckReport:
    """Train a model for a few steps at several widths, and say which layers scale with the width.

    All steps of all widths and seeds have the same batch.

    Args:
        model: a config: a YAML path, or a spec such as ``./net.py:Net``.
        scale: values of config keys, one for each width: ``{"model.width": [64, 128, 256]}``. A
            name without a dot is an argument of the model. The first key's values are the
            widths.
        steps: the number of optimizer steps.
        seeds: the number of initialisations, from the config's seed on.
        layers, exclude: patterns of the layers to measure.
        target, loss, optimizer: replace those of the config.
        mode: "train" or "eval".
        device, dtype: the device and dtype of the model.
        seed: the first seed.
        overrides: ``key=value`` pairs on top of the config.
        allow: import patterns that the config may use, as ``--allow``.

    Returns:
        A row for each layer, with the slopes of log RMS over log width. Its ``status`` is
        "findings" if a layer grows or vanishes, else "ok".

    Raises:
        ModelError: the model raised; ``.report`` says why, ``__cause__`` is the exception.
        OptionError: the scale is wrong, or changes nothing.
        GradscopeError: the config, a name or a file is wrong.
    """
    if steps < 1 or seeds < 2:
        raise OptionError("a coordinate check needs one step and two seeds, or more")
    widths = widths_of(scale)
    patterns = without(layers, exclude)
    options = Options.of(locals(), layers=None if patterns == ("**",) else patterns)
    options = replace(options, steps=steps + 1)
    config = _read(model, options).config
    scale = {full_key(key, config.model): tuple(values) for key, values in scale.items()}
    first = range(config.seed, config.seed + seeds)
    check = _Check(model, options, scale, widths, tuple(first), steps)
    for position in range(len(widths)):
        check.train(position)
    return check.report()


def _read(model: str | Path, options: Options) -> LoadedConfig:
    loaded = read(model, options)
    assert isinstance(loaded, LoadedConfig)
    return loaded


@dataclass
class _Check:
    """The trainings of one check.

    Attributes:
        scale: the values of each key, by its full name.
        sizes: the number of values in all parameters, at each width so far.
        trained: the measurements of each seed, at each width so far.
        begun: the report of the first training, without rows.
    """

    model: str | Path
    options: Options
    scale: Mapping[str, Sequence[Any]]
    widths: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    sizes: list[int] = field(default_factory=list)
    trained: list[list[list[Entries]]] = field(default_factory=list)
    types: dict[CallKey, str] = field(default_factory=dict)
    output: CallKey = ("", 0)
    epsilon: float = 0.0
    begun: CoordCheckReport | None = None

    def train(self, position: int) -> None:
        """Train at one width from each seed, on the batch of the first training."""
        overrides = [*self.options.overrides, *overrides_at(self.scale, position)]
        key, values = next(iter(self.scale.items()))
        given: tuple[Any, Any, int] | None = None
        self.trained.append([])
        for seed in self.seeds:
            options = replace(self.options, overrides=overrides, seed=seed)
            during = f"at {key} = {values[position]}, seed {seed}"
            loaded = _read(self.model, options)
            with progress.within(during), opened(loaded, options, CoordCheckReport) as workload:
                if workload.device.type == "meta":
                    raise OptionError(
                        "`meta` has shapes alone: nothing can be trained", help="use `cpu`"
                    )
                workload.accumulate = 1  # the batch is the same; each layer is called once
                criterion = workload.criterion
                if given is None:
                    self._check_size(parameter_count(workload.model))
                    hand_batch(workload, workload)
                    given = workload.batches, criterion.target, criterion.seed
                workload.batches, criterion.target, criterion.seed = given
                self.trained[-1].append(self._measured(workload, during))

    def _check_size(self, size: int) -> None:
        """Refuse a key that no parameter depends on: all slopes would be zero."""
        if size in self.sizes:
            keys = " and ".join(f"`{key}`" for key in self.scale)
            raise OptionError(
                f"{keys}: the model has the same {count(size)} parameters at two widths",
                help="name the argument that sets the width of its layers",
            )
        self.sizes.append(size)

    def _measured(self, workload: Workload, during: str) -> list[Entries]:
        names = {m: n.name for m, n in select_layers(workload.model, workload.layers).items()}
        observer = CoordinateObserver(names={**names, workload.model: ""})
        began = time.perf_counter()
        run(workload, observer)
        error = explained_failure(workload, observer, seconds=time.perf_counter() - began)
        if self.begun is None or error is not None:
            self.begun = self._without_rows(workload, observer.optimizer)
        if observer.failure is not None:
            fail(observer, replace(self.begun, status="failed", error=error), during)
        self.types |= observer.types
        self.output = observer.output
        self.epsilon = torch.finfo(workload.autocast or workload.dtype).eps
        return observer.steps

    def _without_rows(self, workload: Workload, optimizer: str | None) -> CoordCheckReport:
        return CoordCheckReport(
            run_info(workload, (), steps=self.steps, optimizer=optimizer),
            versions=versions(),
            config=workload.config,
            scale=tuple(ScaledKey(key, tuple(values)) for key, values in self.scale.items()),
            widths=self.widths,
            seeds=self.seeds,
            steps=self.steps,
            threshold=THRESHOLD,
        )

    def report(self) -> CoordCheckReport:
        """Return the verdict on each layer that all trainings have."""
        every = [steps[0] for own in self.trained for steps in own]
        common = [key for key in every[0] if all(key in entries for entries in every)]
        layers = tuple(map(self._judged, common))
        missing = sorted({label(*key) for entries in every for key in entries if key not in common})
        assert self.begun is not None
        notices = self.begun.run.notices
        if missing:
            notices += (f"not called at every width: {few(missing, '`')}",)
        bad = any(one.severity in ("error", "warning") for one in layers)
        return replace(
            self.begun,
            run=replace(self.begun.run, notices=notices),
            status="findings" if bad else "ok",
            parameters=tuple(self.sizes),
            layers=layers,
        )

    def _judged(self, key: CallKey) -> LayerScaling:
        activations, changes = (self._series(key, n) for n in range(2))
        return judged(
            key[0],
            self.types[key],
            key[1],
            self.widths,
            activations,
            changes,
            output=key == self.output,
            epsilon=self.epsilon,
        )

    def _series(self, key: CallKey, number: int) -> Series:
        """Return a layer's activations (0) or their changes (1): by step, width and seed."""
        missing = Coordinates(None, None)
        return tuple(
            tuple(tuple(m[step].get(key, missing)[number] for m in own) for own in self.trained)
            for step in range(self.steps + 1)
        )
