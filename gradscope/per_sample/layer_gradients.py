"""Computes the gradients of a module's parameters for each sample of one call.

A function takes a call and a range of samples, and returns their gradients as [samples, *shape of
the parameter]. It uses the layer's input and the gradient of its output (Goodfellow,
https://arxiv.org/abs/1510.01799). For classes without a function, the module runs again on one
sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a module, with the gradient of its output.

    Attributes:
        module: the module.
        input: its input, [samples, …], detached.
        version: the input's version at the call; a different version now means that it was
            overwritten.
        gradient: the gradient of the loss with respect to its output, [samples, …].
    """

    module: nn.Module
    input: torch.Tensor
    version: int
    gradient: torch.Tensor

    @property
    def overwritten(self) -> bool:
        """True if the input was overwritten since the call."""
        return self.input._version != self.version


#: The gradients of some samples, by the names of the module's parameters.
Gradients = dict[str, torch.Tensor]
_Function = Callable[[LayerCall, slice], Gradients]


def gradients(call: LayerCall, samples: slice) -> Gradients:
    """Return the gradients of a range of samples, by the parameter's name in the module.

    Raises:
        Exception: the module cannot run on one sample.
    """
    return _FUNCTIONS.get(type(call.module), _one_by_one)(call, samples)


def known(module: nn.Module) -> bool:
    """Return True if the gradients of the module's own parameters can be split by its calls."""
    if type(module) in _FUNCTIONS:
        return True
    leaf = next(module.children(), None) is None
    return leaf and not isinstance(module, nn.modules.batchnorm._BatchNorm)


def _linear(call: LayerCall, samples: slice) -> Gradients:
    given, sent = _rows(call, samples)
    count = given.shape[0]
    given = given.reshape(count, -1, given.shape[-1])
    sent = sent.reshape(count, -1, sent.shape[-1])
    return {"weight": torch.einsum("nto,nti->noi", sent, given), "bias": sent.sum(1)}


def _embedding(call: LayerCall, samples: slice) -> Gradients:
    module = call.module
    assert isinstance(module, nn.Embedding)
    ids, sent = call.input[samples], call.gradient[samples].to(module.weight.dtype)
    count, (entries, width) = ids.shape[0], module.weight.shape
    sent = sent.reshape(count, -1, width)
    if module.padding_idx is not None:
        sent = sent.masked_fill((ids.reshape(count, -1) == module.padding_idx).unsqueeze(-1), 0)
    places = torch.arange(count, device=ids.device).unsqueeze(1) * entries + ids.reshape(count, -1)
    flat = torch.zeros(count * entries, width, dtype=sent.dtype, device=sent.device)
    flat.index_add_(0, places.reshape(-1), sent.reshape(-1, width))
    return {"weight": flat.reshape(count, entries, width)}


def _layer_norm(call: LayerCall, samples: slice) -> Gradients:
    module = call.module
    assert isinstance(module, nn.LayerNorm)
    given, sent = _rows(call, samples)
    normal = F.layer_norm(given, module.normalized_shape, eps=module.eps)
    return _scaled(normal, sent, len(module.normalized_shape))


def _rms_norm(call: LayerCall, samples: slice) -> Gradients:
    module = call.module
    assert isinstance(module, nn.RMSNorm)
    given, sent = _rows(call, samples)
    normal = F.rms_norm(given, module.normalized_shape, eps=module.eps)
    return _scaled(normal, sent, len(module.normalized_shape))


def _scaled(normal: torch.Tensor, sent: torch.Tensor, dims: int) -> Gradients:
    """Return the gradients of a weight and a bias over the last dimensions."""
    between = tuple(range(1, normal.dim() - dims))
    weight = sent * normal
    return {
        "weight": weight.sum(between) if between else weight,
        "bias": sent.sum(between) if between else sent,
    }


def _group_norm(call: LayerCall, samples: slice) -> Gradients:
    module = call.module
    assert isinstance(module, nn.GroupNorm)
    given, sent = _rows(call, samples)
    return _of_channels(F.group_norm(given, module.num_groups, eps=module.eps), sent)


def _batch_norm(call: LayerCall, samples: slice) -> Gradients:
    """Return the gradients through the sample's own row; in training, the statistics are of all
    samples."""
    module = call.module
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    if module.training or module.running_mean is None:
        normal = F.batch_norm(
            call.input.to(_dtype(module)), None, None, training=True, eps=module.eps
        )[samples]
    else:
        normal = F.batch_norm(
            call.input[samples].to(_dtype(module)),
            module.running_mean,
            module.running_var,
            eps=module.eps,
        )
    return _of_channels(normal, call.gradient[samples].to(normal.dtype))


def _of_channels(normal: torch.Tensor, sent: torch.Tensor) -> Gradients:
    """Return the gradients of a weight and a bias per channel, the second dimension."""
    weight = (sent * normal).flatten(2) if normal.dim() > 2 else (sent * normal).unsqueeze(2)
    bias = sent.flatten(2) if sent.dim() > 2 else sent.unsqueeze(2)
    return {"weight": weight.sum(2), "bias": bias.sum(2)}


def _one_by_one(call: LayerCall, samples: slice) -> Gradients:
    """Run one backward through the module for each sample."""
    module = call.module
    parameters = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
    axis = 0 if getattr(module, "batch_first", True) else 1
    for n in range(*samples.indices(call.input.shape[axis])):
        given = call.input.narrow(axis, n, 1)
        if given.is_floating_point():
            given = given.to(_dtype(module))
        with torch.enable_grad():
            output = type(module).forward(module, given)
        output = output[0] if isinstance(output, tuple) else output
        sent = call.gradient.narrow(axis, n, 1).to(output.dtype)
        own = torch.autograd.grad(output, list(parameters.values()), sent)
        for name, gradient in zip(parameters, own, strict=True):
            found[name].append(gradient)
    return {name: torch.stack(of_samples) for name, of_samples in found.items()}


def _rows(call: LayerCall, samples: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and the output gradient of some samples, in the parameters' dtype."""
    dtype = _dtype(call.module)
    return call.input[samples].to(dtype), call.gradient[samples].to(dtype)


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters(recurse=False)).dtype


_FUNCTIONS: dict[type[nn.Module], _Function] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
}
