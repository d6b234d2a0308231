"""Imports libraries and the user's own files, and explains failed imports: the cause and the fix.

A file is the user's own if it is below the config's folder or the working directory, but not in an
environment, the standard library or a hidden folder. A file on the command line is the user's own
too. So are the files beside it, but only that file may import them, not a config.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import socket
import sys
import sysconfig
import traceback
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

from gradscope.errors import (
    ConfigError,
    GradscopeError,
    ModelError,
    Place,
    Problem,
    TargetError,
    did_you_mean,
    message_of,
)
from gradscope.images.files import shown

_EXTRAS = {"timm": "timm", "transformers": "hf"}


def require(name: str, *, wanted_by: str, place: Place | None = None) -> ModuleType:
    """Import a library's module.

    Raises:
        ConfigError: it is not installed, or does not match the installed torch.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        message = f"`{wanted_by}` needs {package}, which is not installed"
        raise ConfigError(message, place=place, help=install(package)) from error
    except (ImportError, RuntimeError, OSError) as error:
        stale = mismatch(error)
        if stale is None:
            message = f"`{wanted_by}` needs {name}, whose import failed: {message_of(error)}"
            help = f"reinstall it: pip install --force-reinstall {name}"
            raise ConfigError(message, place=place, help=help) from error
        raise ConfigError(Problem(stale.message, place, stale.help)) from error


def install(module: str) -> str:
    """Return the advice to install a missing module."""
    package = module.partition(".")[0]
    if package in _EXTRAS:
        return f"pip install 'gradscope[{_EXTRAS[package]}]'"
    if package in ("torchvision", "pandas", "umap"):
        return f"pip install {'umap-learn' if package == 'umap' else package}"
    return f"install the package that provides `{package}`, or fix the import"


def mismatch(error: BaseException) -> Problem | None:
    """Return the problem of a torchvision built for another torch; None for other errors."""
    text = message_of(error)
    binary = isinstance(error, ImportError) and "undefined symbol" in text and "torchvision" in text
    if not (binary or ("operator torchvision::" in text and "does not exist" in text)):
        return None
    torch = importlib.metadata.version("torch")
    local = importlib.import_module("torch").__version__.partition("+")[2]
    try:
        torchvision = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        torchvision = "(of unknown version)"
    torch = f"{torch.partition('+')[0]}+{local}" if local else torch
    return Problem(
        f"torchvision {torchvision} was not built for the installed torch {torch}: {text}",
        help="install a pair that fits: pip install --force-reinstall torch torchvision",
    )


@contextmanager
def hub(seconds: float = 5.0) -> Iterator[None]:
    """Query the Hugging Face hub in the block only if it answers; otherwise use its cache.

    Without a network, its client would try for half a minute per file.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    if not before and not _reachable(constants.ENDPOINT, seconds):
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _reachable(address: str, seconds: float) -> bool:
    parts = urlparse(address)
    if urllib.request.getproxies():
        return True  # who asks the proxy need not reach the host
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
    except OSError:
        return False
    return True


#: Patterns of an exception's text, each with the fix; the first match counts.
_REMEDIES = (
    (
        r"before Module\.__init__\(\) call",
        "call `super().__init__()` as the first line of that class's `__init__`",
    ),
    (
        r"Found no NVIDIA driver|not compiled with CUDA enabled|No CUDA GPUs are available",
        "leave devices out of the model (`.cuda()`, `device='cuda'`): build it on the CPU, and "
        "`--device cuda` moves all of it where there is one; in `forward` take `x.device`",
    ),
    (
        r"attempted relative import with no known parent package",
        "make the folder a package, by an empty `__init__.py` in it, or import without the dot",
    ),
    (
        r"attempted relative import beyond top-level package",
        "put an empty `__init__.py` into each folder up to the one that the dots lead to, or "
        "import without them",
    ),
)


def missing_key(error: BaseException) -> tuple[str, list[str]] | None:
    """Return the missing key of a KeyError, and the mapping's keys; None for any other error."""
    if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str):
        return None
    key, keys = error.args[0], list[str]()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, dict) and value and key not in value:
                keys = [k for k in value if isinstance(k, str)]
    return key, keys


def remedy(error: BaseException) -> str | None:
    """Return the advice for a common mistake; None for any other error."""
    for pattern, advice in _REMEDIES:
        if re.search(pattern, message_of(error), re.IGNORECASE):
            return advice
    if isinstance(error, AttributeError) and isinstance(error.obj, dict):
        keys = [key for key in error.obj if isinstance(key, str)]
        close = None if error.name in keys else did_you_mean(str(error.name), keys)
        return close or (
            f"read it by `['{error.name}']`; a mapping of the config arrives as a dict, unless it "
            f"names a class: `{{_target_: types.SimpleNamespace, {error.name}: …}}`"
        )
    found = missing_key(error)
    if found is not None and found[1]:
        key, keys = found
        return did_you_mean(key, keys) or f"it has {', '.join(f'`{k}`' for k in keys[:12])}"
    if isinstance(error, TypeError) and re.search(
        r"got dict\b|\bnot dict\b|'dict'", message_of(error)
    ):
        return (
            "read its values by `['…']`: a mapping of the config arrives as a dict; or give them "
            "one by one, as in `model: {_target_: …, width: 64}`"
        )
    return None


