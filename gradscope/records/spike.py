"""Records of a spike: its samples, the steps before it, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradscope.records.data import SPARSE

#: Possible causes of a step that stands out.
CAUSES = (
    "samples",
    "labels",
    "learning-rate",
    "optimizer",
    "weights",
    "loss-scale",
    "undetermined",
)


@dataclass(frozen=True, slots=True)
class SpikeToken:
    """The token of a sample with the largest loss.

    Attributes:
        position: its position in the sample's row of the targets of the loss function, from 0.
        loss: its loss.
        target: its index in the vocabulary.
        median: the median loss of the sample's tokens; None if it is the only one.
    """

    position: int
    loss: float
    target: int
    median: float | None = None


@dataclass(frozen=True, slots=True)
class LaterLoss:
    """The answer of a classifier for a sample some steps later.

    Attributes:
        step: the number of the later step.
        loss: the sample's loss with the weights before that step.
        predicted_loss: its loss with the class that the model predicts.
        same: True if that is the class that the model predicted in the sample's own step.
        asked: the number of other samples that were asked for before.
        stayed: the number of these whose loss stayed large, with the same predicted class.
    """

    step: int
    loss: float
    predicted_loss: float
    same: bool
    asked: int = 0
    stayed: int = 0


@dataclass(frozen=True, slots=True)
class SpikeSample:
    """One sample of the step, and its part of the gradient.

    Attributes:
        index: its position in the batch, from 0.
        dataset_index: its index in the dataset, from the sampler of the script's
            ``DataLoader``; None if unknown.
        loss: its loss, averaged over its tokens or pixels; None if unknown.
        gradient_norm: the L2 norm of its part of the batch's gradient, over all parameters of
            the model.
        share: its share of the batch's gradient, measured along it; all shares add up to 1.
        cosine: the cosine of its part and the sum of all other parts.
        layers: the parameters with the largest parts, the largest first.
        nonfinite: "input", "output" or "gradient" if its row of these has a NaN or Inf.
        input_rms: the root mean square of its real-valued inputs.
        call: the number of the model's call in the step.
        token: the token with the largest loss, for a sequence of tokens.
        input_max: the largest absolute value of its real-valued inputs.
        copy_of: the first other sample of the batch with equal inputs.
        constant: True if its inputs repeat one value, as in an empty text or a blank picture.
        length: the number of its tokens, without padding at the end.
        norm_without: if a module mixes the samples (such as BatchNorm), the norm of the
            gradient of the batch without the sample, from another forward and backward.
        twin: an earlier call whose sample with this index has the same inputs.
        constant_in: the inputs, by their paths among the arguments, that repeat one value.
        predicted_loss: of a classifier, the loss with the class that the model predicts.
        term: of a call with several rows for each term of the loss, as an anchor, a positive and a
            negative in one batch: the term of its row; None for other calls, or if unknown.
        later: the model's answer some steps later, for a sample whose label may be wrong.
    """

    index: int
    dataset_index: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    share: float | None = None
    cosine: float | None = None
    layers: tuple[str, ...] = ()
    nonfinite: str | None = field(default=None, metadata=SPARSE)
    input_rms: float | None = field(default=None, metadata=SPARSE)
    call: int = field(default=0, metadata=SPARSE)
    token: SpikeToken | None = field(default=None, metadata=SPARSE)
    input_max: float | None = field(default=None, metadata=SPARSE)
    copy_of: int | None = field(default=None, metadata=SPARSE)
    constant: bool = field(default=False, metadata=SPARSE)
    length: int | None = field(default=None, metadata=SPARSE)
    norm_without: float | None = field(default=None, metadata=SPARSE)
    twin: int | None = field(default=None, metadata=SPARSE)
    constant_in: tuple[str, ...] = field(default=(), metadata=SPARSE)
    predicted_loss: float | None = field(default=None, metadata=SPARSE)
    term: int | None = field(default=None, metadata=SPARSE)
    later: LaterLoss | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class SpikeSignals:
    """The signals of one optimizer step.

    ``update_norm`` is the norm of its update, with plain SGD. ``weight_norm`` is read before the
    update, every few steps. ``update_rms`` is the root mean square of the update, if it follows
    from the optimizer's state. ``sample_loss`` is the largest loss of a sample, ``input_max`` the
    largest absolute value of the inputs.
    """

    step: int
    loss: float | None = None
    gradient_norm: float | None = None
    clipped_norm: float | None = None
    learning_rate: float | None = None
    update_norm: float | None = None
    weight_norm: float | None = None
    loss_scale: float | None = None
    update_rms: float | None = field(default=None, metadata=SPARSE)
    sample_loss: float | None = field(default=None, metadata=SPARSE)
    input_max: float | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class OutsideChange:
    """A change of the optimizer or the weights that no step of the optimizer made.

    Attributes:
        step: the first step after it.
        kind: "setting": a setting of the optimizer changed; "state": its state is new;
            "written": its state was written to; "weights": the weights were written to; "factor":
            the script multiplies the loss by another constant; "scaled": the gradients that the
            optimizer gets still have the scaler's factor.
        name: the name of the setting, or of the tensor in the state.
        before: the setting's value or the constant, or the norm of the weights when last read.
        after: the same after the change.
        since: the step at which the norm of the weights was last read.
    """

    step: int
    kind: str
    name: str = ""
    before: float | None = None
    after: float | None = None
    since: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """Figures of single samples in the steps before, to judge what is usual.

    Attributes:
        steps: the number of steps with figures of inputs.
        loss_steps: the number of steps with losses of samples.
        usual_loss: median over the steps of the largest loss of a sample.
        high_loss: the largest loss of a sample in all steps.
        usual_median: median over the steps of the median loss of a sample.
        high_median: the largest median loss of a step.
        usual_input: median over the steps of the largest absolute value of the inputs.
        high_input: the largest absolute value in all steps, without the highest 2 %.
        spread_input: robust standard deviation of the largest absolute values, of the logarithms.
        constant: the largest number of samples in one step whose inputs repeat one value.
        length: the largest number of tokens of a sample in one step.
        copies: the largest number of samples with equal inputs in one step.
        twins: the largest number of samples of one step with equal inputs in two calls, or in two
            rows of one term of the loss.
        spread_loss: robust standard deviation of the largest losses, of the logarithms.
        constant_steps: the number of steps with a sample whose inputs repeat one value.
        varied: the inputs, by their paths, that no sample had with one repeated value.
    """

    steps: int = 0
    loss_steps: int = 0
    usual_loss: float | None = None
    high_loss: float | None = None
    usual_median: float | None = None
    high_median: float | None = None
    usual_input: float | None = None
    high_input: float | None = None
    spread_input: float | None = None
    constant: int | None = None
    length: int | None = None
    copies: int | None = None
    twins: int | None = None
    spread_loss: float | None = None
    constant_steps: int = 0
    varied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierBatch:
    """The batch of a step before, with ``run --keep-batches``.

    ``samples`` are in their order, with what is known without a replay. ``note`` has the reason if
    they are unknown.
    """

    step: int
    samples: tuple[SpikeSample, ...] = ()
    note: str = field(default="", metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class CallState:
    """The state around a call of a model at its start: a replay needs it.

    Attributes:
        model: the name of the model.
        training: True if the model was in train mode.
        others: the names of the modules in the other mode.
        frozen: the names of the parameters with ``requires_grad=False``.
        dtype: of the model's floating parameters, such as "float32"; "" if they have several.
        autocast: the dtype of autocast for each kind of device; empty if it was off.
        random: the generators whose states are kept, since the forward draws from them: "torch"
            (on the CPU), "python", "numpy", or a GPU such as "cuda:0"; None if a state that it
            needs is unknown.
    """

    model: str
    training: bool = True
    others: tuple[str, ...] = field(default=(), metadata=SPARSE)
    frozen: tuple[str, ...] = field(default=(), metadata=SPARSE)
    dtype: str = ""
    autocast: dict[str, str] = field(default_factory=dict)
    random: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The optimizer before the step.

    Attributes:
        kind: its class.
        settings: the plain numbers of its first parameter group.
        parameters: the number of elements in its parameters.
        steps: the step count in its state; None without one.
        first_moment: mean absolute value of Adam's first moment.
        second_moment: root mean square of the square root of the second.
        update_rms: root mean square of Adam's last update, over the learning rate.
    """

    kind: str
    settings: dict[str, float] = field(default_factory=dict)
    parameters: int = 0
    steps: int | None = None
    first_moment: float | None = None
    second_moment: float | None = None
    update_rms: float | None = None


