"""Reads a run for ``show`` and other commands, also while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

from gradscope.records.tensors import NormSeries
from gradscope.records.training import (
    StepSample,
    TrainedModel,
    TrainingEvent,
    TrainingFinding,
    TrainingRun,
    TrainingStep,
)
from gradscope.records.transformer import TransformerSeries
from gradscope.runfile.combining import (
    combined_parameters,
    combined_sample,
    combined_steps,
    with_spread,
)
from gradscope.runfile.folder import allow_open_files, files_of
from gradscope.runfile.norm_series import Key, Layout, combined_norms
from gradscope.runfile.rank_file import PartKey, RankFile, Series

__all__ = ["RunFile", "Series"]


class RunFile:
    """A run, opened for reading. Each method reads the files as they are at that moment.

    With several processes, the numbers are reduced over ranks: see ``norm_series.py`` and
    ``combining.py``. Calls are the lowest rank's, with their spread over all ranks.

    Attributes:
        files: the file of each process, by rank, with its own records and shards.
        source: the opened file or folder.
    """

    def __init__(self, source: Path, files: Sequence[RankFile], *, reduced: bool = False) -> None:
        self.source = source
        self.files = tuple(files)
        self.path = self.files[0].path
        self._first = self.files[0]
        self._combined = reduced

    @classmethod
    def open(cls, path: Path) -> RunFile:
        """Open a run's file, or the folder with a file for each rank.

        One rank's file gives that rank's numbers.

        Raises:
            ConfigError: there is none, or it is no run, damaged, or of a newer gradscope. Each
                method may raise it too: a file can be damaged anywhere.
        """
        with ExitStack() as opened:
            found, files = files_of(path), []
            if len(found) > 1:
                allow_open_files(len(found))
            for file in found:
                files.append(RankFile(file))
                opened.callback(files[-1].close)
            run = cls(path, files, reduced=path.is_dir() and files[0].run.world_size > 1)
            run._number_models()
            opened.pop_all()
        return run

    def _number_models(self) -> None:
        """Give each model one number in all files: its number in the first."""
        known = self._first.models
        for file in self.files[1:]:
            if _names(file.models) != _names(known):
                file.number_as(known)
                taken = {model.id for model in known}
                known = (*known, *(model for model in file.models if model.id not in taken))

    def __enter__(self) -> RunFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()

    @property
    def run(self) -> TrainingRun:
        """Header of the run. While it goes on, its ``steps`` are those that are written."""
        return self._first.run

    @property
    def runs(self) -> tuple[TrainingRun, ...]:
        """Headers of the run, one for each rank."""
        return tuple(file.run for file in self.files)

    @cached_property
    def _ranks(self) -> dict[int, RankFile]:
        return {file.run.rank: file for file in self.files}

    @property
    def layout(self) -> Layout:
        """Shards of each parameter on the ranks."""
        return Layout(
            {rank: file.placements for rank, file in self._ranks.items()},
            {rank: file.meshes for rank, file in self._ranks.items()},
        )

    @property
    def models(self) -> tuple[TrainedModel, ...]:
        """Return the models of all ranks, by id; a pipeline's stages come from several ranks."""
        found = {model.id: model for file in reversed(self.files) for model in file.models}
        return tuple(found[number] for number in sorted(found))

    @property
    def events(self) -> tuple[TrainingEvent, ...]:
        """Return the events of all ranks in order; the ``details`` of other ranks' events have
        ``rank``."""
        found: list[TrainingEvent] = []
        for rank, file in self._ranks.items():
            for event in file.events:
                other = file is not self._first
                details = {**event.details, "rank": rank} if other else event.details
                found.append(replace(event, details=details))
        if len(self.files) > 1:
            found.sort(key=lambda event: event.time)
        return tuple(found)

    @property
    def findings(self) -> tuple[TrainingFinding, ...]:
        """Return the findings of all ranks, each once, the first found first."""
        found: dict[object, TrainingFinding] = {}
        for file in self.files:
            for finding in file.findings:
                found.setdefault(finding.key, finding)
        return tuple(found.values())

    @property
    def last_step(self) -> int:
        """The number of the last step that is written; 0 before the first."""
        return self._first.last_step

    @property
    def written_by_all(self) -> tuple[int, int]:
        """The last step, and the last sampled step, that all processes of the run have written."""
        if not self._combined:
            return self.last_step, self.last_step
        recording = self.run.options.get("ranks")
        expected = len(recording) if isinstance(recording, list) else self.run.world_size
        if len(self.files) < expected:
            return 0, 0
        step = min(file.last_step for file in self.files)
        return step, min(step, *(max(file.sampled, default=0) for file in self.files))

    def steps(self, first: int = 1, last: int | None = None) -> tuple[TrainingStep, ...]:
        """Return the step metrics of these steps, both ends included, as far as they are kept."""
        if not self._combined:
            return self._first.steps(first, last)
        of_ranks = {rank: file.steps(first, last) for rank, file in self._ranks.items()}
        return combined_steps(of_ranks, self.layout)

    @property
    def sampled(self) -> tuple[int, ...]:
        """The numbers of the steps that have samples."""
        return self._first.sampled

    def sample(self, step: int, model: int | None = None) -> tuple[StepSample, ...]:
        """Return the samples of a step by model, or of one model only; empty if there is none."""
        if not self._combined:
            return self._first.sample(step, model)
        of_models: dict[int, dict[int, StepSample]] = {}
        for rank, file in self._ranks.items():
            for one in file.sample(step, model):
                of_models.setdefault(one.model, {})[rank] = one
        layout = self.layout
        return tuple(combined_sample(of_models[number], layout) for number in sorted(of_models))

    def call_series(
        self, model: int | None = None, *, after: int = 0
    ) -> dict[tuple[int, str, int], Series]:
        """Return series by model id, module name and call, in execution order; see
        ``CALL_COLUMNS``.

        Args:
            model: read this model only.
            after: read only the steps after this one.
        """
        files = self.files[: self._counted]
        own, *others = (file.call_series(model, after=after) for file in files)
        return with_spread(own, others) if self._combined else own

    def transformer_series(self, kind: str) -> dict[PartKey, TransformerSeries]:
        """Return the series of attention, experts or residual stream; see
        ``records.transformer.MEASURES``.

        If several ranks recorded one part, the lowest rank's series is returned: ranks have
        different samples.
        """
        found: dict[PartKey, TransformerSeries] = {}
        for file in self.files[: self._counted]:
            for key, one in file.transformer_series(kind).items():
                found.setdefault(key, one)
        return found

    def parameter_series(
        self, model: int | None = None, *, after: int = 0
    ) -> dict[tuple[int, str], Series]:
        """Return series by model id and parameter name, in model order; see
        ``PARAMETER_COLUMNS``.

        Args:
            model: read this model only.
            after: read only the steps after this one.
        """
        if not self._combined:
            return self._first.parameter_series(model, after=after)
        of_ranks = {
            rank: file.parameter_series(model, after=after) for rank, file in self._ranks.items()
        }
        return combined_parameters(of_ranks, self.layout)

    def norm_series(self, after: int = 0) -> dict[Key, NormSeries]:
        """Return the gradient's norms at every step that was read, by model id and parameter
        name.

        Args:
            after: read only the steps after this one.
        """
        if not self._combined:
            return self._first.norm_series(after)
        of_ranks = {rank: file.norm_series(after) for rank, file in self._ranks.items()}
        return combined_norms(of_ranks, self.layout)

    @property
    def _counted(self) -> int:
        return len(self.files) if self._combined else 1


def _names(models: Sequence[TrainedModel]) -> list[tuple[int, str]]:
    return [(model.id, model.name) for model in models]
