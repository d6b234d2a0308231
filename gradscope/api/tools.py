"""Tools for agents and editors over MCP: each answer is JSON of limited size, worst first.

They read files below one folder only, and write nothing. Only ``inspect`` runs a model, if that is
allowed, in a separate process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gradscope import plugins
from gradscope.api.reading import load, read_history, report_of_step
from gradscope.api.showing import rendered
from gradscope.errors import ConfigError, GradscopeError, OptionError
from gradscope.records.report import Report
from gradscope.records.showing import Shown
from gradscope.records.training import RunHistory
from gradscope.reporters.run import called, selected, selected_reports
from gradscope.reporters.run.findings import answers
from gradscope.reporters.shortening import TOKENS, shortened
from gradscope.reporters.views import TextView
from gradscope.rules import documented, explained
from gradscope.runfile.folder import FOLDER, files_of, is_run, recorded, run_named
from gradscope.runfile.reader import RunFile

#: The largest length of a word, number of words in a list, and size of a report's file.
_LONGEST, _MOST, _LARGEST = 500, 50, 256 << 20
#: A pattern with at most this many stars matches fast.
_STARS = 4
#: Seconds that a model may run.
_PATIENCE = 300
_OVERRIDE = re.compile(r"[a-z_][\w.]*=.*", re.DOTALL)
_FILE = re.compile(r"(?P<path>.*\.(py|ya?ml))(:.*)?", re.DOTALL | re.IGNORECASE)


class Tools:
    """One method per tool. Each raises a GradscopeError with a message for the agent.

    Args:
        folder: the tools read files inside it only.
        tokens: the most tokens of an answer.
    """

    def __init__(self, folder: Path, tokens: int = TOKENS) -> None:
        self._folder, self._tokens = folder.resolve(), tokens

    def runs(self) -> str:
        """List the recorded training runs, the newest first: path, script, steps, findings.

        The other tools take the path, or the file's name without `.db`.
        """
        found: list[dict[str, object]] = []
        for path in recorded(self._folder / FOLDER)[:_MOST]:
            name = str(path.relative_to(self._folder))
            try:
                opened = RunFile.open(self._inside(name))
            except GradscopeError as error:  # damaged, or a link that leads out
                message = error.problems[0].message.replace(f"{self._folder}{os.sep}", "")
                found.append({"path": name, "error": message})
                continue
            with opened as run:
                head = run.run
                counts = {
                    "path": name,
                    "script": head.script,
                    "steps": head.steps,
                    "ended": head.ended is not None,
                    "findings": [f"{one.code} {one.name}" for one in run.findings],
                }
            found.append(counts)
        return self._answer(json.dumps({"runs": found}))

    def show(self, path: str, step: int | None = None, layers: Sequence[str] = ()) -> str:
        """Show a recorded training run, or a saved report, as JSON with the worst first.

        Args:
            path: a run's file, folder or name, or the JSON of `inspect`, `check`, `why` or `diff`.
            step: for a run: this sampled step, with its calls and parameters.
            layers: for a run: patterns of layers, such as `layer4.**` or `fc.weight`.
        """
        record = self._read(path)
        if isinstance(record, RunHistory):
            patterns = self._patterns(layers)
            if step is None:
                return self._json(selected(record, patterns, ()))
            return self._json(_step(record, step, patterns))
        if step is not None or layers:
            raise OptionError("`step` and `layers` are of a run, and this is a report")
        return self._json(record)

    def why(self, run: str, layers: Sequence[str] = (), step: int | None = None) -> str:
        """Name the causes of the problems in a training run, with lines and remedies.

        Args:
            run: its file, folder or name.
            layers: patterns of layers to answer for, in any state.
            step: only findings that held at this step.
        """
        found = self._found(run)
        if found is None:
            raise ConfigError(f"there is no run `{_shown(run)}`", help="`runs` lists them")
        with RunFile.open(found) as opened:
            history = read_history(opened, calls=bool(layers))
        return self._json(answers(history, None, self._patterns(layers), (), step))

    def diff(self, a: str, b: str) -> str:
        """Compare two training runs, or two reports of `inspect`: where do they diverge first?

        Args:
            a, b: files, folders or names, both of runs or both of reports.
        """
        from gradscope.api.diffing import diff

        first, second = self._read(a), self._read(b)
        if isinstance(first, RunHistory) != isinstance(second, RunHistory):
            raise OptionError("one is a run, the other a report", help="name two of a kind")
        return self._json(diff(first, second))  # type: ignore[arg-type]

    def rules(self, code: str | None = None) -> str:
        """List the rules that gradscope checks, or explain one: check, thresholds, sources, fix.

        Args:
            code: a rule's code or name, such as `GS101` or `vanishing-gradient`.
        """
        found = documented() if code is None else (explained(self._word(code)),)
        reporter = plugins.load("gradscope.reporters.rulebook", "json")
        return self._answer(str(reporter.render(found, TextView())))

    def inspect(self, model: str, overrides: Sequence[str] = ()) -> str:
        """Run one training step of a model and report activations, gradients and findings.

        This runs the model's code.

        Args:
            model: a YAML config, `./net.py:Net`, `torchvision:resnet18`, `timm:…`, or `demo`.
            overrides: config keys, such as `model.num_classes=10`.
        """
        word, more = self._word(model), self._words(overrides)
        file = _FILE.fullmatch(word)
        if word.startswith("-") or "=" in word:
            raise OptionError(f"`{_shown(word)}` is not a model")
        if file is not None:
            self._inside(file["path"])
        for one in more:
            if not _OVERRIDE.fullmatch(one):
                raise OptionError(f"`{_shown(one)}` is not a `key=value`")
        command = [sys.executable, "-m", "gradscope", "inspect", word, *more, "-f", "json"]
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                text=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise OptionError(f"the model took longer than {_PATIENCE} s") from None
        if not done.stdout.strip():
            raise ConfigError(done.stderr.strip()[-2000:] or f"exit code {done.returncode}")
        return self._answer(done.stdout)

    def _json(self, record: Shown) -> str:
        return self._answer(str(rendered(record, "json")))

    def _answer(self, text: str) -> str:
        return shortened(text, self._tokens)

    def _read(self, word: str) -> Shown:
        run = self._found(word)
        if run is not None:
            loaded: Shown = load(run)
            return loaded
        path = self._inside(word)
        if not path.exists():
            raise ConfigError(
                f"no run and no report is named `{_shown(word)}`", help="`runs` lists the runs"
            )
        if path.is_file() and path.stat().st_size > _LARGEST:
            raise OptionError(f"`{_shown(word)}` is too large")
        return load(path)

    def _found(self, word: str) -> Path | None:
        """Return the run of that name; all its files must be inside the folder."""
        for place in (self._folder, self._folder / FOLDER):
            path = run_named(self._inside(word, place))
            if path is not None and path.exists() and is_run(path):
                for file in files_of(self._inside(str(path))):
                    self._inside(str(file))
                return path
        return None

    def _inside(self, word: str, place: Path | None = None) -> Path:
        """Return the path that a word names, if it is below the folder with all links resolved.

        Args:
            word: a path.
            place: its base; None: the folder.

        Raises:
            OptionError: it is outside.
        """
        try:
            path = ((place or self._folder) / self._word(word, longest=4096)).resolve()
        except (OSError, ValueError, RuntimeError):
            raise OptionError(f"`{_shown(word)}` is not a path") from None
        if not path.is_relative_to(self._folder):
            name = word.removeprefix(f"{self._folder}{os.sep}")  # a link in it leads out
            raise OptionError(
                f"`{_shown(name)}` is outside of the working directory",
                help="start `gradscope mcp` in the project's folder",
            )
        return path

    def _patterns(self, layers: Sequence[str]) -> tuple[str, ...]:
        words = self._words(layers)
        for word in words:
            if word.lstrip("!").startswith("re:") or word.count("*") > _STARS:
                raise OptionError(
                    f"the pattern `{_shown(word)}` may take long to match",
                    help=f"use at most {_STARS} stars, and no `re:`",
                )
        return words

    def _words(self, words: Sequence[str]) -> tuple[str, ...]:
        if len(words) > _MOST:
            raise OptionError(f"{len(words)} words are too many", help=f"give at most {_MOST}")
        return tuple(map(self._word, words))

    def _word(self, word: str, longest: int = _LONGEST) -> str:
        if len(word) > longest or "\0" in word:
            raise OptionError(f"`{_shown(word)}` is no name: it is too long, or has a NUL")
        return word


def _step(history: RunHistory, step: int, patterns: Sequence[str]) -> Report:
    """Return one model in one sampled step.

    Raises:
        OptionError: the step was not sampled, or has several models.
        LayerError: a pattern matches nothing.
    """
    if history.path is None or step not in history.sampled:
        return report_of_step(history, step, None)  # says which steps there are
    models = {model.id: model for model in history.models}
    with RunFile.open(history.path) as run:
        found = [(models[one.model], one.report) for one in run.sample(step)]
    found = selected_reports(found, patterns, ())
    if len(found) > 1:
        names = [called(model) for model, _ in found]
        raise OptionError(
            f"step {step} has {len(found)} models", help=f"name one in `layers`: `{names[0]}.**`"
        )
    return found[0][1]


def _shown(word: str) -> str:
    return word if len(word) <= 60 else f"{word[:60]}…"
