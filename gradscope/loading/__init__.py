"""Config to workload: the model, its inputs, its loss, its optimizer, ready to run.

The only room that imports users' code. A new kind of spec is a file in specs/, a new kind of input
a file in sources/; workload.py is the order in which everything happens.
"""

from gradscope.loading.batches import MicroBatch, cut
from gradscope.loading.devices import seed_everything
from gradscope.loading.inputs import Batch
from gradscope.loading.kinds import ModelKind
from gradscope.loading.losses import Criterion
from gradscope.loading.workload import Workload, load, load_model

__all__ = [
    "Batch",
    "Criterion",
    "MicroBatch",
    "ModelKind",
    "Workload",
    "cut",
    "load",
    "load_model",
    "seed_everything",
]
