"""Registers all hooks, and replaces functions of PyTorch: no other file does."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from gradscope.capture.names import modules_of, named_modules
from gradscope.errors import OptionError
from gradscope.patterns import Named, matching, wraps

#: The code that calls a function of the script's or of PyTorch's in the place of the script.
in_between: set[CodeType] = set()


def replace(
    patches: ExitStack, owner: Any, name: str, made: Callable[[Callable[..., Any]], Any]
) -> None:
    """Replace ``owner.name`` by ``made(original)``; closing ``patches`` restores it."""
    original = getattr(owner, name)
    inherited = name not in vars(owner)
    own = made(original)
    code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    if isinstance(code, CodeType):
        in_between.add(code)
    setattr(owner, name, own)

    def put_back() -> None:
        if getattr(owner, name) is not own:  # other code has wrapped it meanwhile
            return
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    patches.callback(put_back)


Handle = RemovableHandle
#: Gets module, args and kwargs; may return new (args, kwargs).
PreHook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any]
#: Gets the same and the output; may return another output.
PostHook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]


def select_layers(model: nn.Module, patterns: Sequence[str]) -> dict[nn.Module, Named]:
    """Return the modules that ``patterns`` select, in the order of ``named_modules``.

    Raises:
        LayerError: a pattern matches nothing; the message names the closest layers.
    """
    modules = named_modules(model)
    chosen = {named.name for named in matching(patterns, modules.values())}
    return {module: named for module, named in modules.items() if named.name in chosen}


def select_layer(model: nn.Module, pattern: str) -> tuple[str, nn.Module]:
    """Return the one module that a pattern selects, with its first name.

    Raises:
        LayerError: no layer has that name; the message names the closest.
        OptionError: several layers match the pattern.
    """
    chosen = [(named.name, module) for module, named in select_layers(model, [pattern]).items()]
    if len(chosen) > 1:
        raise OptionError(
            f"`{pattern}` matches {len(chosen)} layers, but must match one",
            help=f"name one of them, say `{chosen[-1][0]}`",
        )
    return chosen[0]


def hookable_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules that can have hooks: all but scripted modules and wrappers."""
    scripted = torch.jit.ScriptModule
    return [m for m in modules_of(model) if not (isinstance(m, scripted) or wraps(m._modules))]


class OwnHook:
    """A hook that is not copied or pickled with its module.

    The result of its function replaces the arguments, or the output, of the call.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Callable[..., Any] | None = function
        self._handle: Handle | None = None

    def held_by(self, handle: Handle) -> OwnHook:
        """Return the hook, with the handle that removes it."""
        self._handle = handle
        return self

    def remove(self) -> None:
        """Remove the hook, also during a call that has already listed its hooks."""
        self._function = None
        if self._handle is not None:
            self._handle.remove()

    def __call__(self, *arguments: Any) -> Any:
        # If a model exports or traces a part of itself, the hook must not be in the trace.
        # `torch.compiler.is_compiling` checks the same two flags.
        if (
            torch.compiler.is_dynamo_compiling()
            or torch.compiler._is_compiling_flag
            or torch._C._get_tracing_state()
            or self._function is None
        ):
            return None
        return self._function(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # A function of the standard library, so that a copy loads without gradscope. It takes any
        # arguments and does nothing.
        return getattr, (nullcontext(), "__exit__")


def is_own(hook: object) -> bool:
    """Return True for gradscope's hooks, and for their replacements in a copied module."""
    return isinstance(hook, OwnHook) or getattr(hook, "__func__", None) is nullcontext.__exit__


class TracedHook(OwnHook):
    """A hook that becomes a part of the graph when its module is compiled."""

    def __call__(self, *arguments: Any) -> Any:
        return None if self._function is None else self._function(*arguments)


#: A module's dictionaries of forward hooks and of their settings, by the hook's number.
_KEPT = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def without_own_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's attributes without any ``OwnHook``; the module keeps its hooks."""
    kept = {name: state[name] for name in _KEPT if state.get(name)}
    own = {n for held in kept.values() for n, hook in held.items() if is_own(hook)}
    if not own:
        return state
    left = {
        name: type(held)((n, hook) for n, hook in held.items() if n not in own)
        for name, held in kept.items()
    }
    return {**state, **left}


