"""TensorBoard's event file, in its own records: a chart for each number of each layer."""

from __future__ import annotations

import gc
import io
import itertools
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradscope.runfile.reader import RunFile
from gradscope.runfile.tracking import PREFIX, Alert, Ending, KeySelection, MetricRow, Tracker, send

packages = ("tensorboard",)
#: Names of the files that it leaves in the folder.
folder = "events.out.tfevents.*.gradscope"
WITHOUT = "the process that trains made no `SummaryWriter`"

_numbers = itertools.count()  # as in TensorBoard's own names: two files of one second differ


class EventFile:
    """An event file in its own folder, because TensorBoard reads one growing file in each folder.

    TensorBoard's ``SummaryWriter`` makes an event for each number, and writes them in a thread. One
    event for each step, written by the caller, takes a fifth of the CPU time.

    Args:
        path: the folder; it is made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._event: Any = Event
        moment = time.time()
        path.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(moment):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (path / f"{name}.{next(_numbers)}.gradscope").open("xb", buffering=0)
        self._append([Event(wall_time=moment, file_version="brain.Event:2")])

    def send(
        self, rows: Sequence[MetricRow], alerts: Sequence[Alert], *, last: bool = False
    ) -> None:
        """Add the rows as scalars, and the findings as texts."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import summary

        value: Any = Summary.Value
        texts: Any = summary  # it has no types
        events = [
            self._event(
                wall_time=row.time,
                step=row.step,
                summary=Summary(
                    value=[value(tag=key, simple_value=one) for key, one in row.values.items()]
                ),
            )
            for row in rows
        ]
        events += [
            self._event(
                wall_time=one.time,
                step=one.step,
                summary=texts.text(f"{PREFIX}/{one.title}", one.text.replace("\n", "  \n")),
            )
            for one in alerts
        ]
        self._append(events)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, events: Sequence[Any]) -> None:
        """Add all events, or none: if the disk is full, they are sent again later."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        end, records = self._file.tell(), io.BytesIO()
        writer = RecordWriter(records)
        for one in events:
            writer.write(one.SerializeToString())
        left = records.getbuffer()
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(end)
            self._file.seek(end)
            raise


def joined(place: str, ending: Ending) -> Tracker | None:
    """Return a folder inside the folder of the script's first ``SummaryWriter``: one more run
    beside the script's.

    Raises:
        ValueError: the folder is not on this machine, or is relative and not found.
    """
    module = sys.modules.get("torch.utils.tensorboard.writer")
    kind = getattr(module, "SummaryWriter", None)
    if kind is None:
        return None
    kinds = (kind, *kind.__subclasses__())
    folders = [str(one.log_dir) for one in gc.get_referrers(*kinds) if isinstance(one, kind)]
    if not folders:
        return None
    if "://" in folders[0]:
        raise ValueError(f"the folder of the `SummaryWriter` is not on this machine: {folders[0]}")
    return EventFile(_folder(folders[0], place) / PREFIX)


def _folder(name: str, start: str) -> Path:
    """Return a ``SummaryWriter``'s folder; a relative one may belong to an earlier working
    directory."""
    own = f"events.out.tfevents.*.{os.getpid()}.*"
    found = next((one for one in (Path(start, name), Path(name)) if any(one.glob(own))), None)
    if found is None:
        raise ValueError(f"the folder of the `SummaryWriter` is not found: {name}")
    return found


def write(run: RunFile, path: Path) -> None:
    """Fill the folder."""
    file = EventFile(path)
    send(run, file, KeySelection(None), norms=True)
    file.close()
