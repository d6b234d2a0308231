"""``python -m tests.hostile.bypasses [PACKAGE…]``: what a library's constructors can lead to.

The sources are read, and nothing of them is run. From every constructor and builder calls are
followed by name: to functions of the same file, to what the file imports of the same package, and
to methods of ``self`` in the class and its bases. Printed is each call that would fetch, unpickle,
run or write something, with one way that leads there.

What is called through a variable or an attribute of another object is not followed. Hence the
second wall, which asks what happens.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("timm", "torchvision.models", "torchvision.transforms", "transformers")
#: The kinds of deeds, each with the calls that lead to it, by the ends of their dotted names.
KINDS = {
    "unpickles": (
        *("torch.load", "pickle.load", "pickle.loads", "joblib.load", "_legacy_load"),
        *("load_state_dict_from_url", "unsafe_load"),
    ),
    "runs code": (
        *("exec", "eval", "exec_module", "spec_from_file_location", "runpy.run_path"),
        *("get_class_from_dynamic_module", "resolve_trust_remote_code", "CDLL", "load_library"),
    ),
    "fetches": (
        *("urlopen", "urlretrieve", "requests.get", "httpx.get", "load_state_dict_from_url"),
        *("hf_hub_download", "snapshot_download", "cached_file", "cached_files", "get_kernel"),
        *("model_info", "list_repo_files", "download_url_to_file", "create_connection"),
    ),
    "starts a process": ("subprocess.run", "subprocess.Popen", "check_output", "os.system"),
    "asks": ("input",),
    "writes": (
        *("torch.save", "np.save", "numpy.save", "write_text", "write_bytes", "os.makedirs"),
        *("os.mkdir", "os.remove", "shutil.rmtree", "shutil.copy", "save_pretrained"),
    ),
}
#: Of these the functions of Python's, and no method of that name.
_BARE = ("exec", "eval", "input")
#: Functions that a config may call by name, beside classes.
BUILDERS = ("create_model", "from_config", "from_pretrained")


@dataclass
class Function:
    """One function: what it calls, as dotted names, each with its line."""

    name: str
    file: Path
    home: str | None  # its class
    calls: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Module:
    """One file of a package: functions by qualified name, bases of classes, imported names."""

    functions: dict[str, Function] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` of an expression that is no more than that; ``super().f`` is ``super.f``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return "super" if dotted(node.func) == "super" else None
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def read(file: Path, name: str) -> Module:
    """Return the definitions and imports of a file; ``name`` is the module's."""
    found = Module()
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, function: Function | None, home: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            inside, place = function, home
            if isinstance(child, ast.ClassDef):
                found.bases[child.name] = [base for base in map(dotted, child.bases) if base]
                inside, place = None, child.name
            elif isinstance(child, ast.FunctionDef) and function is None:
                own = f"{home}.{child.name}" if home else child.name
                inside = found.functions.setdefault(own, Function(own, file, home))
            elif isinstance(child, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - child.level]
                base = ".".join([*(above if child.level else []), *filter(None, [child.module])])
                for alias in child.names:
                    found.imported[alias.asname or alias.name] = f"{base}.{alias.name}"
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    found.imported[alias.asname or alias.name] = alias.name
            elif isinstance(child, ast.Call) and function is not None:
                called = dotted(child.func)
                if called is not None:
                    function.calls.append((called, child.lineno))
            visit(child, inside, place)

    visit(ast.parse(file.read_text(encoding="utf-8")), None, None)
    return found


class Sources:
    """All files of a package."""

    def __init__(self, package: str, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, Module] = {}
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *(part for part in parts if part != "__init__")])
            self.modules[name] = read(file, name)

    def roots(self) -> Iterator[tuple[str, Function]]:
        """Every constructor, and every builder."""
        for name, module in self.modules.items():
            for function in module.functions.values():
                last = function.name.rpartition(".")[2]
                if last in ("__init__", "__new__", "__post_init__", *BUILDERS):
                    yield name, function

    def called(self, name: str, function: Function) -> Iterator[tuple[str, Function]]:
        """Yield the functions of the same package that a function of a module calls."""
        for call, _ in function.calls:
            head, _, rest = call.partition(".")
            if head in ("self", "cls", "super") and function.home and "." not in rest:
                found = self._method(name, function.home, rest, head == "super")
            else:
                found = self._named(name, call)
            if found is not None:
                yield found

    def _named(self, name: str, call: str) -> tuple[str, Function] | None:
        """A function or a class's constructor by the name that a module has for it."""
        module = self.modules[name]
        for own in (call, f"{call}.__init__"):
            if own in module.functions:
                return name, module.functions[own]
        head, _, rest = call.partition(".")
        target = module.imported.get(head)
        if target is None:
            return None
        whole = f"{target}.{rest}".rstrip(".")
        for home in _prefixes(whole):
            inside = whole.removeprefix(f"{home}.")
            if home in self.modules and (home, inside) != (name, call):
                return self._named(home, inside)
        return None

    def _method(
        self, name: str, home: str, method: str, above: bool
    ) -> tuple[str, Function] | None:
        """A method of a class, of its bases where the class has none; ``above`` skips the class."""
        waiting, seen = deque([(name, home)]), set[tuple[str, str]]()
        while waiting:
            place = waiting.popleft()
            if place in seen or place[0] not in self.modules:
                continue
            seen.add(place)
            module = self.modules[place[0]]
            own = module.functions.get(f"{place[1]}.{method}")
            if own is not None and not (above and place == (name, home)):
                return place[0], own
            for base in module.bases.get(place[1], ()):
                imported = module.imported.get(base)
                waiting.append(imported.rpartition(".")[::2] if imported else (place[0], base))
        return None


def _prefixes(name: str) -> Iterator[str]:
    """``a.b``, ``a`` of ``a.b.c``: the longest first."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


@dataclass(frozen=True)
class Bypass:
    """A call that does something, and one way that leads to it from a constructor."""

    kind: str
    call: str
    place: str
    way: tuple[str, ...]


def bypasses(package: str, folder: Path | None = None) -> list[Bypass]:
    """Each call in a package that a constructor leads to and that does something, nearest first."""
    if folder is None:
        spec = importlib.util.find_spec(package.partition(".")[0])
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent.joinpath(*package.split(".")[1:])
    sources = Sources(package, folder)
    waiting = deque((name, function, (function.name,)) for name, function in sources.roots())
    seen: set[int] = set()
    found = []
    while waiting:
        name, function, way = waiting.popleft()
        if id(function) in seen:
            continue
        seen.add(id(function))
        place = function.file.relative_to(folder.parent)
        for call, line in function.calls:
            kinds = (kind for kind, ends in KINDS.items() if _ends(call, ends))
            found += [Bypass(kind, call, f"{place}:{line}", way) for kind in kinds]
        waiting += [(n, f, (*way, f.name)) for n, f in sources.called(name, function)]
    return found


def _ends(call: str, ends: tuple[str, ...]) -> bool:
    """Return True if a dotted name ends in one of others, part by part."""
    return any(call == end or (end not in _BARE and call.endswith(f".{end}")) for end in ends)


def main() -> None:
    """Print what the installed packages offer."""
    for package in sys.argv[1:] or PACKAGES:
        found = bypasses(package)
        print(f"{package}: {len(found)}")
        for one in sorted(found, key=lambda b: (b.kind, b.place)):
            print(f"  {one.kind:16} {one.call} at {one.place}: {' → '.join(one.way)}")


if __name__ == "__main__":
    main()
