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
from gradscope.images.grid import Tile, grid, in_rows
from gradscope.images.kernels import colored_kernel, mapped_kernel
from gradscope.images.overlay import overlay
from gradscope.images.painting import framed, painted
from gradscope.images.photos import HeatMap, Photo, cropped, reduced
from gradscope.images.plots import scattered, spread_out
from gradscope.images.preview import preview
from gradscope.images.reading import (
    FORMATS,
    existing_file,
    find_images,
    from_shares,
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
    "PICTURES",
    "USUAL",
    "Geometry",
    "HeatMap",
    "Photo",
    "Row",
    "Scale",
    "Tile",
    "check_look",
    "check_suffix",
    "colored_kernel",
    "cropped",
    "encoded",
    "existing_file",
    "find_images",
    "framed",
    "from_shares",
    "grid",
    "in_rows",
    "input_picture",
    "mapped_kernel",
    "overlay",
    "page_count",
    "page_files",
    "pages",
    "painted",
    "pictures_below",
    "pictures_in",
    "preview",
    "read_array",
    "read_image",
    "reading_remarks",
    "reduced",
    "rows",
    "scale_of",
    "scattered",
    "sheets",
    "shown",
    "spread_out",
    "suffixes",
    "to_tensor",
    "trace",
]
