"""Names of models in installed libraries, read from their files: importing these takes seconds."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Final

#: ``@register_model()``, perhaps with its own name, above a function.
_REGISTERED: Final = re.compile(
    r"^@register_model(?:\((?:name=\"(?P<given>\w+)\")?\))?\n(?:(?!def ).*\n)*?def (?P<made>\w+)\(",
    re.MULTILINE,
)


def names_of(source: str) -> list[str]:
    """The models that a source of specs has; none where it is not installed, or has no list."""
    if source not in ("torchvision", "timm"):
        return []
    spec = importlib.util.find_spec(source)
    if spec is None or spec.origin is None:
        return []
    names: set[str] = set()
    for path in (Path(spec.origin).parent / "models").rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        names.update(match["given"] or match["made"] for match in _REGISTERED.finditer(text))
    return sorted(names)
