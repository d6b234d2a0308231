"""A callback for the Trainer of transformers: ``Trainer(…, callbacks=[GradscopeCallback()])``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from gradscope.api.watching import WatchedRun, watch


class GradscopeCallback(TrainerCallback):
    """Watches ``Trainer.train`` and records it to a file.

    Args:
        options: as for ``gradscope.watch``: ``every``, ``budget``, ``out``, ``layers``, …

    Attributes:
        run: the run, from the beginning of ``train`` on.
    """

    run: WatchedRun | None = None

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._stack = ExitStack()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The model and the optimizer are there, and no step yet."""
        self._stack.close()  # of a training that ended in an exception
        # What stands around the optimizer, as accelerate's, makes no step of its own.
        optimizer = getattr(kwargs.get("optimizer"), "optimizer", kwargs.get("optimizer"))
        self.run = self._stack.enter_context(watch(kwargs["model"], optimizer, **self._options))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """The last step was made."""
        self._stack.close()
