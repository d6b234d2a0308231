"""Compares the files of a run's ranks, and finds values that must be equal and are not.

It reads tensors only for the steps in which ranks differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradscope.records.ranks import INPUT, Difference, RanksRecord, SameInputs, UnevenBatch
from gradscope.records.training import TrainingRun
from gradscope.runfile.rank_file import Copies, RankFile

#: At up to this many steps with an unusual batch size on one rank, the other ranks' batch sizes are
#: read.
_ODD_STEPS = 500
#: Number of steps over which the pace is measured.
_PACED_STEPS = 500


@dataclass(slots=True)
class _Rank:
    """The part of one file that is compared with others.

    Attributes:
        digests: the digests by step, model, kind and part.
        sizes: the number of steps with each batch size.
        odd: the first steps with an unusual batch size.
    """

    file: RankFile
    run: TrainingRun
    digests: dict[tuple[int, Copies], str]
    sizes: Counter[int]
    odd: list[int]

    @property
    def usual(self) -> int:
        return max(self.sizes, key=lambda size: (self.sizes[size], size))


def compare_ranks(files: Sequence[RankFile]) -> RanksRecord:
    """Compare the ranks of a run; return their differences.

    Raises:
        ConfigError: a file is damaged.
    """
    ranks = {one.run.rank: one for one in map(_read, files)}
    return RanksRecord(
        runs=tuple(one.run for one in ranks.values()),
        models=tuple({m.id: m for one in ranks.values() for m in one.file.models}.values()),
        differences=tuple(_differences(ranks)),
        same_inputs=tuple(_same_inputs(ranks)),
        uneven=_uneven(ranks),
        paces={
            rank: pace
            for rank, one in ranks.items()
            if (pace := one.file.pace(_PACED_STEPS)) is not None
        },
        events=tuple(
            replace(event, details={**event.details, "rank": rank})
            for rank, one in ranks.items()
            for event in one.file.events
        ),
    )


def _read(file: RankFile) -> _Rank:
    rank = _Rank(file, file.run, file.digests, Counter(file.batch_sizes), [])
    if rank.sizes:
        rank.odd = file.odd_batches(rank.usual, _ODD_STEPS)
    return rank


def _differences(ranks: Mapping[int, _Rank]) -> Iterator[Difference]:
    """Yield one difference for each model and kind: the first step in which copies differ."""
    held: dict[tuple[int, str], dict[int, list[dict[int, tuple[str, str]]]]] = {}
    groups: dict[tuple[int, Copies], dict[int, str]] = {}
    for rank, one in ranks.items():
        for key, digest in one.digests.items():
            groups.setdefault(key, {})[rank] = digest
    for (step, (model, kind, part)), digests in sorted(groups.items()):
        if kind != INPUT and len(digests) > 1:
            of_kind = held.setdefault((model, kind), {})
            of_kind.setdefault(step, []).append(
                {rank: (part, digest) for rank, digest in digests.items()}
            )
    for (model, kind), steps in held.items():
        differing = [s for s, parts in steps.items() if any(map(_differ, parts))]
        if not differing:
            continue
        first = differing[0]
        names: dict[str, None] = {}
        others: set[int] = set()
        total = 0
        for copies in steps[first]:
            part = next(iter(copies.values()))[0]
            each = {r: ranks[r].file.fingerprints(first, (model, kind, part)) for r in copies}
            total += len({name for tensors in each.values() for name in tensors})
            if _differ(copies):
                found, odd = _odd_ones(each)
                names.update(dict.fromkeys(found))
                others |= odd
        before = [s for s in steps if s < first]
        compared = len({rank for copies in steps[first] for rank in copies})
        yield Difference(
            *(model, kind, (first, differing[-1]), before[-1] if before else None),
            *(tuple(names), total, tuple(sorted(others)), compared),
        )


def _differ(copies: Mapping[int, tuple[str, str]]) -> bool:
    return len({digest for _, digest in copies.values()}) > 1


def _odd_ones(each: Mapping[int, Mapping[str, str]]) -> tuple[list[str], set[int]]:
    """Return the tensors that are not the same on all ranks, and the ranks that differ from
    most."""
    names: list[str] = []
    odd: set[int] = set()
    for name in dict.fromkeys(name for tensors in each.values() for name in tensors):
        texts = {rank: tensors.get(name) for rank, tensors in each.items()}
        if len(set(texts.values())) > 1:
            names.append(name)
            most = Counter(texts.values()).most_common(1)[0][0]  # the lowest rank's, of equals
            odd |= {rank for rank, text in texts.items() if text != most}
    return names, odd


def _same_inputs(ranks: Mapping[int, _Rank]) -> Iterator[SameInputs]:
    """Yield for each model the ranks with separate data that most often had equal inputs."""
    of_models: dict[int, dict[int, dict[str, list[tuple[int, str]]]]] = {}
    for rank, one in ranks.items():
        for (step, (model, kind, place)), digest in one.digests.items():
            if kind == INPUT:
                steps = of_models.setdefault(model, {})
                steps.setdefault(step, {}).setdefault(digest, []).append((rank, place))
    for model, steps in of_models.items():
        looks = [s for s, digests in steps.items() if _places(digests.values()) > 1]
        found: dict[tuple[int, ...], list[int]] = {}
        for step in looks:
            for same in steps[step].values():
                if _places([same]) > 1:
                    found.setdefault(tuple(sorted(rank for rank, _ in same)), []).append(step)
        if found:
            # The same group of ranks every time is a finding; changing groups are chance, or
            # synthetic batches.
            together, at = max(found.items(), key=lambda one: (len(one[1]), len(one[0])))
            yield SameInputs(model, together, (at[0], at[-1]), len(at), len(looks))


def _places(several: Iterable[list[tuple[int, str]]]) -> int:
    return len({place for same in several for _, place in same})


def _uneven(ranks: Mapping[int, _Rank]) -> UnevenBatch | None:
    """Return the steps in which batch sizes differ between ranks."""
    known = {rank: one for rank, one in ranks.items() if one.sizes}
    if len(known) < 2:
        return None
    usual = {rank: one.usual for rank, one in known.items()}
    share = min(one.sizes[one.usual] / one.sizes.total() for one in known.values())
    kinds = max(len(one.sizes) for one in known.values())
    if len(set(usual.values())) > 1:
        last = min(one.run.steps for one in known.values())
        count = min(one.sizes[one.usual] for one in known.values())
        return UnevenBatch((1, last), count, usual, usual, share, kinds)
    odd = sorted({step for one in known.values() for step in one.odd})
    held = {rank: one.file.batches(odd) for rank, one in known.items()}
    steps = []
    for step in odd:
        sizes = {rank: batches[step] for rank, batches in held.items() if step in batches}
        if len(set(sizes.values())) > 1:
            steps.append((step, sizes))
    if not steps:
        return None
    ends = steps[0][0], steps[-1][0]
    return UnevenBatch(ends, len(steps), steps[0][1], usual, share, kinds)
