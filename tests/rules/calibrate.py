"""Calibrates the rules on healthy and broken models: the figures in each rule's documentation.

``python -m tests.rules.calibrate`` runs both; ``--sweep`` also tries other thresholds, and
``--batches`` runs both with other numbers of samples instead.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import gradscope
from gradscope.errors import ModelError
from gradscope.records.report import Finding, Report
from gradscope.rules import Rule, RuleSettings, diagnose
from gradscope.rules._book import entries
from gradscope.rules._rule import OWN
from rules.all_programs import CASES
from rules.batch_sizes import SIZES, with_samples
from rules.healthy import healthy
from rules.rule_programs import Program

#: More samples than these take the healthy models minutes each.
_LARGEST = 8
FACTORS = (1e-3, 1e-2, 0.1, 0.3, 1, 3, 10, 100, 1e3)


def checked(program: Program) -> Report:
    """The report with its findings, also of a program that raises."""
    try:
        return gradscope.check(program.model, **program.arguments())
    except ModelError as error:
        assert isinstance(error.report, Report)
        return error.report


def with_optimizer(program: Program) -> Program:
    """A healthy program that takes a step, by the optimizer that its kind is trained with.

    Networks whose branches begin with a scale near zero hardly move by plain SGD.
    """
    kind = str(program.model)
    plain = kind.startswith(("demo", "torchvision")) and "convnext" not in kind
    own = (
        {"_target_": "torch.optim.SGD", "lr": 0.01} if plain else {"_target_": "torch.optim.AdamW"}
    )
    return replace(program, options={"optimizer": own, **program.options})


def healthy_reports() -> dict[str, Report]:
    found = {}
    for name, build in healthy():
        found[name] = checked(with_optimizer(build()))
        said = Counter(f"{f.code} {f.severity}" for f in found[name].findings)
        print(f"{name:32}", ", ".join(f"{n} × {what}" for what, n in said.items()) or "–")
    return found


def looking() -> list[Rule]:
    """The rules that look at one step; the others are for `calibrate_runs`."""
    return [entry.rule for entry in entries() if entry.find]


def table(well: dict[str, Report], broken: dict[str, Report], mended: dict[str, Report]) -> None:
    print(f"\n{'code':6}{'healthy':>9}{'caught':>9}{'mended silent':>15}")
    for rule in looking():
        cases = {name: case for name, case in CASES.items() if case.code == rule.code}
        fires = sum(_says(report.findings, rule.code) for report in well.values())
        caught = sum(case.found_in(broken[name].findings) for name, case in cases.items())
        silent = sum(not _says(mended[name].findings, rule.code) for name in cases)
        print(
            f"{rule.code:6}{f'{fires}/{len(well)}':>9}{f'{caught}/{len(cases)}':>9}"
            f"{f'{silent}/{len(cases)}':>15}"
        )
    worst = [(n, f.code, f.name) for n, r in well.items() for f in r.findings if _bad(f)]
    print(f"\nerrors on healthy models: {worst or 'none'}")


def sweep(well: dict[str, Report], broken: dict[str, Report]) -> None:
    """Other thresholds on the same reports: those that ask for a full sample change nothing."""
    for rule in looking():
        cases = {name: case for name, case in CASES.items() if case.code == rule.code}
        for threshold in rule.thresholds:
            if threshold.default is None or threshold.source != OWN:
                continue
            print(
                f"\n{rule.code} {threshold.name}: value, healthy that fire, broken that are caught"
            )
            for factor in FACTORS:
                value = threshold.default * factor
                settings = RuleSettings(
                    select=(rule.code,), thresholds={rule.code: {threshold.name: value}}
                )
                fires = sum(bool(diagnose(report, settings)) for report in well.values())
                caught = sum(
                    case.found_in(diagnose(broken[name], settings)) for name, case in cases.items()
                )
                print(f"  {value:<10.3g}{fires:>4}/{len(well)}{caught:>6}/{len(cases)}")


def batches() -> None:
    """Print hits and false alarms of each rule, for each number of samples.

    A case whose mended twin cannot run with so few is left out of the count, and GS504's are, for
    there the number of samples is what is wrong.
    """
    caught: dict[str, list[str]] = {rule.code: [] for rule in (entry.rule for entry in entries())}
    for samples in SIZES:
        models = healthy() if samples <= _LARGEST else ()
        well = [checked(with_samples(with_optimizer(build()), samples)) for _, build in models]
        ran: Counter[str] = Counter()
        found: Counter[str] = Counter()
        said: Counter[str] = Counter()
        for case in CASES.values():
            mended = checked(with_samples(case.build(True), samples))
            if mended.error is None and case.code != "GS504":
                broken = checked(with_samples(case.build(False), samples))
                ran[case.code] += 1
                found[case.code] += case.found_in(broken.findings)
                said[case.code] += bool(case.as_bad(mended.findings))
        for code, cells in caught.items():
            fires = sum(_says(report.findings, code) for report in well)
            cells.append(f"{found[code]}/{ran[code]}, {said[code]}, {fires if well else '–'}")
    print("caught, mended that it speaks of, healthy models that fire")
    print(f"{'samples':8}" + "".join(f"{samples:>12}" for samples in SIZES))
    for code, cells in caught.items():
        print(f"{code:8}" + "".join(f"{cell:>12}" for cell in cells))


def _says(findings: tuple[Finding, ...], code: str) -> bool:
    return any(finding.code == code for finding in findings)


def _bad(finding: Finding) -> bool:
    return finding.severity == "error"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true", help="try other thresholds")
    parser.add_argument("--batches", action="store_true", help="run with other numbers of samples")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.batches:
        batches()
        return
    well = healthy_reports()
    broken = {name: checked(case.build(False)) for name, case in CASES.items()}
    mended = {name: checked(case.build(True)) for name, case in CASES.items()}
    table(well, broken, mended)
    if args.sweep:
        sweep(well, broken)


if __name__ == "__main__":
    main()
