"""A callback for Lightning: ``Trainer(callbacks=[gradscope.lightning.GradscopeCallback()])``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from gradscope.api.watching import WatchedRun, watch


class GradscopeCallback(Callback):
    """Watches ``Trainer.fit`` and records it to a file.

    Args:
        options: as for ``gradscope.watch``: ``every``, ``budget``, ``out``, ``layers``, …

    Attributes:
        run: the run, from the beginning of ``fit`` on.
    """

    run: WatchedRun | None = None

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._stack = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The optimizers are there, and no step yet."""
        self.run = self._stack.enter_context(watch(pl_module, trainer.optimizers, **self._options))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last step was made."""
        self._stack.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The training ends here."""
        self._stack.__exit__(type(exception), exception, exception.__traceback__)
