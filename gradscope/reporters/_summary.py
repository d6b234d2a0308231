"""Report → the sentences around its tables: header, totals, verification, error."""

from __future__ import annotations

from gradscope.records.errors import ErrorRecord, RelatedLine
from gradscope.records.report import Report
from gradscope.records.tensors import TensorStats
from gradscope.reporters._calls import label
from gradscope.typeset.console import Line
from gradscope.typeset.numbers import count, number, plural, seconds, shape, size
from gradscope.typeset.text import plain


def header(report: Report) -> list[list[str]]:
    """Facts about the run, a list for each line; the first fact is the model."""
    run, totals = report.run, report.totals
    first = [plain(run.model) or "model"]
    if totals.parameters or report.error is None:
        first.append(_parameters(report))
    dtype = f"{run.dtype}, autocast {run.autocast}" if run.autocast else run.dtype
    first += [plain(fact) for fact in (run.device, dtype, run.mode, f"seed {run.seed}")]
    second = [_loss(report)]
    if run.optimizer:
        second.append(f"optimizer {plain(run.optimizer)}")
    if run.steps > 1:
        second.append(plural(run.steps, "step"))
    if run.repeats > 1:
        second.append(f"{plural(run.repeats, 'backward')} per step")
    took = totals.seconds
    times = [
        f"{name} {seconds(t)}"
        for name, t in (("forward", took.forward), ("backward", took.backward))
        if t
    ]
    return [first, second + times]


def _parameters(report: Report) -> str:
    everything, trainable = report.totals.parameters, report.totals.trainable
    if not everything:
        return "no parameters"
    which = "all" if trainable == everything else count(trainable) if trainable else "none"
    return f"{plural(everything, 'parameter')} ({which} trainable)"


def _loss(report: Report) -> str:
    name = plain(report.run.loss) or "loss"
    if report.loss_nonfinite:
        return f"loss {name} = {plain(report.loss_nonfinite)}"
    if report.loss is None:
        return "no loss yet" if name == "inferred" else f"loss {name} (no value)"
    return f"loss {name} = {number(report.loss)}"


def notices(report: Report) -> list[str]:
    """What was inferred or mended on the way."""
    return [plain(notice) for notice in report.run.notices]


def totals(report: Report) -> list[str]:
    """The whole model in one line, whatever the tables select."""
    all_of, facts = report.totals, [_parameters(report)]
    if all_of.gradient_norm is not None:
        facts.append(f"gradient norm {number(all_of.gradient_norm)}")
    if all_of.saved_bytes is not None:
        facts.append(f"{size(all_of.saved_bytes)} saved for backward")
    calls, modules = plural(all_of.calls, "call"), plural(all_of.modules, "module")
    return [*facts, f"{calls} of {modules}" if all_of.modules else calls]


def verified(report: Report) -> Line | None:
    """Whether observing changed the gradients, where the run was asked to find out."""
    proof = report.run.verified
    if proof is None:
        return None
    difference = (
        ""
        if proof.max_difference is None
        else f" (largest difference {number(proof.max_difference)})"
    )
    if proof.identical and proof.repeatable:
        return Line(
            "gradients with and without hooks are identical, bit for bit", "verified:", "good"
        )
    if proof.identical:
        text = "the observed gradients equal a plain run's, though two plain runs differ"
        return Line(text + difference, "verified:", "good")
    if proof.repeatable:
        text = f"gradients with hooks differ from those without{difference}: please report it"
        return Line(text, "not verified:", "bad")
    text = (
        f"two plain runs differ already{difference}, so nothing can be said about the observed one"
    )
    return Line(text, "not verified:", "warn")


def error(report: Report) -> list[Line]:
    """Why the run failed: what, where, with which shapes, in which lines of the user's code."""
    failure = report.error
    if failure is None:
        return []
    where = f" of {label(failure.name, failure.call)}" if failure.name is not None else ""
    # Any error that has no name of its own: what it was follows in the message.
    kind = "raised" if failure.kind == "model-error" else f"{plain(failure.kind)},"
    lines = [Line(f"{kind} in the {plain(failure.phase)}{where}", "error:", "bad")]
    lines += [Line(plain(text), indent=1) for text in _messages(failure)]
    lines += [Line(plain(sentence), "why:", indent=1) for sentence in failure.details]
    for one in failure.related:
        lines.append(Line(f"{plain(one.file)}:{one.line}{_whose(one)}", plain(one.role), indent=1))
        if one.code:
            lines.append(Line(plain(one.code.strip()), indent=2))
    if failure.inputs:
        lines.append(
            Line(", ".join(_tensor(stats) for stats in failure.inputs), "inputs:", indent=1)
        )
    for frame in failure.frames:
        lines.append(
            Line(f"{plain(frame.file)}:{frame.line} in {plain(frame.function)}", "at", indent=1)
        )
        if frame.code:
            lines.append(Line(plain(frame.code.strip()), indent=2))
    told = {f"{one.file}:{one.line}" for one in failure.related}
    if not failure.frames and failure.location and failure.location not in told:
        lines.append(Line(plain(failure.location), "at", indent=1))
    if failure.advice:
        lines.append(Line(plain(failure.advice), "help:", indent=1))
    return lines


def _whose(one: RelatedLine) -> str:
    return f" in {label(one.name, one.call)}" if one.name is not None else ""


def _messages(failure: ErrorRecord) -> list[str]:
    """The message's lines, and the exception's where it says something else."""
    said = failure.message
    raised = failure.exception
    if raised and said in raised:
        said = raised
    elif raised and raised not in said:
        said = f"{raised}: {said}" if raised.isidentifier() else f"{said}\n{raised}"
    return [line for line in said.splitlines() if line.strip()]


def _tensor(stats: TensorStats) -> str:
    return f"{shape(stats.shape)} {plain(stats.dtype)}"
