"""Infers the input of a custom model from its first layer, or by trials on copies of the model."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import itertools
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gradscope.errors import ConfigError, message_of
from gradscope.loading.devices import seed_everything
from gradscope.loading.sources import Context
from gradscope.loading.sources.grammar import plan_call
from gradscope.nesting import find

_INTEGRAL = ("int", "uint", "bool")


@dataclass(frozen=True)
class Inferred:
    """``input`` and ``target`` in the config's grammar; ``origin`` names their origin."""

    input: Any
    summary: str
    origin: str
    target: Any = None

    def with_gradients(self) -> Inferred:
        """Return the same with each floating tensor as a leaf that requires a gradient."""
        return dataclasses.replace(self, input=_requiring(self.input))


def _requiring(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_requiring(item) for item in spec]
    if not isinstance(spec, Mapping):
        return spec
    integral = str(spec.get("dtype", "")).startswith(_INTEGRAL)
    if "image" in spec or ("shape" in spec and not integral):
        return {**spec, "requires_grad": True}
    return {name: _requiring(value) for name, value in spec.items()}


Source = dict[str, Any]
Shapes = Iterator[list[int]]

#: Steps of a sequence.
LENGTH = 16
#: Sides of a picture that a model may be made for, by the number of its dimensions.
_SIDES = {
    1: (32, 128, 64, 16, 100, 256, 512, 1024, 16000),
    2: (32, 28, 64, 224, 96, 128, 256, 299, 48, 84, 16, 8),
    3: (32, 16, 28, 64, 8),
}
#: Shape before a decoder's first upsampling; before it, a generator has one pixel of noise.
_SMALL = 8


def likeliest(layer: nn.Module, rows: int) -> Source | None:
    """Return the likeliest source for a layer; None if the layer does not determine its input."""
    return next(iter(sources(layer, rows)), None)


def sources(layer: nn.Module, rows: int) -> list[Source]:
    """Return the possible sources for a layer, the likeliest first."""
    for kinds, shapes in _SHAPES:
        if isinstance(layer, kinds):
            return [
                _source(layer, shape)
                for shape in shapes(layer, rows)
                # Lazy layers have a size of 0 until they have seen an input.
                if all(isinstance(size, int) and size > 0 for size in shape)
            ]
    return []


def _source(layer: Any, shape: list[int]) -> Source:
    if not isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        return {"shape": shape}
    return {"shape": shape, "dtype": "int64", "fill": f"randint({layer.num_embeddings})"}


