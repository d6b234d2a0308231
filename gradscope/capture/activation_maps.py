"""Converts a layer's output to maps [N, K, h, w]: moves channels from the last axis, folds tokens
to a grid."""

from __future__ import annotations

from torch import Tensor, nn

from gradscope.capture.names import modules_by_name
from gradscope.errors import OptionError

#: Modules that return their map unchanged, and modules that reduce it.
PASSING = ("Dropout", "DropPath", "StochasticDepth", "Identity")
POOLING = ("Pool", "Softmax", "Flatten")
#: Tokens that are before the patches: class, distillation, registers.
MOST_SPECIAL = 16


def as_map(
    output: Tensor,
    size: tuple[int, int],
    *,
    module: nn.Module | None = None,
    patches: tuple[int, int] | None = None,
    strict: bool = False,
) -> Tensor | None:
    """Return the output as a view [N, K, h, w] with more than one position; None if it is not a
    map.

    Args:
        output: [N, K, h, w], [N, h, w, K] (Swin) or [N, T, K], whose class and register tokens
            are dropped.
        size: height and width of the model's input; a map has its proportions.
        module: the module that returned it; a plain ``LayerNorm`` has its channels last.
        patches: rows and columns of the model's patches, if it has any.
        strict: refuse four dimensions without the input's proportions.
    """
    if not output.is_floating_point():
        return None
    if output.dim() == 3:
        if isinstance(module, nn.RNNBase):
            return None  # steps of a sequence, whatever their number
        grid = _grid(output.shape[1], size, patches)
        if grid is None:
            return None
        cells = grid[0] * grid[1]
        patches_only = output[:, output.shape[1] - cells :].transpose(1, 2)
        return patches_only.reshape(*patches_only.shape[:2], *grid)
    if output.dim() != 4:
        return None
    first, last = _alike(output.shape[2:], size), _alike(output.shape[1:3], size)
    if last and (not first or type(module) is nn.LayerNorm):
        output = output.permute(0, 3, 1, 2)
    elif strict and not first:
        return None
    return output if output.shape[2] * output.shape[3] > 1 else None


def map_of(output: Tensor, model: nn.Module, inputs: Tensor, layer: str) -> Tensor:
    """Return the output of the layer of that name as maps of the inputs, [N, K, h, w].

    Raises:
        OptionError: it is not a map, or not one per input.
    """
    size, module = (inputs.shape[2], inputs.shape[3]), modules_by_name(model)[layer]
    made = as_map(output, size, module=module, patches=patch_grid(model, inputs))
    if made is None or len(made) != len(inputs):
        raise OptionError(
            f"layer `{layer}` gives {list(output.shape)}, which is not a spatial map",
            help="name a layer that gives [N, channels, height, width] or tokens of patches, "
            "or leave out --layer",
        )
    return made


def patch_grid(model: nn.Module, inputs: Tensor) -> tuple[int, int] | None:
    """Return the rows and columns of patches that the first convolution makes; None without one."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size
            if kernel == module.stride and kernel[0] > 1 and module.in_channels == inputs.shape[1]:
                return inputs.shape[2] // kernel[0], inputs.shape[3] // kernel[1]
            return None
    return None


def _grid(
    tokens: int, size: tuple[int, int], patches: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the rows and columns of the patch tokens; special tokens come first."""
    if patches and 1 < patches[0] * patches[1] <= tokens <= patches[0] * patches[1] + MOST_SPECIAL:
        return patches
    for slack in (0, max(size)):
        for special in range(min(MOST_SPECIAL, tokens - 4) + 1):
            count = tokens - special
            rows = max(1, round((count * size[0] / size[1]) ** 0.5))
            if count % rows == 0 and _alike((rows, count // rows), size, slack):
                return rows, count // rows
    return None


def _alike(grid: tuple[int, ...], size: tuple[int, int], slack: int | None = None) -> bool:
    """Return True if a grid has the input's proportions, within one row or column."""
    rows, columns = grid
    if rows > size[0] or columns > size[1]:
        return False
    off = abs(rows * size[1] - columns * size[0])
    return off <= (max(size) if slack is None else slack)
