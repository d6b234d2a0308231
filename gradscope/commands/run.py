"""``gradscope run``: parses SCRIPT or ``-m MODULE`` after the options, also after ``python``."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from gradscope.click import Context
from gradscope.commands import _completing as completing
from gradscope.commands._findings import RuleOptions
from gradscope.commands._options import Debug, LayerOptions, argument, flag, option, takes_groups
from gradscope.commands._write import say
from gradscope.errors import OptionError, few, refuse_unknown
from gradscope.experiment.arm_process import ArmProcess
from gradscope.records.training import TrainingRun
from gradscope.records.transformer import PROBES
from gradscope.rules import reaches
from gradscope.runfile.folder import check_run_path
from gradscope.runfile.reader import RunFile
from gradscope.runfile.schema import KEEP, LEAST_KEEP
from gradscope.runfile.tracking import MOST_KEYS
from gradscope.training.launch import Script
from gradscope.training.script_run import ScriptRun
from gradscope.training.session import RunSettings, Session
from gradscope.training.tracker_thread import TrackerSettings

#: A script with one of these words may read its arguments, or import a module that does.
_READS = re.compile(r"\b(argv|args|opts|cfg|config|click|typer|fire|hydra|absl|\w*[Pp]arse\w*)\b")
_EVERYWHERE = {"--help", "--version"}


def note_passed_on(context: Context, script: Script) -> None:
    """Print a note on options of this command that come after a script that does not read them."""
    own = {name for one in context.command.params for name in (*one.opts, *one.secondary_opts)}
    given = dict.fromkeys(word.partition("=")[0] for word in script.arguments)
    meant = [word for word in given if word in own - _EVERYWHERE and word.startswith("--")]
    text = _text(script) if meant else None
    if text is None:
        return
    lost = [word for word in meant if not _takes(text, word)]
    if lost:
        before = f"options of `{context.command_path}` come before `{script.name}`"
        say(f"the script gets {few(lost, '`')}: {before}")


def _text(script: Script) -> str | None:
    """Return the script's text; None for a module, whose file is known only after an import."""
    if script.is_module:
        return None
    with contextlib.suppress(OSError):
        return Path(script.name).read_text(encoding="utf-8", errors="replace")
    return None


def _takes(text: str, option: str) -> bool:
    """Return True if a script's text names the option, or reads arguments and has the name."""
    if option in text or "add_argument" in text:
        return option in text
    name = option.removeprefix("--").replace("-", "_")
    return bool(_READS.search(text) and re.search(rf"\b{name}\b", text))


_PYTHON = re.compile(r"python(?P<version>\d+(\.\d+)*)?[dt]?(\.exe)?", re.IGNORECASE)
#: The only long option of Python that takes a value.
_LONG_WITH_VALUE = "--check-hash-based-pycs"
#: Letters without a value; then, if any, one letter with a value (``-W``, ``-X``, ``-m``, ``-c``).
_LETTERS = re.compile(r"-([^WXmc]*)([WXmc]?)(.*)", re.DOTALL)
#: Launchers of processes, each of which gradscope observes.
_LAUNCHERS = {"torchrun": "torchrun --nproc-per-node 2", "accelerate": "accelerate launch"}


@dataclass(frozen=True, slots=True)
class Restart:
    """The command under another interpreter, or with Python's options; calling it replaces the
    process.
    """

    command: tuple[str, ...]

    def __call__(self) -> None:
        """Replace this process by the command."""
        try:
            os.execv(self.command[0], self.command)
        except OSError as error:
            sys.exit(f"error: cannot run `{self.command[0]}`: {error.strerror or error}")


