"""The noise scale of a run's gradient, from the micro-batches or the ranks of its sampled steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from gradscope.records.training import GradientParts, RunNoise, TrainingStep

#: Half the width of an interval of about 95 %, in standard errors. From n steps, the width grows by
#: the second figure over n - 1, as in Student's distribution.
ERRORS, _STUDENT = 2.1, 2.5
#: Number of sampled steps that an estimate needs, and of the latest that it uses.
_LEAST, _LATEST = 8, 128
#: Micro-batches of one loss have the same mean loss, up to this many standard errors.
_SAME = 4.0


def noise_of_run(steps: Sequence[TrainingStep]) -> RunNoise | None:
    """Estimate the noise scale from sampled steps with equal parts; None if they are too few.

    The gradient is taken to be about as large, and as noisy, in all of them: the latest count.
    tr(Σ) and |G|² of each step are unbiased (McCandlish et al., https://arxiv.org/abs/1812.06162,
    appendix A); the interval of the ratio of their means is Fieller's.
    """
    having = [one for one in steps if one.parts is not None]
    if not having:
        return None
    last = _form(having[-1].parts)
    chosen = [one for one in having if _form(one.parts) == last][-_LATEST:]
    size, several, by_ranks = last
    if len(chosen) < _LEAST or several < 2 or not (by_ranks or _exchangeable(chosen)):
        return None
    found = [_of_ranks(p.ranks, one.gradient_norm) if by_ranks else _of_sums(p.sums)
             for one in chosen if (p := one.parts) is not None]  # fmt: skip
    pairs = [one for one in found if one is not None]
    if len(pairs) < _LEAST:
        return None
    noises, signals = zip(*pairs, strict=True)
    noise, signal = fmean(noises), fmean(signals)
    variance, shared, of_signal = (
        _covariance(a, b) / len(pairs)
        for a, b in ((noises, noises), (noises, signals), (signals, signals))
    )
    width = ERRORS + _STUDENT / (len(pairs) - 1)
    low, high = fieller((noise, signal), (variance, shared, of_signal), width)
    return RunNoise(
        value=size * noise / signal if signal > 0 and noise > 0 else None,
        low=size * low,
        high=None if math.isinf(high) else size * high,
        size=size,
        parts=several,
        by_ranks=by_ranks,
        steps=len(pairs),
    )


def _form(parts: GradientParts | None) -> tuple[int, int, bool]:
    """Return the samples of each part, the number of parts, and whether they are ranks."""
    if parts is None:
        return 0, 0, False
    return parts.size, len(parts.ranks or parts.sums), bool(parts.ranks)


def _of_sums(sums: Sequence[float]) -> tuple[float, float]:
    """Return tr(Σ) and |G|² of a micro-batch's gradient, from the norms of their partial sums.

    With k micro-batches, E|S_k|² - E|S_{k-1}|² = tr(Σ) + (2k - 1) |G|²: a line through the growth.
    """
    squares = [0.0, *(one * one for one in sums)]
    growth = [now - before for before, now in pairwise(squares)]
    places = [2.0 * k + 1.0 for k in range(len(growth))]
    center, mean = fmean(places), fmean(growth)
    slope = sum((x - center) * (y - mean) for x, y in zip(places, growth, strict=True))
    slope /= sum((x - center) ** 2 for x in places)
    return mean - slope * center, slope


def _of_ranks(own: Sequence[float], norm: float | None) -> tuple[float, float] | None:
    """Return tr(Σ) and |G|² of a rank's gradient, from all ranks' norms and that of their mean."""
    if norm is None:
        return None
    count, mean = len(own), fmean(one * one for one in own)
    return (mean - norm**2) * count / (count - 1), (count * norm**2 - mean) / (count - 1)


def _exchangeable(steps: Sequence[TrainingStep]) -> bool:
    """Return True if the losses of the first, second, … micro-batch have the same mean.

    If they differ, as those of real and generated pictures do, their gradients do, too.
    """
    rows = [one.losses for one in steps if None not in one.losses]
    if len(rows) < _LEAST:
        return False
    for place in range(len(rows[0])):
        off = [float(row[place] or 0.0) - fmean(float(x or 0.0) for x in row) for row in rows]
        error = math.sqrt(_covariance(off, off) / len(off))
        if abs(fmean(off)) > _SAME * error > 0:
            return False
    return True


def _covariance(one: Sequence[float], other: Sequence[float]) -> float:
    a, b = fmean(one), fmean(other)
    return sum((x - a) * (y - b) for x, y in zip(one, other, strict=True)) / (len(one) - 1)


def fieller(
    ratio: tuple[float, float], errors: tuple[float, float, float], width: float
) -> tuple[float, float]:
    """Return the interval of ratios for which ``noise - ratio * signal`` may be 0 (Fieller), with
    bounds of at least 0.

    Args:
        ratio: the noise and the signal.
        errors: the variance of the noise, its covariance with the signal, the signal's variance.
        width: half the width of the interval, in standard errors.
    """
    (noise, signal), (variance, shared, of_signal), limit = ratio, errors, width**2
    a = signal**2 - limit * of_signal
    b = noise * signal - limit * shared
    c = noise**2 - limit * variance
    root = b * b - a * c
    if a <= 0 or root < 0:  # the signal may be 0: no ratio is too large
        if root < 0 or a == 0:
            return 0.0, math.inf
        ends = sorted([(b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a])
        return max(0.0, ends[1]) if signal > 0 or ends[1] > 0 else 0.0, math.inf
    return max(0.0, (b - math.sqrt(root)) / a), max(0.0, (b + math.sqrt(root)) / a)
