"""Chooses a run's numbers for charts in other tools: the step metrics, and the worst layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gradscope.patterns import Named, Pattern
from gradscope.records.training import TrainingFinding
from gradscope.runfile.reader import Series

#: The start of every key, in all trackers.
PREFIX: Final = "gradscope"
#: Number of keys that a tracker gets by default.
MOST_KEYS: Final = 200
#: If the number of keys is limited, these columns of a layer are sent, the first ones first.
_COLUMNS: Final = (
    *("update_ratio", "grad_norm", "value_norm", "grad_out_norm", "out_std", "out_zeros"),
)
#: A layer is worse the farther it is from the others in one of these.
_COMPARED: Final = ("update_ratio", "grad_norm", "grad_out_norm")
#: This part of the keys is kept for layers that get a finding later.
_RESERVED: Final = 0.25
_SEVERITIES: Final = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Layer:
    """A parameter, or a call of a module: its model's id, its name, and the end of its charts'
    names."""

    model: int
    name: str
    label: str


def key_of(column: str, label: str = "") -> str:
    """The name of a chart: ``gradscope/grad_norm/net/fc.weight``."""
    return "/".join(filter(None, (PREFIX, column, label)))


class KeySelection:
    """Selects a limited number of keys for a full run: a chosen key stays chosen.

    Args:
        most: None takes all.
        layers: patterns; the layers that match come first.

    Raises:
        LayerError: a pattern is not a regular expression.
    """

    def __init__(self, most: int | None, layers: Sequence[str] = ("**",)) -> None:
        self._most = most
        self._patterns = [] if tuple(layers) == ("**",) else [Pattern(text) for text in layers]
        self._keys: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        return self._most is None or key in self._keys

    def add(self, key: str) -> None:
        """Choose a key if there is room."""
        if self._most is not None and len(self._keys) < self._most:
            self._keys[key] = None

    def rank(
        self,
        layers: Mapping[Layer, Series],
        findings: Sequence[TrainingFinding],
        *,
        complete: bool,
    ) -> None:
        """Choose layers: those with findings, then those that differ most from the others.

        Args:
            layers: with their newest numbers.
            findings: of the run so far.
            complete: the run has ended, so no key is reserved for later.
        """
        if self._most is None or not layers:
            return
        found = {layer: worst for layer in layers if (worst := _severity(layer, findings))}
        self._take(sorted(found, key=lambda layer: found[layer]), layers, self._most)
        distances = _distances(layers)
        order = sorted(layers, key=lambda one: (not self._is_chosen(one), -distances[one]))
        until = self._most if complete else self._most - int(self._most * _RESERVED)
        self._take(order, layers, until)

    def _take(self, order: Iterable[Layer], layers: Mapping[Layer, Series], until: int) -> None:
        for layer in order:
            for column in _COLUMNS:
                if len(self._keys) >= until:
                    return
                if any(value is not None for value in layers[layer].values.get(column, ())):
                    self._keys[key_of(column, layer.label)] = None

    def _is_chosen(self, layer: Layer) -> bool:
        chosen = False
        for pattern in self._patterns:
            if any(pattern.matches(Named(name)) for name in _owners(layer.name)):
                chosen = not pattern.negated
        return chosen


def _owners(name: str) -> tuple[str, str]:
    """Return a module's name; for a parameter, also its module's name."""
    return name, name.rpartition(".")[0]


def _severity(layer: Layer, findings: Sequence[TrainingFinding]) -> int:
    """Return 1 for a layer with an error, 2 with a warning, 3 with an info; 0 without a finding."""
    found = [_SEVERITIES.index(one.severity) + 1 for one in findings if _concerns(one, layer)]
    return min(found, default=0)


def _concerns(found: TrainingFinding, layer: Layer) -> bool:
    if (layer.model, layer.name) in (found.parameters or ()):
        return True
    same = found.model is None or found.model == layer.model
    return same and found.name in _owners(layer.name)


def _distances(layers: Mapping[Layer, Series]) -> dict[Layer, float]:
    """Return each layer's distance from the median of the others, in powers of e; infinite for
    zero.
    """
    distances = dict.fromkeys(layers, 0.0)
    for column in _COMPARED:
        last = {
            layer: abs(series.values[column][-1] or 0.0)
            for layer, series in layers.items()
            if series.values.get(column, (None,))[-1] is not None
        }
        usual = statistics.median(positive) if (positive := [v for v in last.values() if v]) else 1
        for layer, value in last.items():
            away = abs(math.log(value / usual)) if value else math.inf
            distances[layer] = max(distances[layer], away)
    return distances
