"""The Markdown pages: their blocks, what these show, and which links and tables are broken."""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.py)$", re.MULTILINE)


def all_pages(root: Path) -> dict[str, str]:
    """The text of each page by its path below ``root``."""
    named = [root / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
    paths = [*named, *sorted(root.glob("docs/*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def blocks(language: str, text: str) -> list[str]:
    """The contents of the fenced blocks of one language."""
    return [content for found, content in _BLOCK.findall(text) if found == language]


def sessions(text: str) -> list[list[tuple[str, list[str], int]]]:
    """Each console block as its commands, the lines that they print, and their exit codes."""
    found = []
    for block in blocks("console", text):
        session: list[tuple[str, list[str], int]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                command, _, comment = line[2:].partition("  # exit ")
                session.append((command, [], int(comment or 0)))
            else:
                session[-1][1].append(line)
        found.append(session)
    return found


def scripts(text: str) -> list[tuple[str, list[str]]]:
    """Each Python block that is no file, with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    end = -1
    for block in _BLOCK.finditer(text):
        language, content = block.groups()
        if language == "python" and not _FILE.match(content):
            found.append((content, []))
            end = block.end()
        elif language == "text" and end >= 0 and not text[end : block.start()].strip():
            found[-1][1].extend(content.splitlines())
            end = -1
    return found


def write_files(text: str, folder: Path) -> None:
    """The Python blocks of a page that are files."""
    for content in blocks("python", text):
        name = _FILE.match(content)
        if name:
            (folder / name[1]).write_text(content, encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Return the anchors that a link may name after ``#``: the headings as GitHub writes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        again = sum(
            re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in found
        )
        found.append(f"{name}-{again}" if again else name)
    return set(found)


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of a page."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.match(r"https?://", link) or (target.exists() and not anchor):
            continue
        if not target.exists() or anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(link)
    return broken


def broken_rows(text: str) -> list[str]:
    """The rows of tables that have more or fewer cells than their heads."""
    broken = []
    for table in re.findall(r"(?:^\|.*\n)+", _BLOCK.sub("", text), re.MULTILINE):
        rows = table.splitlines()
        cells = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        broken += [row for row, n in zip(rows, cells, strict=True) if n != cells[0]]
    return broken
