"""Calibrates the rules over time on healthy and broken trainings.

``python -m tests.rules.calibrate_runs`` runs both; ``--sweep`` also tries other thresholds, and
``--seeds 3`` the healthy ones three times; ``--select GS601`` is about that rule alone.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from gradscope.records.training import TrainingFinding
from gradscope.rules import RuleSettings, rule_book
from gradscope.rules._book import entries
from gradscope.rules._rule import OWN
from rules.broken_trainings import TROUBLES
from rules.healthy_trainings import TRAININGS
from rules.watched import Watched

#: How many steps apart the samples are taken that are judged.
EVERY = (5, 10, 20)
FACTORS = (0.01, 0.1, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 10, 100)
#: True of healthy networks, and harmless.
HARMLESS = {"GS505"}


def loud(run: Watched, every: int) -> list[TrainingFinding]:
    return [one for one in run.findings(every=every) if one.finding.code not in HARMLESS]


def healthy(seeds: int) -> dict[str, Watched]:
    """Each training with each seed, and what is reported of it."""
    found = {}
    for seed in range(seeds):
        for name, build in TRAININGS.items():
            run = found[f"{name} {seed}"] = build(seed)
            said = Counter(
                f"{one.finding.code} {one.finding.name} {one.steps[0]} every {every}"
                for every in EVERY
                for one in loud(run, every)
            )
            print(f"{name:42}{seed} {run.count:5} steps ", "; ".join(said) or "–", flush=True)
    return found


def broken(select: list[str]) -> tuple[dict[str, Watched], dict[str, Watched]]:
    """Each broken training and its mended twin, and whether all is as it should be."""
    runs = {}, {}
    for name, case in TROUBLES.items():
        if select and case.code not in select:
            continue
        for mended in (False, True):
            runs[mended][name] = case.build(mended)
        caught = [
            every for every in EVERY if case.found_in(runs[False][name].findings(every=every))
        ]
        said = {one.finding.code for every in EVERY for one in loud(runs[True][name], every)}
        print(f"{case.code} {name:42} caught {caught}, mended: {sorted(said) or '–'}", flush=True)
    return runs


def sweep(well: dict[str, Watched], wrong: dict[str, Watched], select: list[str]) -> None:
    """Other thresholds on the same records."""
    over_time = {
        e.rule.code for e in entries() if e.find_over_steps or e.find_over_samples or e.find_in_loop
    }
    for rule in rule_book():
        if select and rule.code not in select:
            continue
        cases = {name: case for name, case in TROUBLES.items() if case.code == rule.code}
        for threshold in rule.thresholds if rule.code in over_time else ():
            if threshold.default is None or threshold.source != OWN:
                continue
            print(f"\n{rule.code} {threshold.name}: value, healthy that fire, broken caught")
            for factor in FACTORS:
                value = threshold.default * factor
                settings = RuleSettings(
                    select=(rule.code,), thresholds={rule.code: {threshold.name: value}}
                )
                fires = sum(bool(run.findings(settings)) for run in well.values())
                caught = sum(
                    case.found_in(wrong[name].findings(settings)) for name, case in cases.items()
                )
                print(f"  {value:<10.3g}{fires:>4}/{len(well)}{caught:>6}/{len(cases)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="try other thresholds")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the healthy trainings")
    parser.add_argument("--select", action="append", default=[], help="a rule's code")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    well = healthy(args.seeds)
    wrong, _ = broken(args.select)
    if args.sweep:
        sweep(well, wrong, args.select)


if __name__ == "__main__":
    main()
