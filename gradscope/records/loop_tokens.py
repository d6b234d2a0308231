"""Records of the relation of a training's targets to its model's tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopTokens:
    """The targets of one model's losses, if there is one target per input token.

    Attributes:
        model: the model's number.
        batches: the number of batches read, and in how many of them

            - ``copied``: each counted target is the token at its own position
            - ``following``: each counted target is the next token
            - ``unended``: each sequence ends in one token, the padding is the same token, and the
              target at the end is ignored
        future: True if a replay shows that outputs depend on later tokens; None without a replay.
        past: the same for earlier tokens.
        targets: the number of targets; ``padding``: the number of targets at padding, if all of
        them are one class that no other target has. pad, pad_class: the token of the padding, and
        that class.
        lengths: the largest number of different lengths, without padding, in a batch.
        end: the token that ends the sequences of ``unended``.
        location: ``file:line`` of the loss, where it is known.
        inside: whether the call of a model computes the loss.
        called_at: where the model is called.
        made_at: the line of the script that assigns the targets, if its text shows that.
        mixed_at: the line of the first attention operation, if a replay found it.
    """

    model: int
    batches: int
    copied: int = 0
    following: int = 0
    unended: int = 0
    future: bool | None = None
    past: bool | None = None
    targets: int = 0
    padding: int = 0
    pad: int = 0
    pad_class: int = 0
    lengths: int = 0
    end: int = 0
    location: str | None = None
    inside: bool = False
    called_at: str | None = None
    made_at: str | None = None
    mixed_at: str | None = None
