"""Comparison of a command's output with a page: the text exactly, numbers to the last digit."""

from __future__ import annotations

import re

_TIME = re.compile(r"[\d.]+ (s|ms|µs)\b|[\d.]+ % of the time")
#: A capsule holds the paths of the script's files, and figures of which each machine keeps other
#: digits: its size differs by some bytes from folder to folder.
_FILE_SIZE = re.compile(r"(?<=capsule: )[\d.]+ [KM]iB")
#: Capsules of unusual steps are kept while their time allows: which ones differs from run to run.
_KEPT = re.compile(r"(?<=also kept: step )\d+(, \d+)*")
_RULE = re.compile(r"─+")
_NUMBER = re.compile(r"(?P<digits>-?[\d,]*\.?\d+)(?:e(?P<exponent>[-+]\d+))?")
#: Around a number that stands in a sentence or a list.
_AROUND = "()[],;:%…–"


def same(found: list[str], shown: list[str], *, bound: float = 0.0) -> bool:
    """Equal but for times, sizes of files, other steps that are kept, spacing, and rounding.

    Args:
        found: the lines that were printed.
        shown: the lines of the page, which another processor may have printed.
        bound: how different two processors' numbers may be, relative, by the network; a number
            may always differ by one in its last digit, for it may lie where rounding turns.
    """
    one, other = (_words(lines) for lines in (found, shown))
    return len(one) == len(other) and all(
        _alike(a, b, bound) for a, b in zip(one, other, strict=True)
    )


def _words(lines: list[str]) -> list[str]:
    text = _RULE.sub("─", "\n".join(line.rstrip() for line in lines).strip())
    text = _KEPT.sub("STEPS", _FILE_SIZE.sub("SIZE", _TIME.sub("TIME", text)))
    return text.split()


def _alike(one: str, other: str, bound: float) -> bool:
    if one == other:
        return True
    numbers = [_number(word) for word in (one, other)]
    if numbers[0] is None or numbers[1] is None:
        return False
    (a, step), (b, other_step) = numbers
    return abs(a - b) <= 1.01 * max(step, other_step) + bound * max(abs(a), abs(b))


def _number(word: str) -> tuple[float, float] | None:
    """A number and what one in its last digit is worth; None for a word or a count.

    A count is exact, and the same everywhere: it has no point, and a comma from four digits on,
    which a number in four digits has not.
    """
    match = _NUMBER.fullmatch(word.strip(_AROUND))
    if match is None:
        return None
    digits, exponent = match["digits"].replace(",", ""), int(match["exponent"] or 0)
    if "," in match["digits"]:
        return None
    if match["digits"].lstrip("-").isdigit() and len(digits) != 4 and match["exponent"] is None:
        return None
    places = len(digits.partition(".")[2])
    return float(f"{digits}e{exponent}"), 10.0 ** (exponent - places)
