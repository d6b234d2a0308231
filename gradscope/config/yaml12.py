"""Reads the text of a config file to plain data with places, and explains why it cannot."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml
from yaml.composer import ComposerError
from yaml.error import Mark, MarkedYAMLError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gradscope.config.words import Text, describe, shorten
from gradscope.errors import ConfigError, Place, Problem, closest_file

TAG: Final = "tag:yaml.org,2002:"
INT: Final = f"{TAG}int"

#: The core schema of YAML 1.2: the forms of plain words that are not text.
PATTERNS: Final = {
    f"{TAG}null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    f"{TAG}bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    INT: re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    f"{TAG}float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}

#: Digits of an integer. Python prints none of more than 4300, and no tensor holds one of 400.
LONGEST: Final = 1000

#: Values in a config, aliases expanded. More is data, and belongs in its own file.
MOST: Final = 200_000

Entries = dict[str, tuple[Node, Node]]


@dataclass(slots=True)
class Document:
    """Plain data, its problems, and the place of each key and value."""

    text: Text
    data: Any
    root: Node | None
    problems: list[Problem] = field(default_factory=list)
    entries: dict[int, Entries] = field(default_factory=dict)

    def find(self, parts: Sequence[str], *, key: bool = False) -> tuple[Node | None, int]:
        """Return the node of the value (or of its key) at ``parts``, or of the nearest existing
        parent, and the number of parts that lead to it. Keys may contain dots."""
        node, best, used = self.root, self.root, 0
        while used < len(parts):
            if isinstance(node, SequenceNode):
                part = parts[used]
                if not (part.isdecimal() and len(part) < 9 and int(part) < len(node.value)):
                    break
                node = best = node.value[int(part)]
                used += 1
                continue
            if not isinstance(node, MappingNode):
                break
            entries = self.entries.get(id(node), {})
            if (step := _step(entries, parts[used:])) is None:
                break
            name, length = step
            at_key, node = entries[name]
            used += length
            is_blank = node.start_mark.index == node.end_mark.index
            best = at_key if is_blank or (key and used >= len(parts)) else node
        return best, used

    def place(self, node: Node, key: str | None = None) -> Place:
        """Return the place of a node's first line."""
        start, end = node.start_mark, node.end_mark
        length = end.column - start.column
        if end.line != start.line:  # up to the end of the line, without a trailing comment
            line = self.text.lines[start.line] if start.line < len(self.text.lines) else ""
            length = len(line.split(" #")[0].rstrip()) - start.column
        return self.text.place(start.line, start.column, length, key)


def _step(entries: Entries, parts: Sequence[str]) -> tuple[str, int] | None:
    """Return the key of ``entries`` that the next parts name, and the number of these parts."""
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        if name in entries:
            return name, length
    if parts[0] == "_target_":
        alias = next((name for name in ("class_path", "_component_") if name in entries), None)
        return (alias, 1) if alias else None
    return ("init_args", 0) if "init_args" in entries else None


