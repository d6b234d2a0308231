"""Reads the text of a config file, and explains every reason why it cannot be read."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any, Final, cast

import yaml
from yaml.composer import ComposerError
from yaml.error import Mark, MarkedYAMLError
from yaml.events import AliasEvent
from yaml.nodes import Node

from gradscope.config.words import Text, shorten
from gradscope.config.yaml_nodes import INT, LONGEST, PATTERNS, TAG, Builder, Document, convert
from gradscope.errors import ConfigError, Place, Problem, closest_file

#: A config of more bytes is data; reading it would take PyYAML minutes.
LARGEST: Final = 1_000_000
_SUFFIXES: Final = (".yaml", ".yml")
_WEIGHTS: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_SPECS: Final = ("demo", "torchvision", "timm", "hf")


def is_file(model: str) -> bool:
    """Return True if MODEL is a config file: by its suffix, or as an existing file."""
    if model.lower().endswith(_SUFFIXES):
        return True
    if model.lower().endswith((".py", *_WEIGHTS)) or model.partition(":")[0] in _SPECS:
        return False
    try:
        return bool(model) and Path(model).exists()
    except OSError:  # a name longer than names can be
        return False


def read_text(path: Path, place: Place) -> tuple[Text, str]:
    """Return a config file's lines and text; ``place`` is the place of its path.

    Raises:
        ConfigError: the file does not exist, cannot be read, is too large, or is no text.
    """
    shown = shorten(str(path))
    try:
        raw = _read_bytes(path, place, shown)
    except (FileNotFoundError, NotADirectoryError):
        help = _nearby(path.parent, path.name) or "`gradscope init` writes a starter"
        raise ConfigError(f"there is no file `{shown}`", place=place, help=help) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        message = f"`{shown}` cannot be read: {reason}"
        raise ConfigError(message, place=place, help="check its permissions and its name") from None
    try:
        body = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = Text.of_file(str(path), raw.decode("utf-8", "replace"))
        before = Text.of_file("", raw[: error.start].decode("utf-8", "replace")).lines
        at = text.place(len(before) - 1, len(before[-1]))
        raise ConfigError("not UTF-8 text", place=at, help="save the file as UTF-8") from None
    return Text.of_file(str(path), body), body


def _read_bytes(path: Path, place: Place, shown: str) -> bytes:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        help = _nearby(path, "") or "name a YAML file in it"
        raise ConfigError(f"`{shown}` is a folder", place=place, help=help)
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device may never end
        raise ConfigError(f"`{shown}` is not a regular file", place=place, help="copy it into one")
    if status.st_size > LARGEST:
        size = f"{status.st_size / 1e6:.1f} MB"
        message = f"`{shown}` has {size}, a config at most {LARGEST / 1e6:.0f} MB"
        help = "put large data into its own file: `input: {file: data.npy}`"
        raise ConfigError(message, place=place, help=help)
    return path.read_bytes()


def _nearby(folder: Path, name: str) -> str | None:
    """Return the YAML file that was probably meant, or the existing ones."""
    try:
        names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES)
    except (OSError, ValueError):
        return f"there is no folder `{shorten(str(folder))}`" if name else None
    close = closest_file(folder / name, _SUFFIXES) if name else None
    if close:
        return close.replace("`", f"`{folder}/", 1) if str(folder) != "." else close
    shown = ", ".join(f"`{folder / n}`" for n in names[:5])
    return f"there is {shown}{', …' if len(names) > 5 else ''}" if names else None


#: No config nests deeper; Python's own stack would end soon after.
DEEPEST: Final = 100

#: The scanner's messages for users: a sign in them, the replacement (None: they stay), and the
#: remedy.
_SAYINGS: Final = (
    (r"character '\\t'", "a tab where YAML allows none", "use spaces"),
    (r"character '[%@`]'", None, "put the value in quotes"),
    (
        r"scanning an alias|undefined alias",
        None,
        'put a pattern in quotes, as in `"**"`: a leading `*` makes it an alias',
    ),
    (
        r"a tag|tag URI|tag handle",
        None,
        'put a pattern in quotes, as in `"!fc.**"`: a leading `!` makes it a tag',
    ),
    (
        r"mapping values are not",
        "a second `: ` in one value, or an indent that fits no line above",
        "put a value that holds `: ` in quotes, or mend the indent",
    ),
    (r"unexpected end of stream", "a quote is never closed", "close it"),
    (r"',' or '[\]}]'", None, "close the bracket, or put a comma between the values"),
    (
        r"could not find expected ':'",
        "a line that is no `key: value`",
        "write `key: value`, with a space after the colon",
    ),
    (
        r"expected <block end>",
        "the indent fits none of the lines above",
        "give the keys of one mapping the same indent",
    ),
    (r"document", "a second document starts here", "keep one document in a file"),
    (r"duplicate anchor", "the anchor's name is taken", "give each anchor its own name"),
)


class _Loader(yaml.SafeLoader):
    """Resolves plain words as YAML 1.2 does, and refuses endless or too deep structures."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's

    def __init__(self, body: str) -> None:
        super().__init__(body)
        self._open: list[str | None] = []

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, AliasEvent) and event.anchor in self._open:
            problem = f"`*{shorten(str(event.anchor))}` is inside the value that it repeats"
            raise ComposerError(None, None, problem, cast(Mark, event.start_mark))
        if len(self._open) >= DEEPEST:
            raise ComposerError(None, None, f"nested deeper than {DEEPEST}", event.start_mark)
        self._open.append(None if isinstance(event, AliasEvent) else event.anchor)
        try:
            return super().compose_node(parent, index)
        finally:
            self._open.pop()


