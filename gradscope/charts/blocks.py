"""Modules as they contain each other, a row for each depth: a block is as wide as what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

from gradscope.charts.colors import viridis
from gradscope.charts.scales import Scale
from gradscope.typeset.numbers import number
from gradscope.typeset.text import plain

WIDTH, _TALL, _LETTER = 960, 22, 6.6
#: On darker colours than this the text is white.
_DARK = 0.435


@dataclass(frozen=True, slots=True)
class Block:
    """A module over the innermost ones from ``first`` to ``last`` that it contains.

    Attributes:
        value: what its colour says; None where ``mark`` says why there is none.
    """

    name: str
    first: int
    last: int
    depth: int
    value: float | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Blocks:
    """All modules, those outside first; ``y`` is what the colours say."""

    title: str
    y: str
    blocks: tuple[Block, ...]

    @property
    def scale(self) -> Scale | None:
        """From the smallest value to the largest, by the logarithm; None without any."""
        known = [one.value for one in self.blocks if one.value]
        if not known:
            return None
        low, high = min(known), max(known)
        return Scale(low, high, log=True) if high > low else Scale(low * 0.9, high * 1.1)

    @property
    def colors(self) -> str:
        """What the colours mean, in words."""
        scale = self.scale
        if scale is None:
            return f"{self.y}: none"
        return f"{self.y}, from {number(scale.low)} (dark) to {number(scale.high)} (light)"


def drawn(of: Blocks, href: Callable[[str], str | None], place: Callable[[str], str | None]) -> str:
    """The blocks as an SVG element: each leads to what ``href`` has, and is called ``place``."""
    columns = 1 + max(one.last for one in of.blocks)
    height = _TALL * (1 + max(one.depth for one in of.blocks))
    label = escape(plain(f"{of.title}: {of.colors}"), quote=True)
    scale, wide = of.scale, (WIDTH - 2) / columns
    parts = (part for one in of.blocks for part in _block(one, wide, scale, href, place))
    frame = f'viewBox="0 0 {WIDTH} {height + 2}" role="group" aria-label="{label}"'
    return f'<svg class="blocks" {frame}>{"".join(parts)}</svg>'


def _block(
    one: Block,
    wide: float,
    scale: Scale | None,
    href: Callable[[str], str | None],
    place: Callable[[str], str | None],
) -> Iterator[str]:
    x, y = 1 + wide * one.first, 1 + _TALL * one.depth
    width = wide * (one.last - one.first + 1)
    target, own = href(one.name), place(one.name)
    text = escape(plain(one.name), quote=True)
    value = one.mark or ("" if one.value is None else number(one.value))
    led = "" if target is None else f' href="#{target}" tabindex="-1"'
    called = "" if own is None else f' id="{own}"'
    yield f'<a{called}{led} aria-label="{text}">' if led else f"<g{called}>"
    fill, tone = "", "off" if one.value is None else ""
    if one.value and scale is not None:
        share = scale.share(one.value)
        fill = ' fill="#' + "".join(f"{round(channel):02x}" for channel in viridis(share)) + '"'
        tone = "on-dark" if share < _DARK else "on-light"
    kind = ' class="lost"' if one.mark == "not finite" else "" if fill else ' class="none"'
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_TALL - 1}"{kind}{fill}>'
    yield f"<title>{text}{f': {value}' if value else ''}</title></rect>"
    room = int((width - 6) / _LETTER)
    short = one.name.rpartition(".")[2]
    if room >= min(len(short), 4):
        short = short if len(short) <= room else f"{short[: room - 1]}…"
        yield f'<text class="{tone}" x="{x + 4:.1f}" y="{y + 15}">'
        yield f"{escape(plain(short), quote=True)}</text>"
    yield "</a>" if led else "</g>"
