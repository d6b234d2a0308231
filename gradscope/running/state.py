"""State that a run must restore: modes, gradients, buffers, weights, flags, RNG, switches."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.parameter import is_lazy

from gradscope.capture.hooks import before_any_call
from gradscope.capture.shards import local
from gradscope.loading.random_states import RandomState, all_states, gpu_states, torch_state
from gradscope.nesting import replaced

Restore = Callable[[], None]
#: Types of the containers that hold a module's parameters, buffers, children and hooks, and its own
#: caches.
_CONTAINERS = (dict, OrderedDict, list, set, deque)


@contextmanager
def state_restored(*models: nn.Module, weights: bool) -> Iterator[None]:
    """Give models back exactly as they were, whatever happens inside the block.

    ``.grad`` is swapped out and put back, and buffers are copied. With ``weights``, parameters are
    copied too: an optimizer moves them, and some models write to them in forward. PyTorch's
    switches are restored too; inside the block gradients are enabled.
    """
    devices = {parameter.device for model in models for parameter in model.parameters()}
    with (
        modules_restored(*models, weights=weights),
        random_state_restored(devices),
        switches_restored(),
    ):
        yield


@contextmanager
def modules_restored(*models: nn.Module, weights: bool) -> Iterator[None]:
    """Restore the models alone; random states are not touched."""
    modules = dict.fromkeys(module for model in models for module in model.modules())
    parameters = dict.fromkeys(p for model in models for p in model.parameters())
    buffers = dict.fromkeys(b for model in models for b in model.buffers())
    # Each is restored even if another fails; values come before gradients, which need their shape.
    with ExitStack() as restore:
        for module in modules:
            restore.callback(_module(module))
        for parameter in parameters:
            restore.callback(_gradient(parameter))
        for tensor in (*buffers, *(parameters if weights else ())):
            restore.callback(_value(tensor))
        yield


@contextmanager
def others_restored(*models: nn.Module, kept: ExitStack) -> Iterator[None]:
    """Restore modules outside these models that were called in the block, when ``kept`` closes.

    Examples are a discriminator in the loss, a perceptual network, a part that its model keeps in a
    plain list. The state of each is saved right before its first call, whoever holds it.
    """
    known = {module for model in models for module in model.modules()}

    def before(module: nn.Module) -> None:
        if module not in known:
            known.update(module.modules())
            kept.enter_context(modules_restored(module, weights=False))

    with before_any_call(before):
        yield


@contextmanager
def gradients_restored(leaves: list[torch.Tensor]) -> Iterator[None]:
    """Swap out the ``.grad`` of leaves that are not parameters, and put it back."""
    with ExitStack() as restore:
        for leaf in leaves:
            restore.callback(_gradient(leaf))
        yield


@contextmanager
def random_state_restored(devices: set[torch.device]) -> Iterator[None]:
    """Restore Python's, NumPy's and PyTorch's random states after the block."""
    before = all_states([device for device in devices if device.type == "cuda"])
    try:
        yield
    finally:
        for one in before:
            one()


def random_states() -> list[RandomState]:
    """Return PyTorch's random states, of the CPU and of each GPU."""
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return [torch_state(), *gpu_states([torch.device("cuda", number) for number in gpus])]


def cloned(data: Any) -> Any:
    """Return the same data on copies of its tensors, which are leaves."""

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return replaced(data, torch.Tensor, clone)


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled modules eagerly in the block: a compiled graph would trace the hooks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def deeper_recursion() -> Iterator[None]:
    """Raise the recursion limit for the frames that hooks add to a deeply nested model."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + limit // 2)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def post_accumulate_hooks_disabled(model: nn.Module) -> Iterator[None]:
    """Disable hooks of ``register_post_accumulate_grad_hook`` in the block.

    Such a hook cannot change a gradient. It may count, log, or step an optimizer, and a full sample
    must not repeat that.
    """
    disabled = []
    for parameter in model.parameters():
        hooks = getattr(parameter, "_post_accumulate_grad_hooks", None)
        if hooks:
            disabled.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, found in disabled:
            hooks.update(found)


def _module(module: nn.Module) -> Restore:
    """Return a function that restores a module's mode and its attributes."""
    if isinstance(module, torch.jit.ScriptModule):  # its registers are views of C++ objects
        training = module.training

        def mode() -> None:
            module.train(training)

        return mode
    # Attributes that forward adds to its module are removed (a tensor kept for later, hooks that a
    # library sets at the first call). Attributes that it rebinds, such as a counter or a cache, get
    # their old values.
    attributes = dict(module.__dict__)
    held = [(kept, _contents(kept)) for kept in attributes.values() if type(kept) in _CONTAINERS]

    def put_back() -> None:
        for name in [name for name in module.__dict__ if name not in attributes]:
            del module.__dict__[name]
        module.__dict__.update(attributes)
        for kept, found in held:
            _put_back(kept, found)

    return put_back


