"""Something is done as soon as a module has been imported, by whatever route, and once."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import pkgutil
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from gradscope.training.import_hook import ImportHook

NAME = "imported_late"


class Log:
    """Log of the actions, and whether the module was complete."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, bool]] = []

    def __call__(self, late: bool) -> None:
        self.calls.append((late, hasattr(sys.modules[NAME], "END")))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a part, which fails as often as a file beside it says."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import os\n"
        "fails = os.path.join(os.path.dirname(__file__), 'fails')\n"
        "if os.path.exists(fails):\n    os.remove(fails)\n    raise ImportError('not yet')\n"
        f"import {NAME}.part\nEND = True\n",
        encoding="utf-8",
    )
    (folder / "part.py").write_text("PART = True\n")
    (folder / "later.py").write_text("LATER = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield folder
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]


@pytest.fixture
def log(package: Path) -> Log:
    """The log of a hook that is installed."""
    log = Log()
    ImportHook(NAME, log).install()
    return log


def by_statement(folder: Path) -> None:
    exec(f"import {NAME}", {})


def by_its_part(folder: Path) -> None:
    importlib.import_module(f"{NAME}.part")


def after_probes(folder: Path) -> None:
    for _ in range(3):
        assert importlib.util.find_spec(NAME)
    importlib.import_module(NAME)


def after_a_probe_of_a_part(folder: Path) -> None:
    assert importlib.util.find_spec(f"{NAME}.part")  # imports the package


def after_old_probes(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if hasattr(pkgutil, "find_loader"):
            assert pkgutil.find_loader(NAME)
        assert NAME in [module.name for module in pkgutil.iter_modules()]
    importlib.import_module(NAME)


def after_a_failure(folder: Path) -> None:
    (folder / "fails").touch()
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    importlib.import_module(NAME)


def lazily(folder: Path) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec and spec.loader
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    importlib.import_module("colorsys")
    assert "END" not in object.__getattribute__(module, "__dict__"), "a probe loaded it"
    assert module.END


def by_hand(folder: Path) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


def in_a_thread(folder: Path) -> None:
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()


def from_an_archive(folder: Path) -> None:
    archive = folder.parent / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder.parent / "other.py", "other.py")
        for path in folder.glob("*.py"):
            file.write(path, f"{NAME}/{path.name}")
    sys.path.insert(0, str(archive))
    importlib.invalidate_caches()
    importlib.import_module("other")
    importlib.import_module(NAME)
    assert ".zip" in str(sys.modules[NAME].__file__)


class Asking:
    """A finder as libraries have it that wrap loaders: it asks all others, itself left out."""

    asked = False

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != NAME or self.asked:
            return None
        self.asked = True
        return importlib.util.find_spec(name)


def by_another_finder_that_asks(folder: Path) -> None:
    sys.meta_path.insert(0, Asking())  # type: ignore[arg-type]
    importlib.import_module(NAME)


IN_TIME = [
    by_statement,
    by_its_part,
    after_probes,
    after_a_probe_of_a_part,
    after_old_probes,
    after_a_failure,
    lazily,
    by_hand,
    in_a_thread,
    from_an_archive,
    by_another_finder_that_asks,
]


@pytest.mark.parametrize("route", IN_TIME, ids=lambda route: route.__name__)
def test_it_comes_as_soon_as_the_module_is_there(
    route: Callable[[Path], None], package: Path, log: Log
):
    (package.parent / "other.py").write_text("", encoding="utf-8")
    route(package)
    assert log.calls == [(False, True)]


class Bypassing:
    """A finder that asks nobody."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name) if name == NAME else None


def by_a_finder_in_front(folder: Path) -> None:
    sys.meta_path.insert(0, Bypassing())  # type: ignore[arg-type]
    importlib.import_module(NAME)


def past_all_finders(folder: Path) -> None:
    spec = PathFinder.find_spec(NAME)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)


def by_finders_of_the_scripts_own(folder: Path) -> None:
    sys.meta_path[:] = [PathFinder]
    importlib.import_module(NAME)


LATE = [by_a_finder_in_front, past_all_finders, by_finders_of_the_scripts_own]


@pytest.mark.parametrize("route", LATE, ids=lambda route: route.__name__)
def test_an_import_that_it_cannot_see_is_noticed_when_somebody_asks(
    route: Callable[[Path], None], package: Path
):
    (package / "__init__.py").write_text("END = True\n", encoding="utf-8")  # it imports nothing
    log = Log()
    hook = ImportHook(NAME, log)
    hook.install()
    route(package)
    assert log.calls == []
    assert hook.check()
    assert log.calls == [(True, True)]


def test_the_next_import_asks(package: Path, log: Log):
    past_all_finders(package)
    importlib.import_module(f"{NAME}.later")
    assert log.calls == [(True, True)]


def test_a_package_that_imports_others_is_seen_past_a_finder_in_front(package: Path, log: Log):
    by_a_finder_in_front(package)
    assert log.calls == [(False, True)]


def test_an_import_past_a_finder_in_front_may_fail(package: Path, log: Log):
    source = (package / "__init__.py").read_text(encoding="utf-8")
    late = f"import {NAME}.part\n"
    (package / "__init__.py").write_text(late + source, encoding="utf-8")
    (package / "fails").touch()
    with pytest.raises(ImportError, match="not yet"):
        by_a_finder_in_front(package)
    assert log.calls == []
    importlib.import_module(NAME)  # its part is there from the first time: it imports nothing
    importlib.import_module(f"{NAME}.later")
    assert log.calls == [(True, True)]


def test_no_collection_of_garbage_runs_the_action(package: Path):
    """One may come while the script holds a lock that the action waits for: a run hung so."""
    callbacks = list(gc.callbacks)
    log = Log()
    ImportHook(NAME, log).install()
    assert gc.callbacks == callbacks


def test_a_module_that_is_there_is_not_waited_for(package: Path):
    importlib.import_module(NAME)
    log = Log()
    finders = list(sys.meta_path)
    hook = ImportHook(NAME, log)
    hook.install()
    assert log.calls == [(True, True)] and hook.done
    assert sys.meta_path == finders


def test_a_module_that_is_being_imported_is_waited_for(package: Path, log: Log):
    (package / "part.py").write_text("import colorsys\n", encoding="utf-8")
    sys.modules.pop("colorsys", None)
    past_all_finders(package)
    assert log.calls == []  # its body ran, and a part of it imported something
    importlib.import_module(f"{NAME}.later")
    assert log.calls == [(True, True)]


def test_nothing_is_left_behind(package: Path, log: Log):
    probed = importlib.util.find_spec(NAME)
    assert probed
    importlib.import_module(NAME)
    assert not any(isinstance(finder, ImportHook) for finder in sys.meta_path)
    assert "exec_module" not in vars(probed.loader)
    importlib.reload(sys.modules[NAME])
    assert log.calls == [(False, True)]


def test_a_probe_sees_the_loader_that_is_there(package: Path, log: Log):
    ours, own = importlib.util.find_spec(NAME), PathFinder.find_spec(NAME)
    assert ours and own
    assert type(ours.loader) is type(own.loader)
    assert ours.origin == own.origin
    assert ours.loader == importlib.util.find_spec(NAME).loader  # type: ignore[union-attr]


def test_a_module_that_is_nowhere_stays_there(package: Path):
    log = Log()
    ImportHook("not_anywhere_at_all", log).install()
    assert importlib.util.find_spec("not_anywhere_at_all") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_anywhere_at_all")
    assert log.calls == []
