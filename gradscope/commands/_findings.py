"""Options of ``check`` and ``inspect``: the rules to apply, and the severity that fails."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from gradscope.commands import _completing as completing
from gradscope.commands._options import RULES, option
from gradscope.records.report import RuleText
from gradscope.rules import FAIL_ON, PRESETS, RuleSettings, documented

if TYPE_CHECKING:
    from gradscope.config.loaded_config import LoadedConfig


def fail_on_option(what: str) -> Any:
    """Return the option ``--fail-on`` for a command that fails only on request; the help calls the
    findings ``what``."""
    return option(
        "SEVERITY",
        f"Exit with 1 if {what} has this severity or worse: error, warning, info or never.",
        complete=completing.one_of(FAIL_ON),
    )


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """Rules to apply, and the severity of findings that gives exit code 1."""

    panel: ClassVar[str] = RULES

    select: Annotated[
        list[str] | None,
        option(
            "RULE",
            "Only these rules: a code, a prefix of codes (`GS4`), or a name. Repeatable, and with "
            "commas.",
            complete=completing.rules,
        ),
    ] = None
    ignore: Annotated[
        list[str] | None,
        option("RULE", "Not these rules; same form as --select.", complete=completing.rules),
    ] = None
    preset: Annotated[
        str | None,
        option(
            "NAME",
            f"Thresholds of another tool: {', '.join(PRESETS)}.",
            complete=completing.one_of(PRESETS),
        ),
    ] = None
    fail_on: Annotated[
        str | None,
        option(
            "SEVERITY",
            "Exit with 1 if a finding has this severity or worse: error, warning, info, never.",
            complete=completing.one_of(FAIL_ON),
        ),
    ] = None

    def check(self) -> None:
        """Check the options before a config is read.

        Raises:
            OptionError: a code, a name, a preset or a severity does not exist.
        """
        self.settings(None)

    @property
    def chosen(self) -> dict[str, Any]:
        """Return the choice of rules, as keywords of the entries."""
        ignored = _words(self.ignore)
        return {"select": _words(self.select), "ignore": ignored, "preset": self.preset}

    def settings(self, loaded: LoadedConfig | None) -> RuleSettings:
        """Return the rule settings: the config's `rules`, overridden by these options.

        Raises:
            ConfigError: a rule or threshold in the config does not exist.
            OptionError: one in an option does not exist.
        """
        options = {**self.chosen, "fail_on": self.fail_on}
        if loaded is None:
            return RuleSettings.of(**options)
        config = loaded.config.model_dump(mode="json")["rules"]
        return RuleSettings.of(config, loaded.place, **options)


def rule_texts() -> tuple[RuleText, ...]:
    """Return the texts of all rules, for formats that include them."""
    found = []
    for rule in documented():
        help = f"{rule.what}\n\nWhy it matters: {rule.why}\n\nHow to fix it: {rule.fix}"
        text = RuleText(rule.code, rule.name, rule.severity, rule.summary, help, rule.sources)
        found.append(text)
    return tuple(found)


def path_root() -> Path | None:
    """Return the root of paths in annotations: the checkout's folder in GitHub's CI, else None."""
    folder = os.environ.get("GITHUB_WORKSPACE")
    return Path(folder) if folder else None


def _words(option: Sequence[str] | None) -> tuple[str, ...]:
    words = (word.strip() for text in option or () for word in text.split(","))
    return tuple(word for word in words if word)