@contextmanager
def own_hooks_aside(module: nn.Module) -> Iterator[None]:
    """Run the block with a module, and those in it, without any ``OwnHook``."""
    states = [vars(one) for one in module.modules()]
    changed = [(state, state.copy()) for state in states if without_own_hooks(state) is not state]
    try:
        for state, _ in changed:
            state.update(without_own_hooks(state))
        yield
    finally:
        for state, before in changed:
            state.update({name: before[name] for name in _KEPT})


@contextmanager
def hooked(
    modules: Iterable[nn.Module], before: PreHook | None, after: PostHook | None
) -> Iterator[None]:
    """Call ``before`` and ``after`` around each forward of ``modules`` in the block; no hook stays
    after it.

    They are the last hooks of each module, so they see the arguments and the result after the
    user's own hooks.
    """
    handles: list[OwnHook] = []
    try:
        for module in modules:
            handles += hook_calls(module, before, after)
        yield
    finally:
        for handle in handles:
            handle.remove()


def hook_first_call(module: nn.Module, before: Callable[[Sequence[Any]], None]) -> OwnHook:
    """Call ``before`` once, before the module's next call, with its positional arguments."""

    def first(_: nn.Module, args: Sequence[Any]) -> None:
        hook.remove()
        before(args)

    hook = OwnHook(first)
    return hook.held_by(module.register_forward_pre_hook(hook))


def hook_calls(
    module: nn.Module,
    before: PreHook | None,
    after: PostHook | None,
    *,
    kind: type[OwnHook] = OwnHook,
) -> list[OwnHook]:
    """Hook one module like ``hooked``, until the returned hooks are removed.

    If one of the two returns a value other than None, it replaces the arguments or the output.
    """
    hooks = []
    if before is not None:
        first = kind(before)
        hooks.append(first.held_by(module.register_forward_pre_hook(first, with_kwargs=True)))
    if after is not None:
        last = kind(after)
        hooks.append(last.held_by(module.register_forward_hook(last, with_kwargs=True)))
    return hooks


@contextmanager
def changed(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the output of each call of ``module`` by ``change(output)`` in the block."""

    def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        return change(output)

    handle = module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def before_any_call(before: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call ``before`` at each forward of any module in the block."""
    own = OwnHook(lambda module, args: before(module))
    handle = nn.modules.module.register_module_forward_pre_hook(own)
    try:
        with _compiled_modules_silent():
            yield
    finally:
        handle.remove()


@contextmanager
def _compiled_modules_silent() -> Iterator[None]:
    """Silence a compiled module's warning about global hooks: only gradscope uses them."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are")
        yield


def hook_tensor(tensor: torch.Tensor, hook: Callable[[Any], torch.Tensor | None]) -> Handle:
    """Call ``hook`` with the gradient of ``tensor`` at its present version, also if it is modified
    later.

    A result other than None replaces the gradient.
    """
    return tensor.register_hook(hook)  # type: ignore[no-any-return,no-untyped-call]


def hook_node(node: Node, hook: Callable[..., Any]) -> Handle:
    """Call ``hook`` with the gradients that ``node`` sends to its inputs and gets for its outputs.
    A result other than None replaces the sent gradients."""
    return node.register_hook(hook)


def hook_node_before(node: Node, read: Callable[..., None]) -> Handle:
    """Call ``read`` with the gradients for the outputs of ``node``, before it runs."""
    return node.register_prehook(read)


#: Lends its hooks to nodes.
_LENDER = torch.Tensor()


def hook_first_output(node: Node, read: Callable[[torch.Tensor | None], None]) -> dict[int, Any]:
    """Call ``read`` with the gradient for the first output of ``node``, until the returned dict is
    cleared.

    Unlike ``Tensor.register_hook``, this leaves the script's tensor untouched, and makes no handle.
    In a small training, a handle would take more time than everything else at a call.
    """
    hooks: dict[int, Any] = {0: read}
    _LENDER._backward_hooks = hooks
    node._register_hook_dict(_LENDER)
    return hooks


def hook_optimizers(
    before: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], Any],
    after: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None],
) -> tuple[Handle, ...]:
    """Call ``before`` and ``after`` around each ``step()`` of all present and future optimizers.

    A result of ``before`` other than None replaces the arguments of the step.
    """
    return register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)


def raised_by_a_handler(error: BaseException) -> bool:
    """Return True if a signal handler of the script raised this error."""
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handlers() -> set[CodeType]:
    """Return the code objects of all signal handlers written in Python."""
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found
