"""TensorBoard's event file, by its own writer: a chart for each number of each layer."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from gradscope.runfile.metric_keys import PREFIX, KeySelection
from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import Alert, Ending, MetricRow, Tracker, send

packages = ("tensorboard",)
#: Names of the files that it leaves in the folder.
folder = "events.out.tfevents.*.gradscope"
WITHOUT = "the script made no `SummaryWriter`"


class EventFile:
    """An event file in a folder of its own: TensorBoard reads one growing file in each folder."""

    def __init__(self, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(path), filename_suffix=".gradscope")

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Add the rows as scalars, and the findings as texts."""
        for row in rows:
            for key, value in row.values.items():
                self._writer.add_scalar(key, value, row.step, walltime=row.time)
        for one in alerts:
            text = one.text.replace("\n", "  \n")
            self._writer.add_text(f"{PREFIX}/{one.title}", text, one.step, walltime=one.time)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def joined(place: str, ending: Ending) -> Tracker | None:
    """A folder in that of the script's first ``SummaryWriter``: one more run beside it."""
    module = sys.modules.get("torch.utils.tensorboard.writer")
    kind = getattr(module, "SummaryWriter", None)
    if kind is None:
        return None
    made = [one for one in gc.get_referrers(kind) if isinstance(one, kind)]
    return EventFile(Path(made[0].log_dir) / PREFIX) if made else None


def write(run: RunFile, path: Path) -> None:
    """Fill the folder."""
    file = EventFile(path)
    send(run, file, KeySelection(None), norms=True)
    file.close()
