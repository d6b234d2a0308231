"""Python itself as it was, once the user's code has run: whatever that replaced, took or closed."""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradscope.errors import GradscopeError, ModelError, message_of


@contextmanager
def interpreter_kept() -> Iterator[None]:
    """Builtins, what is in ``json``, ``sys.exit``, finders, paths and modules are put back.

    Raises:
        ModelError: one of them was replaced, and something did not get on without it.
    """
    # Nothing here may call a builtin before they are back.
    places, leave = [(m.__dict__, {**m.__dict__}) for m in (builtins, json)], sys.exit
    finders, paths, modules = [*sys.meta_path], [*sys.path], {**sys.modules}
    changed: list[str] = []

    def put_back() -> None:
        changed.extend(["sys.exit"] if sys.exit is not leave else [])
        for now, before in places:
            changed.extend([name for name in before if now.get(name) is not before[name]])
            now.update(before)
        sys.exit = leave
        lists: tuple[tuple[str, list[Any], list[Any]], ...] = (
            *(("meta_path", finders, sys.meta_path), ("path", paths, sys.path)),
        )
        for name, kept, held in lists:
            missing = [one for one in kept if one not in held]
            held[:0] = missing
            changed.extend([f"sys.{name}"] if missing else [])
        # None stands for a module that is not to be imported.
        gone = {n: m for n, m in modules.items() if m is not None and sys.modules.get(n) is None}
        sys.modules.update(gone)
        changed.extend(["sys.modules"] if gone else [])

    try:
        yield
    except BaseException as error:
        put_back()
        if not changed or isinstance(error, (GradscopeError, KeyboardInterrupt)):
            raise
        raise ModelError(
            f"the model's code changed {', '.join(f'`{name}`' for name in changed)}, and raised "
            f"{type(error).__name__}: {message_of(error) or 'without a message'}",
            help="restore what it replaces in Python before it returns",
        ) from error
    put_back()
