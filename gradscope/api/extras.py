"""Optional parts of a report, made on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """``gradscope.inspect`` describes each, ``gradscope.check`` the forecast of ``precision``.

    A field that is set is also the name of a full sample, where one finds it out.
    """

    chain: Sequence[str] = ()
    verify: bool = False
    tasks: bool = False
    costs: bool = False
    histogram: Sequence[str] = ()
    gradcheck: Sequence[str] = ()
    sketch: bool = False
    precision: bool = False

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Extras:
        """Those among an entry's keywords."""
        return cls(**{f.name: keywords[f.name] for f in fields(cls) if f.name in keywords})

    @property
    def reruns(self) -> list[str]:
        """The names of those that are set and need more runs of the step."""
        return [f.name for f in fields(self) if f.name != "chain" and getattr(self, f.name)]

    @property
    def looks(self) -> set[str]:
        """The names of those that are set."""
        return {f.name for f in fields(self) if getattr(self, f.name)}
