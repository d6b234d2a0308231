"""Runs a model for the ``gradscope features`` commands, and makes the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from gradscope.api.failing import is_own, problem
from gradscope.api.opened import live_model_restored, versions
from gradscope.api.viewing import run_of, view
from gradscope.errors import ConfigError, GradscopeError, ModelError, OptionError
from gradscope.explain.errors.explain_exception import explain_error
from gradscope.features.pictures import Source, sources, tensor_sources
from gradscope.features.vectors import FeatureArray, FeatureCache, check_pooling, features_of
from gradscope.loading.kinds import require_constructed
from gradscope.loading.viewing import Viewer, live_viewer
from gradscope.records.features import FeaturesReport, SkippedImage
from gradscope.running.state import run_eagerly

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeatureResult:
    """The report. ``draw`` makes its pictures; ``features`` are the features that it describes, if
    any."""

    report: FeaturesReport
    draw: Callable[[], list[Image]]
    features: FeatureArray | None = None


@dataclass(slots=True)
class FeatureRun:
    """One command on one model: collects notices and results for the report.

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
        """Return the seed of all random draws."""
        return int(self.viewer.config.get("seed") or 0)

    def report(self, layers: Sequence[str], **found: Any) -> FeaturesReport:
        """Make the report; a notice counts skipped pictures."""
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
        """Run the model in the block; turn its exception into an error with a report.

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
            ConfigError: every picture was skipped; the message gives the first reason.
        """
        if not used:
            first = self.skipped[0]
            raise ConfigError(
                f"none of {len(self.skipped)} pictures can be used; the first, {first.image}: "
                f"{first.reason}"
            )


def features(
    model: nn.Module | str | Path | None,
    images: Tensor | Sequence[str | Path] | str | Path,
    layer: str | None = None,
    *,
    pool: str = "mean",
    cache: str | Path | None = None,
    mode: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    overrides: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> NDArray[np.float32]:
    """Return a layer's features for pictures, as ``gradscope features`` compares them.

    Args:
        model: a spec or a YAML path; a live module, whose state is restored; or None: ResNet-18
            with its weights.
        images: files, patterns, folders with their subfolders, or a tensor [N, C, H, W] that the
            model takes unchanged. A live module takes a tensor only.
        layer: the layer to read, at its last call; None: the input of the last linear layer.
        pool: how to reduce the places of a map or the steps of a sequence: ``mean``, ``max``, or
            ``none``, which keeps them all.
        cache: a ``.safetensors`` file with features of earlier calls; created if it does not exist.
        mode: "eval" or "train"; None: as in the config, else "eval".
        device, dtype: the device and dtype of a config's model; a live module stays.
        overrides: ``key=value`` pairs on top of a config.
        allow: import patterns that a config may use, as ``--allow``.

    Returns:
        [N, D] float32, in the order of the pictures; folders are sorted.

    Raises:
        GradscopeError: a name or an option is wrong, a picture cannot be read, or the model raised.
    """
    if isinstance(model, nn.Module):
        require_constructed(model)
        if not isinstance(images, Tensor):
            raise OptionError(
                "a live model has no transform for picture files",
                help="give a tensor [N, C, H, W] that the model takes",
            )
        kept: AbstractContextManager[None] = live_model_restored(model, mode or "eval")
        viewer = live_viewer(model)
    else:
        settings = {"mode": mode, "device": device, "dtype": dtype}
        given = {key: value for key, value in settings.items() if value is not None}
        viewer = view(None if model is None else str(model), overrides, given, allow)
        kept = nullcontext()
    several = [images] if isinstance(images, str | Path) else images
    pictures = tensor_sources(several) if isinstance(several, Tensor) else sources(several)
    task = FeatureRun(viewer, "features")
    with kept:
        found = collected(task, pictures, layer, pool, None if cache is None else Path(cache))
    if task.skipped:
        first, more = task.skipped[0], len(task.skipped) - 1
        raise ConfigError(
            f"{first.image}: {first.reason}" + (f" (and {more} more)" if more else ""),
            help="leave it out; `gradscope features` skips such pictures",
        )
    return found.values


def collected(
    task: FeatureRun,
    pictures: Sequence[Source],
    pattern: str | None,
    pooling: str,
    cache: Path | None,
) -> FeatureArray:
    """Return the features of every usable picture; ``task`` gets notes on the layer and on skipped
    pictures.

    Raises:
        GradscopeError: as ``features``.
    """
    check_pooling(pooling)
    opened = FeatureCache.open(cache, task.viewer, pattern, pooling) if cache else nullcontext()
    with task.running(), opened as file:
        found = features_of(
            pictures, task.viewer, pattern, task.skipped, pooling=pooling, cache=file
        )
    if pattern is None and found.layer:
        task.notices.append(f"features: {found.layer}, the last linear layer")
    if file is not None:
        task.notices.append(f"cache {cache}: {file.hits} of {len(pictures)} pictures were in it")
    return found


def usable(task: FeatureRun, found: FeatureArray, *, directions: bool) -> FeatureArray:
    """Return the features that can be compared; ``task`` gets a note on each skipped picture.

    With ``directions``, features that are all 0 are skipped too, because they have no angle.
    """
    finite = np.asarray(np.isfinite(found.values).all(axis=1))
    kept = finite & found.values.any(axis=1) if directions else finite
    for i in np.flatnonzero(~kept):
        reason = "all its features are 0: it has no direction" if finite[i] else ""
        reason = reason or "its features have NaN or Inf"
        task.skipped.append(SkippedImage(found.names[i], reason))
    return found if kept.all() else found.only(np.flatnonzero(kept).tolist())