def script_or_restart(words: Sequence[str], options: Sequence[str]) -> Script | Restart:
    """Return the script or the command to start, from the words after ``options``.

    Raises:
        OptionError: the words name no script and no module.
    """
    name, *rest = words
    if name == "-m":
        if not rest:
            raise OptionError("`-m` needs a module", help="as in `gradscope run -m pkg.train`")
        return Script(rest[0], tuple(rest[1:]), is_module=True)
    if _is_python(name):
        return _behind_python(name, rest, options)
    if name in _LAUNCHERS and not Path(name).exists():
        raise OptionError(
            f"`{name}` starts processes; gradscope must run inside each of them",
            help=f"put it first: `{_LAUNCHERS[name]} -m gradscope run train.py`",
        )
    return Script(name, tuple(rest))


def _is_python(name: str) -> bool:
    """Return True if a word is a Python interpreter: by name, and executable if it is a path."""
    path = Path(name)
    if _PYTHON.fullmatch(path.name) is None:
        return False
    return not path.is_file() if path.name == name else os.access(path, os.X_OK)


def _behind_python(name: str, words: Sequence[str], options: Sequence[str]) -> Script | Restart:
    """Return the script after ``python``; a restart of gradscope for its flags or another
    Python.
    """
    flags, rest = _flags(words)
    if not rest or rest[0] in ("-c", "-"):
        asked = " ".join([name, *flags, *rest[:1]])
        raise OptionError(
            f"`{asked}` is not a script", help="give its file: `gradscope run train.py`"
        )
    other = _other_interpreter(name)
    if other is None and not flags:
        return script_or_restart(rest, options)
    command = (other or sys.executable, *flags, "-m", "gradscope", "run")
    return Restart((*command, *options, *rest))


def _flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off Python's own options, as it reads them; return them and the rest."""
    flags: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        found = None if word.startswith("--") else _LETTERS.fullmatch(word)
        plain, last, value = found.groups() if found else ("", "", "")
        if last in ("m", "c"):
            flags += [f"-{plain}"] if plain else []
            return flags, [f"-{last}", *([value] if value else []), *left]
        flags.append(word)
        if word == _LONG_WITH_VALUE or (last and not value):
            flags += left[:1]
            left = left[1:]
    return flags, left


def _other_interpreter(word: str) -> str | None:
    """Return the path of another interpreter; None for the one that runs this.

    For a bare name such as ``python3.12`` only the version counts, because the shell may find
    another `gradscope` beside it.

    Raises:
        OptionError: there is no interpreter of that version.
    """
    if Path(word).name != word:
        own = Path(sys.executable).parent.resolve()
        return None if Path(word).parent.resolve() == own else word
    named = _PYTHON.fullmatch(word)
    version = named["version"] if named else None
    if version is None or f"{sys.version.split()[0]}.".startswith(f"{version}."):
        return None
    found = shutil.which(word)
    if found is None:
        raise OptionError(
            f"there is no interpreter `{word}`",
            help="drop it: the script runs in gradscope's Python",
        )
    return found


EXAMPLES = (
    ("gradscope run train.py --epochs 3", "All words after the script go to the script."),
    ("gradscope run --every 100 -o run.db -m pkg.train", "A module; every 100th step is sampled."),
    ("torchrun --nproc-per-node 8 -m gradscope run --ranks 0,1 train.py", "Two of eight record."),
    ("gradscope run --deep 899:901 train.py", "Three steps, operation by operation."),
    ("gradscope run --to wandb train.py", "Charts in the run that the script opens in W&B."),
)
_STOPS = ("never", "nan", "error")


