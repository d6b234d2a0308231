"""``gradscope features``: filters, activations and feature space; one file per command."""

EXAMPLES = (
    ("gradscope features filters", "The filters of the bundled network's first convolution."),
    (
        "gradscope features activations cat.jpg -l 'layer1.*'",
        "Responses of channels in ResNet-18's first blocks to a photograph.",
    ),
)


def run() -> None:
    """Show a network's filters, its responses to pictures, and its feature space."""
