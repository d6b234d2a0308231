"""``gradscope features``: what layers look for, and how they see pictures; a file a command."""

EXAMPLES = (
    ("gradscope features filters", "The filters of the bundled network's first convolution."),
    (
        "gradscope features activations cat.jpg -l 'layer1.*'",
        "Responses of channels in ResNet-18's first blocks to a photograph.",
    ),
)


def run() -> None:
    """See what layers look for and how they see pictures: filters, activations, feature space."""
