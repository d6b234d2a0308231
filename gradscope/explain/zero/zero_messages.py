"""The message on a zero gradient: one sentence with its figures, and the next step."""

from __future__ import annotations

import torch
from torch.autograd.function import BackwardCFunction

from gradscope.explain.shared.frames import source
from gradscope.explain.shared.operations import by_node, node_name
from gradscope.explain.zero.flat_activations import ZeroCause
from gradscope.explain.zero.forward_tracer import ObservedValues
from gradscope.typeset.numbers import plural

#: What is added to scores to hide them is smaller than any score.
_MASKED = -1e30


def called(cause: ZeroCause) -> str:
    """The operation as its user knows it."""
    if cause.node is None:
        return "a hook"
    if isinstance(cause.node, BackwardCFunction):
        return f"`{node_name(cause.node)}`"  # a class of the user's, as it is written
    operation = by_node(cause.node)
    if operation.name.startswith("scaled_dot_product"):
        return "`scaled_dot_product_attention`"
    return operation.title or f"`{operation.name}`"


def message(cause: ZeroCause, at: str | None, seen: ObservedValues | None) -> str:
    """One sentence; ``at`` is the line as ``net.py:31``."""
    return f"{_sentence(cause, called(cause) + _at(at), seen)}."


def _at(at: str | None) -> str:
    if at is None:
        return ""
    file, _, line = at.rpartition(":")
    text = source(file, int(line))
    return f" at {at}" + (f" (`{text}`)" if text else "")


def _sentence(cause: ZeroCause, text: str, seen: ObservedValues | None) -> str:
    name, dtype = cause.figure("name"), _word(cause.figure("dtype"))
    whole = cause.figure("whole") is not False
    if cause.why in ("flat", "clipped"):
        return f"{text} is flat {_where(cause)}{_range(cause, seen)}"
    if cause.why == "zeros-out":
        count = "zeros only" if whole else "zero wherever a gradient meets it"
        return f"{text} gives {count}{_range(cause, seen)}, and gradients are multiplied by that"
    if cause.why == "single":
        return f"{text} over a single entry is always 1: no gradient passes it"
    if cause.why == "module-hook":
        at = text.partition(" at ")[2]
        return (
            f"a backward hook{f', {at},' if at else ''} on the module turns its gradient into zeros"
        )
    if cause.why == "certain":
        rows = cause.figure("rows")
        every = f" in all {rows} rows" if rows else ""
        hidden = seen is not None and seen.low is not None and seen.low < _MASKED
        masks = " (some entries are masked)" if hidden else ""
        return f"{text} is certain{every}: each probability is 0 or 1{masks}, where its slope is 0"
    if cause.why == "attention":
        why = "the softmax inside it is flat, or each query sees a single key"
        return f"{text} sends no gradient to its queries and keys: {why}"
    if cause.why == "zero-weight":
        zeros = "is all zeros" if whole else "is zero wherever a gradient meets it"
        frozen = " and frozen (requires_grad is False)" if cause.figure("frozen") else ""
        return f"{text} multiplies by `{name}`, which {zeros}{frozen}"
    if cause.why == "input":
        return f"{text} multiplies by the model's input, which is {_zeros(whole)}"
    if cause.why == "mask":
        if cause.figure("number"):
            return f"{text} multiplies by 0"
        return f"{text} multiplies by a tensor without a gradient that is {_zeros(whole)}"
    return _SENTENCES[cause.why].format(text=text, dtype=dtype, **_rest(cause))


_SENTENCES = {
    "start": "the gradient that backward starts from is zero",
    "hook": "{text} on the tensor turns its gradient into zeros",
    "single-log": "{text} over a single entry is always 0, the softmax 1: no gradient passes it",
    "dropout": "dropout with p=1 replaces everything by zeros",
    "satisfied": "{text} is 0 for this batch, and so is the loss: there is nothing left to learn",
    "empty": "{text} is given a tensor without elements: the input is empty",
    "cancelled": "the gradients that meet at {text} cancel each other exactly",
    "cancelled-inside": "the gradients that {text} adds up cancel each other exactly",
    "constant-sum": "{text} gets the same gradient for every entry of a row: since they add up to"
    " 1, no entry can change the loss",
    "nothing-chosen": "{text} chooses nothing: what comes out has no element",
    "routing": "{text} passes on nothing of it: it takes its result from elsewhere at every place",
    "parts": "the gradient that comes to {text} lies in other parts of what it puts together",
    "padding": "{text} reads nothing but padding, whose row takes no gradient and is all zeros",
    "labels": "{text} counts no row: every label is ignored, or its class has weight 0",
    "minimum": "{text} is at its minimum: its two sides are exactly equal",
    "times-zero": "{text} takes it zero times (`alpha=0`)",
    "step": "{text} is a step function: its slope is 0 everywhere",
    "function": "the backward of {text}, an autograd function, gives zeros",
    "state": "{text} starts from a hidden state of zeros and takes no step from another",
    "constant": "{text} gives the same output whatever comes in: what it normalises is constant",
    "small": "gradients of at most {largest} become 0 at {text}: the product is too small for"
    " {dtype}",
    "exp": "{text} of numbers so far below 0 is 0 in {dtype}, and so is its slope",
    "power": "{text} of numbers that are not zero is too small for {dtype}, and so is its slope",
    "prod": "{text} of {n} factors is too small for {dtype} and becomes 0, and so does its slope",
    "factor-small": "{text} of numbers that are not zero is too small for {dtype} and becomes 0;"
    " gradients are multiplied by that",
    "zero-factor": "what comes out of {text} is zero, and gradients are multiplied by that",
    "unknown": "{text} passes on zeros, whatever gradient comes to it",
}


