"""The text of the script's own classes."""

from __future__ import annotations

import sys
import types

import pytest
from torch import nn

from gradscope.explain.shared.frames import classes_of_script


def test_a_class_of_a_script_is_read_and_a_librarys_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Mine:
        pass

    (found,) = classes_of_script(Mine)
    assert found[0] == __file__
    assert found[1].name == "Mine"
    assert classes_of_script(nn.Linear) == []
    # A class typed at a prompt has no file.
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    assert classes_of_script(type("Typed", (), {"__module__": "__main__"})) == []
