"""The rows of some layers of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradscope.patterns import Named, matching
from gradscope.records.diff import DiffReport


def of_layers(report: DiffReport, layers: Sequence[str], exclude: Sequence[str]) -> DiffReport:
    """The report with rows of these layers alone. Its findings stay: they are of the full models.

    Args:
        report: of full models.
        layers: patterns of A's module names; none are all.
        exclude: patterns taken back from them.

    Raises:
        LayerError: a pattern that fits no layer that was compared.
    """
    if not layers and not exclude:
        return report
    types = {_module(parameter.name): "" for parameter in report.parameters}
    types |= {call.name: call.type for call in report.calls}
    names = [Named(name, types=(kind,)) for name, kind in types.items()]
    patterns = (*(layers or ("**",)), *(f"!{pattern}" for pattern in exclude))
    chosen = {named.name for named in matching(patterns, names)}
    return replace(
        report,
        calls=tuple(call for call in report.calls if call.name in chosen),
        parameters=tuple(p for p in report.parameters if _module(p.name) in chosen),
    )


def _module(parameter: str) -> str:
    return parameter.rpartition(".")[0]
