"""A spike: the verdict, the samples, the steps before, the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from gradscope.charts.panels import Curve, Panel, Point, Stretch, point
from gradscope.pages import Part, Picture
from gradscope.records.spike import CallState, EarlierBatch, SpikeReport, SpikeSample, SpikeToken
from gradscope.reporters.document import Block, Document, Prose, formats
from gradscope.reporters.views import TextView
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural, size
from gradscope.typeset.tables import Heading, Table, of_columns
from gradscope.typeset.text import plain

#: Number of samples, and of steps before, that are shown; JSON has all.
_SAMPLES, _STEPS = 8, 8
#: Number of samples whose input is drawn on the page.
_PICTURES = 16
_TONES = {"undetermined": "warn"}
_REMEDY = "use a wider terminal, or -f json"


def title(report: SpikeReport) -> list[str]:
    """Return the step, its model, and the reason why it was kept."""
    model = [plain(report.model)] if report.model else []
    rank = [] if report.rank is None else [f"rank {report.rank}"]
    return [f"step {count(report.step)}", *rank, *model, plain(report.reason)]


def verdict(report: SpikeReport) -> Iterator[Line]:
    """Yield the cause, and the restrictions of the verdict."""
    tone = _TONES.get(report.cause, "bad")
    yield Line(plain(report.message), f"{plain(report.cause)}:", tone)
    if report.mixing:
        names = ", ".join(f"`{plain(name)}`" for name in report.mixing[:3])
        more = ", …" if report.mixing[3:] else ""
        text = (
            f"{names}{more}: batch statistics mix the samples. A sample's part includes only its "
            "effect through its own row of the output."
        )
        yield Line(text, "note:", indent=1)
    for note in report.notes:
        yield Line(plain(note), "note:", indent=1)
    for one in report.without:
        text = (
            f"the gradient's norm would be {number(one.norm)} instead of {number(report.norm)}; "
            f"cosine of both {number(one.cosine)}"
        )
        yield Line(text, f"without sample {one.index}:", indent=1)


def end(report: SpikeReport) -> Iterator[Line]:
    """Yield the optimizer, the capsule, and the other capsules."""
    state = report.state
    if state is not None:
        facts = [plain(state.kind)]
        facts += [] if state.steps is None else [f"{plural(state.steps, 'step')} in its state"]
        for words, value in (
            ("mean |m|", state.first_moment),
            ("rms of sqrt(v)", state.second_moment),
            ("last update over the learning rate", state.update_rms),
        ):
            facts += [] if value is None else [f"{words} {number(value)}"]
        yield Line(" · ".join(facts), "optimizer:")
    if report.bytes is not None:
        facts = [size(report.bytes), *_call_facts(report.calls[:1])]
        yield Line(" · ".join(facts), "capsule:")
    if report.others:
        steps = ", ".join(map(count, report.others))
        yield Line(f"also kept: step {steps} (`--step N`)")


def _call_facts(calls: Sequence[CallState]) -> Iterator[str]:
    """Yield the state around a call: mode, autocast, random states."""
    for one in calls:
        mode, other = ("train", "eval") if one.training else ("eval", "train")
        few = f", {plural(len(one.others), 'module')} in {other} mode" if one.others else ""
        yield f"{mode} mode{few}"
        for device, dtype in one.autocast.items():
            yield f"autocast {plain(dtype)} on {plain(device)}"
        if one.random is None:
            yield "random state not known"
        elif one.random:
            yield f"random state of {', '.join(map(plain, one.random))}"


def tables(report: SpikeReport) -> Iterator[Table]:
    """Yield the samples, and the steps before."""
    if report.samples:
        yield _samples(report.samples)
    if report.signals:
        yield _signals(report)
    if report.earlier:
        yield _earlier(report.earlier)


def _samples(samples: Sequence[SpikeSample]) -> Table:
    shown = samples[:_SAMPLES]
    several = any(one.call for one in samples)
    rest = len(samples) - len(shown)
    return of_columns(
        "samples, the worst first",
        [
            (Heading("sample"), [str(one.index) for one in shown]),
            (Heading("call"), [str(one.call) if several else "" for one in shown]),
            (Heading("dataset index"), [_text(one.dataset_index) for one in shown]),
            (Heading("loss"), [_number(one.loss) for one in shown]),
            (Heading("gradient norm"), [_number(one.gradient_norm) for one in shown]),
            (Heading("norm without", keep=55), [_number(one.norm_without) for one in shown]),
            (Heading("share"), [_percent(one.share) for one in shown]),
            (Heading("cosine", keep=60), [_number(one.cosine) for one in shown]),
            (Heading("input rms", keep=50), [_number(one.input_rms) for one in shown]),
            (Heading("NaN or Inf in", False), [one.nonfinite or "" for one in shown]),
            (Heading("worst token", False, 60), [_token(one.token) for one in shown]),
            (
                Heading("parameters", False, 40, wraps=True),
                [", ".join(map(plain, one.layers)) for one in shown],
            ),
        ],
        legend=(f"and {plural(rest, 'sample')} more: -f json has all",) if rest else (),
        remedy=_REMEDY,
    )


def _signals(report: SpikeReport) -> Table:
    shown = report.signals[-_STEPS:]
    clipped = [None if one.clipped_norm == one.gradient_norm else one.clipped_norm for one in shown]
    return of_columns(
        "the steps before",
        [
            (Heading("step"), [count(one.step) for one in shown]),
            (Heading("loss"), [_number(one.loss) for one in shown]),
            (Heading("gradient norm"), [_number(one.gradient_norm) for one in shown]),
            (Heading("clipped norm"), [_number(norm) for norm in clipped]),
            (Heading("learning rate"), [_number(one.learning_rate) for one in shown]),
            (Heading("update norm", keep=50), [_number(one.update_norm) for one in shown]),
            (Heading("weight norm", keep=50), [_number(one.weight_norm) for one in shown]),
            (Heading("loss scale", keep=60), [_number(one.loss_scale) for one in shown]),
        ],
        remedy=_REMEDY,
    )


def _earlier(batches: Sequence[EarlierBatch]) -> Table:
    """Return the batches before, each with its worst sample: NaN or Inf, then loss, then input."""
    worst = [max(one.samples, key=_badness, default=None) for one in batches]
    losses = [[s.loss for s in one.samples if s.loss is not None] for one in batches]

    def of_worst(text: Callable[[SpikeSample], str]) -> list[str]:
        return ["" if one is None else text(one) for one in worst]

    return of_columns(
        "the batches before, each with its worst sample",
        [
            (Heading("step"), [count(one.step) for one in batches]),
            (Heading("samples"), [count(len(one.samples)) for one in batches]),
            (Heading("worst"), of_worst(lambda one: str(one.index))),
            (Heading("dataset index"), of_worst(lambda one: _text(one.dataset_index))),
            (Heading("loss"), of_worst(lambda one: _number(one.loss))),
            (Heading("median loss"), [_number(median(one)) if one else "" for one in losses]),
            (Heading("largest input", keep=50), of_worst(lambda one: _number(one.input_max))),
            (Heading("NaN or Inf in", False), of_worst(lambda one: one.nonfinite or "")),
            (Heading("note", False, wraps=True), [plain(one.note) for one in batches]),
        ],
        remedy=_REMEDY,
    )


def _badness(sample: SpikeSample) -> tuple[bool, float, float]:
    return sample.nonfinite is not None, sample.loss or 0.0, sample.input_max or 0.0


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _token(token: SpikeToken | None) -> str:
    """Return a token in words: ``31: loss 19.40 (target 4127)``."""
    if token is None:
        return ""
    return f"{token.position}: loss {number(token.loss)} (target {token.target})"


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


#: The panels over the steps before: a title, and the signals in it.
_PANELS = (
    ("loss", ("loss",)),
    ("gradient norm", ("gradient_norm", "clipped_norm")),
    ("learning rate", ("learning_rate",)),
    ("norm of the update", ("update_norm",)),
    ("norm of the weights", ("weight_norm",)),
    ("loss scale", ("loss_scale",)),
)


def panels(report: SpikeReport) -> tuple[Panel, ...]:
    """Return the signals over the steps up to the spike, and the gradient norm of each sample."""
    here = (Stretch(report.step, report.step, plain(report.reason)),)
    found = []
    for title, names in _PANELS:
        curves = []
        for name in names:
            values = [(one.step, getattr(one, name)) for one in report.signals]
            known = tuple(point(step, [y], f"step {step}") for step, y in values if y is not None)
            curves += [Curve(name.replace("_", " "), known)] if known else []
        if curves:
            found.append(Panel(title, "step", title, tuple(curves), stretches=here))
    worst = report.samples[0].call if report.samples else 0
    samples = sorted((one for one in report.samples if one.call == worst), key=lambda s: s.index)
    bars = tuple(
        Point(
            one.index, one.gradient_norm, one.gradient_norm, one.gradient_norm, name=str(one.index)
        )
        for one in samples
        if one.gradient_norm is not None
    )
    if bars:
        each = (Curve("sample", bars),)
        title = "gradient norm of each sample"
        found.append(Panel(title, "sample", "gradient norm", each, bars=True))
    return tuple(panel for panel in found if panel.has_points)


def _pictures(report: SpikeReport) -> tuple[Picture, ...]:
    """Return the inputs of the worst samples, if they are images and the capsule has them."""
    if not report.samples or not report.file:
        return ()
    from gradscope.images.sample_pictures import sample_pictures

    call = report.samples[0].call
    own = [one for one in report.samples if one.call == call]
    shown = own[:_PICTURES]
    found = sample_pictures(Path(report.file), call, [one.index for one in shown], len(own))
    return tuple(
        Picture(png, f"input of sample {one.index}", f"{one.index}: {_percent(one.share)}")
        for one, png in zip(shown, found, strict=False)
    )


def document(report: SpikeReport, view: TextView, format: str) -> Document:
    """Return the document: the verdict first, then its evidence."""
    blocks: list[Block] = [Prose(tuple(verdict(report)), "verdict", listed=True)]
    blocks += [*tables(report), Prose(tuple(end(report)), "optimizer")]
    pictures = _pictures(report) if format == "html" else ()
    if pictures:
        blocks.append(Part("the inputs of the worst samples", pictures=pictures))
    charts = panels(report)
    if charts:
        blocks.append(Part("the steps before, and the samples", panels=charts))
    heading = f"spike: {' · '.join(title(report))}"
    return Document("spike", [title(report)], (), blocks, heading=heading)


FORMATS = formats(document)