@dataclass(frozen=True, slots=True)
class Capsule:
    """The record of a spike, or of another unusual step.

    Attributes:
        step: its number in the run.
        optimizer: its name in the run.
        reason: the reason why it is kept, in words.
        kind: "loss", "gradient", "non-finite", "input", "sample" (its loss), "asked"
            (requested); or "highest": not a spike, but one of the three most unusual steps.
        score: its distance from usual steps, in robust standard deviations.
        history: figures of single samples in the steps before.
        changes: changes of the optimizer and the weights between the last steps.
        model: the name of the model of the samples.
        samples: the samples, worst first.
        norm: the norm of the batch's gradient; None if it is not finite or was not split.
        usual_norm, high_norm: the median and almost the highest gradient norm of the steps
            before.
        usual_loss: the median of the losses before.
        counted: the number of earlier steps of this optimizer.
        signals: the signals of the last steps before it and of the step, in order.
        state: the optimizer's state.
        mixing: modules that make a sample's output depend on the others.
        notes: unknown facts, with the reason.
        tensors: the names of the tensors in the file.
        follows: an earlier spike with another cause than a sample, which may have caused this
            one; None without one in the last steps.
        rank: the rank of these samples; None if the run has one process.
        sources: the files with the script and the model's classes, each with its SHA-256.
        earlier: the batches of the steps before it, if the user asked for them.
        calls: the state around each call of the step, in order; empty in a capsule of an older
            gradscope.
    """

    step: int
    optimizer: str
    reason: str
    kind: str
    schema: str = "gradscope.capsule/1"
    model: str = ""
    samples: tuple[SpikeSample, ...] = ()
    norm: float | None = None
    usual_norm: float | None = None
    high_norm: float | None = None
    usual_loss: float | None = None
    counted: int = 0
    signals: tuple[SpikeSignals, ...] = ()
    state: OptimizerState | None = None
    mixing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    follows: int | None = None
    rank: int | None = field(default=None, metadata=SPARSE)
    score: float | None = field(default=None, metadata=SPARSE)
    history: BatchHistory = field(default_factory=BatchHistory, metadata=SPARSE)
    changes: tuple[OutsideChange, ...] = field(default=(), metadata=SPARSE)
    sources: dict[str, str] = field(default_factory=dict, metadata=SPARSE)
    earlier: tuple[EarlierBatch, ...] = field(default=(), metadata=SPARSE)
    calls: tuple[CallState, ...] = field(default=(), metadata=SPARSE)


