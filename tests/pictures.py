"""The README's pictures: a table as the terminal shows it, and the page of a run.

``python -m tests.pictures`` draws them again into ``docs/pictures``, light and dark. The page needs
a Chromium on the path. Each picture carries the text that it shows; ``test_pictures.py`` compares
that text with what the commands print today.
"""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
#: Computed in float64, so that every processor prints the same digits.
TABLE = "gradscope inspect demo:lecture dtype=float64 --table calls"
#: The run of the README's story, and its page.
RUN = "gradscope run --every 10 -o fit.db fit.py"
PAGE = "gradscope show fit.db -o fit.html"
WIDTH = 100
#: Of the page, in its own pixels.
PAGE_WIDTH = 1000
#: Background, ink, red, green, yellow.
COLORS = {
    "light": ((250, 250, 252), (26, 29, 35), (176, 0, 32), (20, 101, 47), (138, 84, 0)),
    "dark": ((22, 25, 32), (232, 234, 238), (255, 138, 128), (134, 214, 154), (242, 192, 99)),
}
SCHEMES = tuple(COLORS)

_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
}}
{styles}
</style>
<defs>
{lines}
</defs>
<rect width="{width}" height="{height}" rx="10" fill="BACKGROUND"/>
<g class="{unique_id}-matrix" transform="translate({terminal_x}, 12)">
{matrix}
</g>
</svg>
"""


def printed_table() -> str:
    """The command, and what it prints to a terminal with colours."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    environment.pop("NO_COLOR", None)
    return f"$ {TABLE}\n{_run(TABLE, ROOT, environment)}"


def drawn_table(printed: str, scheme: str) -> str:
    """The terminal's text as an SVG."""
    from rich.console import Console
    from rich.terminal_theme import TerminalTheme
    from rich.text import Text

    background, ink, red, green, yellow = COLORS[scheme]
    normal = [ink, red, green, yellow]
    rest = [ink] * 4
    theme = TerminalTheme(background, ink, normal + rest, normal + rest)
    # A height too: without one, rich asks the terminal for its width after all.
    console = Console(file=io.StringIO(), width=WIDTH, height=100, record=True, force_terminal=True)
    console.print(Text.from_ansi(printed), markup=False, highlight=False, soft_wrap=True)
    shade = f"#{background[0]:02x}{background[1]:02x}{background[2]:02x}"
    # Rich leaves room for a window's title; 24.4 is the height of its lines.
    height = str(round(24.4 * len(printed.splitlines()) + 24))
    form = _SVG.replace("BACKGROUND", shade).replace("{height}", height)
    svg = console.export_svg(title="", theme=theme, unique_id="t", code_format=form)
    return "".join(line.rstrip() + "\n" for line in svg.splitlines())


def text_of_table(svg: str) -> list[str]:
    """The lines that an SVG shows."""
    lines: dict[float, list[str]] = {}
    for y, text in re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines.setdefault(float(y), []).append(html.unescape(text).replace("\xa0", " "))
    return [" ".join(parts) for _, parts in sorted(lines.items())]


def page_of_run(script: str) -> str:
    """The page of the README's run, whose script is ``fit.py``."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fit.py").write_text(script, encoding="utf-8")
        for command in (RUN, PAGE):
            _run(command, Path(folder), {**os.environ, "OMP_NUM_THREADS": "1"})
        return (Path(folder) / "fit.html").read_text(encoding="utf-8")


def text_of_page(page: str) -> list[str]:
    """The words of a page's top, without what differs from one day or machine to the next."""
    top = page.partition("<table")[0]
    top = re.sub(r"<(script|style|svg)\b.*?</\1>", "", top, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", top))
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "DATE", text)
    text = re.sub(r"\b(gradscope|python|torch) \d[\w.+]*", r"\1 VERSION", text)
    text = re.sub(r"[\d.]+ (%)", r"SHARE \1", text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def text_of_picture(path: Path) -> list[str]:
    """The text that a picture of a page carries."""
    from PIL import Image

    with Image.open(path) as picture:
        return str(picture.info["Description"]).splitlines()


def _photographed(page: str, scheme: str, chromium: str) -> bytes:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fit.html"
        file.write_text(page, encoding="utf-8")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": PAGE_WIDTH, "height": 2000}, color_scheme=scheme
        )
        opened = context.new_page()
        opened.goto(file.as_uri())
        # The header, the findings, and the first row of charts.
        chart = opened.locator("figure").first.bounding_box()
        assert chart is not None
        bottom = chart["y"] + chart["height"] + 12
        shot = opened.screenshot(clip={"x": 0, "y": 0, "width": PAGE_WIDTH, "height": bottom})
        browser.close()
    return shot


def _save(shot: bytes, page: str, path: Path) -> None:
    """A picture in few colours, with the page's text in it."""
    from PIL import Image, PngImagePlugin

    carried = PngImagePlugin.PngInfo()
    carried.add_itxt("Description", "\n".join(text_of_page(page)), zip=True)
    with Image.open(io.BytesIO(shot)) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(path, optimize=True, pnginfo=carried)


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    _, *words = shlex.split(command)
    home = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([home] if home else [])])
    done = subprocess.run(
        [sys.executable, "-m", "gradscope", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def main() -> None:
    """Draw all of them."""
    sys.path.insert(0, str(ROOT / "tests"))
    from pages import blocks

    FOLDER.mkdir(exist_ok=True)
    printed = printed_table()
    for scheme in SCHEMES:
        path = FOLDER / f"table-{scheme}.svg"
        path.write_text(drawn_table(printed, scheme), encoding="utf-8")
        print(path)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the path: the pictures of the page stay as they are")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = next(text for text in blocks("python", readme) if text.startswith("# fit.py"))
    page = page_of_run(script)
    for scheme in SCHEMES:
        path = FOLDER / f"run-{scheme}.png"
        _save(_photographed(page, scheme, chromium), page, path)
        print(path)


if __name__ == "__main__":
    main()
