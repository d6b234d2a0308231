"""Attention of public libraries: logits and entropies against an explicit softmax in float64.

The explicit one sees what the library's own code passes to PyTorch in a run without gradscope. It
knows neither the graph nor the sampling that gradscope goes by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import transformers_models

import gradscope

pytestmark = pytest.mark.slow

#: Of transformers: each by PyTorch's own attention, or by the model's code, where it has both.
LANGUAGE = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mixtral", "mistral"), ("eager", "sdpa")),
    **dict.fromkeys(("bert", "gpt2", "bloom", "mpt"), ("eager",)),
    **dict.fromkeys(("gemma2", "deepseek_v3", "gpt_oss", "t5", "olmo2", "falcon"), ("eager",)),
    "vit": ("eager", "sdpa"),
}


@contextmanager
def softmaxes(attends: Callable[[], bool]) -> Iterator[list[Tensor]]:
    """The logits [..., queries, keys] of every softmax and fused attention, in float64."""
    found: list[Tensor] = []
    fused = F.scaled_dot_product_attention
    running: list[None] = []  # one of these functions calls another

    def observed(real: Callable[..., Any]) -> Callable[..., Any]:
        def softmax(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if attends() and not running:
                found.append(scores.detach().double())
            running.append(None)
            try:
                return real(scores, *args, **kwargs)
            finally:
                running.pop()

        return softmax

    def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **more) -> Tensor:
        scale = more.get("scale") or 1 / math.sqrt(q.shape[-1])
        keys = k.detach().double()
        if more.get("enable_gqa"):
            keys = keys.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
        logits = q.detach().double() @ keys.mT * scale
        if is_causal:
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
            logits = logits.masked_fill(hidden, -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            logits = logits + attn_mask.double()
        found.append(logits)
        running.append(None)
        try:
            return fused(q, k, v, attn_mask, dropout_p, is_causal, **more)
        finally:
            running.pop()

    with (
        mock.patch.object(Tensor, "softmax", observed(Tensor.softmax)),
        mock.patch.object(torch, "softmax", observed(torch.softmax)),
        mock.patch.object(F, "softmax", observed(F.softmax)),
        mock.patch.object(F, "scaled_dot_product_attention", attention),
    ):
        yield found


def explicit(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """The logits of a plain forward: those inside modules that are called attention."""
    inside: list[None] = []
    hooks = []
    for module in model.modules():
        name = type(module).__name__.lower()
        if "attention" in name or "attn" in name:
            hooks += [
                module.register_forward_pre_hook(lambda m, a: inside.append(None)),
                module.register_forward_hook(lambda m, a, o: inside.pop()),
            ]
    torch.manual_seed(0)
    with softmaxes(lambda: bool(inside)) as found:
        model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    for hook in hooks:
        hook.remove()
    return found


def agrees(call, logits: Tensor) -> None:
    """Compare a record with logits [samples, heads, queries, keys]."""
    heads = len(call.entropy)
    logits = logits.reshape(-1, heads, *logits.shape[-2:]) if logits.dim() != 4 else logits
    assert (call.queries, call.keys) == tuple(logits.shape[-2:])
    assert call.rows == logits.shape[0] * logits.shape[2]  # none was left out
    shown = logits > -9e3
    weights = torch.softmax(logits, -1)
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
    counted = shown.sum(-1) > 1
    shifted = bool((logits.amax(-1) == 0).all())  # the script took off the largest of each row
    for head in range(heads):
        rows, seen = counted[:, head], shown[:, head]
        own = entropy[:, head][rows]
        expected = {
            "entropy": own.mean(),
            "entropy_min": own.min(),
            "evenness": (own / seen.sum(-1)[rows].double().log()).mean(),
            "sink": weights[:, head, :, 0][rows].mean(),
        }
        assert shifted == (call.logit_max[head] is None)
        if not shifted:
            expected["logit_max"] = logits[:, head][seen].max()
        for name, value in expected.items():
            found = getattr(call, name)[head]
            assert found == pytest.approx(value.item(), rel=1e-6, abs=1e-6), (call.name, name, head)


def compared(model: nn.Module, inputs: Any, least: int = 2) -> None:
    model.eval()
    for parameter in model.parameters():  # logits of some size
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    expected = explicit(model, inputs)
    torch.manual_seed(0)
    report = gradscope.inspect(model, inputs, loss="sum")
    assert len(report.attention) == len(expected) >= least
    for call, logits in zip(report.attention, expected, strict=True):
        agrees(call, logits)


def of_transformers(name: str) -> tuple[nn.Module, dict[str, Any]]:
    pytest.importorskip("transformers")
    made = {entry.name: entry for entry in transformers_models.entries()}
    torch.manual_seed(0)
    return made[name].make()


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, kinds in LANGUAGE.items() for kind in kinds]
)
def test_transformers(name, kind):
    model, inputs = of_transformers(name)
    model.set_attn_implementation(kind)
    compared(model, inputs)


def test_windows_with_cosine_attention_and_a_scale_of_the_logits():
    """Swin V2: of two blocks the second has shifted windows, and so a mask."""
    timm = pytest.importorskip("timm")
    torchvision = pytest.importorskip("torchvision")
    picture = (torch.randn(1, 3, 32, 32),)
    swin = torchvision.models.swin_transformer
    compared(
        swin.SwinTransformer(
            [4, 4], 16, [2], [2], [4, 4], block=swin.SwinTransformerBlockV2,
            downsample_layer=swin.PatchMergingV2, num_classes=4,
        ),
        picture,
    )  # fmt: skip
    compared(
        timm.models.swin_transformer_v2.SwinTransformerV2(
            32, 4, window_size=4, embed_dim=16, depths=(2,), num_heads=(2,), num_classes=4
        ),
        picture,
    )


def test_pictures_by_tokens():
    timm = pytest.importorskip("timm")
    torchvision = pytest.importorskip("torchvision")
    pictures = (torch.randn(2, 3, 32, 32),)
    compared(torchvision.models.VisionTransformer(32, 8, 2, 4, 32, 64), pictures)
    compared(timm.models.VisionTransformer(32, 8, embed_dim=32, depth=2, num_heads=4), pictures)


def inputs_and_outputs(model: nn.Module, inputs: Any, names: set[str]) -> dict[str, list[Any]]:
    """What the modules of these names are given and return, in a plain forward."""
    found: dict[str, list[Any]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            found[name] = [given.detach().clone(), output]

        return hook

    hooks = [
        module.register_forward_hook(keep(name), with_kwargs=True)
        for name, module in model.named_modules()
        if name in names
    ]
    model(**inputs)
    for one in hooks:
        one.remove()
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "mixtral"])
def test_the_residual_stream_of_libraries(name):
    model, inputs = of_transformers(name)
    model.eval()
    calls = gradscope.inspect(model, inputs, loss="sum").residual
    assert len(calls) == (4 if name == "t5" else 2)
    seen = inputs_and_outputs(model, inputs, {call.name for call in calls})
    for call in calls:
        given, made = seen[call.name]
        made = (made[0] if isinstance(made, tuple) else made).detach().double()
        given = given.double()
        assert call.rms == pytest.approx(made.square().mean().sqrt().item(), rel=1e-6)
        assert call.added == pytest.approx(((made - given).norm() / made.norm()).item(), rel=1e-6)
        cosine = F.cosine_similarity(made.flatten(), given.flatten(), dim=0).item()
        assert call.cosine == pytest.approx(cosine, rel=1e-6)


def keep_numbers(found: list[Tensor], module: nn.Module, args: Any, kwargs: Any) -> None:
    given = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
    found += (one for one in given if not one.is_floating_point())


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_the_experts_of_libraries(name):
    """The experts that each token went to, by what the router returns."""
    model, inputs = of_transformers(name)
    model.eval()
    calls = gradscope.inspect(model, inputs, loss="sum").experts
    assert calls
    for call in calls:
        holder = model.get_submodule(call.name)
        chosen: list[Tensor] = []
        hook = partial(keep_numbers, chosen)
        for part in holder.modules():
            if "experts" in type(part).__name__.lower():
                part.register_forward_pre_hook(hook, with_kwargs=True)
        model(**inputs)
        counts = torch.bincount(chosen[0].flatten(), minlength=4)
        shares = counts.double() / counts.sum()
        assert call.share == pytest.approx(shares.tolist(), rel=1e-12)
        effective = math.exp(-sum(one * math.log(one) for one in shares.tolist() if one))
        assert call.effective == pytest.approx(effective, rel=1e-12)
