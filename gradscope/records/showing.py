"""Display of a record: it prints, saves and lists itself.

Records know no format. ``shown_by`` names the room that does, which is imported on demand.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_homes: list[str] = []


def shown_by(home: str) -> None:
    """Name the module with ``text``, ``html``, ``save`` and ``frame``."""
    _homes[:] = [home]


def _home() -> Any:
    return importlib.import_module(_homes[0])


def report_of_step(record: Any, step: int | None, model: str | None) -> Any:
    """Return the report of one step, read from the run's file, which records do not read."""
    return _home().report_of_step(record, step, model)


class Shown:
    """A record for display, in a program or in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(_home().text(self))

    def __repr__(self) -> str:
        run: Any = getattr(self, "run", None)
        status = getattr(self, "status", "")
        return f"<gradscope.{type(self).__name__} of {run.model or 'a model'}: {status}>"

    def _repr_html_(self) -> str:
        return str(_home().html(self))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write it to a file, in the format that the suffix names, as ``-o`` does.

        Args:
            path: where to; ``.json`` can be read again, by ``gradscope show`` for one.
            force: replace a file that is there.

        Raises:
            OptionError: no format has the suffix, or the file exists or cannot be written.
        """
        _home().save(self, Path(path), force=force)

    def to_frame(self, table: str | None = None) -> Any:
        """Return one of the record's tables as a ``pandas.DataFrame``; None: the first one.

        A report has ``calls``, ``parameters`` and ``findings``, answers have ``answers``, and a
        graph has ``nodes``.

        Raises:
            ConfigError: pandas is not installed.
            OptionError: there is no such table.
        """
        return _home().frame(self, table)


class Plotted(Shown):
    """A record with charts, as ``--plot`` draws them."""

    __slots__ = ()

    def plot(self, path: str | Path | None = None, *, force: bool = False) -> Any:
        """Return the record's charts: of a report over depth, of a run over its steps.

        A notebook shows what this returns, and its ``save(path)`` writes it.

        Args:
            path: also write them to this .png, .svg or .pdf.
            force: replace a file that is there.

        Raises:
            OptionError: nothing was measured, or the file cannot be written.
        """
        drawn = _home().plot(self)
        if path is not None:
            drawn.save(path, force=force)
        return drawn
