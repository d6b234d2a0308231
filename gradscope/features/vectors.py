"""Computes a layer's features, one vector for each picture, for any number of pictures; caches them
in a file for the same weights, transform and pictures; writes saved features, by ``FORMATS``.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from gradscope import progress
from gradscope.capture.activation_maps import as_map, patch_grid
from gradscope.errors import ConfigError, OptionError
from gradscope.features.streaming import (
    Layer,
    Source,
    batch_first,
    batches,
    last_features,
    naming,
    one_layer,
    require_called,
    run,
)
from gradscope.loading.vision_models import Viewer
from gradscope.output_files import atomic_file, check_file
from gradscope.plugins import Format
from gradscope.records.features import SkippedImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = "gradscope.feature-cache/1"
_DIGEST = 16
#: Seconds between writes of new features: a killed process loses at most the features of this time.
_EVERY = 30.0


class FeatureCache:
    """The features in a file under one key; ``open`` writes added ones at its end.

    The key is a hash of everything that features depend on, except the picture: weights, the
    modules' code, mode, dtype, layer, pooling, and the transform of two test pictures. A picture is
    identified by its content. Features under other keys stay in the file.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.tensors, self.metadata = _read(path)
        self.layer: str | None = self.metadata.get(key)
        digests = self.tensors.get(f"{key}.pictures", np.empty((0, _DIGEST), dtype=np.uint8))
        self._rows = {one.tobytes(): i for i, one in enumerate(digests)}
        self._digests: list[bytes] = []  # of the pictures that were asked for
        self.hits = 0
        self._new: dict[bytes, NDArray[np.float32]] = {}
        self._saved = time.monotonic()

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, viewer: Viewer, pattern: str | None, pooling: str
    ) -> Iterator[FeatureCache]:
        """Open the cache; write it when the block ends, also after an interruption.

        Raises:
            ConfigError: the file is not a feature cache.
            OptionError: it cannot be written.
        """
        check_file(path, force=True)
        cache = cls(path, _key(viewer, pattern, pooling))
        try:
            yield cache
        finally:
            cache.save()

    def known(
        self, pictures: Sequence[Source]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features [N, D] of the pictures, and a mask of the filled rows; None if none
        is known."""
        progress.begin("looking up pictures in the cache")
        self._digests = []
        for i, picture in enumerate(pictures, 1):
            self._digests.append(_digest(picture))
            progress.count(i, len(pictures))
        used = np.array([digest in self._rows for digest in self._digests], dtype=bool)
        self.hits = int(used.sum())
        if not self.hits:
            return None, used
        stored = self.tensors[f"{self.key}.features"]
        rows = np.empty((len(pictures), stored.shape[1]), dtype=np.float32)
        for i in np.flatnonzero(used).tolist():
            rows[i] = stored[self._rows[self._digests[i]]]
        return rows, used

    def add(self, numbers: Sequence[int], rows: NDArray[np.float32], layer: str) -> None:
        """Add the features of the requested pictures with these numbers."""
        self.layer = layer
        for number, row in zip(numbers, rows, strict=True):
            if self._digests[number]:
                self._new[self._digests[number]] = row
        if time.monotonic() - self._saved > _EVERY:
            self.save()

    def save(self) -> None:
        """Write the file atomically, if there are new features.

        Raises:
            OptionError: it cannot be written.
        """
        if not self._new or self.layer is None:
            return
        new = np.frombuffer(b"".join(self._new), dtype=np.uint8).reshape(-1, _DIGEST)
        for name, rows in (("pictures", new), ("features", np.stack(list(self._new.values())))):
            before = self.tensors.get(f"{self.key}.{name}")
            parts = [rows] if before is None else [before, rows]
            self.tensors[f"{self.key}.{name}"] = np.concatenate(parts)
        for digest in self._new:
            self._rows[digest] = len(self._rows)
        self._new.clear()
        self.metadata[self.key] = self.layer
        with atomic_file(self.path, force=True) as temporary:
            # Not `save_file`: its error on a full disk is no OSError.
            temporary.write_bytes(save(self.tensors, {**self.metadata, "format": _FORMAT}))
        self._saved = time.monotonic()


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    if not path.exists():
        return {}, {}
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.pop("format", None) != _FORMAT:
                raise ValueError("another kind of safetensors file")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for key in metadata:
            pictures, features = tensors[f"{key}.pictures"], tensors[f"{key}.features"]
            if pictures.shape != (len(features), _DIGEST) or features.ndim != 2:
                raise ValueError("its parts do not fit each other")
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise ConfigError(
            f"{path} is not a feature cache: {error}",
            help="name another file for `--cache`, or delete this one",
        ) from None
    return tensors, metadata


def _digest(picture: Source) -> bytes:
    """Return a digest of a picture's content; empty if the file cannot be read."""
    made = hashlib.blake2b(digest_size=_DIGEST)
    if picture.values is not None:
        _add(made, picture.values)
    elif picture.stored is not None:
        made.update(f"{picture.stored.mode} {picture.stored.size}".encode())
        made.update(picture.stored.tobytes())
    else:
        assert picture.path is not None
        try:
            made.update(picture.path.suffix.encode() + picture.path.read_bytes())
        except OSError:
            return b""
    return made.digest()


def _key(viewer: Viewer, pattern: str | None, pooling: str) -> str:
    """Return a hash of everything that determines features, except the picture."""
    model = viewer.model
    made = hashlib.blake2b(digest_size=_DIGEST)
    words = (torch.__version__, model, model.training, viewer.dtype, viewer.device.type)
    made.update(repr((*map(str, words), pattern, pooling)).encode())
    for kind in sorted({type(m) for m in model.modules()}, key=_place):
        made.update(_source(kind).encode())
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        made.update(name.encode())
        _add(made, value)
    for picture in _test_pictures():
        try:
            _add(made, viewer.transform(picture))
        except Exception as error:  # the user's transform may refuse test pictures only
            made.update(repr(error).encode())
    return made.hexdigest()


def _place(kind: type[nn.Module]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _source(kind: type[nn.Module]) -> str:
    if not kind.__module__.startswith("torch."):
        with suppress(OSError, TypeError, SyntaxError, TokenError):  # as after an edit
            return inspect.getsource(kind)
    return _place(kind)


def _add(made: Any, tensor: Tensor) -> None:
    values = tensor.detach().cpu().contiguous()
    made.update(f"{values.dtype} {list(values.shape)}".encode())
    made.update(values.reshape(-1).view(torch.uint8).numpy())


def _test_pictures() -> Iterator[Image.Image]:
    """Yield two pictures of different shape and kind, in which neighbouring pixels differ."""
    for width, height, channels in ((293, 251, 3), (240, 310, 1)):
        count = np.arange(width * height * channels, dtype=np.uint64)
        pixels = (count * np.uint64(2654435761) >> np.uint64(7)).astype(np.uint8)
        shape = (height, width, channels) if channels > 1 else (height, width)
        yield Image.fromarray(pixels.reshape(shape))


#: Pooling of the places of a map, or of the steps of a sequence.
POOLINGS = ("mean", "max", "none")


@dataclass(frozen=True, slots=True, eq=False)
class FeatureArray:
    """Features [N, D] float32 of N pictures from ``layer``, pooled over places by ``pooling``.

    ``numbers`` are the positions of these pictures among the requested ones.
    """

    values: NDArray[np.float32]
    numbers: tuple[int, ...]
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    layer: str
    model: str
    pooling: str

    def only(self, rows: Sequence[int]) -> FeatureArray:
        """Return some rows."""
        return replace(
            self,
            values=self.values[list(rows)],
            numbers=tuple(self.numbers[i] for i in rows),
            names=tuple(self.names[i] for i in rows),
            labels=tuple(self.labels[i] for i in rows),
        )


def features_of(
    pictures: Sequence[Source],
    viewer: Viewer,
    pattern: str | None,
    skipped: list[SkippedImage],
    *,
    pooling: str = "mean",
    cache: FeatureCache | None = None,
) -> FeatureArray:
    """Return the features of every usable picture; the others are noted in ``skipped``.

    Without a pattern, the features are the inputs of the model's last linear layer. Pictures are
    streamed: memory holds one batch and the result.

    Raises:
        GradscopeError: the layer does not exist, or does not give one vector of equal size for each
            picture.
    """
    layer = None if pattern is None else one_layer(viewer.model, pattern)
    rows: NDArray[np.float32] | None = None
    used = np.zeros(len(pictures), dtype=bool)
    title = "" if layer is None else layer.title
    if cache is not None:
        rows, used = cache.known(pictures)
        title = cache.layer or title
    wanted: list[int] = np.flatnonzero(~used).tolist()
    progress.begin("reading features")
    for numbers, inputs in batches(pictures, viewer, skipped, numbers=wanted):
        with naming(pictures, numbers):
            if layer is None:
                layer = last_features(viewer.model, inputs[:1])
                title = layer.title
            found = _vectors(viewer.model, inputs, layer, pooling).numpy()
        if rows is None:
            rows = np.empty((len(pictures), found.shape[1]), dtype=np.float32)
        if found.shape[1] != rows.shape[1]:
            raise OptionError(
                f"layer `{title}` gives {found.shape[1]} features for "
                f"{pictures[numbers[0]].name}, and {rows.shape[1]} for others",
                help="give all pictures one size, `input.transform={resize: 256, crop: 224}`, or "
                "leave `--pool none` away",
            )
        rows[numbers], used[numbers] = found, True
        if cache is not None:
            cache.add(numbers, found, title)
    kept: list[int] = np.flatnonzero(used).tolist()
    if rows is None:
        rows = np.empty((0, 0), dtype=np.float32)
    return FeatureArray(
        values=rows if len(kept) == len(rows) else rows[kept],
        numbers=tuple(kept),
        names=tuple(pictures[i].name for i in kept),
        labels=tuple(pictures[i].label for i in kept),
        layer=title,
        model=viewer.name,
        pooling=pooling,
    )


def _vectors(model: nn.Module, inputs: Tensor, layer: Layer, pooling: str) -> Tensor:
    """Return [N, D] float32 on the CPU, read in the hook before anything writes into the output."""
    found: list[Tensor] = []

    def read(layer: Layer, values: Tensor) -> None:
        found[:] = [_pooled(values, layer, model, inputs, pooling).cpu()]  # the last call counts

    run(model, inputs, [layer], read)
    require_called(bool(found), layer)
    return found[0]


def _pooled(values: Tensor, layer: Layer, model: nn.Module, inputs: Tensor, pooling: str) -> Tensor:
    values = batch_first(values, layer, len(inputs)).float()
    if values.dim() == 2 or pooling == "none":
        return values.flatten(1).clone()
    if values.dim() == 3:  # [N, T, K]
        values = values.transpose(1, 2)
    elif values.dim() == 4:  # a map, its channels first or last
        size = (inputs.shape[2], inputs.shape[3])
        made = as_map(values, size, module=layer.module, patches=patch_grid(model, inputs))
        values = values if made is None else made
    places = values.flatten(2)
    return places.amax(2) if pooling == "max" else places.mean(2)


def _csv(features: FeatureArray, path: Path) -> None:
    """Write a row for each picture in full precision: columns ``image``, ``class``, ``0``,
    ``1``, …
    """
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "class", *range(features.values.shape[1])])
        rows = zip(features.names, features.labels, features.values, strict=True)
        for name, label, values in rows:
            writer.writerow([name, label or "", *(f"{x:.9g}" for x in values.tolist())])


def _npz(features: FeatureArray, path: Path) -> None:
    """Write NumPy's arrays by name, which `numpy.load` reads without pickle.

    ``features`` [N, D], ``images`` and ``labels`` [N]; ``layer``, ``model`` and ``pooling``.
    """
    with path.open("wb") as file:
        np.savez(
            file,
            features=features.values,
            images=np.array(features.names, dtype=np.str_),
            labels=np.array([label or "" for label in features.labels], dtype=np.str_),
            layer=features.layer,
            model=features.model,
            pooling=features.pooling,
        )


def _safetensors(features: FeatureArray, path: Path) -> None:
    """Write a tensor ``features`` [N, D]; names and classes are JSON lists in the metadata."""
    metadata = {
        "images": json.dumps(features.names),
        "labels": json.dumps(features.labels),
        "layer": features.layer,
        "model": features.model,
        "pooling": features.pooling,
    }
    # Not `save_file`: its error on a full disk is no OSError.
    path.write_bytes(save({"features": features.values}, metadata))


FORMATS = {
    "csv": Format(".csv", _csv),
    "npz": Format(".npz", _npz),
    "safetensors": Format(".safetensors", _safetensors),
}
