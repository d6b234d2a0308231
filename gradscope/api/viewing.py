"""A model for pictures: how it is found, and its header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradscope import config as configs
from gradscope.errors import ConfigError
from gradscope.loading.viewing import Viewer, load_viewer
from gradscope.records.run import RunInfo


def view(
    model: str | None,
    overrides: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
    allow: Sequence[str] = (),
    *,
    input: str | None = None,
) -> Viewer:
    """The model that looks at pictures; without a name ResNet-18 with its weights.

    ``input`` is the one of several inputs that takes the pictures.

    Raises:
        GradscopeError: the config or an option is not right, or the model raised. Where the weights
            cannot be loaded, no other network is used instead: the error says
            what to do.
    """
    settings = settings or {}
    if model is not None:
        return load_viewer(_read(model, overrides, settings), allow, input=input)
    resnet = _read("torchvision:resnet18", ["weights=DEFAULT", *overrides], settings)
    try:
        return load_viewer(resnet, allow, input=input)
    except ConfigError as error:
        problem = error.problems[0]
        if "weights" not in problem.message:
            raise
        usual = "without a model, pictures are read by torchvision's ResNet-18"
        yours = "name a model of yours: `-m net.yaml` (`-m demo` reads digits)"
        help = f"{problem.help}; or {yours}" if problem.help else yours
        raise ConfigError(problem.message, help=help, notes=(usual,)) from error


def _read(model: str, overrides: Sequence[str], settings: dict[str, Any]) -> configs.LoadedConfig:
    """The config, in eval mode unless it, an override or a flag sets another."""
    loaded = configs.read(model, overrides, options=settings)
    if "mode" in loaded.given:
        return loaded
    return configs.read(model, overrides, options={"mode": "eval", **settings})


def run_of(viewer: Viewer, notices: Sequence[str], seed: int) -> RunInfo:
    """How the model was run, with what there was to note."""
    return RunInfo(
        model=viewer.name,
        device=str(viewer.device),
        dtype=str(viewer.dtype).removeprefix("torch."),
        mode="train" if viewer.model.training else "eval",
        seed=seed,
        steps=1,
        loss="",
        notices=tuple(notices),
    )


def about(viewer: Viewer) -> str:
    """What a picture says of the model that it is of."""
    return f"model: {viewer.name}" + (", random weights" if viewer.random else "")
