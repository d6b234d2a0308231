"""The message on a zero gradient: one sentence with its figures, and the next step."""

from __future__ import annotations

import ast

import torch
from torch.autograd.function import BackwardCFunction

from gradscope.explain.shared.frames import (
    assignment,
    assignments,
    factors,
    innermost,
    products,
    source,
    tree_of,
)
from gradscope.explain.shared.operations import by_node, node_name
from gradscope.explain.zero.factors import ZeroCause
from gradscope.explain.zero.traces import ObservedValues
from gradscope.typeset.numbers import plural

#: A mask value that is added to scores is smaller than any score.
_MASKED = -1e30


def called(cause: ZeroCause) -> str:
    """Return the operation's name as the user knows it."""
    if cause.node is None:
        return "a hook"
    if isinstance(cause.node, BackwardCFunction):
        return f"`{node_name(cause.node)}`"  # a class of the user's, as it is written
    operation = by_node(cause.node)
    if operation.name.startswith("scaled_dot_product"):
        return "`scaled_dot_product_attention`"
    return operation.title or f"`{operation.name}`"


def message(cause: ZeroCause, at: str | None, seen: ObservedValues | None) -> str:
    """Return one sentence; ``at`` is the line as ``net.py:31``."""
    if cause.why == "mask" and cause.figure("number"):
        return f"{called(cause)}{_at(at)} multiplies by {_number(at)}."
    return f"{_sentence(cause, called(cause) + _at(at), at, seen)}."


def _at(at: str | None) -> str:
    if at is None:
        return ""
    file, _, line = at.rpartition(":")
    text = source(file, int(line))
    return f" at {at}" + (f" (`{text}`)" if text else "")


def _number(at: str | None) -> str:
    """Return the factor 0 of a product on a line, and the line that sets it, if the text shows
    both."""
    file, _, line = (at or "").rpartition(":")
    tree = tree_of(file) if file else None
    found = [] if tree is None else factors(tree, int(line))
    made = [] if tree is None or len(found) != 1 else assignments(tree, found[0])
    if len(made) != 1:
        return "0"
    return f"`{found[0]}`, which is 0 (set at {file}:{made[0].lineno})"


def _factor(cause: ZeroCause, at: str | None) -> str:
    """Return the variable that is the factor without a gradient of the only product on a line, and
    the line that sets it, if the text shows both."""
    file, _, line = (at or "").rpartition(":")
    tree = tree_of(file) if file else None
    found = [] if tree is None else products(tree, int(line))
    sides = [] if cause.node is None else [one is not None for one, _ in cause.node.next_functions]
    if tree is None or len(found) != 1 or sides.count(False) != 1 or len(sides) != 2:
        return ""
    factor = found[0].right if sides[0] else found[0].left
    if not isinstance(factor, ast.Name):
        return ""
    made = assignment(factor.id, innermost(tree, int(line)), int(line))
    return "" if made is None else f": `{factor.id}`, set at {file}:{made.lineno}"


def _sentence(cause: ZeroCause, text: str, at: str | None, seen: ObservedValues | None) -> str:
    name, dtype = cause.figure("name"), _word(cause.figure("dtype"))
    everywhere = cause.figure("everywhere") is not False
    if cause.why in ("flat", "clipped"):
        return f"{text} is flat {_where(cause)}{_range(cause, seen)}"
    if cause.why == "zeros-out":
        count = "all zeros" if everywhere else "zero at every element with a gradient"
        return f"{text} returns {count}{_range(cause, seen)}, and gradients are multiplied by it"
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
        return (
            f"{text} is saturated{every}: each probability is 0 or 1{masks}, where its derivative "
            "is 0"
        )
    if cause.why == "attention":
        why = "its softmax is saturated, or each query has a single key"
        return f"{text} passes no gradient to its queries and keys: {why}"
    if cause.why == "zero-weight":
        zeros = "is all zeros" if everywhere else "is zero at every element with a gradient"
        frozen = " and frozen (requires_grad is False)" if cause.figure("frozen") else ""
        return f"{text} multiplies by `{name}`, which {zeros}{frozen}"
    if cause.why == "input":
        return f"{text} multiplies by the model's input, which is {_zeros(everywhere)}"
    if cause.why == "mask":
        which = f"a tensor without a gradient that is {_zeros(everywhere)}"
        return f"{text} multiplies by {which}{_factor(cause, at)}"
    return _SENTENCES[cause.why].format(text=text, dtype=dtype, **_rest(cause))


_SENTENCES = {
    "start": "the gradient passed to `backward` is zero",
    "hook": "{text} on the tensor turns its gradient into zeros",
    "single-log": "{text} over a single entry is always 0, the softmax 1: no gradient passes it",
    "dropout": "dropout with p=1 drops every element",
    "satisfied": "{text} is 0 for this batch, and so is the loss: there is nothing left to learn",
    "empty": "{text} gets a tensor without elements: the input is empty",
    "cancelled": "the gradients added at {text} cancel exactly",
    "cancelled-inside": "the gradients summed by {text} cancel exactly",
    "constant-sum": (
        "{text} gets the same gradient for every entry of a row: the entries add up to 1, so "
        "no entry can change the loss"
    ),
    "nothing-chosen": "{text} selects nothing: its result has no element",
    "routing": "{text} uses no element of it: every element of the result comes from another input",
    "parts": "the gradient at {text} is in its other inputs only",
    "padding": "{text} reads only padding, a row of zeros without a gradient",
    "only-padding": "{text} gets a gradient only where it reads padding, a row without a gradient",
    "labels": "{text} uses no row: every label is ignored, or its class has weight 0",
    "minimum": "{text} is at its minimum: its two sides are exactly equal",
    "times-zero": "{text} multiplies it by 0 (`alpha=0`)",
    "step": "{text} is a step function: its derivative is 0 everywhere",
    "function": "the backward of {text}, an autograd function, returns zeros",
    "state": "{text} runs a single step, from a hidden state of zeros",
    "first-state": "only the first step of {text} gets a gradient, and its hidden state is zero",
    "constant": "{text} has a constant output: the values it normalises are equal",
    "small": "gradients of at most {largest} become 0 at {text}: the product is too small for"
    " {dtype}",
    "exp": "{text} of numbers this far below 0 is 0 in {dtype}, and so is its derivative",
    "power": "{text} of nonzero numbers is too small for {dtype}, and so is its derivative",
    "prod": "{text} of {n} factors is too small for {dtype} and becomes 0, and so does its"
    " derivative",
    "factor-small": "{text} of nonzero numbers is too small for {dtype} and becomes 0;"
    " gradients are multiplied by it",
    "zero-factor": "the result of {text} is zero, and gradients are multiplied by it",
    "disjoint": "the result of {text} is all zeros: its mask is 0 wherever the other factor is not",
    "unknown": "{text} sends back a gradient of zeros, whatever gradient it gets",
}


