"""Every causal family of transformers with a small random config, in eager and SDPA.

    cd tests && python -m leaks.audit [FAMILY…]

prints one line for each class and attention, and then the table of docs/leaks.md.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import gradscope
from gradscope.records.leaks import LeaksReport

AXES = ("time", "batch", "padding", "mask", "cache")
ATTENTION = ("eager", "sdpa")
LARGEST, SECONDS, MEMORY = 30_000_000, 60, 6 * 2**30
_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **{"vocab_size": 97, "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 16},
    **{"n_input_layers": 1, "n_output_layers": 1, "n_recurrent_layers": 0},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts_per_tok": 2},
}
_HEADS = ("head_dim", "num_attention_heads", "num_key_value_heads", "n_head", "n_heads")
#: Encoders that are decoders where their config says so.
_DECODERS = (
    *("Bert", "BertGeneration", "BigBird", "Camembert", "Data2VecText", "Electra", "Ernie"),
    *("MegatronBert", "RemBert", "Roberta", "RobertaPreLayerNorm", "RoCBert", "RoFormer"),
    *("XLMRoberta", "XLMRobertaXL", "Xmod", "Nystromformer"),
)


#: What is tried where a config of these sizes makes no model that runs: other keys, and fewer.
_OTHERWISE: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({}, ()),
    ({"num_hidden_layers": 4, "num_layers": 4}, ()),
    ({"num_hidden_layers": 4}, ("head_dim",)),
    ({"hidden_size": 64, "num_hidden_layers": 4}, ("head_dim", "num_key_value_heads")),
    ({"num_key_value_heads": 4}, ("head_dim",)),
    ({"hidden_size": 128, "num_hidden_layers": 4}, _HEADS),
    ({}, (*_HEADS, "num_hidden_layers")),
)


def small(kind: type[Any], more: dict[str, Any], without: tuple[str, ...]) -> Any:
    """A config of that kind, as small as its keys allow."""
    default = kind()
    sizes = {k: v for k, v in {**_SMALL, **more}.items() if k not in without}
    keys = {key: value for key, value in sizes.items() if _has(default, key)}
    for name in getattr(kind, "sub_configs", {}):
        part = getattr(default, name, None)
        if part is not None:
            keys[name] = {key: value for key, value in sizes.items() if _has(part, key)}
    if kind.__name__.removesuffix("Config") in _DECODERS:
        keys["is_decoder"] = True
    if kind.__name__ == "XLMConfig":
        keys["causal"] = True
    return kind(**keys)


def _has(config: Any, key: str) -> bool:
    try:
        return hasattr(config, key)
    except Exception:  # a key for each layer
        return False


def audited(kind: type[Any], attention: str) -> tuple[str, LeaksReport]:
    """The class that a config makes, and what was found, with the first sizes that run."""
    failed: Exception | None = None
    for more, without in _OTHERWISE:
        try:
            return _audited(kind, attention, more, without)
        except TimeoutError:
            raise
        except Exception as error:
            failed = failed or error
            if "does not support an attention" in str(error):
                break
    assert failed is not None
    raise failed


def _audited(
    kind: type[Any], attention: str, more: dict[str, Any], without: tuple[str, ...]
) -> tuple[str, LeaksReport]:
    config = small(kind, more, without)
    build = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        numel = sum(p.numel() for p in build(config, attn_implementation=attention).parameters())
    if numel > LARGEST:
        raise ValueError(f"not small: {numel / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = build(small(kind, more, without), attn_implementation=attention).eval()
    words = min(97, getattr(config.get_text_config(), "vocab_size", 97))
    ids = torch.randint(3, words, (2, 12), generator=torch.Generator().manual_seed(0))
    report = gradscope.leaks(model, {"input_ids": ids}, only=AXES, causal=True)
    return type(model).__name__, report


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Some configs are large whatever their keys say: no model may take long or much memory."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def rows(families: list[str]) -> Iterator[tuple[str, str, LeaksReport | str]]:
    """Class or config, attention, and the report or why there is none."""
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        if families and kind.__name__.removesuffix("Config") not in families:
            continue
        for attention in ATTENTION:
            try:
                with limited():
                    name, report = audited(kind, attention)
                yield name, attention, report
            except Exception as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                yield kind.__name__, attention, reason


def main() -> None:
    warnings.filterwarnings("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    transformers.logging.set_verbosity_error()
    found = []
    for name, attention, report in rows(sys.argv[1:]):
        gc.collect()
        found.append((name, attention, report))
        if isinstance(report, str):
            print(f"{name} {attention}: not run: {report[:120]}", flush=True)
            continue
        print(name, attention, {one.axis: one.verdict for one in report.axes}, flush=True)
        for one in report.axes:
            if one.verdict not in ("clean", "by-design"):
                place = f"{one.source.file}:{one.source.line}" if one.source else ""
                print(f"  {one.axis} {one.verdict} {one.effect} {one.layer} {place} {one.message}")
    ran = [one for one in found if isinstance(one[2], LeaksReport)]
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}")
    print(f"{len({name for name, *_ in ran})} classes ran, {len(ran)} of {len(found)} combinations")


if __name__ == "__main__":
    main()
