"""The state around a recorded call, and the files of its model, for the record of a capsule."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from gradscope.capture.names import named_modules, named_parameters
from gradscope.explain.shared.frames import in_library
from gradscope.loading.surgery import unwrapped
from gradscope.records.spike import CallState
from gradscope.runfile.capsules import digests
from gradscope.training.nan_detector.recorded_calls import RecordedCall


def state_of_call(call: RecordedCall) -> CallState:
    """Return the modes, the frozen parameters, autocast and the random generators of a call."""
    module, _ = unwrapped(call.module)
    modes = call.modes
    training = modes[module]
    parameters = named_parameters(module)
    dtypes = {str(p.dtype) for p in parameters if p.is_floating_point()}
    states = call.random_states
    unknown = call.drew or any(one.tensor() is None for one in states)
    return CallState(
        call.name,
        training,
        tuple(
            named.name
            for one, named in named_modules(module).items()
            if modes.get(one, training) != training
        ),
        tuple(named.name for p, named in parameters.items() if not p.requires_grad),
        dtypes.pop().removeprefix("torch.") if len(dtypes) == 1 else "",
        {device: str(dtype).removeprefix("torch.") for device, dtype in call.autocast},
        None if unknown else tuple(one.generator for one in states),
    )


def sources_of(modules: Iterable[nn.Module]) -> dict[str, str]:
    """Return the files of the modules' classes and of the script, with their SHA-256, but no
    library."""
    names = {type(one).__module__ for module in modules for one in module.modules()}
    files = [getattr(sys.modules.get(name), "__file__", None) for name in ["__main__", *names]]
    paths = [str(Path(file).absolute()) for file in files if file]
    return digests(sorted(path for path in paths if not in_library(path)))
