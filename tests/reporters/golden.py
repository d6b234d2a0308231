"""Whole texts that are compared with those in a ``golden`` folder.

After a wanted change: ``GRADSCOPE_GOLDEN=write pytest tests/reporters``, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent
#: What a terminal may be, and a pipe.
WIDTHS = {"60": 60, "80": 80, "120": 120, "200": 200, "pipe": None}


def check(name: str, text: str) -> None:
    """Compare with the file ``report/NAME`` or ``training/NAME`` of the golden texts."""
    room, _, file = name.partition("/")
    path = HERE / room / "golden" / file
    data = text.encode()
    if os.environ.get("GRADSCOPE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert path.read_bytes() == data, f"{name} has changed; see the docstring of golden.py"
