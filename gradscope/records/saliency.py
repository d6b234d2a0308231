"""Records of heat maps, without the maps themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.run import ErrorRecord, RunInfo
from gradscope.records.showing import Shown


@dataclass(frozen=True, slots=True)
class ClassScore:
    """The score of one class for a picture: its logit, and its probability after softmax.

    For a segmentation, ``score`` is the mean logit over the selected pixels, and ``pixels`` the
    share of all pixels predicted as this class; ``probability`` is None. It is also None if the
    model returns a single number.
    """

    id: int
    score: float
    probability: float | None
    name: str | None = None
    pixels: float | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """One map of the origin of the target class's score.

    ``min`` and ``max`` are of the raw map; ``file`` is its saved file. ``note`` is the reason to
    doubt the map, such as why it is blank. ``checks`` are figures by name.
    """

    method: str
    layer: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    min: float | None = None
    max: float | None = None
    signed: bool = False
    note: str | None = None
    checks: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImageAttribution:
    """One picture and its maps. ``score`` is the logit of the target; ``top`` the best classes.

    ``pixels`` are the pixels of a segmentation that count: ``predicted``, ``all`` or
    ``ROW,COLUMN``.
    """

    path: str
    target: int
    score: float
    target_name: str | None = None
    top: tuple[ClassScore, ...] = ()
    maps: tuple[Attribution, ...] = ()
    pixels: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class SaliencyReport(Shown):
    """Result of one ``gradscope saliency``, except for the maps."""

    run: RunInfo
    images: tuple[ImageAttribution, ...] = ()
    schema: str = "gradscope.saliency/1"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    error: ErrorRecord | None = None


@dataclass(frozen=True, slots=True)
class MethodText:
    """A method as ``--methods`` lists it; ``options`` are ``name=default``."""

    name: str
    summary: str
    options: tuple[str, ...]
    paper: str