def _linear(layer: Any, rows: int) -> Shapes:
    width = layer.in_features
    yield [rows, width]
    for channels in (1, 3):  # pictures that forward flattens
        side = math.isqrt(width // channels)
        if channels * side * side == width:
            yield [rows, channels, side, side]
    yield [rows, LENGTH, width]


def _grid(dimensions: int) -> Callable[[Any, int], Shapes]:
    def shapes(layer: Any, rows: int) -> Shapes:
        for side in _SIDES[dimensions]:
            yield [rows, layer.in_channels, *[side] * dimensions]
        if dimensions == 1:  # sequences that forward transposes
            yield [rows, LENGTH, layer.in_channels]

    return shapes


def _upwards(dimensions: int) -> Callable[[Any, int], Shapes]:
    def shapes(layer: Any, rows: int) -> Shapes:
        noise = set(layer.stride) == {1} and not any(layer.padding)
        for side in (1, _SMALL, 4) if noise else (_SMALL, 1, 4):
            yield [rows, layer.in_channels, *[side] * dimensions]
        yield [rows, layer.in_channels]  # noise that forward gives its dimensions

    return shapes


def _ids(layer: Any, rows: int) -> Shapes:
    yield [rows, LENGTH]
    yield [rows]
    for length in (8, 32, 64, 128, 4, 1):
        yield [rows, length]


def _steps(layer: Any, rows: int) -> Shapes:
    lead = [rows, LENGTH] if layer.batch_first else [LENGTH, rows]
    yield [*lead, layer.input_size]


def _normalized(layer: Any, rows: int) -> Shapes:
    yield [rows, *layer.normalized_shape]
    yield [rows, LENGTH, *layer.normalized_shape]


_SHAPES: list[tuple[Any, Callable[[Any, int], Shapes]]] = [
    (nn.Linear, _linear),
    (nn.Conv1d, _grid(1)),
    (nn.Conv2d, _grid(2)),
    (nn.Conv3d, _grid(3)),
    (nn.ConvTranspose1d, _upwards(1)),
    (nn.ConvTranspose2d, _upwards(2)),
    (nn.ConvTranspose3d, _upwards(3)),
    ((nn.Embedding, nn.EmbeddingBag), _ids),
    (nn.RNNBase, _steps),
    (nn.RNNCellBase, lambda layer, rows: iter([[rows, layer.input_size]])),
    (nn.BatchNorm1d, lambda layer, rows: iter([[rows, layer.num_features]])),
    (
        nn.BatchNorm2d,
        lambda layer, rows: iter([[rows, layer.num_features, side, side] for side in _SIDES[2]]),
    ),
    (nn.LayerNorm, _normalized),
    (
        nn.TransformerEncoderLayer,
        lambda layer, rows: iter([[rows, LENGTH, layer.self_attn.embed_dim]]),
    ),
    (nn.MultiheadAttention, lambda layer, rows: iter([[rows, LENGTH, layer.embed_dim]])),
]


#: Calls of forward before the user has to name the input.
_MOST = 24

#: A layer and its name.
Layer = tuple[str, nn.Module]


@dataclass
class Trial:
    """One call of forward: its inputs, its error, and the arguments that layers refused.

    If the model could not be copied, there was no call.
    """

    given: Mapping[str, Source]
    copied: bool = False
    error: BaseException | None = None
    refused: dict[str, Layer] = field(default_factory=dict)

    @property
    def settles(self) -> bool:
        """True if no further trial helps: this input fits, or no input can."""
        return self.error is None or (self.copied and _is_a_bug(self.error))

    def __str__(self) -> str:
        shapes = " and ".join(str(source["shape"]) for source in self.given.values())
        if self.error is None:
            return f"{shapes} fits"
        lines = message_of(self.error).strip().splitlines()
        raised = f"raised {type(self.error).__name__}{f': {lines[0]}' if lines else ''}"
        if not self.copied:
            return f"no input was tried: a copy of the model {raised}"
        return f"with {shapes} forward {raised}"


def fitting(
    context: Context, names: Sequence[str], first: Layer, rows: int
) -> Inferred | list[Trial]:
    """Return the input that forward accepts, or the failed trials if no input fits.

    At first each argument gets the input of the ``first`` layer. If a layer refuses an argument,
    that argument then gets this layer's input.

    Args:
        context: the surroundings, with the model.
        names: the arguments of forward; a single empty name stands for one positional argument.
        first: the first layer with a known input.
        rows: samples in the batch.
    """
    layers = dict.fromkeys(names, first)
    known: set[str] = set()
    trials: list[Trial] = []
    trying = _combined(layers, rows)
    while len(trials) < _MOST and (given := next(trying, None)) is not None:
        trial = _tried(context, given)
        trials.append(trial)
        if trial.settles:
            return _inferred(given, layers)
        if not trial.copied:
            break
        new = {name: layer for name, layer in trial.refused.items() if name not in known}
        known |= new.keys()
        if any(layers[name][0] != layer[0] for name, layer in new.items()):
            layers |= new
            trying = _combined(layers, rows)
    return trials


def _combined(layers: Mapping[str, Layer], rows: int) -> Iterator[dict[str, Source]]:
    """Yield a source for each argument, the likeliest first; arguments of one layer share
    theirs."""
    names = list(dict.fromkeys(name for name, _ in layers.values()))
    each = {name: sources(layer, rows) for name, layer in layers.values()}
    ranks = itertools.product(*(range(len(each[name])) for name in names))
    for chosen in sorted(ranks, key=sum):
        of = {name: each[name][rank] for name, rank in zip(names, chosen, strict=True)}
        yield {argument: of[name] for argument, (name, _) in layers.items()}


def _tried(context: Context, given: Mapping[str, Source]) -> Trial:
    """Call forward on a copy of the model, on the CPU: an index out of range on a GPU would make
    the GPU unusable for the process."""
    trial = Trial(given)
    arguments: dict[int, str] = {}
    modules: dict[nn.Module, str] = {}
    try:
        with warnings.catch_warnings(action="ignore"), _unheard():
            model = copy.deepcopy(context.model)
            trial.copied = True
            if context.device.type != "meta":
                model = model.cpu()
                context = dataclasses.replace(context, device=torch.device("cpu"))
            modules = {module: name for name, module in model.named_modules()}
            seed_everything(0)
            args, kwargs = plan_call(as_input(given), context)()
            tensors: list[Tensor] = [*args, *kwargs.values()]
            arguments = {_memory(t): name for name, t in zip(given, tensors, strict=True)}
            model(*args, **kwargs)
    except (Exception, SystemExit, GeneratorExit) as error:  # the user's code raises anything
        trial.refused = _refused(error, arguments, modules)
        trial.error = error.with_traceback(None)  # its frames would keep the copy
    return trial


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Silence the output of forward, because the run prints it again."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _memory(tensor: Tensor) -> int:
    """Return an equal number for a tensor and its views."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def _refused(
    error: BaseException, arguments: Mapping[int, str], modules: Mapping[nn.Module, str]
) -> dict[str, Layer]:
    """Return the innermost running layer for each argument that was its input."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        layer = frame.f_locals.get("self")
        if isinstance(layer, nn.Module) and layer in modules and sources(layer, 1):
            inputs = [value for key, value in frame.f_locals.items() if key != "self"]
            had = [arguments.get(_memory(tensor)) for _, tensor in find(inputs, Tensor)]
            return {name: (modules[layer], layer) for name in had if name is not None}
    return {}


def _is_a_bug(error: BaseException) -> bool:
    """Return True for an error that the model raises whatever its input is."""
    if isinstance(error, AttributeError):
        return isinstance(error.obj, nn.Module)
    return isinstance(error, (NameError, ImportError, NotImplementedError))


def as_input(given: Mapping[str, Source]) -> Any:
    """Return the input in the config's grammar: the source, or sources by argument name."""
    return given[""] if "" in given else dict(given)


def _inferred(given: Mapping[str, Source], layers: Mapping[str, Layer]) -> Inferred:
    words = [
        f"{name} {source.get('fill', 'randn')} {source['shape']}".strip()
        for name, source in given.items()
    ]
    from_ = {name or "the first layer": type(layer).__name__ for name, layer in layers.values()}
    origin = " and ".join(f"{name}, {kind}" for name, kind in from_.items())
    return Inferred(as_input(given), ", ".join(words), origin)


#: Layers without parameters that change the shape.
_RESHAPING = (nn.PixelShuffle, nn.PixelUnshuffle, nn.Unflatten, nn.Fold, nn.Unfold)


def infer_layers(context: Context, batch: int | None) -> Inferred:
    """Infer the input: none if forward takes none, else by a known first layer, else by trials.

    Raises:
        ConfigError: none of these works; the help has the input that the first layer suggests.
    """
    model = context.model
    required = required_arguments(model)
    if required == []:
        return Inferred([], "none: forward takes no arguments", context.kind.name)
    rows = batch or 2
    certain = _certain_first(model)
    spec = None if certain is None else likeliest(certain, rows)
    if spec is not None:
        words = f"{spec.get('fill', 'randn')} {spec['shape']}"
        return Inferred(spec, words, f"the first layer, {type(certain).__name__}")
    first = _first_that_says(model)
    trials: Inferred | list[Trial] = []
    if first is not None and _has_forward(model):
        names = required if required is not None and len(required) > 1 else [""]
        trials = fitting(context, names, first, rows)
    if isinstance(trials, Inferred):
        return trials
    raise ConfigError(
        f"the input of {context.kind.name} cannot be inferred",
        place=context.place("input") or context.place("model"),
        help=_remedy(required, first, tried=any(t.copied for t in trials)),
        notes=[_account(trials)] if trials else [],
    )


def required_arguments(model: nn.Module) -> list[str] | None:
    """Return the names of forward's arguments without a default; None if unknown."""
    if not _has_forward(model):
        return None
    parameters = inspect.signature(model.forward).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in variadic]
    required = [p.name for p in named if p.default is p.empty]
    return None if not required and len(named) < len(parameters) else required


