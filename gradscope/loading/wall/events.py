"""What is asked of each audit event: what is about to happen, in words, if it may not.

https://docs.python.org/3/library/audit_events.html lists the events and what each tells. To watch
another, write its question here and add it to ``QUESTIONS``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import _weights_only_unpickler

from gradscope.loading.wall.code_folders import below, resolved

if TYPE_CHECKING:
    from gradscope.loading.wall import Wall

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
#: Where a system keeps the libraries that it offers to every program.
_SYSTEM = tuple(map(Path, ("/usr", "/lib", "/lib64", "/opt", "/nix", "/System", "/Library")))


def _finds_class(wall: Wall, module: str, name: str, *rest: object) -> str | None:
    full = f"{module}.{name}"
    return None if full in _weights_only_unpickler._get_allowed_globals() else f"unpickle `{full}`"


def starts(wall: Wall, *args: object) -> str | None:
    program = args[0] if args and isinstance(args[0], (str, bytes, os.PathLike)) else ""
    name = os.fsdecode(program).split(" ")[0] if program else ""
    return None if _importing(wall) else f"start a process{f' (`{name}`)' if name else ''}"


def _connects(wall: Wall, *args: object) -> str | None:
    address = next((a for a in reversed(args) if isinstance(a, (tuple, str, bytes))), "")
    if wall.downloads:
        return None
    if isinstance(address, tuple):
        address = ":".join(map(str, address[:2]))
    host = address.decode(errors="replace") if isinstance(address, bytes) else address
    return f"connect to `{host}`" if host else "open a connection"


def _looks_up(wall: Wall, host: object, *rest: object) -> str | None:
    return _connects(wall, host)


def _opens(wall: Wall, path: object, mode: object, flags: int) -> str | None:
    return _writes(wall, path) if isinstance(flags, int) and flags & _WRITES else None


def _writes(wall: Wall, path: object, *rest: object) -> str | None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None  # a descriptor: its opening was asked about
    file = resolved(path)
    if wall.may_write(file) or _importing(wall):  # the bytecode of what is imported
        return None
    return f"write `{file}`"


def _renames(wall: Wall, source: object, target: object, *rest: object) -> str | None:
    return _writes(wall, source) or _writes(wall, target)


def _links(wall: Wall, source: object, target: object, *rest: object) -> str | None:
    return _writes(wall, target)


def _makes_folder(wall: Wall, path: Any, *rest: object) -> str | None:
    folder = resolved(path)
    needed = wall.downloads and any(c.is_relative_to(folder) for c in wall.caches[1:])
    return None if needed or folder.is_dir() else _writes(wall, path)


def _removes(wall: Wall, path: object, dir_fd: int = -1, *rest: object) -> str | None:
    # Relative to an open folder: what clears away a download's own temporary files.
    return None if dir_fd != -1 and wall.downloads else _writes(wall, path)


def _runs(wall: Wall, code: object, *rest: object) -> str | None:
    file = getattr(code, "co_filename", "")
    if not Path(file).is_absolute() or wall.may_hold_code(resolved(file)):
        return None
    return f"run code in `{file}`"


def _imports(wall: Wall, name: object, file: object, *rest: object) -> str | None:
    if not isinstance(file, str) or wall.may_hold_code(resolved(file)):
        return None
    return f"run code in `{file}`"


def _links_library(wall: Wall, file: object, *rest: object) -> str | None:
    if not isinstance(file, str) or not Path(file).is_absolute():
        return None  # one of the system's, by its name
    path = resolved(file)
    fine = wall.may_hold_code(path) or below(path, _SYSTEM)
    return None if fine else f"run code in `{file}`"


def _unmarshals(wall: Wall, *args: object) -> str | None:
    return None if _importing(wall) else "unmarshal code"


def _asks(wall: Wall, *args: object) -> str | None:
    return "ask a question on the terminal"


QUESTIONS: Mapping[str, Callable[..., str | None]] = MappingProxyType(
    {
        "pickle.find_class": _finds_class,
        "marshal.loads": _unmarshals,
        "exec": _runs,
        "import": _imports,
        "ctypes.dlopen": _links_library,
        "builtins.input": _asks,
        "socket.getaddrinfo": _looks_up,
        "socket.gethostbyname": _looks_up,
        **dict.fromkeys(
            ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), _connects
        ),
        **dict.fromkeys(
            ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork"),
            starts,
        ),
        **dict.fromkeys(
            ("os.forkpty", "os.startfile", "pty.spawn", "_winapi.CreateProcess"), starts
        ),
        "open": _opens,
        "os.rename": _renames,
        "os.link": _links,
        "os.symlink": _links,
        "os.mkdir": _makes_folder,
        "os.remove": _removes,
        "os.rmdir": _removes,
        **dict.fromkeys(("os.truncate", "os.chmod", "os.chown", "sqlite3.connect"), _writes),
    }
)


def _importing(wall: Wall) -> bool:
    """Whether an import inside the wall is what does it: then it is the module's own doing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wall.frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
