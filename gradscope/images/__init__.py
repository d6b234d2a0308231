"""Pictures: files read into tensors, and heat maps drawn over the photographs they speak of.

Nothing here writes a file. numpy, PIL and torch are imported inside the functions.
"""

from gradscope.images.colors import COLORMAPS
from gradscope.images.geometry import Geometry
from gradscope.images.grid import Tile, grid
from gradscope.images.kernels import colored_kernel, mapped_kernel
from gradscope.images.overlay import overlay
from gradscope.images.painting import framed, painted
from gradscope.images.photos import HeatMap, Photo, cropped, reduced
from gradscope.images.preview import preview
from gradscope.images.reading import (
    FORMATS,
    existing_file,
    find_images,
    input_picture,
    pictures_below,
    pictures_in,
    read_array,
    read_image,
    reading_remarks,
    shown,
    suffixes,
    to_tensor,
)
from gradscope.images.scales import Scale, scale_of
from gradscope.images.sheet import Row, page_count, sheets
from gradscope.images.tracing import trace

__all__ = [
    "COLORMAPS",
    "FORMATS",
    "Geometry",
    "HeatMap",
    "Photo",
    "Row",
    "Scale",
    "Tile",
    "colored_kernel",
    "cropped",
    "existing_file",
    "find_images",
    "framed",
    "grid",
    "input_picture",
    "mapped_kernel",
    "overlay",
    "page_count",
    "painted",
    "pictures_below",
    "pictures_in",
    "preview",
    "read_array",
    "read_image",
    "reading_remarks",
    "reduced",
    "scale_of",
    "sheets",
    "shown",
    "suffixes",
    "to_tensor",
    "trace",
]