def _rest(cause: ZeroCause) -> dict[str, str]:
    largest, n = cause.figure("largest"), cause.figure("n")
    return {"largest": "" if largest is None else f"{largest:.3g}", "n": str(n)}


def _word(dtype: torch.dtype | None) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _zeros(whole: bool) -> str:
    return "all zeros" if whole else "zero wherever a gradient meets it"


def _where(cause: ZeroCause) -> str:
    reached, places = cause.figure("reached"), cause.figure("places")
    if not reached:
        return "wherever a gradient reaches it"
    if reached == places:
        text = f"at all its {reached} places" if reached > 1 else "at its one place"
    else:
        text = f"at all {reached} of its {places} places that a gradient reaches"
    units, of = cause.figure("units"), cause.figure("of")
    if not of or of == 1:
        return text
    return f"{text} ({units} of {of} units, {plural(places // of, 'value')} each)"


def _range(cause: ZeroCause, seen: ObservedValues | None) -> str:
    low, high = cause.figure("low"), cause.figure("high")
    if low is None and seen is not None:
        low, high = seen.low, seen.high
    if low is None or high is None:
        return ""
    if low == high:
        return f", for its inputs are all {low:.4g}"
    return f", for its inputs lie between {low:.4g} and {high:.4g}"


_ADVICE = {
    "dead-activation": "look at the scale of its inputs and at the bias before it: a smaller"
    " learning rate, another initialisation, or an activation with a slope there (LeakyReLU, GELU)",
    "saturated": "bring its inputs closer to 0: normalise what comes in, divide by a temperature,"
    " or initialise smaller",
    "zero-weight": "initialise one of the two factors with other than zeros",
    "masked": "look at the mask, the routing or the weight: with this batch nothing gets through",
    "underflow": "use a loss scale (`torch.amp.GradScaler`), a wider dtype, or other units",
    "non-differentiable": "copy the gradient past it (straight-through: `x + (q - x).detach()`)",
}
_PRECISE = {
    "start": "give `backward.gradient` something other than zeros",
    "hook": "look at what the hook multiplies the gradient by",
    "cancelled": "see whether the two sides should be the same",
    "cancelled-inside": "see whether the loss depends on this at all",
    "constant-sum": "compute the loss from single entries, not from their sum",
    "single": "normalise over all entries before choosing one",
    "clipped": "look at what comes in: beyond its bounds no gradient passes. A smaller scale, a"
    " smooth bound (`sigmoid`, `tanh`), or the clip in evaluation alone",
    "single-log": "use `BCEWithLogitsLoss` on the one logit, or give it two classes",
    "module-hook": "look at what the hook returns",
    "dropout": "give it a `p` below 1: it is the share that is dropped, not the one that is kept",
    "satisfied": "nothing to mend, if this is a margin: this batch satisfies it. Harder examples"
    " have a gradient",
    "empty": "give it a batch with elements: look at the input, a filter or a split",
    "frozen": "unfreeze it (`requires_grad_(True)`), or give it values other than zeros",
    "parts": "look at what is read of it afterwards: nothing depends on this part",
    "padding": "look at the input: with this batch there is nothing but padding",
    "labels": "look at the labels of this batch and at `ignore_index`",
    "minimum": "see whether the target is made from the output itself; if not, all is learnt",
    "exp": "use a wider kernel, or stay in the logarithm (`logsumexp`)",
    "prod": "add logarithms instead of multiplying",
    "constant": "give it more than one value to normalise over: a larger batch, or another norm",
    "margin": "if this is a margin in the loss, the batch satisfies it, and all is well; else look"
    " at the scale of its inputs",
    "state": "give it sequences of more than one step, or a state other than zeros",
    "logits": "take the activation off the logits: the loss wants them as they are",
    "input": "look at the input: `input` in the config, or what the data loader gives",
    "nothing-chosen": "with this batch nothing was chosen; see whether that is so for others",
    "unknown": "see what the operation does with inputs like these",
    "function": "give the function a backward that passes a gradient on",
}


def advice(cause: ZeroCause, recovers: bool | None, steps: int, *, inside: bool) -> str:
    """The next step, by what a look after one or more optimizer ``steps`` has shown.

    ``inside`` is whether the place lies in a module; what is outside of all belongs to the loss.
    """
    after = "one optimizer step" if steps == 1 else f"{steps} optimizer steps"
    if recovers:
        meant = "" if cause.kind == "zero-weight" else ", if it was meant"
        return f"nothing to mend{meant}: after {after} a gradient arrives"
    dead = cause.kind == "dead-activation"
    clipped = dead and cause.figure("logits")
    key = "logits" if clipped else "margin" if dead and not inside else cause.why
    if cause.figure("frozen"):
        key = "frozen"
    text = _PRECISE.get(key) or _ADVICE.get(cause.kind or "") or _PRECISE["unknown"]
    if recovers is False:
        return f"{text}; it is still zero after {after}"
    return text
