"""Compiles ``gradscope/capture/one_pass``: ``python .build/compile.py [LIBRARY]``.

The library is put beside its source if no path is given. The exit code is 1 if there is no C
compiler, or none that makes a library which loads here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "gradscope" / "capture" / "one_pass"
FLAGS = ["-std=c11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
# Neither changes a value: they leave out errno, and the processor's flags for exceptions.
FLAGS += ["-fno-math-errno", "-fno-trapping-math"]


def compilers() -> Iterator[list[str]]:
    """The commands to try: the user's, the one that made this Python, the usual names."""
    for command in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        words = shlex.split(command or "")
        if words and shutil.which(words[0]):
            yield words


def made(command: list[str], library: Path) -> bool:
    """Whether the compiler made a library that this Python can load."""
    source = str(SOURCE / "one_pass.c")
    use = f"import ctypes; ctypes.CDLL({str(library)!r}).gradscope_interface()"
    steps = ([*command, *FLAGS, source, "-o", str(library), "-lm"], [sys.executable, "-c", use])
    return all(subprocess.run(words, capture_output=True).returncode == 0 for words in steps)


def main() -> int:
    """Compile, and tell by the exit code whether that was possible."""
    library = Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE / "one_pass.so"
    if any(made(command, library.absolute()) for command in compilers()):
        return 0
    library.unlink(missing_ok=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
