"""A callback for Lightning: ``Trainer(callbacks=[gradscope.lightning.GradscopeCallback()])``."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from gradscope.api.watching import WatchedRun, watch

_LOGGER = logging.getLogger("lightning.pytorch.gradscope")


class GradscopeCallback(Callback):
    """Observes ``Trainer.fit`` and records it to a file.

    At the end, rank 0 writes the findings to Lightning's logger.

    Args:
        options: as for ``gradscope.watch``: ``every``, ``out``, ``layers``, ``quiet``, …

    Attributes:
        run: the run, from the start of ``fit`` on.
    """

    run: WatchedRun | None = None

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the run: the optimizers exist, and no step has run yet."""
        options = {"logger": _LOGGER, **self._options}
        options["quiet"] = options.get("quiet", False) or not trainer.is_global_zero
        self.run = self._stack.enter_context(watch(pl_module, trainer.optimizers, **options))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the run after the last step and the progress bar."""
        self._stack.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the run at an exception."""
        self._stack.__exit__(type(exception), exception, exception.__traceback__)
