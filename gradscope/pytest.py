"""A fixture for pytest: a test that fails with the findings of the rules.

In ``conftest.py``::

    pytest_plugins = ["gradscope.pytest"]

and in a test::

    def test_gradients_flow(gradscope_check):
        gradscope_check(Net(), torch.randn(8, 3, 32, 32))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradscope.records.report import Report

#: Keywords that ``check`` and ``leaks`` share.
_SHARED = ("inputs", "call", "device", "dtype", "seed", "overrides", "allow")


@pytest.fixture
def gradscope_check() -> Callable[..., Report]:
    """``gradscope_check(model, inputs, …)``: as ``gradscope.check``, and fails on findings.

    Besides the keywords of ``gradscope.check`` it takes ``fail_on``: "error" (the default),
    "warning" or "info", and ``leaks``: true also fails on forbidden dependencies; a mapping has
    keywords of ``gradscope.leaks``, as ``leaks={"causal": True}``. It returns the report.
    """

    def check(
        *args: Any,
        fail_on: str = "error",
        leaks: bool | Mapping[str, Any] = False,
        **options: Any,
    ) -> Report:
        __tracebackhide__ = True
        from gradscope.api.inspecting import check as checked
        from gradscope.api.leaking import leaks as leaks_of
        from gradscope.reporters.finding_lines import every_line
        from gradscope.rules import SEVERITIES, reaches

        if fail_on not in SEVERITIES:
            raise ValueError(f"fail_on={fail_on!r}: expected one of {', '.join(SEVERITIES)}")
        report = checked(*args, **options)
        if leaks:
            own = leaks if isinstance(leaks, Mapping) else {}
            shared = {name: options[name] for name in _SHARED if name in options}
            seen = leaks_of(*args[:2], **{**shared, **own}).leaks
            if seen:
                lines = (f"error {one.code} {one.layer or ''}: {one.message}" for one in seen)
                pytest.fail("\n".join(lines), pytrace=False)
        if reaches(report.findings, fail_on):
            pytest.fail("\n".join(map(str, every_line(report.findings))), pytrace=False)
        return report

    return check
