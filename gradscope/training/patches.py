"""Patches for events without a PyTorch hook: functions that report their calls.

Each replaces a function that cannot fail, or calls it last. So the traceback of an error in the
script has no frame of gradscope's, except where noted.

A warning gets the line of the script: Python takes it from the frames, and shows a warning once for
each line. With a frame of gradscope between the script and a function, the line would be
gradscope's, and a warning that was shown before would come again.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer

from gradscope.capture.calls import in_backward
from gradscope.capture.hooks import (
    hook_node_before,
    hook_optimizers,
    in_between,
    own_hooks_aside,
    replace,
    without_own_hooks,
)
from gradscope.capture.remembered import observe_swaps
from gradscope.explain.shared.frames import is_ours
from gradscope.training.discovery import IN_PLACE, compiled_method

if TYPE_CHECKING:
    from gradscope.training.observer import Observer

_DISPATCH = torch.overrides.handle_torch_function.__code__


def observe_warnings(patches: ExitStack) -> None:
    """Show warnings with lines of the script, until the stack is closed."""
    replace(patches, warnings, "_showwarnmsg", _at_the_script)


def _at_the_script(original: Callable[..., Any]) -> Callable[..., Any]:
    def showwarnmsg(message: warnings.WarningMessage) -> None:
        between = _in_between(message, sys._getframe(1))
        line = None if between is None else _caller(between)
        if between is None or line is None:
            original(message)
            return
        # Python must not count the warning as already shown at this line.
        between.f_globals.pop("__warningregistry__", None)
        warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
        warnings.warn_explicit(
            message.message,
            message.category,
            line.f_code.co_filename,
            line.f_lineno,
            module=line.f_globals.get("__name__") or "<unknown>",
            registry=line.f_globals.setdefault("__warningregistry__", {}),
            source=message.source,
        )

    return showwarnmsg


def _in_between(message: warnings.WarningMessage, frame: FrameType | None) -> FrameType | None:
    """Return the frame of a warning, if it is one between the script and a function."""
    if not is_ours(message.filename):
        return None
    while frame is not None:
        if frame.f_code.co_filename == message.filename and frame.f_lineno == message.lineno:
            return frame if frame.f_code in in_between else None
        frame = frame.f_back
    return None


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the frame that called the function, without gradscope's and PyTorch's dispatch."""
    while frame is not None:
        if frame.f_code is _DISPATCH:  # the function itself called it
            frame = frame.f_back
        elif not is_ours(frame.f_code.co_filename):
            return frame
        frame = frame and frame.f_back
    return None


Root = torch.Tensor | GradientEdge
_INFERENCE = "_forward_metadata_inference"


def observe(observer: Observer) -> ExitStack:
    """Call ``observer`` at the events of a training loop, until the stack is closed."""
    patches = ExitStack()
    observe_swaps(patches, observer.graph_is_held)
    observe_warnings(patches)
    for handle in hook_optimizers(observer.step_begins, observer.step_ended):
        patches.callback(handle.remove)
    replace(patches, torch.autograd, "_make_grads", lambda f: _gradients_made(f, observer))
    replace(patches, Optimizer, "_patch_step_function", lambda f: _optimizer_made(f, observer))
    replace(patches, torch.amp.GradScaler, "scale", lambda f: _scaled(f, observer))
    replace(patches, torch.amp.GradScaler, "step", lambda f: _scaler_step(f, observer))
    replace(patches, torch, "compile", lambda f: _compiled(f, observer))
    replace(patches, nn.Module, "compile", lambda f: _compiled_in_place(f, observer))
    replace(patches, nn.Module, "__getstate__", _own_hooks_left_out)
    replace(patches, torch.jit._recursive, "create_script_module", _own_hooks_not_scripted)
    return patches


def observe_stages(patches: ExitStack, observer: Observer, stages: ModuleType) -> None:
    """Patch the class that runs a pipeline's stages: ``torch.distributed.pipelining.stage``."""
    replace(patches, stages._PipelineStageBase, "scale_grads", lambda f: _divided(f, observer))
    if hasattr(stages.PipelineStage, _INFERENCE):  # earlier versions call it without gradients
        replace(patches, stages.PipelineStage, _INFERENCE, lambda f: _aside(f, observer))