for _tag, _pattern in PATTERNS.items():
    _Loader.add_implicit_resolver(_tag, _pattern, None)
_Loader.add_implicit_resolver(f"{TAG}merge", re.compile("<<$"), ["<"])


def parse(text: Text, body: str) -> Document:
    """Parse the only document in ``body``; duplicate keys and unknown tags become ``problems``.

    Raises:
        ConfigError: ``body`` is not YAML.
    """
    unprintable = yaml.reader.Reader.NON_PRINTABLE.search(body)
    if unprintable:
        raise ConfigError(_unprintable(text, body, unprintable.start()))
    loader = _Loader(body)
    try:
        root = loader.get_single_node()
    except MarkedYAMLError as error:
        raise ConfigError(_syntax(text, error)) from None
    except (ValueError, OverflowError) as error:  # "\UFFFFFFFF", a directive of 5000 digits
        place = _at(text, loader.get_mark())
        raise ConfigError(f"not YAML: {shorten(str(error))}", place=place) from None
    finally:
        loader.dispose()
    return Builder(text, deepest=DEEPEST).document(root)


def scalar(word: str) -> Any:
    """Return the value of a plain word: ``1e-3`` a number, ``on`` a text, ``""`` null."""
    for tag, pattern in PATTERNS.items():
        if pattern.match(word) and not (tag == INT and len(word) > LONGEST):
            return convert(tag, word)
    return word


def _syntax(text: Text, error: MarkedYAMLError) -> Problem:
    """Convert PyYAML's error to gradscope's."""
    everything = f"{error.context or ''} {error.problem or ''}"
    message, help = error.problem or "unreadable", None
    for sign, saying, remedy in _SAYINGS:
        if re.search(sign, everything):
            message, help = saying or message, remedy
            break
    message = re.sub(r"'<stream end>'|'\\x00'", "the end of the text", message)
    mark, context = error.problem_mark or error.context_mark, error.context_mark
    line = text.lines[mark.line] if mark and mark.line < len(text.lines) else ""
    if "',' or" in message and re.search(r"[\[,]\s*!\w", line):
        help = 'put a pattern in quotes, as in `"!fc.**"`: a leading `!` makes it a tag'
    notes: tuple[str, ...] = ()
    if error.context and context and mark and message == error.problem:
        far = context.line != mark.line and text.number is None
        notes = (error.context + f" that starts at line {context.line + 1}" * far,)
    return Problem(f"not YAML: {message}", _at(text, mark) if mark else None, help, notes)


def _at(text: Text, mark: Mark) -> Place:
    return text.place(mark.line, mark.column)


def _unprintable(text: Text, body: str, index: int) -> Problem:
    before = Text.of_file(text.name, body[:index]).lines
    place = text.place(len(before) - 1, len(before[-1]))
    what = (
        "a NUL byte" if body[index] == "\0" else f"the control character U+{ord(body[index]):04X}"
    )
    return Problem(f"not YAML: {what}", place, "delete it, or save the file as plain UTF-8 text")
