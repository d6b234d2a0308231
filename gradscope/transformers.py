"""A callback for the Trainer of transformers: ``Trainer(…, callbacks=[GradscopeCallback()])``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from transformers.utils.logging import get_logger

from gradscope.api.watching import WatchedRun, watch


class GradscopeCallback(TrainerCallback):
    """Observes ``Trainer.train`` and records it to a file.

    At the end, rank 0 reports the findings: by the logger of transformers if its level allows that
    (by default, it does for findings), else on standard error.

    Args:
        options: as for ``gradscope.watch``: ``every``, ``out``, ``layers``, ``quiet``, …

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
        """Begin the run: the model and the optimizer exist, and no step has run yet."""
        self._stack.close()  # of a training that ended in an exception
        # A wrapper of the optimizer, such as accelerate's, makes no steps itself.
        optimizer = getattr(kwargs.get("optimizer"), "optimizer", kwargs.get("optimizer"))
        options = {"logger": get_logger("transformers.gradscope"), **self._options}
        options["quiet"] = options.get("quiet", False) or not state.is_world_process_zero
        self.run = self._stack.enter_context(watch(kwargs["model"], optimizer, **options))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """End the run after the last step."""
        self._stack.close()
