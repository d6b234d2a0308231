"""Inspects small networks under every kind of parallelism, one after the other, under `torchrun`.

Rank 0 writes each report to `CASE.json`; each rank what it was told of a run that failed to
`CASE-RANK.txt`, with whether the model's code was left alone afterwards.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gradscope
from gradscope.errors import GradscopeError
from gradscope.records import json as record_json

HERE = Path(__file__).parent
TP = "tp: {blocks.*.up: colwise, blocks.*.down: rowwise, head: colwise_gather}"
#: By name: the config, and what `parallel` is.
CASES = {
    2: {
        "resnet-ddp": ("resnet", "{ddp: true}"),
        "resnet-fsdp": ("resnet", "{fsdp: {units: blocks.*}}"),
        "gpt-keep": ("gpt", "{fsdp: {units: blocks.*, reshard_after_forward: false}}"),
        "gpt-mixed": ("gpt", "{fsdp: {param_dtype: bfloat16, reduce_dtype: float32}}"),
        "gpt-tp": ("gpt", f"{{{TP}, }}"),
        "gpt-sequence": ("gpt", "{tp: {blocks.*.norm2: sequence, embed: rowwise}}"),
        "unused-ddp": ("unused", "{ddp: true}"),
        "unused-found": ("unused", "{ddp: {find_unused_parameters: true}}"),
        "lost-tp": ("gpt", "{tp: {head: colwise}}"),
        "raises-ddp": ("raises", "{ddp: true}"),
    },
    4: {
        "gpt-2d": ("gpt", f"{{fsdp: {{units: blocks.*}}, {TP}, mesh: {{dp: 2, tp: 2}}}}"),
        "resnet-ddp": ("resnet", "{ddp: true}"),
    },
}


def main() -> None:
    rank = os.environ["RANK"]
    for name, (config, parallel) in CASES[int(os.environ["WORLD_SIZE"])].items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            report = gradscope.inspect(
                HERE / f"{config}.yaml", overrides=[f"parallel={parallel}"], device="cpu"
            )
        except GradscopeError as error:
            Path(f"{name}-{rank}.txt").write_text(error.render(), encoding="utf-8")
            continue
        text = record_json.dumps(report)
        Path(f"{name}-{rank}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
