"""``gradscope doctor`` names the C++ compiler of ``torch.compile``, or says that there is none."""

from __future__ import annotations

import sys

import pytest

from gradscope.commands import doctor


@pytest.mark.parametrize("there", [True, False])
def test_the_compiler(there: bool, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("CXX", sys.executable if there else "no-such-compiler")
    doctor.run()
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("torch.compile"))
    assert ("no C++ compiler `no-such-compiler`" in line) is not there
    assert (sys.executable in line) is there
