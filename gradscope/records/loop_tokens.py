"""Records of the relation of a training's targets to its model's tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoopTokens:
    """The targets of one model's losses, if there is one target per input token.

    Attributes:
        model: the model's number.
        batches: how many batches were read, and of these, in how many

            - ``copied``: each target that counts is the token at its own position
            - ``following``: each is the token after it
            - ``unended``: each sequence ends in one token before the padding, which is that token
              too, and the target of it is ignored
        future: whether an output depends on later tokens, as a replay has shown; None where none
            was made.
        past: the same of earlier tokens.
        targets: how many targets there were; ``padding`` how many of them are one class, at
            padding, and no other targets are that class.
        pad, pad_class: the token of the padding, and that class.
        lengths: how many different lengths the sequences without padding had, at most.
        end: the token that ends the sequences of ``unended``.
        location: ``file:line`` of the loss, where it is known.
        inside: whether the call of a model computes the loss.
        called_at: where the model is called.
        made_at: the line of the script that assigns the targets, if its text shows that.
        mixed_at: that of the first operation of attention, where a replay has shown it.
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
