"""A spike of a training run: its samples, the steps before it, and the verdict."""

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
        position: in the sample's row of the targets, as the loss function got them, from 0.
        loss: its own.
        target: its index in the vocabulary.
        median: of the losses of the sample's tokens; None: it is the only one that counts.
    """

    position: int
    loss: float
    target: int
    median: float | None = None


@dataclass(frozen=True, slots=True)
class SpikeSample:
    """One sample of the step, and its part of the gradient.

    Attributes:
        index: in the batch, from 0.
        dataset_index: as the sampler of the script's ``DataLoader`` gave it; None: not known.
        loss: its own, averaged over its tokens or pixels; None: not known.
        gradient_norm: L2 over all parameters of the model, of its part of the batch's gradient.
        share: of the batch's gradient along its direction; all shares add up to 1.
        cosine: of its part and the sum of all others'.
        layers: the parameters that hold most of its part, the largest first.
        nonfinite: "input", "output" or "gradient" where its row of these has a NaN or Inf.
        input_rms: root mean square of its inputs that are real numbers.
        call: the number of the model's call in the step.
        token: with the largest loss, of a sequence of tokens.
        input_max: the largest absolute value of its inputs that are real numbers.
        copy_of: the first sample of the batch with the same inputs, if it is not itself.
        constant: its inputs repeat one value, as an empty text and a blank picture do.
        length: of its tokens, without those that fill its end.
        norm_without: of the batch's gradient, from a forward and backward of the batch without the
            sample; where a module mixes the samples, as BatchNorm does.
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


@dataclass(frozen=True, slots=True)
class SpikeSignals:
    """One step of the optimizer.

    ``update_norm`` is that of the update that this step made, where it follows from the gradient:
    with plain SGD. ``weight_norm`` is read before the update, every few steps. ``update_rms`` is
    the root mean square of the update, where the optimizer's state tells it. ``sample_loss`` is the
    largest loss of a sample, ``input_max`` the largest absolute value of the inputs.
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
        kind: "setting" of the optimizer; "state": its state is new; "written": its state was
            written to; "weights": these were written to.
        name: of the setting, or of the tensor in the state.
        before: the setting's value, or the norm of the weights at the last reading.
        after: the same after the change.
    """

    step: int
    kind: str
    name: str = ""
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class BatchHistory:
    """Figures of single samples in the steps before: what a usual sample looks like.

    Attributes:
        steps: how many of them have figures of inputs.
        loss_steps: how many of them have losses of samples.
        usual_loss: median over the steps of the largest loss of a sample.
        high_loss: the largest of these.
        usual_median: median over the steps of the median loss of a sample.
        high_median: the largest of these.
        usual_input: median over the steps of the largest absolute value of the inputs.
        high_input: the largest of these, without the highest 2 %.
        spread_input: their robust standard deviation, of the logarithms.
        constant: the most samples of one step whose inputs repeat one value.
        length: the most tokens of a sample in one step.
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


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The optimizer before the step.

    Attributes:
        kind: its class.
        settings: the plain numbers of its first parameter group.
        parameters: how many values it holds.
        steps: as its state counts them; None where it has none.
        first_moment: mean absolute value of Adam's first moment.
        second_moment: root mean square of the square root of the second.
        update_rms: of the last update of Adam, over the learning rate.
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
    """Record of a step that stands out.

    Attributes:
        step: its number in the run.
        optimizer: its name in the run.
        reason: why it is kept, in words.
        kind: "loss", "gradient", "non-finite", "input", "sample" (its loss), "asked"; or "highest":
            the step does not stand out, but fewer than three were more unusual.
        score: how far it stands out, in robust standard deviations.
        history: of single samples, in the steps before.
        changes: of the optimizer and the weights between the last steps.
        model: the name of the model whose calls the samples are of.
        samples: the worst first.
        norm: of the batch's gradient; None if it is not finite or was not split.
        usual_norm, high_norm: median and nearly the highest of the gradient's norm before.
        usual_loss: median of the losses before.
        counted: how many steps of this optimizer came before.
        signals: of the last steps before it and of the step, in order.
        state: of the optimizer.
        mixing: modules that make a sample's output depend on the others.
        notes: unknown facts, with the reason.
        tensors: the names of the tensors in the file.
        follows: the step of an earlier spike that no sample made, of which this may be the
            aftermath; None: there was none in the last steps.
        rank: of the process whose samples these are; None: the run has one process.
        sources: the files with the script and the model's classes, each with its SHA-256.
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


@dataclass(frozen=True, slots=True)
class Without:
    """The step without one of its samples: the norm of its gradient, and the cosine of both."""

    index: int
    norm: float
    cosine: float


@dataclass(frozen=True, slots=True)
class SpikeReport:
    """Answer of ``spike`` for one capsule.

    ``cause`` is one of ``CAUSES``, ``message`` its evidence. ``others`` are the steps of the run's
    other capsules. ``rank`` is that of the process whose samples these are, of several.
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
