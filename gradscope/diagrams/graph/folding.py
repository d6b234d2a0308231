"""Equal siblings, each leading to the next or side by side, become one group that stands for all.

Those side by side may differ in the shapes of what they compute, as a mixture's experts do.
"""

from __future__ import annotations

import re

from gradscope.diagrams.graph.flow import Flow
from gradscope.diagrams.graph.group import Group, below
from gradscope.diagrams.graph.structure import Signature, Structure


def fold(root: Group, flow: Flow) -> None:
    """Fold every run of equal siblings, and a container that holds nothing but one run.

    Siblings fold where each leads to the next and their shapes are equal, or where no way leads
    from one to another; then ``known.spans`` gets the shapes that differ.
    """
    flow.spans.clear()
    structure = Structure(root, flow)
    for group in reversed(list(below(root))):
        groups = list(group.groups())
        runs = [part for run in _runs(groups, structure) for part in _parts(run, structure)]
        if len(runs) < len(groups):
            _replace(group, runs, structure)


def _runs(groups: list[Group], structure: Structure) -> list[list[Group]]:
    briefs = [structure.brief(group) for group in groups]
    runs: list[list[Group]] = []
    last: Signature | None = None
    for i, group in enumerate(groups):
        alone = briefs[i] not in (briefs[i - 1] if i else None, *briefs[i + 1 : i + 2])
        signature = None if alone else structure.signature(group)
        if signature is not None and signature == last and briefs[i] == briefs[i - 1]:
            runs[-1].append(group)
        else:
            runs.append([group])
        last = signature
    return runs


def _parts(run: list[Group], structure: Structure) -> list[list[Group]]:
    """A run of equals as chains; all together where no way leads from one to another."""
    if len(run) == 1:
        return [run]
    shapes = [structure.shapes(group) for group in run]
    chains = [[run[0]]]
    for i, group in enumerate(run[1:], 1):
        if shapes[i] == shapes[i - 1] and structure.leads(run[i - 1], group):
            chains[-1].append(group)
        else:
            chains.append([group])
    if len(chains) == len(run) and structure.independent(run):
        structure.widen(run)
        return [run]
    return chains


def _replace(group: Group, runs: list[list[Group]], structure: Structure) -> None:
    firsts = {id(run[0]): run for run in runs}
    parts: list[Group | int] = []
    for part in group.parts:
        if isinstance(part, int):
            parts.append(part)
        elif id(part) in firsts:
            run = firsts[id(part)]
            parts.append(part if len(run) == 1 else _folded(group, run, structure))
    group.parts = parts
    only = parts[0] if len(parts) == 1 else None
    if isinstance(only, Group) and only.times > 1 and group.name and not group.members:
        group.type, group.times, group.members = only.type, only.times, only.members
        group.parts, group.parallel = only.parts, only.parallel
        for member in group.members:
            member.parent = group


def _folded(group: Group, run: list[Group], structure: Structure) -> Group:
    first, last = run[0], run[-1]
    outer = sorted((first, last), key=lambda one: _numbers(one.label))
    ends = [outer[0].label, outer[1].label.removeprefix(f"{outer[0].label.split(' #')[0]} ")]
    label = (", " if len(run) == 2 else " … ").join(ends)
    full = Group(
        f"{first.key}…{last.key.rsplit('/', 1)[-1]}",
        label,
        first.name,
        first.type,
        group,
        first.parts,
        len(run),
        run,
        not structure.leads(run[0], run[1]),
        first.expanded,
    )
    for member in run:
        member.parent = full
    return full


def _numbers(label: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d{1,18}", label)]
