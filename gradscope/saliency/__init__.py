"""Attribution maps, one public file per method; a file is found by its name (``grad_cam.py``).

To add a method, add a file with ``paper``, ``signed``, ``reads`` (and ``random = True`` where it
draws numbers) and ``attribute(subject, *, …)``.
"""

from gradscope.saliency._explaining import AttributionPlan, RecordedMap, explain
from gradscope.saliency._options import names as method_names
from gradscope.saliency._options import options_of, read_options
from gradscope.saliency._subject import Subject

__all__ = [
    "AttributionPlan",
    "RecordedMap",
    "Subject",
    "explain",
    "method_names",
    "options_of",
    "read_options",
]
