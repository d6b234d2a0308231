"""Pages of the sample records, and a parser that reads them as a browser's does."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

from PIL import Image
from reporters import report_samples, run_samples

from gradscope import plugins
from gradscope.records.answers import Answer, WhyReport
from gradscope.records.diff import CallDiff, DiffReport, ParameterDiff, TensorDiff
from gradscope.records.modules import ModuleCall
from gradscope.records.report import CheckedModel, CheckReport, Finding, Report
from gradscope.records.saliency import Attribution, ClassScore, ImageAttribution, SaliencyReport
from gradscope.reporters.views import DiffView, TextView, View

answers_html = plugins.load("gradscope.reporters.answers", "html")
diff_html = plugins.load("gradscope.reporters.diff", "html")
report_html = plugins.load("gradscope.reporters.report", "html")
saliency_html = plugins.load("gradscope.reporters.saliency", "html")
training_html = plugins.load("gradscope.reporters.training", "html")

EVIL = "\"><script>alert(1)</script>\u202e\x1b[31m&'{{7*7}}"
#: What is left of it on a page, as text.
SHOWN = "\"><script>alert(1)</script>\\u202e\\x1b[31m&'{{7*7}}"


def hostile() -> Report:
    """A report in which every text is markup, with characters that do not print."""
    report = report_samples.small()
    tensor = report_samples.tensor("", 2, 4)
    call = ModuleCall(EVIL, EVIL, 0, 1, aliases=(EVIL,), notes=(EVIL,), outputs=(tensor,))
    finding = Finding("GS103", EVIL, "error", EVIL, f"`{EVIL}` {EVIL}", EVIL, location=EVIL)
    return replace(
        report,
        run=replace(report.run, model=EVIL, notices=(EVIL,), loss=EVIL),
        versions={EVIL: EVIL},
        calls=(*report.calls, call),
        parameters=(*report.parameters, report_samples.parameter(EVIL, 4)),
        findings=(finding, *(replace(finding, name=f"{EVIL}{i}") for i in range(3))),
    )


def large(rows: int = 5_000) -> Report:
    """A report whose tables have so many rows between them, in blocks of a deep model."""
    calls, parameters = [], []
    for i in range(rows // 2):
        name = f"model.layers.{i // 50}.self_attention.{i % 50}.projection"
        tensor = report_samples.tensor("", 2, 128, 1024, seed=i, grad_fn="UnsafeViewBackward0")
        calls.append(ModuleCall(name, "Linear", 0, i, outputs=(tensor,), saved_bytes=1024 * i))
        parameters.append(report_samples.parameter(f"{name}.weight", 1024, 1024, seed=i))
    return replace(report_samples.small(), calls=tuple(calls), parameters=tuple(parameters))


def why() -> WhyReport:
    """Two answers, one of a hostile name."""
    answers = (
        Answer("stem.weight", "parameter", "missing", "no path", "detached", "stem", advice="mend"),
        Answer(EVIL, "parameter", "zero", EVIL, EVIL, EVIL, location=EVIL, upstream=(EVIL,)),
    )
    return WhyReport(report_samples.small().run, status="findings", checked=3, answers=answers)


def diff() -> DiffReport:
    """A comparison in which one call diverges."""
    gap, off = (
        TensorDiff(1e-7, 1.0, 1e-6, teacher_forced=1e-8, teacher_forced_noise=1e-8),
        TensorDiff(0.5, 0.8, 1.0, teacher_forced=0.1),
    )
    run = report_samples.small().run
    return DiffReport(
        "findings",
        run,
        replace(run, dtype="bfloat16"),
        calls=(
            CallDiff("conv1", "Conv2d", 0, "", (2, 4), gap, gap),
            CallDiff(
                EVIL,
                EVIL,
                0,
                EVIL,
                (2, 4),
                replace(off, diverges=True, teacher_forced_noise=1e-3),
                off,
            ),
        ),
        parameters=(ParameterDiff("conv1.weight", (4, 4), gap, gap),),
        findings=(Finding("GD101", "forward-diverges", "error", EVIL, "diverges", "look"),),
        step=1e-7,
        factor=8,
    )


def saliency() -> str:
    """Two pictures of hostile names, one with two maps and their checks."""
    top = (ClassScore(3, 9.5, 0.98, EVIL), ClassScore(8, 2.25, 0.02, "eight"))
    maps = (
        Attribution("grad-cam", "conv2", min=0.0, max=0.5, checks={"deletion": 0.1, EVIL: EVIL}),
        Attribution("gradient", options={"class": EVIL}, min=-1.0, max=1.0, note=EVIL),
    )
    images = (
        ImageAttribution(EVIL, 3, 9.5, EVIL, top, maps),
        ImageAttribution("pictures/digit-8.png", 8, 7.0, None, top, maps[:1]),
    )
    report = SaliencyReport(replace(report_samples.small().run, model=EVIL), images)
    file = io.BytesIO()
    Image.new("RGB", (520, 300), "teal").save(file, "PNG")
    return saliency_html.render(report, TextView(), [[file.getvalue()] * 2, [file.getvalue()]])


def check() -> CheckReport:
    """One model with findings, one without."""
    report = hostile()
    found = CheckedModel("findings", report.run, findings=report.findings)
    sound = CheckedModel("ok", report_samples.small().run)
    return CheckReport("findings", models=(found, sound), rules=("GS103",))


PAGES = {
    **{
        f"report {name}": lambda make=make: report_html.render(make(), View())
        for name, make in {**report_samples.SAMPLES, "hostile": hostile}.items()
    },
    **{
        f"run {name}": lambda make=make: training_html.render(make(), View())
        for name, make in run_samples.SAMPLES.items()
    },
    "check": lambda: report_html.render_check(check(), View()),
    "why": lambda: answers_html.render(why(), TextView()),
    "diff": lambda: diff_html.render(diff(), DiffView()),
    "saliency": saliency,
}


class Parsed(HTMLParser):
    """Elements, attributes and texts; cells and rows are closed by what follows them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in {"td", "th", "tr"}:
            while self.open and self.open[-1] in (
                {"td", "th"} | ({"tr"} if tag == "tr" else set())
            ):
                self.open.pop()
        if tag not in {"meta", "input", "br", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in {"tbody", "thead", "tr"}:
            while self.open and self.open[-1] in {"td", "th", "tr"} and self.open[-1] != tag:
                self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"script", "style"}:
            self.texts.append(data)

    def values(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [value for _, attribute, value in self.attributes if attribute == name]
