"""The state around a recorded call, for the record of a capsule."""

from __future__ import annotations

from gradscope.capture.names import named_modules, named_parameters
from gradscope.loading.surgery import unwrapped
from gradscope.records.spike import CallState
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
