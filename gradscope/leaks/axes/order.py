"""Judges whether the order of a set's elements matters. Only on demand: `--axis order=1` gives
their dimension."""

from __future__ import annotations

import torch

from gradscope.leaks.changes import Change, Kept, Outputs, change, unless_rounding
from gradscope.leaks.first_call import Trial, clean, doubtful, leak, moved, not_judged
from gradscope.leaks.forwards import Forwards, widened
from gradscope.leaks.subject import Subject
from gradscope.records.leaks import AxisResult

_ADVICE = "leave out positions, and reduce without an order: sum, mean, max"


def judge(subject: Subject) -> AxisResult:
    """Judge order: elements change places, and the outputs must follow or stay."""
    if "order" not in subject.wishes.asked:
        return not_judged("order", "judged on demand only", "say so: `--axis order=1`")
    dim = subject.wishes.axes.get("order", 1)
    base = subject.rows.base
    sizes = {
        base[one.path].size(dim) for one in subject.meaning.sources if base[one.path].dim() > dim
    }
    if len(sizes) != 1 or (size := sizes.pop()) < 2:
        return not_judged("order", f"no input has two elements or more along dimension {dim}")
    places = torch.randperm(size, generator=torch.Generator().manual_seed(11), device="cpu")
    if bool((places == torch.arange(size, device="cpu")).any()):
        places = torch.arange(size, device="cpu").roll(1)

    def placed(tensors: Outputs) -> dict[str, torch.Tensor]:
        return {
            path: t.index_select(dim, places.to(t.device))
            if t.dim() > dim and t.size(dim) == size
            else t
            for path, t in tensors.items()
        }

    moved_base = placed(base)

    def pair(forwards: Forwards) -> tuple[Outputs, Outputs]:
        wide = forwards is not subject.forwards
        one, other = (widened(t) if wide else t for t in (base, moved_base))
        return placed(forwards.again(one)), forwards.again(other)

    kept = Kept(None, torch.ones(subject.rows.count, dtype=torch.bool, device="cpu"))
    found: Change | None = change(*pair(subject.forwards), subject.layout, kept)
    found = unless_rounding(subject.forwards, found, pair, subject.layout, kept, shapes=True)
    if found is None:
        return clean("order", f"the {size} elements in another order give the same results")
    if found.doubt:
        return doubtful("order", found)
    none = torch.zeros(0, dtype=torch.bool, device="cpu")
    trial = Trial(base, moved_base, subject.layout, kept, none, pairing=moved(places), exact=False)
    words = "gives other results if the elements come in another order"
    return leak(subject, "order", words, found, trial, reach="all elements", advice=_ADVICE)
