"""The same computed otherwise: a full network is changed, and only rounding may differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from comparison.nets import layers, wrap

Change = Callable[[nn.Module], None]


def each(*kinds: str) -> Callable[[Callable[[Any, Tensor], Tensor]], Change]:
    """A forward for all modules of some classes, of the module and its input."""

    def of(forward: Callable[[Any, Tensor], Tensor]) -> Change:
        def change(model: nn.Module) -> None:
            for name in layers(model, *kinds):
                module = model.get_submodule(name)
                wrap(module, lambda _, x, m=module: forward(m, x))

        return change

    return of


@each("Conv2d")
def convolution_as_product(m: Any, x: Tensor) -> Tensor:
    """Patches times weights."""
    height, width = (
        (size + 2 * m.padding[0] - m.kernel_size[0]) // m.stride[0] + 1 for size in x.shape[2:]
    )
    patches = F.unfold(x, m.kernel_size, m.dilation, m.padding, m.stride)
    found = (m.weight.flatten(1) @ patches).unflatten(2, (height, width))
    return found if m.bias is None else found + m.bias[:, None, None]


@each("Conv2d")
def convolution_in_reverse(m: Any, x: Tensor) -> Tensor:
    """The channels from the last to the first."""
    return F.conv2d(x.flip(1), m.weight.flip(1), m.bias, m.stride, m.padding)


@each("Linear")
def linear_in_halves(m: Any, x: Tensor) -> Tensor:
    """Two sums, the second half's first."""
    half = x.shape[-1] // 2
    rest = F.linear(x[..., half:], m.weight[:, half:])
    return rest + F.linear(x[..., :half], m.weight[:, :half], m.bias)


@each("Linear")
def linear_in_reverse(m: Any, x: Tensor) -> Tensor:
    """From the last feature to the first."""
    return F.linear(x.flip(-1), m.weight.flip(-1), m.bias)


@each("Conv1D")
def transformers_linear_in_reverse(m: Any, x: Tensor) -> Tensor:
    """The same of the layer of GPT-2, whose weight is transposed."""
    return x.flip(-1) @ m.weight.flip(0) + m.bias


@each("LayerNorm")
def layer_norm_by_hand(m: Any, x: Tensor) -> Tensor:
    """Mean and variance, and then the quotient."""
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + m.eps).sqrt() * m.weight + m.bias


@each("BatchNorm2d")
def batch_norm_by_hand(m: Any, x: Tensor) -> Tensor:
    """The same over the samples and their places."""
    x = x - x.mean((0, 2, 3), keepdim=True)
    x = x / (x.square().mean((0, 2, 3), keepdim=True) + m.eps).sqrt()
    return x * m.weight[:, None, None] + m.bias[:, None, None]


@each("GELU")
def gelu_by_hand(m: Any, x: Tensor) -> Tensor:
    """By the error function."""
    return 0.5 * x * (1 + torch.erf(x * 0.5**0.5))


def channels_last(model: nn.Module) -> None:
    """Images and weights with the channels innermost."""
    model.to(memory_format=torch.channels_last)
    model.register_forward_pre_hook(
        lambda _, args: (args[0].contiguous(memory_format=torch.channels_last),)
    )


def under(context: Callable[[], AbstractContextManager[Any]]) -> Change:
    """Forward in a context."""

    def change(model: nn.Module) -> None:
        forward = model.forward

        def inside(*args: Any, **kwargs: Any) -> Any:
            with context():
                return forward(*args, **kwargs)

        model.forward = inside

    return change


@contextmanager
def two_threads() -> Iterator[None]:
    """Sums are shared by two."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_onednn() -> AbstractContextManager[Any]:
    """PyTorch's own kernels of convolutions and products."""
    return torch.backends.mkldnn.flags(enabled=False)


def checkpointed(*kinds: str) -> Change:
    """Blocks run again in backward."""

    def change(model: nn.Module) -> None:
        for name in layers(model, *kinds):
            module = model.get_submodule(name)
            forward = module.forward
            module.forward = functools.partial(checkpoint, forward, use_reentrant=False)

    return change


def attention_in_steps(model: nn.Module) -> None:
    """Scores, softmax and sum in the place of one kernel."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False


def eager_attention(model: Any) -> None:
    """The same of a library that has a switch for it."""
    model.config._attn_implementation = "eager"


def math_attention() -> AbstractContextManager[Any]:
    """PyTorch's reference in the place of its flash kernel."""
    return sdpa_kernel(SDPBackend.MATH)


#: By network.
HONEST: dict[str, dict[str, Change]] = {
    "resnet18": {
        "convolutions as products": convolution_as_product,
        "convolutions in reverse": convolution_in_reverse,
        "norms by hand": batch_norm_by_hand,
        "channels last": channels_last,
        "two threads": under(two_threads),
        "other kernels": under(without_onednn),
        "checkpoints": checkpointed("BasicBlock"),
    },
    "vit": {
        "sums in halves": linear_in_halves,
        "sums in reverse": linear_in_reverse,
        "norms by hand": layer_norm_by_hand,
        "activations by hand": gelu_by_hand,
        "attention in steps": attention_in_steps,
        "another attention kernel": under(math_attention),
        "two threads": under(two_threads),
        "checkpoints": checkpointed("Block"),
    },
    "gpt2": {
        "sums in reverse": transformers_linear_in_reverse,
        "norms by hand": layer_norm_by_hand,
        "attention in steps": eager_attention,
        "another attention kernel": under(math_attention),
        "two threads": under(two_threads),
    },
}
HONEST["small-gpt2"] = HONEST["gpt2"]
