"""``demo``, ``demo:lecture``, ``demo:scouter``…: the bundled networks, trained by default."""

from __future__ import annotations

from gradscope.demo import WEIGHTS
from gradscope.errors import ConfigError, TargetError, did_you_mean
from gradscope.loading import checkpoints
from gradscope.loading.specs import Built, ModelKind, Request, require_module

_CLASSES = {
    "": "networks.SimpleNet",
    "lecture": "networks.LectureNet",
    "scouter": "scouter.ScouterNet",
    "scouter-negative": "scouter.NegativeScouterNet",
}


def check(request: Request) -> None:
    """Refuse an unknown demo.

    Raises:
        TargetError: the message suggests the closest.
    """
    if request.name not in _CLASSES:
        close = did_you_mean(request.spec, WEIGHTS)
        raise TargetError(
            f"unknown demo `{request.spec}`",
            place=request.place(),
            help=close or f"one of {', '.join(f'`{name}`' for name in WEIGHTS)}",
        )


def build(request: Request) -> Built:
    """Build the network with its trained weights; an explicit ``weights: null`` leaves them
    random."""
    check(request)
    if request.weights not in (None, "DEFAULT"):
        raise ConfigError(
            f"`{request.spec}` has no weights `{request.weights}`",
            place=request.place("weights"),
            help="take `weights: DEFAULT` (trained) or `weights: null` (random)",
        )
    asked = {"_target_": f"gradscope.demo.{_CLASSES[request.name]}", **request.kwargs}
    model = require_module(request.targets.instantiate(asked, "model"), request)
    kind = ModelKind("demo", request.name or "demo")
    if request.meta:
        return Built(model, kind)
    if request.random:
        return Built(model, kind, notices=("weights: random, as `weights: null` asks",))
    checkpoints.load(model, WEIGHTS[request.spec])
    return Built(model, kind, "DEFAULT", (f"weights: `{request.spec}`'s own, trained on digits",))
