"""``gradscope layers``: the names that layer patterns match."""

from __future__ import annotations

from typing import Annotated

from gradscope import plugins
from gradscope.commands._model import importing_torch, read_model
from gradscope.commands._options import (
    Allow,
    Debug,
    Device,
    LayerOptions,
    MaxTokens,
    ModelOptions,
    Set,
    Timeout,
    Words,
    format_option,
    takes_groups,
)
from gradscope.commands._running import running
from gradscope.commands._views import check_max_tokens, choose_format, fitted
from gradscope.commands._write import write_output
from gradscope.reporters.views import TextView

ROOM = "gradscope.reporters.listings"

EXAMPLES = (
    ("gradscope layers torchvision:resnet18", "Every layer, by the name that patterns match."),
    (
        "gradscope layers ./net.py:Net -l 'type:Conv2d'",
        "Layers that a pattern matches.",
    ),
)


@takes_groups
def run(
    words: Words = None,
    settings: Set = None,
    *,
    layers: LayerOptions,
    device: Device = None,
    format: Annotated[str, format_option(ROOM, "terminal or json.")] = "terminal",
    max_tokens: MaxTokens = None,
    timeout: Timeout = None,
    allow: Allow = None,
    debug: Debug = False,
) -> None:
    """List the layer names of a model, as patterns match them, with each layer's own parameters."""
    reporter = plugins.load(ROOM, choose_format(format, None, ROOM))
    check_max_tokens(max_tokens, format)
    loaded = read_model(words, ModelOptions(settings=settings, device=device), layers)
    with running(timeout):
        with importing_torch():
            from gradscope.api.opened import layers as layers_of
        found = layers_of(loaded, allow=allow or ())
    write_output(fitted(reporter.render(found, TextView()), max_tokens), None)
