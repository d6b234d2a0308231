"""Models with a batch and a loss, in float64: a callable that gives (output, loss) of some samples.

The loss is the mean of the samples' losses, so a sample by itself has its loss over their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models
from torchvision.models.convnext import CNBlockConfig

Forward = Callable[[slice], tuple[Any, torch.Tensor]]


@dataclass
class Case:
    """A model, and ``forward`` that runs it on a range of the samples."""

    model: nn.Module
    forward: Forward
    count: int = 5


def vision(build: Callable[..., nn.Module], **arguments: Any) -> Case:
    """A network of torchvision in eval mode, with random weights."""
    model = build(num_classes=7, **arguments).double().eval()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    classes = torch.randint(0, 7, (5,))

    def forward(samples: slice) -> tuple[Any, torch.Tensor]:
        scores = model(images[samples])
        return scores, F.cross_entropy(scores, classes[samples])

    return Case(model, forward)


def language_model(name: str, **arguments: Any) -> Case:
    """A network of transformers that computes its own loss."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**arguments)
    kind = {"T5": "T5ForConditionalGeneration", "GPT2": "GPT2LMHeadModel"}
    build = getattr(transformers, kind.get(name, f"{name}ForCausalLM"))
    model = build(config).double().eval()
    ids = torch.randint(3, 90, (5, 7))

    def forward(samples: slice) -> tuple[Any, torch.Tensor]:
        output = model(input_ids=ids[samples], labels=ids[samples])
        return output, output.loss

    return Case(model, forward)


_SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_NO_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class Recurrent(nn.Module):
    """Tokens to classes; time comes first inside where ``batch_first`` is False."""

    def __init__(self, kind: Callable[..., nn.RNNBase], *, batch_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = kind(8, 12, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(12, 3)
        self.batch_first = batch_first

    def forward(self, ids: torch.Tensor) -> Any:
        """Scores of the last position."""
        embedded = self.embed(ids)
        if self.batch_first:
            hidden, _ = self.rnn(embedded)
            return self.head(hidden[:, -1])
        hidden, _ = self.rnn(embedded.transpose(0, 1))
        return self.head(hidden[-1])


def recurrent(kind: Callable[..., nn.RNNBase], *, batch_first: bool, length: int = 6) -> Case:
    """A recurrent network."""
    model = Recurrent(kind, batch_first=batch_first).double()
    ids, classes = torch.randint(0, 30, (5, length)), torch.randint(0, 3, (5,))

    def forward(samples: slice) -> tuple[Any, torch.Tensor]:
        scores = model(ids[samples])
        return scores, F.cross_entropy(scores, classes[samples])

    return Case(model, forward)


class AutoEncoder(nn.Module):
    """Returns the reconstruction, and the mean and the log variance that it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(10, 8), nn.Tanh())
        self.mean, self.log_variance = nn.Linear(8, 3), nn.Linear(8, 3)
        self.decode = nn.Linear(3, 10)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of a batch [N, 10] and noise [N, 3]."""
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decode(mean + torch.exp(log_variance / 2) * noise), mean, log_variance


def auto_encoder() -> Case:
    """A loss that reads three outputs, one of them made of the two others."""
    model = AutoEncoder().double()
    x = torch.randn(5, 10, dtype=torch.float64)
    noise = torch.randn(5, 3, dtype=torch.float64)

    def forward(samples: slice) -> tuple[Any, torch.Tensor]:
        output = model(x[samples], noise[samples])
        made, mean, log_variance = output
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return output, F.mse_loss(made, x[samples]) + divergence

    return Case(model, forward)


class Shared(nn.Module):
    """A layer that is called twice, a weight of two layers, and one that only `F.linear` sees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.rand(6))
        self.norm = nn.RMSNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 6] to [N, 6]."""
        hidden = torch.tanh(self.first(torch.tanh(self.first(x))))
        return F.linear(self.norm(self.second(hidden)), self.second.weight) * self.scale


def shared() -> Case:
    """Weights that are used several times."""
    model = Shared().double()
    x = torch.randn(5, 6, dtype=torch.float64)
    return Case(model, lambda samples: ((y := model(x[samples])), y.square().mean()))


def u_net() -> Case:
    """Convolutions down and up, with a skip, GroupNorm and PReLU, in place where it can be."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.PReLU())
            self.low = nn.Sequential(
                nn.Conv2d(4, 4, 3, 2, padding=1, padding_mode="reflect", groups=2),
                nn.ReLU(inplace=True),
            )
            self.up = nn.ConvTranspose2d(4, 4, 2, 2)
            self.out = nn.Conv2d(8, 2, 1)

        def forward(self, x: torch.Tensor) -> Any:
            down = self.down(x)
            return self.out(torch.cat([down, self.up(self.low(down))], 1))

    model = UNet().double()
    x = torch.randn(5, 2, 8, 8, dtype=torch.float64)
    y = torch.randint(0, 2, (5, 8, 8))
    return Case(model, lambda samples: ((z := model(x[samples])), F.cross_entropy(z, y[samples])))


CASES: dict[str, Callable[[], Case]] = {
    "resnet18": lambda: vision(models.resnet18),
    "mobilenet_v2": lambda: vision(models.MobileNetV2, width_mult=0.25),
    "convnext": lambda: vision(
        models.ConvNeXt,
        block_setting=[CNBlockConfig(12, 24, 2), CNBlockConfig(24, None, 2)],
    ),
    "vit": lambda: vision(
        models.VisionTransformer,
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48,
    ),
    "swin": lambda: vision(
        models.SwinTransformer,
        patch_size=[4, 4], embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4],
    ),
    "gpt2": lambda: language_model(
        "GPT2", vocab_size=100, n_embd=32, n_layer=2, n_head=2, n_positions=16, **_NO_TOKENS
    ),
    "llama": lambda: language_model("Llama", **_SMALL, intermediate_size=48, **_NO_TOKENS),
    "mixtral": lambda: language_model(
        "Mixtral",
        **_SMALL,
        intermediate_size=48,
        num_key_value_heads=2,
        num_local_experts=4,
        experts_implementation="eager",
        **_NO_TOKENS,
    ),
    "t5": lambda: language_model(
        "T5", vocab_size=100, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    ),
    "lstm": lambda: recurrent(nn.LSTM, batch_first=True),
    "gru, time first": lambda: recurrent(nn.GRU, batch_first=False),
    "rnn, as many positions as samples": lambda: recurrent(nn.RNN, batch_first=False, length=5),
    "auto-encoder": auto_encoder,
    "shared": shared,
    "u-net": u_net,
}  # fmt: skip
#: Those that take no second.
QUICK = (
    *("mobilenet_v2", "convnext", "vit", "swin", "gpt2", "mixtral", "t5", "lstm"),
    *("gru, time first", "auto-encoder", "shared", "u-net", "rnn, as many positions as samples"),
)