_PACKAGE = Path(__file__).resolve().parent.parent
_ENVIRONMENT_PARTS = {"site-packages", "dist-packages"}

# State of earlier loads: the folders added to sys.path, and the modules from them with the state of
# their file. `gradscope diff a.yaml b.yaml` loads two folders' net.py.
_folders: list[Path] = []
_imported: dict[str, tuple[Path, int, int]] = {}


class OwnCode:
    """The folders whose files a config may use, the config's own first."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = tuple(dict.fromkeys(root.resolve() for root in roots))
        self._granted: set[Path] = set()  # files outside, which the command line let in
        self._beside: set[Path] = set()  # the folders of those that it named
        self._failed: dict[Path, BaseException] = {}  # files that must not run a second time

    def owns(self, file: str | Path | None) -> bool:
        """Return True if ``file`` is the user's own: below a root, and in no environment."""
        if file is None:
            return False
        path = Path(file).resolve()
        return path in self._granted or any(_inside(path, r) for r in (*self.roots, *self._beside))

    def offers(self, path: Path) -> bool:
        """Return True if a config may name the file: below a root, and in no environment."""
        return any(_inside(path, root) for root in self.roots)

    def grant(self, path: Path, *, named: bool) -> None:
        """Treat an outside file as the user's own; if it was ``named``, with its folder."""
        self._granted.add(path)
        if named:
            self._beside.add(_home_of(path)[0])

    def home(self, dotted: str) -> Path | None:
        """Return the root that holds the file or folder of a dotted name's first part, or None."""
        first = dotted.partition(".")[0]
        for root in self.roots:
            for candidate in (root / f"{first}.py", root / first / "__init__.py", root / first):
                if candidate.exists() and self.owns(candidate):
                    return root
        return None

    def names(self) -> list[str]:
        """Return the modules at the top of the roots, for suggestions."""
        files = [path for root in self.roots for path in root.glob("*.py")]
        return sorted({path.stem for path in files})

    def import_module(self, name: str, root: Path) -> ModuleType:
        """Import the user's module ``name``, whose first part is in ``root``.

        Raises:
            TargetError: an installed module of that name comes first.
        """
        with self._once(root.joinpath(*name.split(".")).with_suffix(".py")), _Watch(root):
            first = name.partition(".")[0]
            if not _finds(first, root):
                raise TargetError(
                    f"`{first}` is the name of an installed module, which comes before "
                    f"{first}.py in {shown(root)}",
                    help=f"write the file: `./{name.replace('.', '/')}.py:CLASS`",
                )
            return importlib.import_module(name)

    def import_file(self, path: Path) -> ModuleType:
        """Import the module of one file, by its usual name if that leads to the file, else by
        another."""
        path = path.resolve()
        folder, name = _home_of(path)
        own = [root for root in self.roots if path.is_relative_to(root)]
        with self._once(path), _Watch(folder, path.parent, *own):
            if name.replace(".", "").isidentifier() and _finds(name.partition(".")[0], folder):
                module = importlib.import_module(name)
                if module.__file__ and Path(module.__file__).resolve() == path:
                    return module
            return _execute(path)

    def forget(self, module: ModuleType) -> None:
        """Forget the modules of a module's folder, so that they run again for the next config."""
        file = Path(getattr(module, "__file__", None) or "")
        if module.__name__ in _imported:
            _imported[module.__name__] = (file, 0, 0)

    @contextmanager
    def _once(self, path: Path) -> Iterator[None]:
        """Import a file. If it raised before, raise the same error without running it."""
        if path in self._failed:
            raise self._failed[path]
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed[path] = error
            raise

    def failure(self, error: BaseException, what: str, place: Place | None) -> GradscopeError:
        """Return the error to raise for the user's exception ``error`` during the action
        ``what``.

        ``place`` is the config's line that names it; the file's own line comes first.
        """
        notes = tuple([f"asked for at {place}"] if place else [])
        if isinstance(error, SyntaxError) and error.filename:
            text = error.text.rstrip("\n") if error.text else None
            line = Place(_display(error.filename), error.lineno, error.offset, text=text)
            return TargetError(Problem(f"{what}: {error.msg}", line, notes=notes))
        stale = mismatch(error)
        if stale:
            return TargetError(Problem(f"{what}: {stale.message}", place, stale.help))
        frames = self.frames(error)[::-1]
        at = frames[0] if frames else place
        notes = tuple(f"called from {frame}" for frame in frames[1:5]) + notes
        if not frames:
            notes = tuple(f"in {_display(f.filename)}:{f.lineno}, {f.name}" for f in _last(error))
        message = (
            f"{what}: {type(error).__name__}: {message_of(error).strip() or 'without a message'}"
        )
        if isinstance(error, ImportError):
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            help = install(missing) if missing else remedy(error)
            return TargetError(Problem(message, at, help, notes))
        if isinstance(error, SystemExit):
            if not what.startswith("importing"):
                return ModelError(Problem(f"{what}: it ends the process", at, notes=notes))
            help = 'put code that only a script runs under `if __name__ == "__main__":`'
            return TargetError(Problem(f"{what}: the file ends the process", at, help, notes))
        return ModelError(Problem(message, at, remedy(error), notes))

    def frames(self, error: BaseException) -> list[Place]:
        """Return the user's frames of a traceback, outermost first."""
        places = []
        for frame in traceback.extract_tb(error.__traceback__):
            file = Path(frame.filename)
            if not file.is_file() or file.resolve().is_relative_to(_PACKAGE):
                continue
            if self.owns(file):
                places.append(Place(_display(file), frame.lineno, text=frame.line or None))
        return places