def _gradients_made(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch the function in which ``backward`` makes its first gradients, just before the engine
    runs.

    A wrapper of ``backward`` itself would add a frame to the traceback of every failing backward.
    """
    backward = torch.autograd.backward.__code__

    @functools.wraps(original)
    def make_gradients(outputs: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code is backward:  # `torch.autograd.grad` comes here too
            roots, gradients, leaves = [], [], []
            for one in outputs:  # in every step: no frame of Python's for each
                if getattr(one, "grad_fn", None) is not None or isinstance(one, GradientEdge):
                    roots.append(one)
                elif isinstance(one, torch.Tensor):
                    leaves.append(one)
            for one in given:
                if isinstance(one, torch.Tensor):
                    gradients.append(one)
            if observer.backward_begins(roots, gradients, leaves) and roots:
                _when_ended(roots[0], observer)
        else:
            asked = sys._getframe(1).f_locals
            inputs = asked.get("inputs", ())
            observer.gradients_asked(
                not asked.get("create_graph", True)
                and not all(isinstance(one, nn.Parameter) for one in _listed(inputs))
            )
        return original(outputs, given, *args, **kwargs)

    return make_gradients


def _listed(inputs: Any) -> Sequence[Any]:
    """Return the inputs of ``torch.autograd.grad``."""
    if isinstance(inputs, dict):
        return tuple(inputs.values())
    return inputs if isinstance(inputs, tuple | list) else (inputs,)


def _when_ended(root: Root, observer: Observer) -> None:
    """Queue a call for the end of a backward: the engine takes such calls only from inside it."""
    engine: Any = torch.autograd.Variable._execution_engine
    node = root.node if isinstance(root, GradientEdge) else root.grad_fn
    assert node is not None

    def began(gradients: object) -> None:
        handle.remove()
        # In two rounds: what averages gradients over processes does so in a callback of the first.
        engine.queue_callback(lambda: engine.queue_callback(observer.backward_ended))

    handle = hook_node_before(node, began)


def _optimizer_made(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch the function that ``Optimizer.__init__`` calls before it reads its arguments."""

    @functools.wraps(original)
    def patch_step_function(self: Optimizer) -> None:
        original(self)
        observer.optimizer_made(self)

    return patch_step_function


def _scaled(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch the scaler's ``scale``; an error in it has this frame in its traceback."""

    @functools.wraps(original)
    def scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        factor = getattr(self, "_scale", None)
        if isinstance(factor, torch.Tensor) and self.is_enabled():
            observer.scaled(result, factor)
        return result

    return scale


def _scaler_step(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch the scaler's ``step``; an error in the optimizer's step has this frame in its
    traceback."""

    @functools.wraps(original)
    def step(self: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        observer.scaler_step_begins(optimizer)
        result = original(self, optimizer, *args, **kwargs)
        observer.scaler_step_ended(optimizer)
        return result

    return step


def _compiled(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch ``torch.compile``; an error in its arguments has this frame in its traceback."""

    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Without a model it makes a decorator, which calls this; compiled autograd has no model.
        if model is None or in_backward():
            return original(model, *args, **kwargs)
        observer.compiled(model)
        result = original(model, *args, **kwargs)
        if compiled_method(model) != IN_PLACE:  # else it is not yet set
            observer.was_compiled()
        return result

    return compile


def _compiled_in_place(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Call ``torch.compile`` first, then set its result."""

    @functools.wraps(original)
    def compile(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        observer.was_compiled()

    return compile


def _divided(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch ``scale_grads``, which does not fail."""

    @functools.wraps(original)
    def scale_grads(self: Any, grad_scale_factor: int) -> None:
        original(self, grad_scale_factor)
        observer.divided(grad_scale_factor)

    return scale_grads


def _aside(original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    """Patch a stage's shape inference; an error of the stage in it has this frame in its
    traceback."""

    @functools.wraps(original)
    def infer(*args: Any, **kwargs: Any) -> Any:
        with observer.aside():
            return original(*args, **kwargs)

    return infer


def _own_hooks_left_out(original: Callable[..., Any]) -> Callable[..., Any]:
    """Remove gradscope's hooks from a pickled or copied module, to the last byte."""

    @functools.wraps(original)
    def __getstate__(self: nn.Module) -> Any:
        state = original(self)
        return without_own_hooks(state) if isinstance(state, dict) else state

    return __getstate__


def _own_hooks_not_scripted(original: Callable[..., Any]) -> Callable[..., Any]:
    """Leave gradscope's hooks out of a module that TorchScript compiles: it compiles hooks, too.

    An error of the compiler has this frame in its traceback.
    """

    @functools.wraps(original)
    def create_script_module(nn_module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with own_hooks_aside(nn_module):
            return original(nn_module, *args, **kwargs)

    return create_script_module
