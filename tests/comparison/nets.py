"""Networks to compare, and what is done to one of two copies: a fault, or the same otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Net:
    """A network with random weights, and a batch for it."""

    model: nn.Module
    inputs: Any
    target: Tensor | None
    loss: str


def resnet18() -> Net:
    """ResNet-18 on 32 pixels."""
    from torchvision.models import resnet18

    return Net(
        resnet18(num_classes=10),
        torch.randn(4, 3, 32, 32),
        torch.randint(10, (4,)),
        "cross_entropy",
    )


def vit() -> Net:
    """ViT-Tiny on 64 pixels: 12 blocks of 192."""
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10)
    return Net(model, torch.randn(4, 3, 64, 64), torch.randint(10, (4,)), "cross_entropy")


def gpt2() -> Net:
    """GPT-2 itself: 12 blocks of 768; of the vocabulary 1,000 words."""
    return _gpt2(layers=12, width=768)


def small_gpt2() -> Net:
    """GPT-2 with 2 blocks of 128."""
    return _gpt2(layers=2, width=128)


def _gpt2(layers: int, width: int) -> Net:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=width // 64,
        vocab_size=1000,
        n_positions=64,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    words = torch.randint(1000, (4, 16))
    model = GPT2LMHeadModel(config).train()
    return Net(model, {"input_ids": words, "labels": words}, None, "output")


NETS: Mapping[str, Callable[[], Net]] = {
    "resnet18": resnet18,
    "vit": vit,
    "gpt2": gpt2,
    "small-gpt2": small_gpt2,
}


def built(name: str, seed: int) -> Net:
    """The same for the same seed."""
    torch.manual_seed(seed)
    return NETS[name]()


def layers(model: nn.Module, *kinds: str) -> list[str]:
    """Names of the modules of some classes."""
    return [name for name, m in model.named_modules() if type(m).__name__ in kinds]


def wrap(module: nn.Module, change: Callable[[Callable[..., Any], Tensor], Any]) -> None:
    """Put a function in the place of a module's forward, which it gets with the input."""
    forward = module.forward
    module.forward = lambda x: change(forward, x)


def drawn(coin: random.Random, names: list[str], model: nn.Module) -> tuple[str, Any]:
    """A module at random, and its name."""
    name = coin.choice(names)
    return name, model.get_submodule(name)
