"""GS837: a checkpoint without any loaded parameter."""

from __future__ import annotations

from gradscope.records.loop import LoopRecord
from gradscope.rules._loop import LoopFindings
from gradscope.rules._rule import Limits, Rule, Runs
from gradscope.rules._words import plural

RULE = Rule(
    code="GS837",
    name="nothing-loaded",
    severity="error",
    summary="load_state_dict(strict=False) loaded none of the model's weights",
    what=(
        "Reads what `load_state_dict` returns. It fires if every parameter of the module is "
        "missing, and every key of the state is unexpected."
    ),
    why=(
        "With `strict=False` there is no error: the model keeps its random weights. Most often "
        "the keys have a prefix, such as `module.` of DataParallel, or the weights are one level "
        "deeper, under `state_dict` or `model`."
    ),
    fix=(
        "Compare the keys, and strip the prefix: `{k.removeprefix('module.'): v for k, v in "
        "state.items()}`. Print what `load_state_dict` returns."
    ),
    sources=(
        "PyTorch, torch.nn.Module.load_state_dict: missing_keys and unexpected_keys",
        "PyTorch forum: missing keys and unexpected keys in state_dict (DataParallel)",
    ),
    runs=Runs(loop=True),
)


def find_in_loop(loop: LoopRecord, limits: Limits) -> LoopFindings:
    """Yield one finding for each line."""
    for place, one in enumerate(loop.empty_loads):
        missing, unexpected = one.examples
        yield RULE.in_loop(
            loop,
            one.module,
            f"load_state_dict loaded nothing into this {one.module}: "
            f"{plural(one.missing, 'key')} are missing, such as `{missing}`, and "
            f"{plural(one.unexpected, 'key')} are unexpected, such as `{unexpected}`. "
            "strict=False hides it: the model keeps its initial weights.",
            value=float(one.missing),
            cause=str(place) if place else None,
            location=one.location,
        )
