"""The verdict on a run in a few lines: the worst cause, its place, certainty and fix, other
findings.

Without a finding it says which rules could judge the run, and which had too few samples.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradscope.records.answers import Judgement, NotJudged
from gradscope.records.leaks import RULES
from gradscope.records.training import TrainedModel, TrainingFinding, TrainingRun
from gradscope.reporters.finding_lines import places
from gradscope.reporters.header import TONES, stretches
from gradscope.reporters.run import below, called
from gradscope.rules import Cause, folded, is_exact
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, duration, plural, share
from gradscope.typeset.text import plain

#: The line for a run without a step.
NOTHING_RECORDED = Line("no step was recorded", "Nothing was judged:", "warn")


def no_problem(judgement: Judgement, where: str) -> Iterator[Line]:
    """Yield the line that no problem was found ``where``, with the rules that judged."""
    if not judgement.judged:
        yield Line("every rule needs more samples", "Nothing was judged:", "warn")
        return
    tone = "" if judgement.not_judged else "good"
    yield Line(f"{where}; judged: {codes(judgement.judged)}", "No problem found", tone)


def not_enough(judgement: Judgement) -> Iterator[Line]:
    """Yield the rules that need more samples, grouped by the option that gives them."""
    alike: dict[tuple[str, str], list[NotJudged]] = {}
    for one in judgement.not_judged:
        unit = one.unit if one.help.startswith("--") else ""
        alike.setdefault((_lead(one), unit), []).append(one)
    for (lead, _), several in alike.items():
        text = codes([one.code for one in several])
        first = several[0]
        if first.unit == "calls" or first.unit == "end":
            text += f": {plain(first.help)}"
        elif first.unit == "first-step":
            text += f" (needs step 1): {plain(first.help)}"
        elif first.help.startswith("--"):
            seen = _range([one.seen for one in several])
            text += f" ({_needs(several)}, {seen} recorded): {plain(first.help)}"
        else:
            text += f" ({_needs(several)} steps)"
        yield Line(text, lead, "warn")


def _lead(one: NotJudged) -> str:
    if one.unit == "calls":
        return "No calls are recorded for"
    if one.unit == "end":
        return "The script ended too early for"
    if one.help.startswith("--"):
        return f"Not enough {'steps with metrics' if one.unit == 'steps' else 'samples'} for"
    return "The run is too short for"


def _needs(several: Sequence[NotJudged]) -> str:
    word = "needs" if len(several) == 1 else "need"
    return f"{word} {_range([one.needs for one in several])}"


def _range(numbers: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(map(count, (min(numbers), max(numbers)))))


def codes(of: Sequence[str]) -> str:
    """Return codes in short, consecutive ones as a range: ``GS101–104, GS203``."""
    spans: list[list[str]] = []
    for code in map(plain, sorted(of)):
        if spans and _follows(spans[-1][-1], code):
            spans[-1].append(code)
        else:
            spans.append([code])
    words = []
    for span in spans:
        words += [f"{span[0]}–{span[-1][2:]}"] if len(span) > 2 else span
    return ", ".join(words)


def _follows(one: str, other: str) -> bool:
    numbers = [code[2:] for code in (one, other) if code[2:].isdecimal()]
    return len(numbers) == 2 and int(numbers[1]) == int(numbers[0]) + 1


def in_short(judgement: Judgement, what: str = "problem") -> str:
    """Return the short line for no finding: the number of judged rules, and the option for the
    others."""
    judged, lacking = len(judgement.judged), judgement.not_judged
    options = dict.fromkeys(one.help for one in lacking if one.help.startswith("--"))
    more = f"{plural(len(lacking), 'rule')} {'needs' if len(lacking) == 1 else 'need'} more samples"
    more += f" ({' '.join(options)})" if options else ""
    if not judged:
        return f"nothing was judged: {more}"
    text = f"no {what} found; {plural(judged, 'rule')} could be judged"
    return f"{text}, {more}" if lacking else text


#: The notice for a run with a compiled model, without the option.
UNSEEN = "calls inside compiled models are not recorded: `gradscope run --compiled` records them"

#: Number of other causes, and of symptoms' codes, that are named.
_OTHERS, _CODES = 3, 4
#: The codes of the leak rules, which a run judges once.
_LEAKS = {code for code, _ in RULES.values()}
#: Words of a message that already says how often something occurred.
_HOW_OFTEN = re.compile(r"\bin (all|the only|[\d,]+ of) ")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a run.

    Attributes:
        run: the record of the run, ended or not.
        findings: the findings of the full run.
        models: the models that it trains.
        sampled: the number of sampled steps.
        samples: the sampled steps of each model, by the model's number.
        judgement: the rules that had enough data.
        capsules: the steps with a capsule: requested steps, and spikes.
        odd: the steps kept for a sample unlike all before, with a usual loss and gradient.
    """

    run: TrainingRun
    findings: Sequence[TrainingFinding] = ()
    models: Sequence[TrainedModel] = ()
    sampled: int = 0
    samples: Mapping[int, Sequence[int]] = field(default_factory=dict)
    judgement: Judgement | None = None
    capsules: Sequence[int] = ()
    odd: Sequence[int] = ()

    def lines(self) -> Iterator[Line]:
        """Yield the worst cause and the number of further findings, or that none was found."""
        causes = folded(self.findings)
        if not causes:
            if self.judgement is not None and self.run.steps:
                failed = (self.run.exit or "0").strip() != "0"
                how = (self.run.exit or "").partition("\n")[0]
                until = f"the script failed ({how}); until then, " if failed else ""
                yield Line(plain(until + self._none_found(self.judgement)))
                if not failed:
                    yield from self._experiment()
            return
        worst, severity = causes[0].finding, causes[0].severity
        harmless = severity == "info"
        if harmless and self.judgement is not None:
            yield Line(plain(self._none_found(self.judgement, "error or warning")))
        where = self._where(worst)
        # An info that explains a warning counts as a warning.
        shown = severity if worst.severity == "info" else worst.severity
        yield self._cause(worst, shown, f" ({where})" if harmless and where else "")
        if where and not harmless:
            yield Line(where, indent=1)
        if worst.advice:
            yield Line(plain(worst.advice), "help:", indent=1)
        more = [*_symptoms(causes[0].symptoms), *_others(causes[1:])]
        if more:
            yield Line("; ".join(more))
        if harmless:
            yield from self._experiment()

    def _none_found(self, judgement: Judgement, *what: str) -> str:
        """Return the sentence for no finding, and the spikes: these are detected at every step,
        while rules judge steps with metrics.
        """
        text, asked = in_short(judgement, *what), self.run.options.get("capsule", ())
        spikes = [(step, step) for step in self.capsules if step not in asked]
        if spikes:
            text += f"; but loss or gradient spiked at {stretches(spikes)}"
        if self.odd:
            odd = stretches([(step, step) for step in self.odd])
            text += f"; {'and' if spikes else 'but'} a sample of {odd} is unlike all before"
        return text

    def _experiment(self) -> Iterator[Line]:
        """Yield the command for a loss that does not fall although no finding explains it."""
        run = self.run
        if run.world_size > 1 or not (run.script.endswith(".py") or run.script.startswith("-m ")):
            return
        words = " ".join([run.script, *map(shlex.quote, run.arguments)])
        text = f"`gradscope experiment {words}` tries the data and the learning rate"
        text += "; no rule sees whether inputs and labels belong together"
        yield Line(plain(f"if the loss does not fall: {text}"))

    def steps(self) -> Line:
        """Return the line on the steps, the sampled ones, and their cost."""
        cut = f" (ended by `{self.run.cut}`)" if self.run.cut else ""
        what = f"{plural(self.run.steps, 'step')}{cut}, {count(self.sampled)} sampled"
        cost = cost_in_words(self.run)
        return Line(f"{what}; cost {cost}" if cost else what)

    def more_about(self, path: str) -> Line:
        """Return the line with the run's path and the command that shows more."""
        run, quoted = self.run, shlex.quote(path)
        command = f"gradscope {'why' if self.findings else 'show'} {quoted}"
        text = plain(f"recorded in {path}: `{command}`")
        kept = sorted([*self.capsules, *self.odd])
        if kept:
            steps = stretches([(step, step) for step in kept])
            text += f"; the samples of {steps}: `gradscope spike {quoted}`"
        late = [one for one in self.findings if one.origin is not None and one.steps[0][0] > 1]
        if late and not run.options.get("deep"):
            step = late[0].steps[0][0]
            words = plain(" ".join([run.script, *map(shlex.quote, run.arguments)]))
            deep = f"`gradscope run --deep {step - 1}:{step} {words}`"
            text += f"; every operation of step {step}: {deep}"
        return Line(text)

    def _cause(self, found: TrainingFinding, severity: str, more: str) -> Line:
        place = plain(self._place(found))
        lead = f"{plain(severity)}[{plain(found.code)}]{f' {place}' if place else ''}:"
        return Line(f"{plain(found.message)}{more}", lead, TONES.get(severity, ""))

    def _place(self, found: TrainingFinding) -> str:
        """Return the layer, with its model before it if there are several models."""
        names = {model.id: called(model) for model in self.models}
        model = names.get(-1 if found.model is None else found.model)
        return below(model if len(names) > 1 or not found.name else None, found.name)

    def _where(self, found: TrainingFinding) -> str:
        """Return the lines of the script, and how often the finding occurred."""
        return ", ".join(filter(None, (*places(found.finding), self._how_often(found))))

    def _how_often(self, found: TrainingFinding) -> str:
        """``in all 600 steps``, ``since step 44 of 64``, ``in 7 of 7 samples``; "" if the message
        already says it."""
        if _HOW_OFTEN.search(found.message) or not found.steps:
            return ""
        if found.code in _LEAKS:
            return f"judged once, at {stretches(found.steps)}"
        if not is_exact(found):
            return self._in_samples(found)
        (first, _), total = found.steps[0], self.run.steps
        if len(found.steps) > 1 or found.steps[-1][1] < total:
            return f"in {stretches(found.steps)} of {count(total)}" if total else ""
        if first == 1:
            return f"in all {count(total)} steps" if total > 1 else ""
        # The script may end within the step, as by `--stop-on nan`.
        return (
            f"in step {count(first)}"
            if first > total
            else f"since step {count(first)} of {count(total)}"
        )

    def _in_samples(self, found: TrainingFinding) -> str:
        numbers = self.samples.get(-1 if found.model is None else found.model, ())
        if not numbers:
            return f"in {stretches(found.steps)}"
        held = sum(bisect_right(numbers, b) - bisect_left(numbers, a) for a, b in found.steps)
        return f"in {count(held)} of {plural(len(numbers), 'sample')}"


