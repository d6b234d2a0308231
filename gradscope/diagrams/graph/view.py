"""How a reader wants a graph shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _left_out(notice: str) -> None:
    """Without a page that handles it."""


@dataclass(frozen=True, slots=True)
class GraphView:
    """What to show and how wide.

    ``width`` None is unlimited. ``layers`` has module-name patterns: others stay closed. ``depth``
    None chooses the deepest that stays readable; ``expand`` has module-name patterns that are shown
    down to their operations; ``full`` shows every operation of every module and folds nothing.
    ``sources`` and ``targets`` ask for paths instead of the full graph. ``by`` is what colours and
    bars stand for. ``direction`` is where the arrows of pictures lead, ``hidden`` how many
    operations were left out. A layout may take ``timeout`` seconds; ``say`` hears what had to be
    drawn otherwise than asked.
    """

    width: int | None = None
    color: bool = False
    layers: tuple[str, ...] = ("**",)
    depth: int | None = None
    expand: tuple[str, ...] = ()
    full: bool = False
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    by: str = "gradient"  # gradient | saved
    direction: str = "TB"  # TB | LR
    hidden: int = 0
    timeout: float = 30.0
    say: Callable[[str], None] = _left_out
