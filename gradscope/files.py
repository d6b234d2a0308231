"""A result as a file: it appears whole or not at all, and replaces nothing unasked."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from gradscope.errors import OptionError


def check_file(path: Path, *, force: bool = False) -> None:
    """Refuse a path that could not be written.

    Raises:
        OptionError: it exists, is a folder, or its folder is not there or not writable.
    """
    try:
        if path.is_dir():
            raise OptionError(f"`{path}` is a folder", help="give `-o` a file's name")
        if _is_stream(path):
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
    """Write the whole file; one that exists is replaced only with ``force``.

    Raises:
        OptionError: it exists, or cannot be written.
    """
    try:
        if _is_stream(path):
            path.write_bytes(data)
        else:
            _write_file(data, path, force=force)
    except FileExistsError:
        raise _exists(path) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from None


def _write_file(data: bytes, path: Path, *, force: bool) -> None:
    """Write beside the destination, then put it in place in one step."""
    target = _destination(path) if force else path
    temporary = target.with_name(f".gradscope-{secrets.token_hex(8)}.tmp")
    try:
        # Not tempfile: its files are private, and the result should have the usual permissions.
        with temporary.open("xb") as file:
            file.write(data)
        if force:
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            temporary.replace(target)
        else:
            _claim(temporary, target, data)
    finally:
        temporary.unlink(missing_ok=True)


def _claim(temporary: Path, target: Path, data: bytes) -> None:
    """Give the file its name only if nobody has taken it; a rename would overwrite."""
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
    """Where a link points: the link stays, the file behind it is written."""
    return path.resolve() if path.is_symlink() else path


def _is_stream(path: Path) -> bool:
    """A device, a named pipe, a socket: there is nothing to overwrite, and no name to give away."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _exists(path: Path) -> OptionError:
    return OptionError(f"`{path}` exists", help="add `--force` to overwrite it")


def _unwritable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"cannot write `{path}`: {error.strerror or error}", help="choose another place with `-o`"
    )