class Parser(TyperCommand):
    """A parser that passes all words after the script, or after ``-m MODULE``, to the script."""

    allow_interspersed_args = False

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse as Python does: ``-m`` ends the options, as the script does."""
        taken = {name for p in self.params for name in p.opts if not getattr(p, "is_flag", False)}
        number = 0
        while number < len(args) and args[number].startswith("-") and args[number] != "--":
            word = args[number]
            if word == "-m":
                break
            number += 2 if word in taken else 1
        options, words = args[:number], args[number:]
        ctx.meta["options"] = options
        return super().parse_args(ctx, [*options, "--", *words[words[:1] == ["--"] :]])


@takes_groups
def run(
    context: typer.Context,
    script: Annotated[
        list[str],
        argument(
            "SCRIPT.py | -m MODULE [ARGS]…",
            "The script, or a module as for `python -m`, and its arguments.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        option(
            "RUN",
            "The run's file; it must not exist. Default: in `gradscope-runs/`, named after the "
            "script and the time.",
            "-o",
            "--output",
        ),
    ] = None,
    every: Annotated[
        int | None,
        option("N", "Sample every Nth step, at any cost.", min=1),
    ] = None,
    budget: Annotated[
        str,
        option("SHARE", "The share of the time that gradscope may take."),
    ] = "2%",
    first: Annotated[int, option("N", "Always sample the first N steps.", min=0)] = 3,
    deep: Annotated[
        str | None,
        option(
            "FROM:TO", "Trace each operation of these steps, with its line: slow, for a second run."
        ),
    ] = None,
    layers: LayerOptions,
    rules: RuleOptions,
    stop_on: Annotated[
        str,
        option(
            "WHEN",
            "End the script at the first NaN or Inf (nan), at the first finding with severity "
            "error (error), or never.",
        ),
    ] = "never",
    steps: Annotated[int | None, option("N", "End the script after N steps.", min=1)] = None,
    seconds: Annotated[
        float | None,
        option("T", "End the script at its first step after T seconds."),
    ] = None,
    leaks: Annotated[
        bool,
        flag(
            "--leaks",
            "After step 2, test once, on the script's first batch, whether outputs depend on "
            "what they must not see, as `gradscope leaks` does.",
        ),
    ] = False,
    explain_spikes: Annotated[
        bool,
        flag(
            "--explain-spikes/--no-explain-spikes",
            "If the loss or the gradient spikes, find the sample that caused it, and keep "
            "the step for `gradscope spike` (at most 3 a run).",
        ),
    ] = True,
    capsule: Annotated[
        list[int] | None,
        option("STEP", "Keep this step for `gradscope spike`, too. Repeatable.", min=1),
    ] = None,
    capsule_size: Annotated[
        int, option("MB", "Keep at most this many MB of tensors for a step.", min=0)
    ] = 256,
    capsule_weights: Annotated[
        bool, flag("--capsule-weights", "Also keep the weights before the step.")
    ] = False,
    keep_batches: Annotated[
        int,
        option(
            "N",
            "With each kept step, keep the batches of the last N steps, its own included.",
            min=1,
        ),
    ] = 1,
    probe: Annotated[
        str,
        option(
            "PARTS",
            "The parts of a transformer to record at sampled steps: `attention`, `experts` and "
            "`residual`, with commas; or `none`.",
        ),
    ] = ",".join(PROBES),
    compiled: Annotated[
        bool,
        flag(
            "--compiled",
            "Record the calls inside compiled models, too. Numbers may change by rounding.",
        ),
    ] = False,
    no_nan_detector: Annotated[
        bool,
        flag(
            "--no-nan-detector",
            "Do not find the origin of a NaN or Inf in the step that produces it.",
        ),
    ] = False,
    no_sentinel: Annotated[bool, typer.Option("--no-sentinel", hidden=True)] = False,
    keep: Annotated[
        int,
        option("N", "Keep N sampled steps; thin older ones out.", min=LEAST_KEEP),
    ] = KEEP,
    ranks: Annotated[
        str,
        option(
            "0,1,…",
            "Under `torchrun`: record these ranks only. Norms of sharded parameters need all "
            "ranks.",
        ),
    ] = "all",
    to: Annotated[
        list[str] | None,
        option(
            "TRACKER",
            "Send the run, while it goes on, to the run that the script opened in wandb, "
            "mlflow, tensorboard or trackio, or to otlp://HOST. Repeatable.",
            complete=completing.trackers,
        ),
    ] = None,
    keys: Annotated[
        int, option("N", "Send at most N charts: step metrics, then the worst layers.", min=1)
    ] = MOST_KEYS,
    quiet: Annotated[
        bool,
        flag("--quiet", "Print nothing at the end, unless gradscope fails."),
    ] = False,
    arm: Annotated[str | None, typer.Option("--arm", hidden=True)] = None,
    debug: Debug = False,
) -> ScriptRun | Restart:
    """Run a training script as Python would, and record its training.

    The script does not change: output, numbers and exit code are those of `python SCRIPT.py`. At
    the end, a few lines report the findings and the run's file. `gradscope why RUN` explains
    them, and `gradscope show RUN` shows the run.
    """
    rules.check()
    if stop_on not in _STOPS:
        raise OptionError(f"unknown `--stop-on {stop_on}`", help=f"one of {', '.join(_STOPS)}")
    started = script_or_restart(script, context.meta["options"])
    if isinstance(started, Restart):
        return started
    started.check()
    if not quiet:
        note_passed_on(context, started)
    if out is not None:
        words = started.words.replace("{", "{{").replace("}", "}}")
        check_run_path(out, f"gradscope run -o {{run}} {words}")
    settings = RunSettings(
        out=out,
        every=every,
        budget=_share(budget),
        first=first,
        layers=(*(layers.layers or ("**",)), *(f"!{p}" for p in layers.exclude or ())),
        deep=None if deep is None else _steps(deep),
        probes=_probes(probe),
        nan_detector=not (no_nan_detector or no_sentinel),
        stop_on=stop_on,
        keep=keep,
        ranks=_ranks(ranks),
        steps=steps,
        seconds=_seconds(seconds),
        leaks=leaks,
        spikes=explain_spikes,
        capsules=tuple(capsule or ()),
        capsule_size=capsule_size,
        capsule_weights=capsule_weights,
        keep_batches=keep_batches,
        trackers=TrackerSettings.of(to or (), keys, _page, quiet=quiet),
        compiled=compiled,
        rules=rules.settings(None),
    )
    threshold = rules.fail_on or "never"

    def judged(session: Session) -> bool:
        return reaches([one.finding for one in session.findings], threshold)

    summary = Session.fault if quiet else Session.summary
    change = None if arm is None else ArmProcess.read(arm)
    return ScriptRun(started, settings, summary, judged, change)


def _page(run: RunFile, ended: TrainingRun | None) -> str:
    from gradscope.api.showing import run_page  # only once the script has ended

    return run_page(run, ended)


def _seconds(seconds: float | None) -> float | None:
    """Return the time limit of a script.

    Raises:
        OptionError: the number is not a time.
    """
    if seconds is not None and not 0 < seconds < math.inf:
        raise OptionError(f"`--seconds {seconds:g}` is not a time", help="give more than 0")
    return seconds


def _share(text: str) -> float:
    """Parse a share: ``2%`` or ``0.02`` gives 0.02."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise OptionError(f"`--budget {text}` is not a share", help="write `2%`, or `0.02`")
    return share


def _ranks(text: str) -> tuple[int, ...] | None:
    """Parse ranks: ``0,1`` gives numbers, ``all`` gives None."""
    if text == "all":
        return None
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise OptionError(f"`--ranks {text}` are not ranks", help="write `0,1`, or `all`")
    return tuple(map(int, words))


def _probes(text: str) -> tuple[str, ...]:
    """Parse parts of a transformer: ``attention,experts``, in the order of their tables; ``none``
    gives none.

    Raises:
        OptionError: there is no such part.
    """
    words = [] if text == "none" else [word.strip() for word in text.split(",")]
    for word in words:
        refuse_unknown("probe", word, (*PROBES, "none"))
    return tuple(one for one in PROBES if one in words)


def _steps(text: str) -> tuple[int, int]:
    """Parse steps: ``899:901``, or one number for one step."""
    first, _, last = text.partition(":")
    try:
        steps = int(first), int(last or first)
    except ValueError:
        steps = 0, 0
    if not 1 <= steps[0] <= steps[1]:
        raise OptionError(
            f"`--deep {text}` are not steps", help="write `899:901`: they count from 1"
        )
    return steps
