"""Exports a run's numbers to other tools. Each tool has a file, whose name ``--to`` takes.

``packages`` lists the packages that it needs beyond gradscope's own.

A tool that makes a file or a folder has ``folder``: None, or the pattern of its files' names in the
folder; and ``write(run, path)``, which fills the new file or folder at ``path``.

An experiment tracker has ``opened(place, run)``, which makes a new run in it for ``gradscope
export``, and ``joined(place, ending)``, which returns the run that the script itself opened, or
None. ``joined`` runs in the thread that trains, where an ``import`` would cost time, so it only
uses modules that the script has imported. ``place`` is the working directory before the script
runs; a tracker with ``address(place)`` makes an address from the word after ``--to`` instead.
``joined`` must arrange that ``ending`` is called before the script's own run in the tracker ends.
Both return a ``Tracker`` (``runfile/tracking.py``); a tracker that keeps files has ``attach``.
``WITHOUT`` is the message if the script opened no run.
"""

from __future__ import annotations

from gradscope import plugins


def trackers() -> list[str]:
    """Return the names of the experiment trackers, sorted."""
    found = {name: plugins.load(__name__, name) for name in plugins.names(__name__)}
    return [name for name, module in found.items() if hasattr(module, "joined")]
