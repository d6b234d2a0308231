"""Lines on the judgement of a training run: no problem, or too few samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradscope.records.answers import Judgement, NotJudged
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, plural
from gradscope.typeset.text import plain

#: Of a run without a step.
NOTHING_RECORDED = Line("no step was recorded", "Nothing was judged:", "warn")


def no_problem(judgement: Judgement, where: str) -> Iterator[Line]:
    """No problem was found ``where``; names the rules that judged."""
    if not judgement.judged:
        yield Line("every rule needs more samples", "Nothing was judged:", "warn")
        return
    tone = "" if judgement.not_judged else "good"
    yield Line(f"{where}; judged: {codes(judgement.judged)}", "No problem found", tone)


def not_enough(judgement: Judgement) -> Iterator[Line]:
    """The rules that need more samples, grouped by the option that gives them."""
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
    """``GS101–104, GS203``: the codes, those that follow each other as one."""
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
    """Where none was found: how many rules could be judged, and the option for the others."""
    judged, lacking = len(judgement.judged), judgement.not_judged
    options = dict.fromkeys(one.help for one in lacking if one.help.startswith("--"))
    more = f"{plural(len(lacking), 'rule')} {'needs' if len(lacking) == 1 else 'need'} more samples"
    more += f" ({' '.join(options)})" if options else ""
    if not judged:
        return f"nothing was judged: {more}"
    text = f"no {what} found; {plural(judged, 'rule')} could be judged"
    return f"{text}, {more}" if lacking else text
