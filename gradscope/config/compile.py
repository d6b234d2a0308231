"""The key ``compile``: the arguments of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gradscope.config.parallel import Expected, Strict
from gradscope.config.words import Complaint

_BACKENDS: Final = ("inductor", "aot_eager", "eager", "cudagraphs")
_MODES: Final = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Compile(Strict):
    """Arguments of ``torch.compile``."""

    backend: Annotated[
        Literal["inductor", "aot_eager", "eager", "cudagraphs"],
        Expected(f"one of {', '.join(_BACKENDS)}", _BACKENDS),
    ] = Field(
        default="inductor",
        description="inductor generates kernels; aot_eager and eager stop before that, to find the "
        "stage that diverges.",
    )
    mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None,
        Expected(f"one of {', '.join(_MODES)}, or null", _MODES),
    ] = Field(default=None, description="What inductor optimizes for; null is PyTorch's default.")
    dynamic: Annotated[bool | None, Expected("true, false or null")] = Field(
        default=None, description="Kernels for all shapes; null is PyTorch's default."
    )
    fullgraph: Annotated[bool, Expected("true or false")] = Field(
        default=False, description="Raise an error where the graph would break."
    )


def check_compile(config: Mapping[str, Any]) -> Iterator[Complaint]:
    """Check for conflicts between ``compile`` and other keys."""
    wanted = config.get("compile")
    if not wanted and not isinstance(wanted, Mapping):
        return
    for key, why in (
        ("call", "the method would run eagerly"),
        ("parallel", "the model runs eagerly in each process"),
    ):
        if config.get(key):
            message = f"`compile` and `{key}` do not go together: {why}"
            yield Complaint(("compile",), message, f"leave `{key}` out")
    if (
        isinstance(wanted, Mapping)
        and wanted.get("mode")
        and wanted.get("backend", "inductor") != "inductor"
    ):
        message = f"`compile.mode` is for inductor, and the backend is {wanted['backend']}"
        yield Complaint(("compile", "mode"), message, "leave it out")