def cost_in_words(run: TrainingRun) -> str:
    """Return the cost in words: ``1.6 % of the time (4.02 s)``; "" if unknown."""
    if run.cost is None:
        return ""
    text = f"{share(run.cost) if run.cost < 1 else 'all'} of the time"
    if run.cost_seconds is None:
        return text
    took = run.cost_seconds
    return f"{text} ({f'{took:.2f} s' if took < 10 else duration(round(took, 1))})"


def _symptoms(symptoms: Sequence[TrainingFinding]) -> Iterator[str]:
    """Return the symptoms in words: ``2 findings follow from it: GS404, GS605``."""
    if not symptoms:
        return
    counts = Counter(plain(one.code) for one in symptoms)
    codes = [f"{code} ×{n}" if n > 1 else code for code, n in counts.items()]
    more = ["…"] if codes[_CODES:] else []
    listed = ", ".join([*codes[:_CODES], *more])
    yield f"{plural(len(symptoms), 'finding')} {_follow(len(symptoms))}: {listed}"


def _follow(count: int) -> str:
    return "follows from it" if count == 1 else "follow from it"


def _others(causes: Sequence[Cause]) -> Iterator[str]:
    """``4 more findings: GS104 update-ratio (3 follow from it), GS505 bias-before-batchnorm``."""
    if not causes:
        return
    rules: dict[str, list[int]] = {}
    for one in causes:
        rule = f"{one.finding.code} {one.finding.rule}"
        rules.setdefault(rule, []).append(len(one.symptoms))
    names = []
    for rule, symptoms in rules.items():
        times = f" ×{len(symptoms)}" if len(symptoms) > 1 else ""
        follow = f" ({sum(symptoms)} {_follow(sum(symptoms))})" if any(symptoms) else ""
        names.append(f"{plain(rule)}{times}{follow}")
    total = sum(1 + len(one.symptoms) for one in causes)
    more = ["…"] if names[_OTHERS:] else []
    yield f"{plural(total, 'more finding')}: {', '.join([*names[:_OTHERS], *more])}"


def summary(
    verdict: Verdict,
    path: str | None,
    *,
    failure: str | None = None,
    unobserved: Sequence[str] = (),
) -> str:
    """Return the lines of the verdict, each with the name of the tool before it.

    Args:
        verdict: the verdict on the run, finished or not.
        path: its file, or the folder with the files of all ranks; None without one.
        failure: an internal error of gradscope.
        unobserved: the parts of the script that were not observed, with advice.
    """
    run = verdict.run
    first = [str(verdict.steps())] if run.steps else []
    lines = [*first, *unobserved] or ["no step so far"]
    if any(model.compiled for model in verdict.models) and not run.options.get("compiled"):
        lines.append(UNSEEN)
    lines += map(str, verdict.lines())
    if failure is not None:
        lines.append(f"error: {failure}")
    if path is not None:
        lines.append(str(verdict.more_about(path)))
    name = f"gradscope: rank {run.rank}:" if run.world_size > 1 else "gradscope:"
    return "".join(f"{name} {line}\n" for line in lines)
