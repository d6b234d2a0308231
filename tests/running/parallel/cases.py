"""Inspects small networks under every kind of parallelism, one after the other, under `torchrun`.

Each rank writes what it is given to `CASE-RANK.json`, or, where the run fails, to `CASE-RANK.txt`
what it is reported.
"""

from __future__ import annotations

import os
from pathlib import Path

import gradscope
from gradscope.errors import GradscopeError
from gradscope.records import json as record_json
from gradscope.records.report import Report

HERE = Path(__file__).parent
IMAGES = ["input.shape=[8,3,6,6]"]
TOKENS = ["input={shape: [8, 6], fill: randint(20)}", "loss=cross_entropy"]
ROWS = ["input.shape=[8,4]", "loss=cross_entropy"]
#: By network: what it is given, and how it learns.
NETWORKS = {
    "ResNet": [*IMAGES, "optimizer={_target_: sgd, lr: 0.1}"],
    "Gpt": [*TOKENS, "optimizer={_target_: sgd, lr: 0.1, momentum: 0.9}", "steps=2"],
    "Tied": TOKENS,
    "Unused": ROWS,
    "Raises": ROWS,
}
_TP = "tp: {blocks.*.up: colwise, blocks.*.down: rowwise, head: colwise_gather}"
#: By number of processes and name: the network, and what `parallel` is.
CASES = {
    2: {
        "resnet-ddp": ("ResNet", "{ddp: true}"),
        "resnet-fsdp": ("ResNet", "{fsdp: {units: blocks.*}}"),
        "gpt-keep": ("Gpt", "{fsdp: {units: blocks.*, reshard_after_forward: false}}"),
        "gpt-tp": ("Gpt", f"{{{_TP}}}"),
        "gpt-sequence": ("Gpt", "{tp: {blocks.*.norm2: sequence, embed: rowwise}}"),
        "gpt-mixed": ("Gpt", "{fsdp: {param_dtype: bfloat16, reduce_dtype: float32}}"),
        "unused": ("Unused", "{ddp: true}"),
        "unused-found": ("Unused", "{ddp: {find_unused_parameters: true}}"),
        "half-a-head": ("Gpt", "{tp: {head: colwise}}"),
        "tied": ("Tied", "{tp: {head: colwise_gather}}"),
        "no-such-layer": ("Gpt", "{tp: {haed: colwise}}"),
        "a-norm": ("Gpt", "{tp: {blocks.*.norm1: rowwise}}"),
        "mesh": ("Gpt", f"{{fsdp: true, {_TP}, mesh: {{dp: 2, tp: 2}}}}"),
        "raises": ("Raises", "{ddp: true}"),
    },
    4: {
        "gpt-2d": ("Gpt", f"{{fsdp: {{units: blocks.*}}, {_TP}, mesh: {{dp: 2, tp: 2}}}}"),
        "resnet-ddp": ("ResNet", "{ddp: true}"),
    },
}
#: Those that one process does as well.
TRUE = {
    2: ("resnet-ddp", "resnet-fsdp", "gpt-keep", "gpt-tp", "gpt-sequence", "unused-found"),
    4: ("gpt-2d", "resnet-ddp"),
}


def overrides(network: str, parallel: str) -> list[str]:
    return [f"parallel={parallel}", "dtype=float64", "device=cpu", *NETWORKS[network]]


def inspected(network: str, parallel: str) -> Report:
    keys = overrides(network, parallel)
    return gradscope.inspect(model(network), overrides=keys, allow=["nets.*"])


def model(network: str) -> str:
    return f"{HERE / 'nets.py'}:{network}"


def main() -> None:
    for name, (network, parallel) in CASES[int(os.environ["WORLD_SIZE"])].items():
        file = Path(f"{name}-{os.environ['RANK']}")
        try:
            report = inspected(network, parallel)
        except GradscopeError as error:
            file.with_suffix(".txt").write_text(error.render(), encoding="utf-8")
        else:
            file.with_suffix(".json").write_text(record_json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
