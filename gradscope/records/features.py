"""Records of filters, channels, features and feature space."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradscope.records.data import SPARSE
from gradscope.records.run import ErrorRecord, RunInfo


@dataclass(frozen=True, slots=True)
class FilterStats:
    """One filter of a convolution: its L2 norm, and the most similar filter.

    ``cosine`` is the cosine between the two; None if one is zero, or if there is no other.
    """

    filter: int
    norm: float
    dead: bool = False
    nearest: int | None = None
    cosine: float | None = None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel of a layer over all pictures and places.

    ``active`` is the share of nonzero values, ``strength`` the mean absolute value; ``dead`` is
    True if every value was 0.
    """

    layer: str
    channel: int
    strength: float
    min: float
    max: float
    active: float
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Excitation:
    """A picture that excites a channel, and the cell of the layer's map; None without a map."""

    layer: str
    channel: int
    rank: int
    image: str
    value: float
    row: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A neighbour of a picture in a layer's feature space."""

    query: str
    rank: int
    image: str
    distance: float
    label: str | None = None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddedImage:
    """A picture's place in the plane."""

    image: str
    x: float
    y: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class MaximizedChannel:
    """A channel's activation during gradient ascent, from the first picture to the last."""

    layer: str
    channel: int
    start: float
    reached: float


@dataclass(frozen=True, slots=True)
class SkippedImage:
    """A file that could not be used, and why."""

    image: str
    reason: str


@dataclass(frozen=True, slots=True)
class FeaturesReport:
    """Result of one ``gradscope features``; ``action`` is its second word.

    ``figures`` are overall numbers, by name.
    """

    run: RunInfo
    action: str
    layers: tuple[str, ...] = ()
    images: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    filters: tuple[FilterStats, ...] = field(default=(), metadata=SPARSE)
    channels: tuple[ChannelStats, ...] = field(default=(), metadata=SPARSE)
    excitations: tuple[Excitation, ...] = field(default=(), metadata=SPARSE)
    neighbors: tuple[Neighbor, ...] = field(default=(), metadata=SPARSE)
    embedded: tuple[EmbeddedImage, ...] = field(default=(), metadata=SPARSE)
    maximized: tuple[MaximizedChannel, ...] = field(default=(), metadata=SPARSE)
    skipped: tuple[SkippedImage, ...] = field(default=(), metadata=SPARSE)
    schema: str = "gradscope.features/1"
    status: str = "ok"  # ok | failed
    versions: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    error: ErrorRecord | None = None
