"""Healthy models have no origins, whatever they mask with -inf."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.explain.non_finite.explain_non_finite import explain_non_finite

pytestmark = pytest.mark.slow

Step = Callable[[], torch.Tensor]


def origins(model: nn.Module, forward: Step) -> tuple[object, ...]:
    optimizer = torch.optim.AdamW(model.parameters())

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    return explain_non_finite(model, forward, backward, lambda: optimizer.step())


def _picture(name: str) -> tuple[nn.Module, Step]:
    from torchvision import models

    makers: dict[str, Callable[[], nn.Module]] = {
        "resnet18": lambda: models.resnet18(num_classes=4),
        "mobilenet_v3_small": lambda: models.mobilenet_v3_small(num_classes=4),
        "densenet": lambda: models.DenseNet(8, (2, 2), 8, num_classes=4),
        "vit": lambda: models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=4),
        "swin": lambda: models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=4),
        "convnext": lambda: models.convnext.ConvNeXt(
            [models.convnext.CNBlockConfig(8, 16, 1), models.convnext.CNBlockConfig(16, None, 1)],
            num_classes=4,
        ),
    }
    model = makers[name]()
    size = 32 if name == "vit" else 64
    x, y = torch.randn(2, 3, size, size), torch.tensor([1, 2])
    return model, lambda: F.cross_entropy(model(x), y)


def _text(name: str) -> tuple[nn.Module, Step]:
    import transformers as hf

    small = {"vocab_size": 50}
    ids = torch.randint(3, 50, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:], mask[2, 1:] = 0, 0
    kind, _, attention = name.partition("-")
    model: nn.Module
    if kind == "bert":
        config = hf.BertConfig(
            **small,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            attn_implementation=attention,
        )
        model = hf.BertForSequenceClassification(config)
        labels = torch.tensor([0, 1, 0])
    elif kind == "gpt2":
        config = hf.GPT2Config(
            **small,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=1,
            eos_token_id=2,
            attn_implementation=attention,
        )
        model, labels = hf.GPT2LMHeadModel(config), ids.masked_fill(mask == 0, -100)
    else:
        config = hf.T5Config(
            **small,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        )
        model, labels = hf.T5ForConditionalGeneration(config), ids
    return model, lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss


def _sequence(name: str) -> tuple[nn.Module, Step]:
    x = torch.randn(3, 7, 16)
    padding = torch.arange(7)[None] >= torch.tensor([7, 4, 1])[:, None]
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    model: nn.Module
    if name == "lstm":
        model = nn.LSTM(16, 8, 2, bidirectional=True, batch_first=True)
        packed = nn.utils.rnn.pack_padded_sequence(x, [7, 4, 1], batch_first=True)
        return model, lambda: model(packed)[0].data.pow(2).mean()
    if name == "attention":
        model = nn.MultiheadAttention(16, 2, batch_first=True)
        return model, lambda: model(x, x, x, key_padding_mask=padding)[0].pow(2).mean()
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
    bools = causal.isinf()
    return (
        model,
        lambda: (
            model(
                x,
                x,
                tgt_mask=bools,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
            )
            .pow(2)
            .mean()
        ),
    )


MODELS = [
    *((_picture, n) for n in ("resnet18", "mobilenet_v3_small", "densenet", "vit", "swin")),
    (_picture, "convnext"),
    *((_text, n) for n in ("bert-eager", "bert-sdpa", "gpt2-eager", "gpt2-sdpa", "t5")),
    *((_sequence, n) for n in ("lstm", "attention", "transformer")),
]


@pytest.mark.parametrize(("make", "name"), MODELS, ids=[n for _, n in MODELS])
@pytest.mark.filterwarnings("ignore")
def test_healthy(make: Callable[[str], tuple[nn.Module, Step]], name: str) -> None:
    torch.manual_seed(0)
    model, forward = make(name)
    assert origins(model, forward) == ()


def test_the_same_check_would_notice() -> None:
    model = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 3, 16)
    everything = torch.ones(2, 3, dtype=torch.bool)
    found = origins(model, lambda: model(x, x, x, key_padding_mask=everything)[0].sum())
    assert len(found) == 1