def _certain_first(model: nn.Module) -> nn.Module | None:
    """Return the layer that gets the input, for a layer or a Sequential; None if its input's shape
    is open."""
    if not _of_torch(model):
        return None
    layers = [model]
    while layers and isinstance(layers[0], nn.Sequential) and _of_torch(layers[0]):
        layers = [*layers[0].children(), *layers[1:]]
    shapeless = (nn.Identity, nn.ReLU, nn.Dropout, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Flatten)
    while layers and isinstance(layers[0], shapeless):
        layers = layers[1:]
    if not layers:
        return None
    rest = [module for layer in layers[1:] for module in layer.modules()]
    sized = any(isinstance(module, (nn.Flatten, nn.Linear)) for module in rest)
    spatial = isinstance(layers[0], (_ConvNd, nn.BatchNorm1d))
    # A convolution takes any size, a linear layer after it only one.
    return layers[0] if _of_torch(layers[0]) and not (spatial and sized) else None


def _of_torch(layer: nn.Module) -> bool:
    """Return True if the layer runs PyTorch's own forward, not a subclass's."""
    if isinstance(layer, torch.jit.ScriptModule):
        return False
    return type(layer).forward.__module__.startswith("torch.")


def _has_forward(model: nn.Module) -> bool:
    scripted = isinstance(model, torch.jit.ScriptModule)
    return scripted or type(model).forward is not nn.Module.forward


