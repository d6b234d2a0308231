"""Makes the batches of a run: from the config's sources, from a data function, or inferred."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradscope.config.inputs import is_keywords
from gradscope.config.targets import is_target
from gradscope.loading.batches import Batch, as_it_is, raw_batches, to_batch
from gradscope.loading.devices import seed_everything
from gradscope.loading.first_layer import Inferred
from gradscope.loading.inference import infer
from gradscope.loading.sources import Build, Context
from gradscope.loading.sources.grammar import plan_call, plan_target
from gradscope.loading.sources.tensors import Modifiers

__all__ = ["Batch", "given", "make_batches"]

Batches = Callable[[], Iterator[Batch]]


def make_batches(
    config_input: Any,
    config_target: Any,
    context: Context,
    *,
    seed: int,
    as_one: bool = False,
    parts: int = 0,
    own: Batches | None = None,
) -> tuple[Batches, list[str], Any]:
    """Return a factory of fresh batch iterators, the inferred settings, and every batch's
    target.

    Each iterator seeds at its start, so all yield equal values. The target is a tensor,
    ``"random"``, or None; a batch of a data function may have its own target. The model must
    already be in the mode of the run, because detection models take targets in train mode only.
    With ``as_one``, a data function's batch is one argument; a batch with ``parts`` parts is that
    many arguments. ``own`` inputs of the caller replace the config's.

    Raises:
        ConfigError: a source is wrong, or the input cannot be inferred.
        ModelError: the user's data function raised.
    """
    if own is not None:
        drawn = config_target in (None, "random")
        return (
            own,
            context.notices,
            config_target if drawn else plan_target(config_target, context)(),
        )
    wishes = ("batch", "requires_grad")
    target = config_target
    wished = isinstance(config_input, Mapping) and not is_keywords(config_input)
    keys = set(config_input) if wished else set()
    if "transform" in keys and keys <= {*wishes, "transform"}:
        raise context.error(
            "input.transform",
            "`input.transform` is for pictures, and `input` names none",
            help="add `image: PATH`, or run `gradscope saliency PICTURE`",
        )
    if config_input is None or (keys and keys <= {*wishes}):
        inferred = _infer(config_input or {}, context)
        config_input = inferred.input
        target = inferred.target if target is None else target
    make = None if target is None or target == "random" else plan_target(target, context)
    if is_target(config_input):
        batches = _from_function(config_input, seed, context, as_one=as_one, parts=parts)
        if make is not None:
            # Not the inputs' own seed: a drawn target must not repeat the numbers of the input.
            seed_everything(seed + 1)
        return batches, context.notices, make() if make else target
    as_argument = context.kind.category == "detection" and _is_structured(target)
    batches = _from_sources(config_input, make, seed, context, as_argument=as_argument)
    first = next(batches())  # mistakes in a source are reported now, before anything runs
    if as_argument:
        target = None
    return batches, context.notices, target if first.target is None else first.target


def given(inputs: Any, *, as_one: bool = False) -> Callable[[], Iterator[Batch]]:
    """Return the caller's tensors as the only batch; as one argument if the method takes it so."""
    if as_one:
        batch = Batch((inputs,))
    elif isinstance(inputs, Mapping):
        batch = Batch((), dict(inputs))
    elif isinstance(inputs, tuple | list) and not hasattr(inputs, "_fields"):
        batch = Batch(tuple(inputs), {})
    else:
        batch = Batch((inputs,), {})
    return lambda: iter([batch])


def _infer(wishes: Mapping[str, Any], context: Context) -> Inferred:
    modifiers = Modifiers.read(wishes, context, "input")
    inferred = infer(context, batch=modifiers.batch)
    if modifiers.requires_grad:
        inferred = inferred.with_gradients()
    context.say(f"input: {inferred.summary} (inferred from {inferred.origin})")
    return inferred


def _is_structured(target: Any) -> bool:
    """Return True for a target with one mapping of sources per picture, as detection takes."""
    return isinstance(target, list) and any(isinstance(item, Mapping) for item in target)


def _from_sources(
    config: Any, make_target: Build | None, seed: int, context: Context, *, as_argument: bool
) -> Batches:
    """Return one batch; its target is drawn after its inputs."""
    call = plan_call(config, context)

    def batches() -> Iterator[Batch]:
        seed_everything(seed)
        args, kwargs = call()
        target = make_target() if make_target else None
        yield Batch((*args, target), kwargs) if as_argument else Batch(args, kwargs, target)

    return batches


def _from_function(
    config: Mapping[str, Any], seed: int, context: Context, *, as_one: bool, parts: int
) -> Batches:
    def make() -> Any:
        seed_everything(seed)
        return context.instantiate(config, "input")

    # Making the data once checks names, arguments and imports; the first iteration uses it.
    waiting = [make()]

    def batches() -> Iterator[Batch]:
        made = waiting.pop() if waiting else make()
        seed_everything(seed)
        raw = raw_batches(made, context, "input")
        for index, batch in enumerate(raw, start=1):
            if as_one or (parts > 1 and isinstance(batch, tuple | list) and len(batch) == parts):
                yield as_it_is(batch, context, "input", unpacked=not as_one)
            else:
                yield to_batch(batch, context, "input")
            # Random draws of the model do not change the next batch.
            seed_everything(seed + index)

    return batches
