"""Writes a result to a file atomically; replaces an existing file only on request."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from gradscope.errors import ConfigError, OptionError


def check_file(path: Path, *, force: bool = False) -> None:
    """Check that a path can be written.

    Raises:
        OptionError: it exists, is a folder, or its folder does not exist or is not writable.
    """
    try:
        if path.is_dir():
            raise OptionError(f"`{path}` is a folder", help="name a file, not a folder")
        if is_stream(path):
            return
        if os.path.lexists(path) and not force:
            raise _exists(path)
        folder = _destination(path).parent
        if not folder.exists():
            raise OptionError(f"no such folder: `{folder}`", help=f"create it: mkdir -p '{folder}'")
        if not folder.is_dir():
            raise OptionError(f"`{folder}` is not a folder")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OptionError(
                f"cannot write `{path}`: the folder is not writable", help="choose another folder"
            )
    except OSError as error:
        raise _unwritable(path, error) from None


def write_file(data: bytes, path: Path, *, force: bool = False) -> None:
    """Write the full file; one that exists is replaced only with ``force``.

    Raises:
        OptionError: it exists, or cannot be written.
    """
    if is_stream(path):
        try:
            path.write_bytes(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritable(path, error) from None
        return
    with atomic_file(path, force=force) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def atomic_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a new file to fill beside the destination; it replaces the destination in one step.

    Raises:
        OptionError: as ``write_file``.
    """
    target = _destination(path) if force else path
    temporary = _temporary(target)
    try:
        # Not tempfile: its files are private, and the result should have the usual permissions.
        temporary.touch(exist_ok=False)
        yield temporary
        if force:
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        else:
            _claim(temporary, target)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, own: str, *, force: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill; its files then move to ``path``, beside existing ones.

    Raises:
        OptionError: files whose names match ``own`` exist, without ``force``; or the folder cannot
            be written.
    """
    try:
        if path.exists() and not path.is_dir():
            raise OptionError(f"`{path}` is a file", help="give a folder's name")
        earlier = sorted(path.glob(own))
        if earlier and not force:
            raise _exists(earlier[0])
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            path.mkdir(exist_ok=True)
            for file in temporary.iterdir():
                file.replace(path / file.name)
            for file in earlier:
                file.unlink(missing_ok=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _temporary(path: Path) -> Path:
    """Return this process's temporary file beside the destination; remove files of dead
    processes."""
    own = f".gradscope-{_machine()}-{os.getpid()}-{secrets.token_hex(8)}.tmp"
    for left in path.parent.glob(f".gradscope-{_machine()}-*-*.tmp"):
        owner = left.name.split("-")[2]
        if owner.isdecimal() and not _runs(int(owner)):
            with contextlib.suppress(OSError):  # another writer's file
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return path.with_name(own)


def _machine() -> str:
    """Return a short id of this machine: machines that share a network folder have other
    processes.
    """
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _runs(process: int) -> bool:
    """Return True if the process exists, as far as the system shows."""
    if os.name == "nt":  # signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _claim(temporary: Path, target: Path) -> None:
    """Give the file its name only if the name is free; a rename would overwrite."""
    try:
        target.hardlink_to(temporary)
    except OSError as error:
        unsupported = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
        if error.errno not in unsupported:
            raise
        # No hard links here (FAT, some network folders): claim the name, then fill it.
        with target.open("xb"):
            pass
        temporary.replace(target)


def _destination(path: Path) -> Path:
    """Return the target of a link, which is written while the link stays."""
    return path.resolve() if path.is_symlink() else path


#: The names of files that a process gets open: with a shell's `>`, they may be regular files.
_OPEN = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/self/fd/\d+")


def is_stream(path: Path) -> bool:
    """Return True for a device, a named pipe or a socket, which is written directly."""
    try:
        mode = path.stat().st_mode
        if _OPEN.fullmatch(str(path)):
            return True
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def expanded(path: str | Path) -> Path:
    """Expand `~` or `~NAME` in a path; an unknown name stays unchanged."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def check_readable(path: Path) -> None:
    """Refuse to read a pipe or a device, which may never end.

    Raises:
        ConfigError: it is not a regular file.
        OSError: the path cannot be read.
    """
    if is_stream(path):
        raise ConfigError(f"`{path}` is not a regular file", help="copy its content into one")


def _exists(path: Path) -> OptionError:
    return OptionError(f"`{path}` exists", help="add `--force` to overwrite it")


def _unwritable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"cannot write `{path}`: {error.strerror or error}", help="choose another place"
    )