def _contents(kept: Any) -> list[Any]:
    return list(kept.items()) if isinstance(kept, dict) else list(kept)


def _identities(kept: Any, contents: list[Any]) -> list[Any]:
    if isinstance(kept, dict):
        return [(key, id(value)) for key, value in contents]
    return list(map(id, contents))


def _put_back(kept: Any, found: list[Any]) -> None:
    """Restore the same objects in the same order, under the same names if there are names."""
    if not kept and not found:  # as nearly all containers of hooks
        return
    if _identities(kept, _contents(kept)) == _identities(kept, found):
        return
    kept.clear()
    if isinstance(kept, list | deque):
        kept.extend(found)
    else:
        kept.update(found)


def _gradient(leaf: torch.Tensor) -> Restore:
    requires_grad, gradient = leaf.requires_grad, leaf.grad
    leaf.grad = None

    def put_back() -> None:
        # The attribute is set, because the misspelling `p.requires_grad_ = False` hides the method.
        leaf.requires_grad = requires_grad
        leaf.grad = gradient

    return put_back


def _value(tensor: torch.Tensor) -> Restore:
    """Return a function that restores the tensor's memory, its values, and its version.

    For a tensor that is spread over processes, it restores this process's part.
    """
    tensor = local(tensor)
    if is_lazy(tensor) or tensor.device.type == "meta":
        return lambda: None
    memory, value = tensor.data, tensor.detach().clone()
    inference = tensor.is_inference()  # such a tensor has no version, and no graph holds it
    version = None if inference else _unsafe_preserve_version_counter(tensor)

    def put_back() -> None:
        if tensor.shape != value.shape or _address(tensor) != _address(memory):
            tensor.data = memory if memory.shape == value.shape else value
        # Bits are compared, because some kernels write to a buffer without raising its version. On
        # a GPU, the comparison would wait for the device.
        if tensor.device.type != "cpu" or not same_bits(tensor, value):
            with torch.inference_mode(inference), torch.no_grad():
                tensor.copy_(value)
        if version is not None:
            # A graph that saved the tensor before the run finds the same bits and version in it.
            version.__exit__()

    return put_back


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout == torch.strided else 0


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors of one shape and dtype agree in every readable bit."""
    if any(t.layout != torch.strided or t.is_quantized for t in (one, other)):
        return False
    # Viewed as integers, equal NaNs are equal and 0.0 differs from -0.0.
    return torch.equal(*_as_integers(one, other))


def _as_integers(*tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the tensors' memory as integers of 8 bytes, which compare 7 times faster, or of 1
    byte."""
    flat = [t.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for t in tensors]
    aligned = all((t.nbytes | t.storage_offset() * t.itemsize) % 8 == 0 for t in flat)
    return (t.view(torch.int64 if aligned else torch.uint8) for t in flat)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _determinism() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


def _set_determinism(setting: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(setting[0], warn_only=setting[1])


def _cudnn() -> tuple[bool, bool, bool]:
    cudnn: Any = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _set_cudnn(setting: tuple[bool, bool, bool]) -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic = setting


def _autocast() -> list[bool]:
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def _set_autocast(setting: list[bool]) -> None:
    for device, on in zip(("cpu", "cuda"), setting, strict=True):
        torch.set_autocast_enabled(device, on)


def _modes() -> list[int]:
    """Return the depths of the function-mode and dispatch-mode stacks."""
    return [len(stack()) for stack, _ in _STACKS]


def _leave_modes(before: list[int]) -> None:
    """Leave modes that the model's code entered and never left."""
    for (stack, pop), count in zip(_STACKS, before, strict=True):
        for _ in range(len(stack()) - count):
            pop()


_functions: Any = torch.overrides
_dispatch: Any = torch.utils._python_dispatch
#: Functions that list the active modes, and that leave the innermost.
_STACKS: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
    (_functions._get_current_function_mode_stack, _functions._pop_mode),
    (_dispatch._get_current_dispatch_mode_stack, _dispatch._pop_mode),
]
#: Functions that read a setting and restore it. Modes first: they see the others' calls.
_SWITCHES: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (_modes, _leave_modes),
    (_anomaly, lambda setting: torch.autograd.set_detect_anomaly(*setting)),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (_determinism, _set_determinism),
    (_cudnn, _set_cudnn),
    (_autocast, _set_autocast),
]


@contextmanager
def switches_restored() -> Iterator[None]:
    """Restore PyTorch's settings after the block; enable gradients inside it.

    They are enabled even if the caller has disabled them.
    """
    found = [read() for read, _ in _SWITCHES]
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        try:
            yield
        finally:
            for (read, put_back), setting in zip(_SWITCHES, found, strict=True):
                if read() != setting:
                    put_back(setting)
