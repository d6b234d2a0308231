"""Runs an arm inside the script's process: setup before the script, the change, notes after it."""

from __future__ import annotations

import importlib
import json
import random
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradscope.experiment.arms import BY_NAME, OTHER_SEED, Arm
from gradscope.experiment.scratch import Writes
from gradscope.training.import_hook import ImportHook

_ROOM = "gradscope.experiment.interventions"
#: The seed of Python's and NumPy's generators, if the script sets none.
_SEED = 0


@dataclass(slots=True)
class ArmProcess:
    """One arm, as the hidden option ``--arm`` of ``gradscope run`` names it.

    Attributes:
        arm: the arm.
        notes: facts on the arm, for the process that compares the arms.
        file: the file for the notes, written when the script has ended.
        scratch, source: the copy of the working folder, and that folder.
    """

    arm: Arm
    file: Path
    scratch: Path
    source: Path
    notes: dict[str, Any] = field(default_factory=dict)
    patches: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def read(cls, text: str) -> ArmProcess:
        """Read the arm that ``option`` wrote; the reverse of ``option``."""
        given = json.loads(text)
        file, scratch, source = (Path(given[key]) for key in ("file", "scratch", "source"))
        return cls(BY_NAME[given["arm"]], file, scratch, source)

    @staticmethod
    def option(arm: Arm, file: Path, scratch: Path, source: Path) -> str:
        """Return the arm as one word of a command line."""
        paths = {"file": file, "scratch": scratch, "source": source}
        return json.dumps({"arm": arm.name, **{key: str(path) for key, path in paths.items()}})

    def begin(self) -> None:
        """Prepare the script: equal random numbers for all arms, and no writes outside."""
        refused: list[str] = self.notes.setdefault("refused", [])
        self._writes = Writes(self.scratch, self.source, refused.append)
        self._writes.install()
        other = self.arm is OTHER_SEED
        random.seed(_SEED + other)
        if other:
            from gradscope.experiment.interventions.other_seed import shifted

            random.seed = shifted(random.seed)
        ImportHook("numpy", self._numpy_imported).install()

    def _numpy_imported(self, late: bool) -> None:
        made: Any = sys.modules["numpy"].random
        other = self.arm is OTHER_SEED
        made.seed(_SEED + other)
        if other:
            from gradscope.experiment.interventions.other_seed import shifted

            made.seed, made.default_rng = shifted(made.seed), shifted(made.default_rng)

    def install(self) -> None:
        """Apply the arm's change, once the script has imported torch."""
        import torch

        from gradscope.experiment.script_facts import note_facts

        self._keep_saves_inside(torch)
        if not self.arm.file:
            note_facts(self.patches, self.notes)
            return
        file = importlib.import_module(f"{_ROOM}.{self.arm.file.replace('-', '_')}")
        file.install(self.patches, self.notes, self.arm.factor)

    def _keep_saves_inside(self, torch: Any) -> None:
        """Patch ``torch.save``, which opens its file in C++, invisible to Python."""
        save, check = torch.save, self._writes.check

        def checked_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            check(f)
            return save(obj, f, *args, **kwargs)

        torch.save = torch.serialization.save = checked_save

    def end(self) -> None:
        """Write the notes at the script's end."""
        self.patches.close()
        self.file.write_text(json.dumps(self.notes), encoding="utf-8")

    _writes: Writes = field(init=False)
