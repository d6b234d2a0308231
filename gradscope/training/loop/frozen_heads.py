"""Finds a frozen layer that gives the scores of a loss, with the weights of its constructor."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator

from torch import nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from gradscope.capture.graph import LEAF
from gradscope.capture.names import modules_by_name
from gradscope.capture.remembered import RememberedTensor, remembered
from gradscope.capture.shards import PLAIN
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.loss_walk import kind, saved, scores_of, weight_of
from gradscope.training.loop.script_lines import freezing_line
from gradscope.training.models import Models

#: The smallest number of weights that shows their distribution; the tolerance of its root mean
#: square, in addition to a sample's error.
_FEWEST, _OFF = 16, 0.1
#: The names of the weight that a layer keeps for the gradient of its input.
_KEPT = {"AddmmBackward": "mat2", "MmBackward": "mat2", "ConvolutionBackward": "weight"}


class FrozenHeads:
    """Notes the layers with frozen weights that give scores, and the modules that were loaded."""

    def __init__(self) -> None:
        self._known: dict[int, RememberedTensor] = {}
        self._loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def loaded(self, module: nn.Module) -> None:
        """Note a call of ``load_state_dict``."""
        self._loaded.update(module.modules())

    def read(self, loss: Node) -> None:
        """Read a classification."""
        layer = scores_of(loss)
        if layer is None or weight_of(layer) is not None:
            return
        weight = saved(layer).get(_KEPT[kind(layer)])
        weight = weight if weight is None or weight._base is None else weight._base
        if weight is None:  # where nothing before the layer trains, its bias does
            biases = [one.variable for one, _ in layer.next_functions if isinstance(one, LEAF)]
            weight = biases[0] if biases else None
        if isinstance(weight, nn.Parameter) and id(weight) not in self._known:
            self._known[id(weight)] = remembered(weight)

    def facts(self, models: Models, optimizers: Iterable[Optimizer]) -> Iterator[LoopFact]:
        """Yield a fact for each such layer of a model that trains, if no optimizer holds it."""
        heads = {id(one) for known in self._known.values() if (one := known()) is not None}
        if not heads:
            return
        groups = (group for one in optimizers for group in one.param_groups)
        held = {id(parameter) for group in groups for parameter in group["params"]}
        for model in models:
            training = sum(p.requires_grad for p in model.module.parameters())
            loaded = any(one in self._loaded for one in model.module.modules())
            for name, module in modules_by_name(model.module).items():
                own = module._parameters
                weight, bias = own.get("weight"), own.get("bias")
                if heads.isdisjoint((id(weight), id(bias))):
                    continue
                if weight is None or weight.requires_grad or id(weight) in held or not training:
                    continue
                # Adapters of a random model, as in a test, leave its head frozen on purpose.
                if not loaded and (bias is None or not bias.requires_grad):
                    continue
                if module not in self._loaded and _is_initial(module, model.module):
                    yield LoopFact(
                        "frozen-head", name, models.name(model), count=training,
                        location=freezing_line(),
                    )  # fmt: skip


def _is_initial(module: nn.Module, root: nn.Module) -> bool:
    """Return True if the weights are distributed as the constructor draws them: of a layer of
    PyTorch uniformly, of a classifier of transformers normally."""
    weight, bias = (getattr(module, name, None) for name in ("weight", "bias"))
    if not isinstance(weight, nn.Parameter) or type(weight.data) not in PLAIN or weight.is_meta:
        return False
    if weight.numel() < _FEWEST or weight.dim() < 2:
        return False
    numbers = weight.detach().double()
    off = _OFF + 1 / math.sqrt(numbers.numel())
    size, largest = float(numbers.square().mean().sqrt()), float(numbers.abs().max())
    bound = 1 / math.sqrt(max(1, numbers[0].numel()))
    if largest <= bound * (1 + 1e-6) and abs(size * math.sqrt(3) / bound - 1) < off:
        return True
    spread = getattr(getattr(root, "config", None), "initializer_range", None)
    if not isinstance(spread, float) or getattr(root, "name_or_path", None) != "":
        return False
    return bias is not None and abs(size / spread - 1) < off
