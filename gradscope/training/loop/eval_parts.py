"""Finds parts of a model that train in eval mode, while the model itself is in train mode."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradscope.capture.names import modules_by_name
from gradscope.capture.shards import is_spread
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import written_call
from gradscope.training.models import Model, Models


class _Part:
    """A part in eval mode, with the layers in it that keep running statistics."""

    def __init__(self, module: nn.Module, norms: list[_NormBase]) -> None:
        self.module = weakref.ref(module)
        self.norms = [weakref.ref(one) for one in norms]

    def is_off(self) -> bool:
        """Return True if it is still in eval mode, with all of these layers."""
        module = self.module()
        if module is None or module.training:
            return False
        return not any(norm is None or norm.training for norm in (one() for one in self.norms))


class EvalParts:
    """Parts whose batch normalization has never read a batch, though their layers train.

    Statistics that are still the initial ones are not frozen on purpose. Frozen layers, batch norms
    that are put in eval mode one by one, and models whose own ``train`` decides are left out.
    """

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[nn.Module, list[_Part]] = weakref.WeakKeyDictionary()
        #: By the model's number: a model that a function made no longer exists at the end.
        self._last: dict[int, tuple[LoopFact, ...]] = {}

    def called(self, module: nn.Module) -> None:
        """Note a call of a model with gradients enabled; cheap if no part is in eval mode."""
        if not module.training:
            return
        known = self._of.get(module)
        if known is None:
            self._of[module] = list(_parts(module))
        elif known:
            known[:] = [one for one in known if one.is_off()]

    def facts(self, models: Models, trained: set[int]) -> Iterator[LoopFact]:
        """Yield the parts that were in eval mode in every call.

        Args:
            trained: the parameters that get gradients, and that an optimizer moves.
        """
        for model in models:
            parts = self._of.get(model.module, ())
            self._last[model.id] = tuple(_facts(model, models.name(model), parts, trained))
        for facts in self._last.values():
            yield from facts


def _facts(
    model: Model, name: str, parts: Iterable[_Part], trained: set[int]
) -> Iterator[LoopFact]:
    paths = {id(module): path for path, module in modules_by_name(model.module).items()}
    for part in parts:
        module = part.module()
        if module is None or id(module) not in paths:
            continue
        if all(id(one) in trained for one in module.parameters()) and all(
            norm is not None and _is_initial(norm) for norm in (one() for one in part.norms)
        ):
            path = paths[id(module)]
            line = written_call(path.rpartition(".")[2], "eval")
            yield LoopFact("eval-part", path, name, count=len(part.norms), location=line)


def _parts(module: nn.Module) -> Iterator[_Part]:
    """Yield the outermost parts in eval mode that have both batch norms and other layers with
    parameters."""
    if _decides(module):
        return
    for child in module._modules.values():
        if child is None:
            continue
        if child.training:
            yield from _parts(child)
            continue
        inside = list(child.modules())
        norms = [one for one in inside if isinstance(one, _NormBase) and one.track_running_stats]
        others = any(one._parameters and not isinstance(one, _NormBase) for one in inside)
        if norms and others and not any(map(_decides, inside)):
            part = _Part(child, norms)
            if part.is_off():
                yield part


def _decides(module: nn.Module) -> bool:
    """Return True if a module has its own ``train``, which may keep its parts in eval mode."""
    return "train" in vars(module) or type(module).train is not nn.Module.train


def _is_initial(norm: _NormBase) -> bool:
    """Return True if a layer's running statistics are those that its constructor sets."""
    mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    if mean is None or variance is None or batches is None:
        return False
    if mean.is_meta or is_spread(mean):  # to read it, every process would have to
        return False
    return int(batches) == 0 and not bool(mean.any()) and bool((variance == 1).all())