def convert(tag: str, word: str) -> Any:
    """Convert a word that fits its tag's pattern.

    Raises:
        ValueError: an integer has more digits than ``LONGEST``.
    """
    kind = tag.removeprefix(TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return word.lower() == "true"
    if kind == "int":
        if len(word) > LONGEST:
            raise ValueError(f"a number of more than {LONGEST} digits")
        base = {"0o": 8, "0x": 16}.get(word[:2], 10)
        return int(word[2:] if base != 10 else word, base)
    if kind == "float":
        special = word.lower().lstrip("+-")
        if special in (".inf", ".nan"):
            return math.copysign(float(special[1:]), -1.0 if word[0] == "-" else 1.0)
        return float(word)
    return word


class Builder:
    """Builds one document's data; an alias is built again at each use."""

    def __init__(self, text: Text, *, deepest: int) -> None:
        self._document = Document(text, None, None)
        self._deepest = deepest
        self._sizes: dict[int, tuple[int, int]] = {}
        self._seen: set[tuple[int, str]] = set()

    def document(self, root: Node | None) -> Document:
        """Build the document under ``root``, which is None if the text is empty.

        Raises:
            ConfigError: the aliases make it too large or too deep to build.
        """
        self._document.root = root
        if root is not None:
            self._measure(root)
            self._document.data = self._build(root)
        return self._document

    def _measure(self, node: Node) -> tuple[int, int]:
        """Return the number of values and the depth of a node, aliases counted as if expanded."""
        known = self._sizes.get(id(node))
        if known is not None:
            return known
        children: list[Node] = node.value if isinstance(node, SequenceNode) else []
        if isinstance(node, MappingNode):
            children = [part for pair in node.value for part in pair]
        size, depth = 1, 1
        for child in children:
            inner, below = self._measure(child)
            size, depth = size + inner, max(depth, below + 1)
        if size > MOST:
            raise ConfigError(
                f"more than {MOST} values, aliases expanded",
                place=self._document.place(node),
                help="put large data into its own file: `input: {file: data.npy}`",
            )
        if depth > self._deepest:
            message = f"nested deeper than {self._deepest}, aliases expanded"
            raise ConfigError(message, place=self._document.place(node))
        self._sizes[id(node)] = size, depth
        return size, depth

    def _build(self, node: Node) -> Any:
        if isinstance(node, MappingNode):
            self._check_tag(node, "map")
            return {name: self._build(value) for name, (_, value) in self._entries(node).items()}
        if isinstance(node, SequenceNode):
            self._check_tag(node, "seq")
            return [self._build(item) for item in node.value]
        return self._scalar(node)

    def _scalar(self, node: Node) -> Any:
        word: str = node.value
        if node.tag in PATTERNS:
            if PATTERNS[node.tag].match(word):
                try:
                    return convert(node.tag, word)
                except ValueError as error:
                    self._complain(node, str(error))
                    return 0
            tag = node.tag.removeprefix(TAG)
            self._complain(node, f'the text "{shorten(word)}" is not of the type `!!{tag}`')
        elif not (node.tag == f"{TAG}merge" and word == "<<"):
            self._check_tag(node, "str")
        if re.search("[\0\ud800-\udfff]", word):
            self._complain(
                node, "a text with a NUL or half a character in it", "delete the escape sequence"
            )
            return re.sub("[\0\ud800-\udfff]", "", word)
        return word

    def _check_tag(self, node: Node, expected: str) -> None:
        if node.tag == f"{TAG}{expected}":
            return
        tag = node.tag.replace(TAG, "!!")
        if tag.startswith("!!"):
            help = "a config holds plain data; an object is written `{_target_: module.Class, …}`"
        else:
            help = f'put it in quotes, `"{shorten(tag)}"`: a leading `!` is a YAML tag'
        self._complain(node, f"unknown tag `{shorten(tag)}`", help)

    def _entries(self, node: MappingNode) -> Entries:
        """Return a mapping's keys with their nodes: its own first, then the merged ones (`<<`)."""
        known = self._document.entries.get(id(node))
        if known is not None:
            return known
        own: Entries = {}
        merged: Entries = {}
        for key, value in node.value:
            if key.tag == f"{TAG}merge":
                if "<<" in merged:
                    self._duplicate(key, merged["<<"][0])
                merged["<<"] = (key, value)
            elif (name := self._key(key)) is not None:
                if name in own:
                    self._duplicate(key, own[name][0])
                own.setdefault(name, (key, value))
        if "<<" in merged:
            own = {**self._merge(merged["<<"][1]), **own}
        self._document.entries[id(node)] = own
        return own

    def _merge(self, value: Node) -> Entries:
        parts = value.value if isinstance(value, SequenceNode) else [value]
        out: Entries = {}
        for part in reversed(parts):  # the first of a list wins
            if isinstance(part, MappingNode):
                out.update(self._entries(part))
            else:
                self._complain(part, "`<<` merges mappings only", "give it `*name` of a mapping")
        return out

    def _key(self, node: Node) -> str | None:
        if not isinstance(node, ScalarNode):
            kind = "list" if isinstance(node, SequenceNode) else "mapping"
            self._complain(node, f"a key must be text, found a {kind}")
            return None
        value = self._scalar(node)
        if isinstance(value, str):
            return value
        help = f'put it in quotes: `"{shorten(node.value)}"`' if node.value else None
        self._complain(node, f"a key must be text, found {describe(value)}", help)
        return node.value or None

    def _duplicate(self, key: Node, first: Node) -> None:
        name, at = shorten(key.value), self._document.place(first)
        note = f"`{name}` was first given at line {at.line}, column {at.column}"
        self._complain(key, f"duplicate key `{name}`", "keep one of the two", note)

    def _complain(self, node: Node, message: str, help: str | None = None, *notes: str) -> None:
        if (id(node), message) not in self._seen:
            self._seen.add((id(node), message))
            place = self._document.place(node)
            self._document.problems.append(Problem(message, place, help, notes))


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
