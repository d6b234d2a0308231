"""Replays a recorded call, operation by operation, from a snapshot of its start."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from gradscope.explain.non_finite.explain_non_finite import explain_call
from gradscope.loading.surgery import unwrapped
from gradscope.nesting import find
from gradscope.records.answers import NonFiniteOrigin
from gradscope.running.state import (
    cloned,
    deeper_recursion,
    post_accumulate_hooks_disabled,
    run_eagerly,
    state_restored,
)
from gradscope.training.extra_passes import NeedsOtherRanks
from gradscope.training.nan_detector.recorded_calls import RecordedCall, tensors_of


def rerun(call: RecordedCall, *, alone: bool, backward: bool) -> tuple[NonFiniteOrigin, ...]:
    """Return the origins of NaN and Inf in a call, oldest first; all state is restored.

    Args:
        call: the recorded call.
        alone: True if the script trains no other model: then module names lack the model's name.
        backward: also replay backward, with the gradients that arrived at the results.
    """
    if not call.repeatable:
        return ()
    with as_it_began(call) as (module, args, kwargs):

        def forward() -> Any:
            return module(*args, **kwargs)

        def back(output: Any) -> Iterator[tuple[str, torch.Tensor]]:
            several = list(paired(call, output))
            for number, (roots, gradients) in enumerate(several, 1):
                torch.autograd.backward(roots, gradients, retain_graph=number < len(several))
            return _arguments(args, kwargs)

        found = explain_call(
            module if alone else _named(call.name, module),
            module,
            forward,
            back if backward else None,
            inputs=_by_parameter(module, args, kwargs),
            line=call.line,
        )
    # With other random numbers than in the step there is no answer.
    return () if call.drew else found


def rerun_results(call: RecordedCall) -> list[torch.Tensor] | None:
    """Return the results of a call, computed again; None if that is impossible."""
    if not call.repeatable:
        return None
    with as_it_began(call) as (module, args, kwargs), torch.no_grad():
        try:
            results = tensors_of((module(*args, **kwargs),))
        except NeedsOtherRanks:
            call.refused = True
            return None
    return None if call.drew else results


@contextmanager
def as_it_began(
    call: RecordedCall, *, compiled: bool = False
) -> Iterator[tuple[nn.Module, Any, Any]]:
    """Restore the state at the start of a call for the block; afterwards, restore the present
    state.

    If the replay draws from an unknown random state, the call notes that. With ``compiled``,
    compiled modules run compiled.
    """
    # Without its wrappers, which are compiled or would wait for other processes.
    module, _ = unwrapped(call.module)
    with ExitStack() as kept:
        kept.enter_context(_silent())
        kept.enter_context(state_restored(module, weights=call.side_effects.writes_parameters))
        if not compiled:
            kept.enter_context(run_eagerly())
        kept.enter_context(deeper_recursion())
        kept.enter_context(post_accumulate_hooks_disabled(module))
        args, kwargs = cloned((call.args, call.kwargs))
        kept.enter_context(call.surroundings())
        state = torch.default_generator.get_state()
        yield module, args, kwargs
        if not call.side_effects.draws:
            call.drew = not torch.equal(state, torch.default_generator.get_state())


def _by_parameter(module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments by their names in the model's own forward."""
    try:
        return dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def _named(name: str, module: nn.Module) -> nn.Module:
    """Return a module without a parent, for the name of another one."""
    around = nn.Module()
    around._modules[name] = module
    return around


def _arguments(args: Any, kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the gradients that reached the arguments, each with its name."""
    for tree in (args, kwargs):
        for path, tensor in find(tree, torch.Tensor):
            if tensor.is_leaf and tensor.grad is not None:
                yield f"the gradient of the input {path}", tensor.grad


def paired(
    call: RecordedCall, output: Any
) -> Iterator[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]:
    """Yield the call's results and the gradients that arrived, for each backward that reached
    it.
    """
    results = [t for t in tensors_of((output,)) if t.grad_fn is not None]
    # Its nodes are those of the first run, in the same order.
    nodes = dict(zip(dict.fromkeys(t.grad_fn for t in results), call.nodes, strict=False))
    for count in range(max(map(len, call.nodes.values()), default=0)):
        roots, gradients = [], []
        for tensor in results:
            node = nodes.get(tensor.grad_fn)
            gradient = None if node is None else call.gradient_of(tensor.output_nr, node, count)
            if gradient is not None:
                roots.append(tensor)
                gradients.append(gradient)
        if roots:
            yield roots, gradients


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the output of a replay, because the call has printed it already."""
    nowhere = io.StringIO()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
