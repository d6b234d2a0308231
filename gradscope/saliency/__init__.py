"""Attribution maps, one public file per method; a file is found by its name (``grad_cam.py``).

To add a method, add a file with ``paper``, ``signed``, ``reads`` (and ``random = True`` where it
draws numbers) and ``attribute(subject, *, …)``.
"""

from __future__ import annotations

from gradscope.records.saliency import MethodText


def methods() -> tuple[MethodText, ...]:
    """Every method, as its file documents it."""
    from gradscope.saliency import _options

    found = []
    for name in _options.names():
        file = _options.method(name)
        title = (file.__doc__ or "").strip().splitlines()[0].rstrip(".")
        summary = title.partition(": ")[2] or title
        options = (f"{p.name}={p.default}" for p in _options.options_of(name).values())
        found.append(MethodText(name, summary, tuple(options), file.paper))
    return tuple(found)