def _home_of(path: Path) -> tuple[Path, str]:
    """Return the folder from which a file is imported, and its module's name there."""
    folder, name = path.parent, path.stem
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return folder, name


def _display(file: str | Path) -> str:
    return shown(Path(file))


def _last(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not Path(f.filename).is_relative_to(_PACKAGE)][-1:]


def _inside(path: Path, root: Path) -> bool:
    if not path.is_relative_to(root):
        return False
    parts = path.relative_to(root).parts
    if any(part.startswith(".") or part in _ENVIRONMENT_PARTS for part in parts):
        return False
    prefixes = {Path(p).resolve() for p in (sys.prefix, sys.exec_prefix, sys.base_prefix)}
    libraries_ = {
        Path(sysconfig.get_path(key)).resolve()
        for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    }
    # A prefix that contains the root is ignored: a project below /usr is not part of the Python in
    # /usr.
    environments = {p for p in prefixes if not root.is_relative_to(p)} | libraries_
    if any(path.is_relative_to(p) for p in environments):
        return False
    on_the_way = [root.joinpath(*parts[:depth]) for depth in range(1, len(parts))]
    return not any((f / "pyvenv.cfg").exists() or (f / "conda-meta").exists() for f in on_the_way)


def _finds(first: str, folder: Path) -> bool:
    """Return True if ``import first`` finds something in ``folder``."""
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    spots = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
    return any(spot and Path(spot).resolve().is_relative_to(folder) for spot in spots)


def _execute(path: Path) -> ModuleType:
    """Run a file as a module under an unused name, which is registered so that pickling works."""
    stem = re.sub(r"\W", "_", path.stem)
    name = f"{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:10]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


class _Watch:
    """A context for imports of the user's code: adds folders to the end of sys.path, and notes new
    modules."""

    def __init__(self, *folders: Path) -> None:
        self.folders = list(dict.fromkeys(folders))

    def __enter__(self) -> None:
        importlib.invalidate_caches()
        _forget(self.folders)
        ours = self.folders + [f for f in _folders if f not in self.folders]
        sys.path[:] = [entry for entry in sys.path if entry not in {str(f) for f in _folders}]
        # These folders come after installed packages, and this config's before those of earlier
        # configs.
        _folders[:] = [f for f in ours if str(f) not in sys.path]
        sys.path.extend(str(folder) for folder in _folders)
        self.before = set(sys.modules)

    def __exit__(self, *exc: object) -> None:
        for name in set(sys.modules) - self.before:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and _home(Path(file)):
                _imported[name] = (Path(file), *_stamp(Path(file)))


def _home(file: Path) -> Path | None:
    within: Callable[[Path], bool] = file.is_relative_to
    return max(filter(within, _folders), key=lambda f: len(f.parts), default=None)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


def _forget(folders: list[Path]) -> None:
    """Drop modules whose name now belongs to another folder, and modules of folders that
    changed."""
    changed = {_home(file) for file, *was in _imported.values() if tuple(was) != _stamp(file)}
    for name, (file, *_) in list(_imported.items()):
        first = name.partition(".")[0]
        spots = [spot for folder in folders for spot in (folder / f"{first}.py", folder / first)]
        meant = [spot for spot in spots if spot.exists()]
        taken = bool(meant) and not any(file.is_relative_to(spot) for spot in meant)
        if taken or _home(file) in changed:
            sys.modules.pop(name, None)
            del _imported[name]
