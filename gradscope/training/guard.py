"""Guards the script against exceptions of gradscope's own code."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from gradscope.capture.hooks import raised_by_a_handler


class Guard:
    """Wraps functions that PyTorch may call: they never raise, and run one at a time.

    They run in every step, so the wrapper adds only one Python frame.

    Attributes:
        observing: False turns all calls off.
        seconds: the time of the calls since this was last set to 0.
        inside: True during a call.
        around: makes the context of a call.

    Args:
        failed: called with an error of gradscope's own.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.observing = False
        self.seconds = 0.0
        self._untraced: Callable[[Any], Any] | None = None
        self.around: Callable[[], AbstractContextManager[None]] | None = None
        self._failed = failed
        self.inside = False
        self._thread = TrainingThread()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` for calls in any thread.

        It returns None if it fails, or if gradscope's own code calls it.
        """
        return self._guarded(function, anywhere=True)

    def in_training(
        self,
        function: Callable[..., Any],
        *,
        trains: bool = True,
        elsewhere: Callable[..., None] | None = None,
    ) -> Callable[..., Any]:
        """Wrap ``function``, so that it runs only in the thread that trains.

        Args:
            trains: True if a call is part of a training, so that its thread becomes the
                training thread.
            elsewhere: called in other threads.
        """
        return self._guarded(function, anywhere=False, trains=trains, elsewhere=elsewhere)

    def events(self, kind: type, *receivers: object) -> Any:
        """Return an object of the protocol ``kind``, with a guarded function for each event.

        Args:
            kind: each of its functions is an event.
            receivers: the first that has a method of the event's name gets the event.
        """
        functions = {}
        for name in kind.__annotations__:
            functions[name] = self(next(getattr(o, name) for o in receivers if hasattr(o, name)))
        return SimpleNamespace(**functions)

    def keep_untraced(self) -> None:
        """Exclude our functions, and all that they call, from compilation.

        Otherwise a compiled function that calls them, such as a compiled step, would compile them.
        """
        if self._untraced is None:
            from torch._C._dynamo.eval_frame import set_eval_frame
            from torch._dynamo import trace_rules

            trace_rules.add(__package__)
            self._untraced = set_eval_frame

    def _guarded(
        self,
        function: Callable[..., Any],
        *,
        anywhere: bool,
        trains: bool = False,
        elsewhere: Callable[..., None] | None = None,
    ) -> Callable[..., Any]:
        thread = self._thread

        def guarded(*args: Any) -> Any:
            if not anywhere and get_ident() != thread.ident and thread.is_another(trains=trains):
                return None if elsewhere is None else elsewhere(*args)
            if self.inside or not self.observing:
                return None
            began = perf_counter()
            self.inside = True
            untraced = self._untraced
            frames = None if untraced is None else untraced(None)
            try:
                if self.around is None:
                    return function(*args)
                with self.around():
                    return function(*args)
            except Exception as error:
                if raised_by_a_handler(error):
                    raise
                self._failed(error)
                return None
            finally:
                self.inside = False
                if untraced is not None:
                    untraced(frames)
                self.seconds += perf_counter() - began

        return guarded


class TrainingThread:
    """The thread whose training is observed: the first that trains, for as long as it lives.

    The actions of several threads would otherwise look like one step.
    """

    def __init__(self) -> None:
        self.ident: int | None = None

    def is_another(self, *, trains: bool = True) -> bool:
        """Return True if this is not the training thread; without a training thread, a caller that
        ``trains`` becomes it.
        """
        here = get_ident()
        if here == self.ident or not (trains or self.ident):
            return False
        if any(thread.ident == self.ident for thread in threading.enumerate()):
            return True
        self.ident = here
        return False
