"""Methods of records to print, save and list themselves.

Records know no format; ``shown_by`` names the module that does, which is imported on demand.
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
    """Return the report of one step, from the run's file."""
    return _home().report_of_step(record, step, model)


class Shown:
    """A record that can be displayed, in a program or in a notebook."""

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
        """Write it to a file; the suffix sets the format, as for ``-o``.

        Args:
            path: the file; ``.json`` can be read again, for example by ``gradscope show``.
            force: replace an existing file.

        Raises:
            OptionError: the suffix is unknown, or the file exists or cannot be written.
        """
        _home().save(self, Path(path), force=force)

    def to_frame(self, table: str | None = None) -> Any:
        """Return one of the record's tables as a ``pandas.DataFrame``; ``table`` None: the first
        one.

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
        """Return the record's charts: over depth for a report, over steps for a run.

        A notebook shows the result, and its ``save(path)`` writes it.

        Args:
            path: also write them to this .png, .svg or .pdf.
            force: replace an existing file.

        Raises:
            OptionError: nothing was measured, or the file cannot be written.
        """
        drawn = _home().plot(self)
        if path is not None:
            drawn.save(path, force=force)
        return drawn