def _rest(cause: ZeroCause) -> dict[str, str]:
    largest, n = cause.figure("largest"), cause.figure("n")
    return {"largest": "" if largest is None else f"{largest:.3g}", "n": str(n)}


def _word(dtype: torch.dtype | None) -> str:
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _zeros(everywhere: bool) -> str:
    return "all zeros" if everywhere else "zero at every element with a gradient"


def _where(cause: ZeroCause) -> str:
    reached, places = cause.figure("reached"), cause.figure("places")
    if not reached:
        return "at every element with a gradient"
    if reached == places:
        text = f"at all its {reached} elements" if reached > 1 else "at its one element"
    else:
        text = f"at all {reached} of its {places} elements with a gradient"
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
        return f"; its inputs are all {low:.4g}"
    return f"; its inputs are between {low:.4g} and {high:.4g}"


_ADVICE = {
    "dead-activation": (
        "check the scale of its inputs and the bias before it: try a smaller learning rate, "
        "another initialisation, or an activation with a nonzero slope (LeakyReLU, GELU)"
    ),
    "saturated": "bring its inputs closer to 0: normalise them, divide by a temperature,"
    " or initialise smaller",
    "zero-weight": "initialise one of the two factors with nonzero values",
    "masked": "check the mask, the routing or the weight: they block all of this batch",
    "underflow": "use a loss scale (`torch.amp.GradScaler`), a wider dtype, or other units",
    "non-differentiable": "copy the gradient past it (straight-through: `x + (q - x).detach()`)",
}
_PRECISE = {
    "start": "give `backward.gradient` nonzero values",
    "hook": "check the factor that the hook multiplies by",
    "cancelled": "check whether the two sides should be equal",
    "cancelled-inside": "check whether the loss depends on this",
    "constant-sum": "compute the loss from single entries, not from their sum",
    "single": "normalise over all entries before choosing one",
    "clipped": "check its inputs: beyond the bounds no gradient passes. Use a smaller scale, a"
    " smooth bound (`sigmoid`, `tanh`), or clip in evaluation only",
    "single-log": "use `BCEWithLogitsLoss` on the one logit, or give it two classes",
    "module-hook": "check the return value of the hook",
    "dropout": "give it a `p` below 1: `p` is the share to drop, not to keep",
    "satisfied": "nothing to mend if this is a margin: this batch satisfies it. Harder examples"
    " have a gradient",
    "empty": "give it a batch with elements: check the input, a filter or a split",
    "disjoint": "check the mask: it keeps only zeros, such as padding. It may be inverted",
    "frozen": "unfreeze it (`requires_grad_(True)`), or give it nonzero values",
    "parts": "check which part of the result is used: this one is not",
    "padding": "check the input: this batch has only padding",
    "only-padding": "check the padding mask: it keeps only padding. It may be inverted",
    "labels": "check the labels of this batch and `ignore_index`",
    "minimum": "check whether the target is computed from the output; if not, all is learnt",
    "exp": "use a wider kernel, or stay in log space (`logsumexp`)",
    "prod": "add logarithms instead of multiplying",
    "constant": "give it more than one value to normalise over: a larger batch, or another norm",
    "margin": "nothing to mend if this is a margin in the loss: the batch satisfies it; else check"
    " the scale of its inputs",
    "state": "give it sequences of more than one step, or a nonzero state",
    "first-state": "use the state after all steps: `h_n`, or the output of the last step",
    "logits": "remove the activation from the logits: the loss expects raw scores",
    "input": "check the input: `input` in the config, or the batches of the data loader",
    "nothing-chosen": "nothing was selected in this batch; check other batches",
    "unknown": "check the operation on inputs like these",
    "function": "give the function a backward that passes a gradient",
}


def advice(cause: ZeroCause, recovers: bool | None, steps: int, *, inside: bool) -> str:
    """Return the next step, given the gradient after one or more optimizer ``steps``.

    ``inside``: the operation is in a module; otherwise it belongs to the loss.
    """
    after = "one optimizer step" if steps == 1 else f"{steps} optimizer steps"
    if recovers:
        meant = "" if cause.kind == "zero-weight" else ", if this is intended"
        return f"nothing to mend{meant}: a gradient arrives after {after}"
    dead = cause.kind == "dead-activation"
    clipped = dead and cause.figure("logits")
    key = "logits" if clipped else "margin" if dead and not inside else cause.why
    if cause.figure("frozen"):
        key = "frozen"
    text = _PRECISE.get(key) or _ADVICE.get(cause.kind or "") or _PRECISE["unknown"]
    if recovers is False:
        return f"{text}; it is still zero after {after}"
    return text
