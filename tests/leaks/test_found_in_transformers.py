"""Findings of the audit in transformers, each in a few lines of plain PyTorch.

A finding that is mended in a later version fails here: then docs/leaks.md has to say so.
"""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

IDS = torch.randint(3, 97, (1, 12), generator=torch.Generator().manual_seed(0))
OTHER = (IDS - 3 + 50) % 94 + 3


def changed(start: int, end: int) -> torch.Tensor:
    ids = IDS.clone()
    ids[:, start:end] = OTHER[:, start:end]
    return ids


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@pytest.fixture
def cpm_ant():
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "dim_ff": 48, "num_hidden_layers": 2}
    config = transformers.CpmAntConfig(**sizes, num_attention_heads=4, dim_head=8)
    return transformers.CpmAntForCausalLM(config).eval()


@torch.no_grad()
def test_cpm_ant_sees_later_tokens(cpm_ant):
    before, after = cpm_ant(IDS).logits, cpm_ant(changed(6, 12)).logits
    assert largest(before[:, -12:][:, :6], after[:, -12:][:, :6]) > 1e-3


@torch.no_grad()
def test_cpm_ant_ignores_the_attention_mask(cpm_ant):
    mask = torch.ones_like(IDS)
    mask[:, 6:] = 0
    before = cpm_ant(IDS, attention_mask=mask).logits
    after = cpm_ant(changed(6, 12), attention_mask=mask).logits
    assert largest(before[:, -12:][:, :6], after[:, -12:][:, :6]) > 1e-3


@torch.no_grad()
def test_rwkv_ignores_the_attention_mask():
    torch.manual_seed(0)
    config = transformers.RwkvConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2)
    model = transformers.RwkvForCausalLM(config).eval()
    mask = torch.ones_like(IDS)
    mask[:, :6] = 0
    before = model(IDS, attention_mask=mask).logits
    after = model(changed(0, 6), attention_mask=mask).logits
    assert largest(before[:, 6:], after[:, 6:]) > 1e-3


@torch.no_grad()
def test_the_convolution_of_recurrent_gemma_ignores_the_attention_mask():
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "lru_width": 32}
    model = transformers.RecurrentGemmaForCausalLM(
        transformers.RecurrentGemmaConfig(**sizes, **heads)
    ).eval()
    mask = torch.ones_like(IDS)
    mask[:, :6] = 0
    before = model(IDS, attention_mask=mask).logits
    after = model(changed(0, 6), attention_mask=mask).logits
    assert largest(before[:, 6:], after[:, 6:]) > 1e-3


@torch.no_grad()
def test_prophetnet_decodes_otherwise_with_its_cache():
    torch.manual_seed(0)
    config = transformers.ProphetNetConfig(
        vocab_size=97,
        hidden_size=32,
        num_decoder_layers=2,
        num_decoder_attention_heads=4,
        decoder_ffn_dim=48,
        is_decoder=True,
        is_encoder_decoder=False,
        add_cross_attention=False,
        max_position_embeddings=64,
    )
    model = transformers.ProphetNetForCausalLM(config).eval().double()
    full = model(IDS).logits
    begun = model(IDS[:, :9], use_cache=True)
    name = "cache" if "cache" in begun else "past_key_values"
    step = model(IDS[:, 9:10], use_cache=True, **{name: begun[name]})
    assert largest(step.logits[:, 0], full[:, 9]) > 1e-5
