"""The second wall: the allowed actions of a library while it builds a config's object.

The first wall (policy.py) checks names, so it always lags behind the
libraries. This one checks actions: Python's audit events (PEP 578) report each before it happens.
The user's own files run without the wall. It is a guard, not a sandbox: docs/security.md lists the
gaps.

https://docs.python.org/3/library/audit_events.html lists the events and their arguments. To check
another event, write its question here and add it to ``QUESTIONS``.
"""

from __future__ import annotations

import functools
import io
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import _weights_only_unpickler

from gradscope.errors import ConfigError, Place
from gradscope.output_files import expanded


def resolved(path: str | bytes | os.PathLike[Any]) -> Path:
    """Return a path without links and dots."""
    return Path(os.fsdecode(path)).resolve()


def below(path: Path, folders: tuple[Path, ...]) -> bool:
    """Return True if a resolved path is one of the folders or inside one."""
    return any(path.is_relative_to(folder) for folder in folders)


def environment() -> tuple[Path, ...]:
    """Return the folders of installed code: Python's own, and those on the user's ``sys.path``."""
    folders = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    folders |= {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {site.getusersitepackages(), str(Path(__file__).parents[1])}
    folders |= {entry for entry in sys.path if entry}
    return tuple(Path(folder).resolve() for folder in folders)


def caches() -> tuple[Path, ...]:
    """Return the folders of the libraries' caches. The first one holds code, which is never run
    from there."""
    words = os.environ.get("XDG_CACHE_HOME")
    caches = Path(words) if words else expanded("~/.cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    constants = sys.modules.get("huggingface_hub.constants")
    others = [getattr(constants, f"HF_{name}_CACHE", home) for name in ("HUB", "XET", "ASSETS")]
    code = os.environ.get("HF_MODULES_CACHE") or home / "modules"
    return tuple(Path(each).resolve() for each in (code, torch.hub.get_dir(), home, *others))


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
#: Folders in which a system keeps libraries for every program.
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
    # A path relative to an open folder is a temporary file that a download removes.
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
    """Return True if an import inside the wall causes the event; then the module is the cause."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wall.frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


_walls: list[Wall] = []  # those that are active, the innermost last


class Refused(ConfigError):
    """An action of a library that was refused; ``started`` is True for the start of a process."""

    started = False


class Wall:
    """A context for the call of the object ``name``, which keeps it from acting outside the
    process.

    Args:
        name: the object, as the config names it.
        place: its place in the config.
        package: the package of its code, for ``--allow``.
        downloads: True if the config asks for weights or for a model of the hub; then connections
            are allowed, and writes to the libraries' caches.
        owns: returns True for a file of the user's own, which may be imported.

    Raises:
        ConfigError: at the latest when it ends; names the refused action.
    """

    def __init__(
        self,
        name: str,
        place: Place | None = None,
        *,
        package: str = "transformers",
        downloads: bool = False,
        owns: Callable[[Path], bool] = lambda file: False,
    ) -> None:
        self.name, self.place, self.package = name, place, package
        self.downloads, self.owns = downloads, owns
        self.refused: list[Refused] = []

    def __enter__(self) -> None:
        _listen()
        self.frame: FrameType | None = sys._getframe(1)
        # Threads that a caller of the Python interface already has do not belong to the config.
        self.others = {t.ident for t in threading.enumerate()} - {threading.get_ident()}
        self.environment = environment()
        self.caches = caches()
        self.stdin, sys.stdin = sys.stdin, io.StringIO()
        self.offline = _hub_offline(None if self.downloads else True)
        _walls.append(self)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _walls.remove(self)
        sys.stdin, self.frame = self.stdin, None
        _hub_offline(self.offline)
        if not self.downloads and error is not None and _wanted_the_hub(error):
            self.refused.append(self.refusal("connect to the Hugging Face hub"))
        # A library may have caught the refusal: its result would then differ silently. Only a
        # program that inspects the machine, such as a compiler, is dispensable.
        refusals = [each for each in self.refused if error is not None or not each.started]
        if refusals and not isinstance(error, KeyboardInterrupt):
            raise refusals[0] from (error if error is not refusals[0] else error.__cause__)

    def refusal(self, deed: str) -> Refused:
        """Return the error for the refused action."""
        return Refused(
            f"`{self.name}` was about to {deed}, which a config may not do",
            place=self.place,
            help="remove the part that needs it; or, only if you trust the config and all that it "
            f"names, lift the wall on the command line: --allow '{self.package}.*'",
            notes=["gradscope stopped it before it happened"],
        )

    def may_hold_code(self, path: Path) -> bool:
        """Return True if a file is the environment's or the user's own; never one of a cache."""
        return not below(path, self.caches) and (below(path, self.environment) or self.owns(path))

    def may_write(self, path: Path) -> bool:
        """Return True if the file is in a cache of weights, and weights were requested."""
        if path == Path(os.devnull):
            return True
        code = below(path, self.caches[:1])
        return self.downloads and not code and below(path, self.caches[1:])


class WalledPartial(functools.partial[Any]):
    """A partial that runs within its own wall, whoever calls it."""

    wall: Callable[[], AbstractContextManager[None]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        with self.wall():
            return super().__call__(*args, **kwargs)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _walls or event not in QUESTIONS:
        return
    wall = _walls[-1]
    if threading.get_ident() in wall.others:
        return
    deed = QUESTIONS[event](wall, *args)
    if deed is not None:
        refusal = wall.refusal(deed)
        refusal.started = QUESTIONS[event] is starts
        wall.refused.append(refusal)
        raise refusal


@functools.cache
def _listen() -> None:
    """Install the audit hook once per process: it cannot be removed."""
    sys.addaudithook(_hook)


def _hub_offline(wanted: bool | None) -> bool | None:
    """Set whether the hub's client stays offline; return the previous setting. None changes
    nothing."""
    constants = sys.modules.get("huggingface_hub.constants")
    before: bool | None = getattr(constants, "HF_HUB_OFFLINE", None)
    if before is not None and wanted is not None:
        constants.HF_HUB_OFFLINE = wanted  # type: ignore[union-attr]
    return before


def _wanted_the_hub(error: BaseException) -> bool:
    """Return True if the failure comes from a file that only the hub has."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if type(cause).__name__ in ("OfflineModeIsEnabled", "LocalEntryNotFoundError"):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False
