"""A run's numbers for other tools: a tool a file, whose name is what ``--to`` takes.

A file has ``packages``, those that it needs beyond gradscope's own.

Where it makes a file or a folder it has ``folder``: None, or the pattern of the names of its files
in the folder; and ``write(run, path)``, which fills the new file or folder at ``path``.

An experiment tracker has ``opened(place, run)``, a new run in it for ``gradscope export``, and
``joined(place, ending)``: the run that the script itself has opened, None while there is none. That
is called in the thread that trains, where ``import`` would cost time: it looks at what the script
has imported. Its ``place`` is the working directory before the script runs; or, for a tracker with
``address(place)``, the address that this makes of the word behind ``--to``. ``ending`` is to be
called before the script's own run in the tracker ends. Both return a ``Tracker``
(``runfile/tracking.py``); one that keeps files has ``attach``. ``WITHOUT`` says what the script did
not open.
"""

from __future__ import annotations

from gradscope import plugins


def trackers() -> list[str]:
    """Names of the experiment trackers, sorted."""
    found = {name: plugins.load(__name__, name) for name in plugins.names(__name__)}
    return [name for name, module in found.items() if hasattr(module, "joined")]
