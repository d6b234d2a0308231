"""Failures that are a model's own, each with a reproduction in plain PyTorch.

A reproduction returns what went wrong without gradscope, and raises where nothing does: a library's
new version may have mended it. To add one, write the function and enter it in ``OWN``.
"""

from __future__ import annotations

from collections.abc import Callable


def xlstm_writes_in_place() -> str:
    """Without its fused kernels, training mode writes to a tensor that backward needs."""
    import torch
    import transformers

    sizes = {"hidden_size": 64, "num_blocks": 2, "num_heads": 4, "qk_dim_factor": 1.0}
    config = transformers.AutoConfig.for_model(
        "xlstm", vocab_size=99, mode="train", chunk_size=16, **sizes
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    loss = model(torch.randint(3, 90, (2, 16))).logits.sum()
    return _raised(loss.backward)


def _raised(step: Callable[[], object]) -> str:
    """Return the error that a plain step raises."""
    try:
        step()
    except RuntimeError as error:
        return str(error).split(":")[0]
    raise AssertionError("the plain step runs: this is no failure of the model's own any more")


#: Label → reproduction.
OWN: dict[str, Callable[[], str]] = {"transformers:xlstm": xlstm_writes_in_place}