@dataclass(frozen=True, slots=True)
class Without:
    """The step without one of its samples: the gradient's norm, and its cosine with the full
    gradient."""

    index: int
    norm: float
    cosine: float


@dataclass(frozen=True, slots=True)
class SpikeReport:
    """The answer of ``spike`` for one capsule.

    ``cause`` is one of ``CAUSES``, ``message`` its evidence. ``others`` has the steps of the run's
    other capsules. ``rank`` is the rank of these samples, if there are several. ``calls`` has the
    state around each call of the step, and ``bytes`` is the size of the capsule.
    """

    step: int
    cause: str
    message: str
    schema: str = "gradscope.spike/1"
    status: str = "findings"
    run: str = ""
    file: str = ""
    reason: str = ""
    model: str = ""
    norm: float | None = None
    samples: tuple[SpikeSample, ...] = ()
    signals: tuple[SpikeSignals, ...] = ()
    state: OptimizerState | None = None
    mixing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    without: tuple[Without, ...] = ()
    others: tuple[int, ...] = ()
    rank: int | None = field(default=None, metadata=SPARSE)
    earlier: tuple[EarlierBatch, ...] = field(default=(), metadata=SPARSE)
    calls: tuple[CallState, ...] = field(default=(), metadata=SPARSE)
    bytes: int | None = None
