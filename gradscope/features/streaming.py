"""Streams many pictures through a model, each read when needed and then released, and reads a
layer's output inside a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradscope import progress
from gradscope.capture.activation_maps import PASSING, POOLING, as_map, patch_grid
from gradscope.capture.hooks import hookable_modules, hooked, select_layer, select_layers
from gradscope.capture.names import named_modules
from gradscope.demo import all_digits
from gradscope.errors import ConfigError, OptionError
from gradscope.images.decoding import input_picture, read_array, read_image
from gradscope.images.files import find_images, pictures_below, shown
from gradscope.images.photos import Photo
from gradscope.images.tracing import trace
from gradscope.loading.vision_models import Viewer
from gradscope.nesting import find
from gradscope.output_files import expanded
from gradscope.records.features import SkippedImage

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Layer:
    """An observed module: its output is read, or with ``reads`` its input."""

    name: str
    module: nn.Module
    reads: bool = False

    @property
    def title(self) -> str:
        """The layer's name for messages."""
        name = self.name or "the model"
        return f"input of {name}" if self.reads else name


Read = Callable[[Layer, Tensor], None]


@contextmanager
def hooked_layers(layers: Sequence[Layer], read: Read) -> Iterator[None]:
    """Call ``read`` with the first floating tensor of each call.

    ``read`` must not keep the tensor, because a later in-place operation may change it.
    """
    by_module: dict[nn.Module, list[Layer]] = {}
    for layer in layers:
        by_module.setdefault(layer.module, []).append(layer)

    def observe(module: nn.Module, reads: bool, values: Any) -> None:
        for layer in by_module[module]:
            if layer.reads is reads:
                tensor = next((t for _, t in find(values, Tensor) if t.is_floating_point()), None)
                if tensor is not None:
                    read(layer, tensor)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        observe(module, True, (args, kwargs))

    def after(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        observe(module, False, output)

    with hooked(list(by_module), before, after):
        yield


def run(model: nn.Module, inputs: Tensor, layers: Sequence[Layer], read: Read) -> None:
    """Run one forward of inputs [N, C, H, W] without a graph; hooks call ``read``."""
    with torch.no_grad(), hooked_layers(layers, read):
        # A copy: a model may normalise its input in place.
        model(inputs.clone())


def one_layer(model: nn.Module, pattern: str) -> Layer:
    """Return the layer that a pattern names.

    Raises:
        LayerError: no layer has that name; the message names the closest.
        OptionError: several layers match.
    """
    return Layer(*select_layer(model, pattern))


def layers_matching(model: nn.Module, patterns: Sequence[str]) -> list[Layer]:
    """Return the layers that patterns select.

    Raises:
        LayerError: a pattern matches nothing; the message names the closest.
    """
    return [Layer(named.name, module) for module, named in select_layers(model, patterns).items()]


def last_map(model: nn.Module, inputs: Tensor) -> Layer:
    """Return the last layer with a spatial map for inputs [N, C, H, W], without pooled ones.

    Raises:
        OptionError: there is none.
    """
    found: list[Layer] = []
    patches, size = patch_grid(model, inputs), (inputs.shape[2], inputs.shape[3])

    def read(layer: Layer, values: Tensor) -> None:
        kind = type(layer.module).__name__
        if any(word in kind for word in (*PASSING, *POOLING)) or not layer.name:
            return
        made = as_map(values, size, module=layer.module, patches=patches, strict=True)
        if made is not None and not (values.dim() == 3 and patches is None):
            found.append(layer)

    run(model, inputs, _all(model), read)
    if not found:
        raise OptionError(
            "no layer of this model gives a spatial map",
            help="name a layer with `-l`: its units are listed, without maps",
        )
    return found[-1]


def last_features(model: nn.Module, inputs: Tensor) -> Layer:
    """Return the layer whose output the last linear layer reads: the features.

    Raises:
        OptionError: no linear layer runs.
    """
    found: list[Layer] = []
    layers = [
        Layer(one.name, one.module, reads=True)
        for one in _all(model)
        if isinstance(one.module, nn.Linear)
    ]
    run(model, inputs, layers, lambda layer, _: found.append(layer))
    if not found:
        raise OptionError(
            "no linear layer runs in this model, so there are no features to read",
            help="name the layer with `-l`; `gradscope layers MODEL` lists them",
        )
    return found[-1]


def _all(model: nn.Module) -> list[Layer]:
    names = named_modules(model)
    return [Layer(names[module].name, module) for module in hookable_modules(model)]


def batch_first(values: Tensor, layer: Layer, rows: int) -> Tensor:
    """Return the values with the pictures along the first dimension.

    Raises:
        OptionError: they have not one row per picture.
    """
    if values.dim() == 3 and getattr(layer.module, "batch_first", True) is False:
        values = values.transpose(0, 1)
    if values.dim() < 2 or len(values) != rows:
        raise OptionError(
            f"layer `{layer.title}` gives {list(values.shape)} for {rows} pictures: "
            "not one row for each",
            help="name a layer whose first dimension is the batch; "
            "`gradscope layers MODEL` lists them",
        )
    return values


def require_called(called: bool, layer: Layer) -> None:
    """Refuse a layer without features.

    Raises:
        OptionError: it returned no floating tensor.
    """
    if not called:
        raise OptionError(
            f"layer `{layer.title}` gave no tensor of features when the model ran",
            help="name a layer that runs; `gradscope inspect MODEL` shows each one's output",
        )


#: The most pictures in one forward, and the most values.
BATCH, BATCH_VALUES = 64, 8 * 3 * 224 * 224
#: Number of input shapes that wait for a full batch; with more, batches are smaller.
_SHAPES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The source of a picture: a file, or a picture in memory.

    ``values`` is set for an array or tensor that already is the model's input, [C, H, W].
    """

    name: str
    label: str | None = None
    path: Path | None = None
    stored: Image | None = None
    values: Tensor | None = None

    def input(self, viewer: Viewer) -> Tensor:
        """Return the picture as model input, [C, H, W], after the transform.

        Raises:
            ConfigError: the file is broken, or not a picture.
        """
        if self.values is not None:
            return self.values
        if self.is_array:
            assert self.path is not None
            return torch.from_numpy(read_array(self.path))
        return viewer.transform(self.picture())

    def picture(self) -> Image:
        """Return the picture for display.

        Raises:
            ConfigError: the file is broken, or not a picture.
        """
        if self.values is not None:
            return input_picture(self.values.detach().cpu().float().numpy())
        if self.stored is not None:
            return self.stored
        assert self.path is not None
        if self.is_array:
            return input_picture(read_array(self.path))
        return read_image(self.path)

    def photo(self, viewer: Viewer) -> Photo:
        """Return the picture, with the part of it that the model sees."""
        picture = self.picture()
        geometry = None
        if self.values is None and not self.is_array:
            geometry = trace(viewer.transform, picture.size, picture.mode)
        return Photo(picture, Path(self.name).name, "", geometry=geometry)

    @property
    def stem(self) -> str:
        """The picture's name without folders and suffix."""
        return Path(self.name).stem

    @property
    def is_array(self) -> bool:
        """True for a file with the model's input in it."""
        return self.path is not None and self.path.suffix.lower() == ".npy"


def sources(words: Sequence[str | Path]) -> list[Source]:
    """Return the pictures of files, patterns and folders, each once.

    Folders are searched with all subfolders; the first folder below a given one is the label.

    Raises:
        ConfigError: a file does not exist, or a pattern or a folder has no picture.
    """
    here = Path.cwd()
    found: dict[Path, Source] = {}
    for word in words:
        inside = here / expanded(word)
        if inside.is_dir():
            for path in pictures_below(inside):
                parts = path.relative_to(inside).parts
                label = parts[0] if len(parts) > 1 else None
                found.setdefault(path, Source(shown(path), label, path))
        else:
            for path in find_images(str(word), here):
                found.setdefault(path, Source(shown(path), None, path))
    return list(found.values())


def tensor_sources(tensor: Tensor) -> list[Source]:
    """Return the pictures of a tensor [N, C, H, W] that the model takes unchanged.

    Raises:
        OptionError: the tensor has another shape.
    """
    if tensor.dim() != 4 or not len(tensor):
        raise OptionError(f"a tensor {list(tensor.shape)}", help="pictures are [N, C, H, W]")
    return [Source(f"[{i}]", values=one) for i, one in enumerate(tensor.detach())]


def digits() -> list[Source]:
    """Return every handwritten digit of scikit-learn, with its class as label."""
    pictures, labels = all_digits()
    return [
        Source(f"digit {i}", str(label), stored=picture)
        for i, (picture, label) in enumerate(zip(pictures, labels, strict=True))
    ]


@contextmanager
def naming(pictures: Sequence[Source], numbers: Sequence[int]) -> Iterator[None]:
    """Add a note that names these pictures to an exception in the block."""
    try:
        yield
    except Exception as error:
        more = f" and {len(numbers) - 1} more of its size" if len(numbers) > 1 else ""
        error.add_note(f"on {pictures[numbers[0]].name}{more}")
        raise


def batches(
    pictures: Sequence[Source],
    viewer: Viewer,
    skipped: list[SkippedImage],
    *,
    numbers: Sequence[int] | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Yield inputs [N, C, H, W] of one shape, on the model's device, with the numbers of their
    pictures.

    Broken pictures are left out and noted in ``skipped``. ``numbers`` are the requested ones; None:
    all.
    """
    wanted = range(len(pictures)) if numbers is None else numbers
    waiting: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
    done = 0

    def batch(shape: tuple[int, ...]) -> tuple[list[int], Tensor]:
        ready = waiting.pop(shape)
        inputs = torch.stack([values for _, values in ready])
        return [i for i, _ in ready], inputs.to(viewer.device, viewer.dtype)

    for i in wanted:
        try:
            values = pictures[i].input(viewer)
        except ConfigError as error:
            skipped.append(SkippedImage(pictures[i].name, error.problems[0].message))
            done += 1
            continue
        shape = tuple(values.shape)
        waiting.setdefault(shape, []).append((i, values))
        most = max(1, min(BATCH, BATCH_VALUES // max(1, values.numel())))
        if len(waiting[shape]) >= most or len(waiting) > _SHAPES:
            full = max(waiting, key=lambda one: len(waiting[one]))
            done += len(waiting[full])
            yield batch(full)
            progress.count(done, len(wanted))
    for shape in list(waiting):
        done += len(waiting[shape])
        yield batch(shape)
        progress.count(done, len(wanted))
