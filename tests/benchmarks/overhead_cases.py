"""The models and the ways to look at their steps that ``tests.benchmarks.overhead`` compares.

A way to look is a function from a case to one step of it; what it needs is in ``PACKAGES``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

Step = Callable[[], object]


@dataclass
class Case:
    """A model with what one step of it takes. ``loss`` is of (output, target), or of (output)."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    loss: Callable[..., Any]
    three: tuple[str, ...]  # a pattern of three layers

    def inputs(self) -> Any:
        return self.kwargs or self.args

    def plain(self) -> None:
        """Forward, loss and backward, with nobody watching; the gradients are let go."""
        output = self.model(*self.args, **self.kwargs)
        loss = self.loss(output) if self.target is None else self.loss(output, self.target)
        loss.backward()
        self.model.zero_grad(set_to_none=True)


def _picture(name: str, batch: int, three: tuple[str, ...]) -> Case:
    import torch
    import torchvision

    model = getattr(torchvision.models, name)()
    x = torch.randn(batch, 3, 224, 224)
    loss = torch.nn.functional.cross_entropy
    return Case(model, (x,), {}, torch.arange(batch), loss, three)


def _text() -> Case:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(0, 50257, (1, 256))
    three = tuple(f"transformer.h.{i}.mlp.c_fc" for i in (0, 5, 11))
    return Case(
        GPT2LMHeadModel(GPT2Config(use_cache=False)),
        (),
        {"input_ids": ids, "labels": ids},
        None,
        lambda output: output.loss,
        three,
    )


#: Weights are random.
CASES: dict[str, Callable[[], Case]] = {
    "resnet50": partial(_picture, "resnet50", 8, ("conv1", "layer2.0.conv2", "fc")),
    "vit_b_16": partial(
        _picture, "vit_b_16", 2, tuple(f"encoder.layers.encoder_layer_{i}.mlp" for i in (0, 5, 11))
    ),
    "gpt2": _text,
    "mobilenet_v2": partial(
        _picture, "mobilenet_v2", 8, ("features.0", "features.9.conv.1", "classifier.1")
    ),
}


def plain(case: Case) -> Step:
    return case.plain


def gradscope(case: Case, layers: tuple[str, ...] = ("**",)) -> Step:
    """All that ``gradscope inspect`` does once the model is loaded, from hooks to records."""
    from gradscope.loading.live_objects import adopt
    from gradscope.running.observe import observe

    workload = adopt(case.model, {"loss": case.loss}, inputs=case.inputs(), target=case.target)
    # The command's model is its own: nobody trains it on, so its weights are not kept beside it.
    workload = replace(workload, live=False)

    def step() -> None:
        outcome = observe(workload, layers=layers)
        assert outcome.failure is None, outcome.failure
        assert outcome.calls and outcome.gradient_norm

    return step


def gradscope_with_pytorch(case: Case) -> Step:
    """The same without the compiled library; each way has a process of its own."""
    from gradscope.capture import one_pass

    one_pass._library = "off"
    return gradscope(case)


def gradscope_three(case: Case) -> Step:
    return gradscope(case, case.three)


def gradscope_live(case: Case) -> Step:
    """``gradscope.inspect`` on the live module, which is given back exactly as it was."""
    import gradscope

    return lambda: gradscope.inspect(
        case.model, case.inputs(), target=case.target, loss=case.loss, layers=("**",)
    )


def naive(case: Case) -> Step:
    """Every output and its gradient, each statistic as it is usually written."""
    import torch

    def look(tensor: torch.Tensor) -> list[float]:
        tensor = tensor.detach()
        return [
            tensor.norm().item(),
            tensor.mean().item(),
            tensor.std().item(),
            tensor.min().item(),
            tensor.max().item(),
            tensor.isnan().sum().item(),
            tensor.isinf().sum().item(),
            (tensor == 0).sum().item(),
        ]

    def after(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                look(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: look(gradient) and None)

    def step() -> None:
        handles = [module.register_forward_hook(after) for module in case.model.modules()]
        case.plain()
        for handle in handles:
            handle.remove()

    return step


def debug_underflow_overflow(case: Case) -> Step:
    """Hugging Face's: largest and smallest magnitudes of the forward pass alone."""
    from transformers.debug_utils import DebugUnderflowOverflow

    def step() -> None:
        DebugUnderflowOverflow(case.model)
        case.plain()
        for module in case.model.modules():
            module._forward_hooks.clear()

    return step


def torchlens(case: Case) -> Step:
    """TorchLens: every operation of the forward pass alone, its tensors kept, no statistics."""
    import torchlens
    from torchlens.options import CaptureOptions

    capture = CaptureOptions(unwrap_when_done=True)
    return lambda: torchlens.trace(case.model, list(case.args), dict(case.kwargs), capture=capture)


def torchinfo(case: Case) -> Step:
    """torchinfo: shapes and parameter counts of the forward pass alone, no statistics."""
    import torchinfo

    data = dict(case.kwargs) or list(case.args)
    return lambda: torchinfo.summary(case.model, input_data=data, verbose=0)


#: In the order of the table.
ONLOOKERS: dict[str, Callable[[Case], Step]] = {
    "plain": plain,
    "gradscope": gradscope,
    "gradscope-with-pytorch": gradscope_with_pytorch,
    "gradscope-three": gradscope_three,
    "gradscope-live": gradscope_live,
    "naive": naive,
    "debug-underflow-overflow": debug_underflow_overflow,
    "torchlens": torchlens,
    "torchinfo": torchinfo,
}
#: What each imports; where it is missing, the table says so.
PACKAGES = {
    "debug-underflow-overflow": "transformers.debug_utils",
    "torchlens": "torchlens",
    "torchinfo": "torchinfo",
}
