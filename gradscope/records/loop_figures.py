"""Records of a training loop: figures of losses, gradients, weights, inputs, outputs and tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LossOperation:
    """An operation between the models and the loss that is probably a mistake.

    Attributes:
        kind: "broadcast" ([N, 1] was combined with [N]), "single-softmax" (over an axis of
            size one), "softmax-axis" (over another axis than the classes' of the loss),
            "negated" (a loss that should be minimised is maximised),
            "scores" (a layer's output instead of log-probabilities), "pair-targets" (pairs
            whose targets give them no loss), "number" (a term of the loss is a Python
            number that a tensor gave), "penalty" (a term is made of gradients that have no
            graph), or one of those with figures:

            - "divided": the loss is divided by this number, "twice", or after its "mean" over as
              many samples
            - "cosine": the scores are cosines times the first number, of as many classes
            - "normalize-axis": rows are normalized along the batch, and their products are the
              scores; the shape of the normalized tensor
            - "learned-weight": a parameter weights a term alone; the weight
            - "posterior": the weight of the divergence relative to the error's sum, the root mean
              square of the means, and the largest distance of the variances from 1
            - "cut-encoder": nothing but this term depends on an encoder before a quantizer
            - "bootstrapped": the target of a distance has a maximum through which gradients flow
            - "attached-ratio": the exponential of a difference of 0, of two sides with a gradient
            - "attached-advantage": the log-probability of an action is multiplied by a constant
              minus a layer's output, with a gradient
            - "ascended-policy": log-probabilities of chosen actions are multiplied by ``name``,
              the returns, and the loss has them with a plus
            - "minimised-overlap": a part of the loss is an overlap, ``name``, with a plus
            - "own-positive": the target of each sample is its similarity with itself; the number
              of samples
            - "other-rows": the scores are chosen by an index, ``name`` has its first rows, and the
              targets are a slice with another place; ``shapes`` are those of the chosen and of all
            - "other-noise": the target ``name`` is noise that nothing else uses, and the input has
              another draw in it; ``words`` are the target, its line and the input
            - "exchanged-pairs": in a contrastive loss, the label ``name`` is on the other term than
              what it means; ``words`` are the label, and "same" or "different": the pairs for
              which it is 1
            - "scrambled": a view takes axis 1 for the last; ``shapes`` are before and after it
            - "kl-input", "kl-target", "kl-log-target": the divergence gets probabilities where it
              takes logarithms, or the other way round; the smallest and the largest value, and the
              number of the call that was read
        name: the operation's name; for a number, its expression.
        shapes: of a broadcast the column, the row and the result; of a softmax the result, and
            what the loss gets of it in another shape, or the index that chooses from it.
        count: the number of read graphs that contain it.
        alone: True if it is the only link between the loss and a model.
        inside: True if a model's call made it.
        location: ``file:line``, if known.
        first, figures: the figures of the first loss that was read, and of the last.
        words: as above.
    """

    kind: str
    name: str
    shapes: tuple[tuple[int, ...], ...]
    count: int
    alone: bool = False
    inside: bool = False
    location: str | None = None
    first: tuple[float, ...] = ()
    figures: tuple[float, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoopFact:
    """An exact fact on a loop.

    Attributes:
        kind: the kind, which determines the meaning of the other attributes:

            - "scrambled": the module ``name`` of ``model`` gets a view of an input with its axes
              in another order, though no number moved; ``shapes`` are before and after the view
            - "padding": the embedding ``name`` has a padding index (the first figure) that is
              between other tokens in ``count`` of so many sequences (the second figure)
            - "padded-state": the text uses only the last state of the recurrent network ``name``,
              and in ``count`` of so many sequences (the second figure) half and more of the
              tokens, at the end, are padding (the first figure)
            - "unused-activation": the modules ``words`` of ``model`` never ran, and the layer
              ``name`` gets the output of the last word with nothing but linear operations between
            - "repeated": the list ``name`` has one module ``count`` times
            - "written-data": the training's data set, of the class ``name``, is written to when
              it gives a batch: in ``count`` of so many (the figure); ``words`` is the attribute
            - "used-up": the iterator ``name`` was at its end, and was asked ``count`` times more
            - "seeded": the random numbers were set to a seed (the figure) in ``count`` steps
            - "exchanged-triplet": a line's triplet loss that gets the negative too early, in
              ``count`` calls; ``words`` are the arguments
            - "written-dropout": a call in the script's text; ``words`` is the call
            - "unmasked-target": a target of Q-learning in the script's text, ``words``, that does
              not depend on the end of an episode
            - "inverted-end": a target in the text, the first of ``words``, multiplies the next
              state's value by the flag of an episode's end, the second
            - "reversed-returns": the text appends discounted returns to ``name`` from the last to
              the first, and never turns the list round
            - "reset-return": a loop of the text sets the discounted return ``name`` to a number,
              the first of ``words``, before each addition to it, the second
            - "truncated-masks": the text rounds a result of ToTensor, ``words``, down to integers
            - "shuffled-alone": the text puts ``name`` into the order of a permutation that nothing
              else uses, or beside a slice of another array, the first of ``words``
            - "shuffled-apart": the text shuffles ``name`` and the first of ``words`` separately,
              and then takes both as pairs
            - "written-view": the text has a view that swaps sizes of an array; ``words`` are the
              call, and the names of the sizes before it
            - "other-draw": ``log_prob`` got another draw of a distribution than the one before it,
              in ``count`` steps; ``words`` are the class and the line of that draw
            - "frozen-head": the layer ``name`` of ``model`` gives the scores of a classification,
              and is frozen as its constructor made it; ``count`` other parameters train
            - "small-start": the line set the weights of the modules ``words`` of ``model`` to
              normal numbers whose deviation (the first figure) is far below Kaiming's (the
              second), for one in their middle
            - "one-batch": ``count`` calls got the only batch that was drawn before the last step,
              of a loader with so many (the figure); ``words`` has "evaluated" if the model
              also gets other inputs, in an evaluation or after the last step
            - "overfitted": the text gives Lightning's Trainer ``overfit_batches``; ``words`` are
              the argument, and "evaluated" as of "one-batch"
            - "shifted-labels": the data set of the class ``name`` gives its second of ``words``
              with the sample that is its first: an earlier one
            - "last-loss": the text computes the loss ``name`` in a loop over batches, and calls
              backward on it after the loop; ``words`` has "sum" if it is set to 0 before the loop
            - "inverted-ratio": the text has the ratio ``name`` of probabilities, ``words``, with
              the old ones above
            - "reverse-plateau": the scheduler ``name`` waits for a plateau of a figure, the first
              of ``words``, in the wrong mode, the second; ``count`` are its steps
            - "flat": the activation ``name`` of a network without modules; the figure is the
              smallest share of saturated values in ``count`` graphs that were read
            - "rebound": the text sets the variable ``name`` of a loop over parameters to a new
              value from its gradient, and uses it no more
            - "same-side": the optimizer ``name`` of a critic moves the scores of fakes in the same
              direction as that of the generator, the first of ``words``, in ``count`` losses;
              the second is "raise" or "lower"
            - "seeded-draw": the function ``name`` of the text seeds a new generator at each call,
              in a loop
            - "thaw": the text sets ``requires_grad`` on this condition, the first of ``words``
            - "redrawn": ``torch.nn.init`` drew all weights of the optimizer ``name`` again between
              its steps, ``count`` times; the figures are the numbers of weights and of steps
            - "eval-part": the part ``name`` of ``model`` is in eval mode in every call with
              gradients, though the model is in train mode and the part's parameters train; its
              ``count`` batch norms have still their initial running statistics
            - "growing-sum": the variable ``name`` holds a sum or a list with the graphs of
              ``count`` steps since a step (the figure), which no backward has used
            - "carried-graph": the graph of a loss contains nodes from between each of ``count``
              earlier backwards, since one of this number (the figure); ``name`` is the variable
              that carries them
            - "index-as-value": a target of Q-learning in the text, ``words``, uses the index
              of the best action
        name, model: of a module and of its model; "" without one.
        count: the number of times.
        words, figures, shapes: as above.
        location: ``file:line``, if known.
    """

    kind: str
    name: str = ""
    model: str = ""
    count: int = 1
    words: tuple[str, ...] = ()
    figures: tuple[float, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """Targets of a loss whose output has bounds.

    Attributes:
        by: the function that bounds the output: "sigmoid", "tanh", "relu", …; or the loss that
            takes probabilities as targets: "binary_cross_entropy_with_logits"; or "softmax of
            multi-label", with the sums of each sample's labels as targets.
        low, high: its bounds, which may be infinite.
        least, greatest: the extremes of all targets read.
        readings: the number of batches read.
        outside: the number of batches with targets out of bounds.
        share: the smallest share of targets out of bounds in such a batch.
        inside: True if a model's call computes the loss.
        location: ``file:line`` of the activation, else of the loss, if known.
        counted: True if the loss counts all targets alike, and none is left out.
    """

    by: str
    low: float
    high: float
    least: float
    greatest: float
    readings: int
    outside: int
    share: float
    inside: bool = False
    location: str | None = None
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """``sample()`` of a distribution that has ``rsample()`` and parameters that require a gradient.

    Attributes:
        kind: the distribution's class.
        steps: the number of steps with such a call.
        used: True if the sample was made in a model, or passed to one.
        location: the line of the first call.
    """

    kind: str
    steps: int
    location: str | None = None
    used: bool = False


@dataclass(frozen=True, slots=True)
class LossSide:
    """Losses of one kind that an optimizer used.

    Attributes:
        optimizer: its name.
        generated: True if the scores belong to another model's results, such as fakes.
        value: the value of all targets; None if they differ.
        location: ``file:line``, if known.
    """

    optimizer: str
    generated: bool
    value: float | None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LossTargets:
    """The targets of one kind of loss on one layer's scores, in the graphs that were read.

    Attributes:
        loss: "cross_entropy", "binary_cross_entropy" or "mse_loss".
        classes: the number of classes; 0 for numbers.
        batches: the number of batches read.
        targets: the number of targets; ``ignored`` of them have the ignored index.
        least: the smallest number of not ignored targets in a batch.
        empty: the number of batches in which all were ignored.
        ignore_index: the ignored class; None without one.
        value: the value of all targets that are not ignored; None if they differ.
        location: ``file:line`` of the loss, if known.
        made_at: ``file:line`` of the assignment that makes the targets, if the text shows one.
        inside: True if a model's call computes the loss.
        judged: the number of batches with eight targets or more; in ``single`` of them all
            targets are equal, with ``kinds`` classes in total.
        beside: True if another term of the loss depends on a model too.
        layer: True if the scores are those of one layer, with an output for each class.
        constant: the loss of the best answer that ignores the input: the entropy of the class
            frequencies, or the variance of the numbers. None if the loss has other terms or
            weights.
        rms: the root mean square of numbers.
        weights: the class weights, and ``counts`` the frequency of each class; ``weighted_at`` is
            the only line of the script that gives class weights to a loss.
        sides: if there are several models, the losses of this kind with a positive weight, for each
            optimizer that used them.
    """

    loss: str
    classes: int
    batches: int
    targets: int
    least: int = 0
    ignored: int = 0
    empty: int = 0
    ignore_index: int | None = None
    value: float | None = None
    location: str | None = None
    inside: bool = False
    judged: int = 0
    single: int = 0
    kinds: int = 0
    beside: bool = False
    layer: bool = True
    constant: float | None = None
    rms: float | None = None
    weighted_at: str | None = None
    weights: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sides: tuple[LossSide, ...] = ()
    made_at: str | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """A loss over the run: the mean of its first steps (``began``), of its third and of its last
    quarter.

    ``error`` is the standard error of the difference of the two quarters, ``spread`` the deviation
    of single steps from the mean of their block, ``lowest`` the smallest mean of a block. They
    cover ``steps`` steps, from ``since`` on.
    """

    first: float
    began: int
    middle: float
    last: float
    error: float
    spread: float
    lowest: float
    since: int
    steps: int


@dataclass(frozen=True, slots=True)
class LoopClipping:
    """Clipping of an optimizer's gradients.

    Attributes:
        optimizer: its name.
        clips: the number of times that they were clipped, or read; for the last ``known`` the
            factor is known.
        shortened: the number of these that clipping made smaller.
        factor: the median factor, 1 without clipping.
        bound: the bound of the norm; None if the script clips with its own code.
        location: the line.
    """

    optimizer: str
    clips: int
    known: int
    shortened: int
    factor: float
    bound: float | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """A layer with a weight, in the order of forward.

    Attributes:
        name: the module's name.
        ratio: the largest ‖gradient‖ / ‖weight‖ of this layer and all layers upstream, divided by
            the largest downstream. Each is a root mean square over all samples.
    """

    name: str
    ratio: float


@dataclass(frozen=True, slots=True)
class LoopDepth:
    """The decrease of a model's gradients over depth, in the samples of one optimizer's steps.

    Attributes:
        model: its number in the run.
        optimizer: the optimizer's name.
        samples: the number of samples.
        layers: the layers in the order of forward, without the last.
        last: the name of the last layer.
    """

    model: int
    optimizer: str
    samples: int
    layers: tuple[LayerGradient, ...]
    last: str


@dataclass(frozen=True, slots=True)
class LoopWeights:
    """Updates by an optimizer of a model's weights with two or more axes.

    Attributes:
        model: its number in the run.
        optimizer: the optimizer's name.
        samples: the number of samples.
        first, last: the norm of all of these weights, in the first and in the last sample.
        ratio: the median update ratio over the weights, averaged over the samples.
        decay: the median share of weight decay over the weights, the smallest over the second
            half of the samples; 0 without weight decay, or if unknown.
        rms: the median root mean square of the update over the weights, averaged over the
            samples.
        rate, weight_decay: those of the first group, in the last sample.
        steps: the number of steps between the first sample and the last.
    """

    model: int
    optimizer: str
    samples: int
    first: float
    last: float
    ratio: float
    rms: float
    decay: float
    rate: float
    weight_decay: float
    steps: int


@dataclass(frozen=True, slots=True)
class LoopBatches:
    """The batches of a model's calls with gradients, in the sampled steps.

    Attributes:
        model: the model's number.
        batches: the number of batches with four samples or more that were read.
        alike: the number of batches whose samples are all equal.
        outputs: the number of batches with different samples whose outputs were read.
        constant: the number of latest batches in a row whose outputs are equal for all samples.
        location: the line of the model's first call.
        size: the root mean square of the first floating input, in the last batch; 0 without one.
        twins: the number of batches in which two inputs in different memory had equal numbers.
    """

    model: int
    batches: int
    alike: int = 0
    outputs: int = 0
    constant: int = 0
    location: str | None = None
    size: float = 0.0
    twins: int = 0


@dataclass(frozen=True, slots=True)
class EqualUnits:
    """A weight whose rows are all equal in all samples, although it trains, or that is zero in all
    samples.

    Attributes:
        model: the model's number.
        name: the weight's name.
        units: the number of its rows; 0 if the weight is zero.
        readings: the number of samples.
        location: the line that made all entries equal, if known.
    """

    model: int
    name: str
    units: int
    readings: int
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopInputs:
    """The inputs of a model in evaluations, compared with those in training.

    Attributes:
        model: the model's number.
        readings: the number of evaluations read, all on as many samples.
        mean, deviation: those of the inputs in training.
        least_shift: the smallest shift of an evaluation's mean, in these deviations.
        least_ratio: the smallest quotient of the two deviations, the larger divided by the
            smaller.
        example: mean and deviation of the last evaluation.
        location: the line of the first evaluation.
    """

    model: int
    readings: int
    mean: float
    deviation: float
    least_shift: float
    least_ratio: float
    example: tuple[float, float]
    location: str | None = None


@dataclass(frozen=True, slots=True)
class FrozenAdapters:
    """Pairs of frozen weights of low rank, the second of which is zero.

    Attributes:
        model: the model's number.
        pairs: the number of pairs.
        names: the names of the first pair.
        trained: the first trainable parameter of the model.
        location: the first line that freezes something, else the line that made the first pair.
    """

    model: int
    pairs: int
    names: tuple[str, str]
    trained: str
    location: str | None = None


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A ``torch.autograd.Function`` of the script with a wrong backward.

    Attributes:
        name: the class.
        input: the number of the argument whose gradient is wrong, from 0.
        step: the step whose arguments it was checked on.
        backward: the derivative in a random direction, by backward.
        differences: the same by finite differences, in float64.
        zeros: True if backward returns only zeros.
        flat: True if the forward is a step function. Its backward is another on purpose, and is
            only recorded if it returns zeros.
        ignores: True if the result does not depend on the incoming gradient.
        location: the line where backward returns, if known.
    """

    name: str
    input: int
    step: int
    backward: float
    differences: float
    zeros: bool
    ignores: bool
    location: str | None = None
    flat: bool = False


