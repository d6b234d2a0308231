"""Pictures: files read into tensors, and heat maps drawn over the photographs they speak of.

Nothing here writes a file. numpy, PIL and torch are imported inside the functions.
"""

from gradscope.images.attributions import (
    PICTURES,
    check_look,
    check_suffix,
    encoded,
    page_files,
    pages,
    rows,
)
from gradscope.images.colors import COLORMAPS, USUAL
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
    "PICTURES",
    "USUAL",
    "Geometry",
    "HeatMap",
    "Photo",
    "check_look",
    "check_suffix",
    "cropped",
    "encoded",
    "existing_file",
    "find_images",
    "input_picture",
    "overlay",
    "page_count",
    "page_files",
    "pages",
    "painted",
    "pictures_in",
    "preview",
    "read_image",
    "reading_remarks",
    "rows",
    "sheets",
    "shown",
    "suffixes",
    "to_tensor",
    "trace",
]
