"""Pictures: files read into tensors, and heat maps drawn over the photographs they speak of.

Nothing here writes a file. numpy, PIL and torch are imported inside the functions.
"""

from gradscope.images.colors import COLORMAPS
from gradscope.images.geometry import Geometry
from gradscope.images.overlay import overlay
from gradscope.images.painting import painted
from gradscope.images.photos import HeatMap, Photo, cropped
from gradscope.images.preview import preview
from gradscope.images.reading import (
    FORMATS,
    existing_file,
    find_images,
    input_picture,
    pictures_in,
    read_image,
    reading_remarks,
    shown,
    suffixes,
    to_tensor,
)
from gradscope.images.sheet import page_count, sheets
from gradscope.images.tracing import trace

__all__ = [
    "COLORMAPS",
    "FORMATS",
    "Geometry",
    "HeatMap",
    "Photo",
    "cropped",
    "existing_file",
    "find_images",
    "input_picture",
    "overlay",
    "page_count",
    "painted",
    "pictures_in",
    "preview",
    "read_image",
    "reading_remarks",
    "sheets",
    "shown",
    "suffixes",
    "to_tensor",
    "trace",
]
