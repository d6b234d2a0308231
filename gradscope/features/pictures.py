"""Streams many pictures through a model: each is read when needed, and then released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradscope import progress
from gradscope.demo import all_digits
from gradscope.errors import ConfigError, OptionError
from gradscope.images.files import find_images, pictures_below, shown
from gradscope.images.photos import Photo
from gradscope.images.reading import input_picture, read_array, read_image
from gradscope.images.tracing import trace
from gradscope.loading.viewing import Viewer
from gradscope.output_files import expanded
from gradscope.records.features import SkippedImage

if TYPE_CHECKING:
    from PIL.Image import Image

#: Pictures that go through the model together: no more than these, nor than so many values.
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
