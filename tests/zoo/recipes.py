"""A training of a public model by its name, for 30 steps: what `gradscope run` must be quiet on.

As a script: `python tests/zoo/recipes.py torchvision:resnet18 adamw`.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

#: Of torchvision and timm the names alone; of transformers the class of a small config. A ViT has
#: four blocks of its twelve.
MODELS = (
    *("torchvision:resnet18", "torchvision:mobilenet_v3_small", "torchvision:squeezenet1_1"),
    *("torchvision:shufflenet_v2_x0_5", "torchvision:vgg11_bn"),
    *("timm:vit_tiny_patch16_224", "timm:convnext_atto", "timm:mixer_s32_224", "timm:resnet10t"),
    *("transformers:GPT2", "transformers:Bert", "transformers:Llama"),
)
RECIPES = ("sgd", "adamw", "ema", "scaler", "accumulate", "sgd-accumulate")
STEPS, SIZE, CLASSES, TOKENS = 30, 64, 5, 64


def made(name: str) -> nn.Module:
    """The model with random weights, and few classes."""
    library, _, which = name.partition(":")
    if library == "torchvision":
        import torchvision

        return torchvision.models.get_model(which, num_classes=CLASSES)
    if library == "timm":
        import timm

        size = {"img_size": SIZE} if which.startswith(("vit", "mixer")) else {}
        depth = {"depth": 4} if which.startswith("vit") else {}
        return timm.create_model(which, num_classes=CLASSES, **size, **depth)
    import transformers

    kind = "ForSequenceClassification" if which == "Bert" else "ForCausalLM"
    if which == "GPT2":
        config = transformers.GPT2Config(vocab_size=TOKENS, n_embd=64, n_layer=2, n_head=2)
        return transformers.GPT2LMHeadModel(config)
    config = getattr(transformers, f"{which}Config")(
        vocab_size=TOKENS, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, num_labels=CLASSES, pad_token_id=None,
    )  # fmt: skip
    return getattr(transformers, which + kind)(config)


def batch(name: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples, and what they are: the colour of a picture, the step between tokens."""
    labels = torch.randint(CLASSES, (8,), generator=generator)
    if name.startswith("transformers:"):
        first = torch.randint(TOKENS, (8, 1), generator=generator)
        return (first + torch.arange(16) * (1 + labels[:, None])) % TOKENS, labels
    colours = torch.linspace(-1, 1, CLASSES)[labels].view(8, 1, 1, 1)
    return colours + torch.randn(8, 3, SIZE, SIZE, generator=generator), labels


def loss_of(
    model: nn.Module, name: str, inputs: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """The model's own loss of a language model, else a cross entropy."""
    if name in ("transformers:GPT2", "transformers:Llama"):
        return model(input_ids=inputs, labels=inputs).loss
    if name.startswith("transformers:"):
        return model(input_ids=inputs, labels=labels).loss
    return F.cross_entropy(model(inputs), labels)


def main(name: str, recipe: str) -> None:
    """Train, and print the loss of every tenth step."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = made(name).train()
    plain = recipe.startswith("sgd")
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
        if plain
        else torch.optim.AdamW(model.parameters(), lr=3e-4)
    )
    average = copy.deepcopy(model).requires_grad_(False) if recipe == "ema" else None
    scaler = torch.amp.GradScaler("cpu", enabled=recipe == "scaler")
    accumulated = 4 if recipe.endswith("accumulate") else 1
    for step in range(STEPS):
        for _ in range(accumulated):
            inputs, labels = batch(name, generator)
            loss = loss_of(model, name, inputs, labels)
            scaler.scale(loss / accumulated).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if average is not None:
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(other, 0.05)
        if step % 10 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main(*sys.argv[1:])