@dataclass(frozen=True, slots=True)
class LoopCopy:
    """A copy of a trained model that no optimizer holds.

    Attributes:
        name: the name of its variable, or its path in the model.
        of: the name of the model, or the part of it, with equal weights at the start.
        calls: the number of its calls.
        steps: the number of steps with a call.
        compared: the number of steps after which its weights were read last.
        unchanged: True if they were those from before the first step.
        stale_buffers: True if its weights changed, but its buffers (such as running statistics)
            did not, while the buffers of the model ``of`` did.
        follows: True if its name or class, or those of its owner, say that it follows the
            model ``of``: "target", "ema".
        location: the line of its first call.
        made: the line that assigns it, if there is one.
        updated: the last line that loads weights into it, unless that is its start.
        moved: the distance of an average's weights from the start, as a share of the distance of
            the model ``of``, when they were read last.
    """

    name: str
    of: str
    calls: int
    steps: int
    unchanged: bool
    stale_buffers: bool
    follows: bool
    location: str | None = None
    made: str | None = None
    updated: str | None = None
    compared: int = 0
    moved: float | None = None


@dataclass(frozen=True, slots=True)
class LoopTokens:
    """The targets of one model's losses, if there is one target per input token.

    Attributes:
        model: the model's number.
        batches: the number of batches read, and in how many of them

            - ``copied``: each counted target is the token at its own position
            - ``following``: each counted target is the next token
            - ``skipping``: each counted target is the token after the next
            - ``unended``: each sequence ends in one token, the padding is the same token, and the
              target at the end is ignored
            - ``unanswered``: each counted target is the next token, and in each sequence they come
              before all ignored ones, which are real tokens
        future: True if a replay shows that outputs depend on later tokens; None without a replay.
        past, own: the same for earlier tokens, and for the token at the output's position.
        targets: the number of targets; ``padding``: the number of targets at padding, if all of
        them are one class that no other target has. pad, pad_class: the token of the padding, and
        that class.
        lengths: the largest number of different lengths, without padding, in a batch.
        end: the token that ends the sequences of ``unended``.
        location: ``file:line`` of the loss, if known.
        inside: True if the call of a model computes the loss.
        called_at: the line that calls the model.
        made_at: the line of the script that assigns the targets, if its text shows that.
        mixed_at: the line of the first attention operation, if a replay found it.
        ignored_at: the line of the script that sets the ignored targets of ``unanswered``, if its
            text shows that.
    """

    model: int
    batches: int
    copied: int = 0
    following: int = 0
    skipping: int = 0
    unended: int = 0
    future: bool | None = None
    past: bool | None = None
    own: bool | None = None
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
    unanswered: int = 0
    ignored_at: str | None = None
