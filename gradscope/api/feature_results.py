"""Runs a model for every ``gradscope features`` command, and makes its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradscope.api.failing import is_own, problem
from gradscope.api.runs import versions
from gradscope.api.viewing import run_of
from gradscope.errors import ConfigError, GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.features.vectors import FeatureArray
from gradscope.loading.viewing import Viewer
from gradscope.records.features import FeaturesReport, SkippedImage
from gradscope.running.state import run_eagerly

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeatureResult:
    """The report; ``draw`` makes its pictures; ``features`` are those that it rests on, if any."""

    report: FeaturesReport
    draw: Callable[[], list[Image]]
    features: FeatureArray | None = None


@dataclass(slots=True)
class FeatureRun:
    """One action on one model: its notices and results, until they are a report.

    Raises:
        OptionError: a model without numbers, or one of several inputs.
    """

    viewer: Viewer
    action: str
    notices: list[str] = field(default_factory=list)
    skipped: list[SkippedImage] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.viewer.device.type == "meta":
            raise OptionError(
                "on the meta device tensors have no numbers", help="use `--device cpu`"
            )
        if self.viewer.inputs is not None:
            raise OptionError(
                "the model takes several inputs, and `gradscope features` gives it pictures only",
                help="wrap it in one that takes [N, C, H, W]; `saliency` takes several",
            )

    @property
    def seed(self) -> int:
        """Of whatever is drawn at random."""
        return int(self.viewer.config.get("seed") or 0)

    def report(self, layers: Sequence[str], **found: Any) -> FeaturesReport:
        """The report; a notice counts skipped pictures."""
        notices = [*self.viewer.notices, *self.notices]
        if self.viewer.random:
            notices.append(
                "weights: random, so the features mean nothing: `weights=DEFAULT` or "
                "`checkpoint=FILE` loads trained ones"
            )
        return FeaturesReport(
            run_of(self.viewer, notices, self.seed),
            self.action,
            tuple(layers),
            skipped=tuple(self.skipped),
            versions=versions(),
            config=self.viewer.config,
            **found,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within this the model runs; what it raises becomes an error with a report.

        Raises:
            ModelError: the model raised.
        """
        try:
            with run_eagerly():
                yield
        except (GradscopeError, KeyboardInterrupt):
            raise
        except Exception as error:
            if is_own(error):
                raise
            record = explain_error(error, "forward", [], self.viewer.model)
            run = run_of(self.viewer, [*self.viewer.notices, *self.notices], self.seed)
            report = FeaturesReport(
                run, self.action, status="failed", versions=versions(), error=record
            )
            where = ", ".join(getattr(error, "__notes__", ()))
            during = f"while `gradscope features {self.action}` ran the model {where}".rstrip()
            raise ModelError(problem(record, during), report=report) from error

    def require_pictures(self, used: int) -> None:
        """Refuse to go on without a single picture.

        Raises:
            ConfigError: each was skipped; the first reason is reported.
        """
        if not used:
            first = self.skipped[0]
            raise ConfigError(
                f"none of {len(self.skipped)} pictures can be used; the first, {first.image}: "
                f"{first.reason}"
            )
