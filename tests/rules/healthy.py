"""Healthy models, small enough to run in seconds: what no rule may call an error.

A zoo of its own for the rules: thresholds are measured on it, and a test holds it silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import nn

from rules.rule_programs import Program

#: Specs that run with their own defaults, at the smallest picture that each takes.
SPECS = {
    "demo": (),
    "demo:scouter": (),
    "torchvision:alexnet": ("input.shape=[2,3,128,128]",),
    "torchvision:vgg11": ("input.shape=[2,3,64,64]",),
    "torchvision:vgg11_bn": ("input.shape=[2,3,64,64]",),
    "torchvision:resnet18": ("input.shape=[2,3,64,64]",),
    "torchvision:resnet50": ("input.shape=[2,3,64,64]",),
    "torchvision:squeezenet1_1": ("input.shape=[2,3,96,96]",),
    "torchvision:densenet121": ("input.shape=[2,3,64,64]",),
    "torchvision:mobilenet_v3_small": ("input.shape=[2,3,64,64]",),
    "torchvision:efficientnet_b0": ("input.shape=[2,3,64,64]",),
    "torchvision:googlenet": ("input.shape=[2,3,96,96]",),
    "torchvision:convnext_tiny": ("input.shape=[2,3,64,64]",),
    "torchvision:swin_t": ("input.shape=[2,3,64,64]",),
    "timm:vit_tiny_patch16_224": (),
    "timm:mixer_s32_224": (),
    "timm:resnet10t": ("input.shape=[2,3,64,64]",),
    "timm:cait_xxs24_224": (),
    "timm:nf_resnet26": ("input.shape=[2,3,96,96]",),
}


def healthy() -> Iterator[tuple[str, Callable[[], Program]]]:
    """Each model's name and what builds it with its batch."""
    for spec, overrides in SPECS.items():
        yield spec, _of_spec(spec, overrides)
    for build in (bert, gpt2, llama, t5, distilbert):
        yield f"transformers {build.__name__}", _seeded(build)
    for build in (mlp, lstm, encoder, vae):
        yield f"torch {build.__name__}", _seeded(build)


def _of_spec(spec: str, overrides: tuple[str, ...]) -> Callable[[], Program]:
    return lambda: Program(spec, options={"overrides": overrides})


def _seeded(build: Callable[[], Program]) -> Callable[[], Program]:
    def built() -> Program:
        torch.manual_seed(0)
        return build()

    return built


def _tokens(rows: int = 4, length: int = 24, words: int = 200) -> torch.Tensor:
    return torch.randint(5, words, (rows, length))


def bert() -> Program:
    """A classifier on two-segment input, as fine-tuning begins it."""
    config = transformers.BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=128, num_labels=3,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).train()
    return Program(model, {"input_ids": _tokens(), "labels": torch.tensor([0, 1, 2, 1])}, "output")


def distilbert() -> Program:
    """Masked language modelling."""
    config = transformers.DistilBertConfig(vocab_size=200, dim=64, n_layers=3, n_heads=4,
                                           hidden_dim=128)  # fmt: skip
    ids = _tokens()
    model = transformers.DistilBertForMaskedLM(config).train()
    return Program(model, {"input_ids": ids, "labels": ids}, "output")


def gpt2() -> Program:
    """Language modelling with tied embeddings."""
    config = transformers.GPT2Config(vocab_size=200, n_positions=64, n_embd=64, n_layer=6, n_head=4)
    ids = _tokens()
    model = transformers.GPT2LMHeadModel(config).train()
    return Program(model, {"input_ids": ids, "labels": ids}, "output")


def llama() -> Program:
    """RMS norms, rotary positions, gated feed-forward parts."""
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=128, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    ids = _tokens()
    model = transformers.LlamaForCausalLM(config).train()
    return Program(model, {"input_ids": ids, "labels": ids}, "output")


def t5() -> Program:
    """An encoder and a decoder."""
    config = transformers.T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    ids = _tokens()
    model = transformers.T5ForConditionalGeneration(config).train()
    return Program(model, {"input_ids": ids, "labels": ids}, "output")


def mlp() -> Program:
    """A tutorial's first network, with its optimizer."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in ((64, 128), (128, 128), (128, 128)):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    options: dict[str, Any] = {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-3), "steps": 5}
    return Program(model, torch.randn(64, 64), F.cross_entropy, torch.arange(64) % 10, options)


class Lstm(nn.Module):
    """Tokens, two LSTM layers, a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def lstm() -> Program:
    """A recurrent classifier with SGD."""
    options = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)}
    ids = torch.randint(0, 100, (16, 20))
    return Program(Lstm(), ids, F.cross_entropy, torch.arange(16) % 5, options)


def encoder() -> Program:
    """torch's own transformer encoder, whose out_proj is never called."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.TransformerEncoder(layer, 4), nn.Linear(32, 6))
    x = torch.randn(8, 10, 8)
    y = torch.randint(0, 6, (8, 10))
    options = {"optimizer": lambda p: torch.optim.AdamW(p, lr=1e-3)}
    return Program(model, x, lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()), y,
                   options)  # fmt: skip


class Vae(nn.Module):
    """A variational autoencoder with a sigmoid at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mu, self.log = nn.Linear(64, 48), nn.Linear(48, 8), nn.Linear(48, 8)
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = F.relu(self.encode(x))
        mu, log = self.mu(h), self.log(h)
        return self.decode(mu + torch.randn_like(mu) * (log / 2).exp()), mu, log


def vae() -> Program:
    """Reconstruction and divergence together."""

    def loss(out: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
        recon, mu, log = out
        divergence = -0.5 * (1 + log - mu.pow(2) - log.exp()).mean()
        return F.binary_cross_entropy(recon, x) + divergence

    x = torch.rand(32, 64)
    return Program(Vae(), x, loss, x, {"optimizer": lambda p: torch.optim.Adam(p, lr=1e-3)})
