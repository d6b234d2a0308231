"""Measures where the time of a sampled step goes, part by part.

``python -m tests.benchmarks.parts`` runs ResNet-50 on 8 pictures of 224², observed with all layers
and with three, and prints the milliseconds of each part of the looking: medians of nine steps, with
the share of the plain step that they are. ``--model``, ``--layers all``, ``-n 3`` and ``--threads``
choose. A part's time is its own: what another part spends inside it is counted there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.overhead_cases import CASES, ONLOOKERS


class Parts:
    """The seconds of each part, and its calls, by a clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._clock = clock
        self._inner = [0.0]

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count the block as ``part``, less what parts inside it count."""
        self._inner.append(0.0)
        began = self._clock()
        try:
            yield
        finally:
            took = self._clock() - began
            self.calls[part] += 1
            self.seconds[part] += took - self._inner.pop()
            self._inner[-1] += took

    def wrap(self, holder: Any, name: str, part: str) -> None:
        """Count each call of ``holder.name``."""
        function = getattr(holder, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed(part):
                return function(*args, **kwargs)

        setattr(holder, name, timed)

    def wrap_context(self, holder: Any, name: str, part: str) -> None:
        """Count how long ``holder.name`` takes to enter and to leave."""
        function = getattr(holder, name)

        @contextlib.contextmanager
        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with contextlib.ExitStack() as stack:
                with self.timed(part):
                    given = stack.enter_context(function(*args, **kwargs))
                try:
                    yield given
                finally:
                    with self.timed(part):
                        stack.close()

        setattr(holder, name, timed)


def installed() -> Parts:
    """Timers in gradscope's own places."""
    from gradscope.capture import gradients, measurements, parameters, recorder
    from gradscope.running import observe, step

    parts = Parts()
    parts.wrap(measurements, "measure", "activations: reductions")
    parts.wrap(gradients, "measure", "their gradients: reductions")
    parts.wrap(parameters, "_values", "parameters: values")
    parts.wrap(observe, "parameter_stats", "parameters: gradients")
    parts.wrap(recorder.Recorder, "_before", "hooks around forward")
    parts.wrap(recorder.Recorder, "_after", "hooks around forward")
    parts.wrap(recorder.Recorder, "connect", "walk of the graph, saved bytes")
    parts.wrap(recorder.Recorder, "calls", "records")
    parts.wrap_context(recorder.Recorder, "installed", "setting up, tearing down")
    parts.wrap(observe, "select_layers", "setting up, tearing down")
    parts.wrap(observe, "Recorder", "setting up, tearing down")
    parts.wrap(observe, "Buffers", "facts about modules and buffers")
    parts.wrap(observe, "module_facts", "facts about modules and buffers")
    parts.wrap_context(step, "state_restored", "leaving the model as found")
    return parts


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CASES, default="resnet50")
    parser.add_argument("--layers", choices=("all", "three"), action="append")
    parser.add_argument("-n", "--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    case = CASES[options.model]()
    plain = timings(case.plain, options.rounds)
    print(f"{options.model}: a plain step takes {plain:.0f} ms")
    parts = installed()
    for layers in options.layers or ("all", "three"):
        step = ONLOOKERS["gradscope" if layers == "all" else "gradscope-three"](case)
        found: dict[str, list[float]] = defaultdict(list)
        step()
        gc.collect()
        for _ in range(options.rounds):
            parts.seconds.clear()
            step()
            for part, seconds in parts.seconds.items():
                found[part].append(1000 * seconds)
        middle = {part: statistics.median(taken) for part, taken in found.items()}
        print(f"\n{layers} layers")
        for part, took in sorted(middle.items(), key=lambda item: -item[1]):
            print(f"  {part:<34}{took:>7.1f} ms {took / plain:>7.2%}")
        total = sum(middle.values())
        print(f"  {'together':<34}{total:>7.1f} ms {total / plain:>7.2%}")


def timings(step: Callable[[], object], rounds: int) -> float:
    """The median milliseconds of a step, after one that is not counted."""
    step()
    gc.collect()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