def _first_that_says(model: nn.Module) -> Layer | None:
    """Return the first layer with a known input, if no earlier one may change the shape."""
    for name, layer in model.named_modules():
        if sources(layer, 2):
            return name, layer
        alone = next(layer.children(), None) is None
        if alone and (isinstance(layer, _RESHAPING) or next(layer.parameters(), None) is not None):
            return None
    return None


def _account(trials: list[Trial]) -> str:
    """Describe failed trials: the first error, and the number of others."""
    others = len(trials) - 1
    more = f"; {others} other shape{'s' * (others > 1)} failed too" if others else ""
    return f"{trials[0]}{more}"


def _remedy(required: list[str] | None, first: Layer | None, *, tried: bool) -> str:
    """Return the advice: the input of the first layer, unless that was tried and did not fit."""
    spec = None if first is None or tried else likeliest(first[1], 2)
    if spec is not None and first is not None:
        words = "{" + ", ".join(f"{key}: {value}" for key, value in spec.items()) + "}"
        given = f"input.shape={spec['shape']}" if len(spec) == 1 else f"input='{words}'"
        return f"try {given}: it fits the first layer `{first[0]}`, {type(first[1]).__name__}"
    if not required or len(required) == 1:
        name = f"`{required[0]}`" if required else "its input"
        return (
            f"write the shape that forward takes as {name}: input.shape=[2, …]; sources nest in "
            "lists and mappings"
        )
    each = ", ".join(f"{name}: {{shape: [2, …]}}" for name in required)
    return f"write forward's arguments: `input: {{{each}}}`; sources nest in lists and mappings"
