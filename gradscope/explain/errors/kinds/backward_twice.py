"""Explains a second backward: the node without saved tensors, the backward that freed them, and the
path to the node."""

from __future__ import annotations

import re

from torch.autograd.graph import Node

from gradscope.capture.nodes import ordered
from gradscope.explain.errors.explanation import Case, Explanation, Kind, line
from gradscope.explain.errors.step_tracer import BackwardRun, CarriedTensor, ErrorTracer, Event
from gradscope.explain.shared.operations import node_name

_ADVICE_REPEATS = (
    "keep the graph with `retain_graph=True` (`backward.retain_graph=true`) on every backward but"
    " the last, or run forward again; one backward is enough unless `repeats` should accumulate"
)


def explain(case: Case) -> Explanation | None:
    """Explain a backward that reached tensors freed by an earlier one."""
    tracer = case.tracer
    if tracer is None or tracer.failing is None:
        return None
    failing = tracer.failing
    node = next((n for n in failing.nodes if n in tracer.freed), None)
    if node is None:
        return _before(tracer, failing)
    run = tracer.freed[node]
    saver = tracer.made[node]
    first, second = _run(run), _run(failing)
    again = " again" if run is failing else ""
    details = [
        f"{second} came{again} to {_op(saver, node)}{saver.site.within}{saver.site.at}, whose"
        f" saved tensors {first}{run.event.site.at} had freed."
    ]
    bridge = _bridge(tracer, failing, node)
    if bridge is not None:
        details.append(_fact(bridge, saver))
    return Explanation(
        tuple(details),
        _advice(tracer, failing, run, bridge),
        (
            *line("saved", saver.site),
            *line("freed", run.event.site),
            *(line("carried", bridge.event.site) if bridge is not None else ()),
        ),
        saver.site if saver.site.module is not None or saver.site.file else None,
    )


def _op(saver: Event, node: Node) -> str:
    name = saver.op.strip("_") or node_name(node)
    return f"`{name}`"


def _run(run: BackwardRun) -> str:
    event = run.event
    if event.site.file:
        return "`autograd.grad`" if event.op == "grad" else "the backward"
    return f"the backward of {event.step}" if event.step else "the backward"


def _bridge(tracer: ErrorTracer, failing: BackwardRun, node: Node) -> CarriedTensor | None:
    """Return the tensor through which the later graph reaches the node; the last one found
    counts."""
    inside = set(failing.nodes)
    found = [c for n, c in tracer.carried.items() if n in inside and node in ordered([n])]
    named = [c for c in found if c.attribute]
    named = named or [c for c in found if c.text and not c.single]
    named = named or [c for c in found if not c.single]
    return named[-1] if named else None


def _fact(bridge: CarriedTensor, saver: Event) -> str:
    name = f"`{bridge.text}`" if bridge.text else "a tensor"
    when = f"in {saver.step}" if saver.step else "before that"
    if saver.epoch < 0:
        when = "before the first step"
    return f"{name}{_used(bridge)} still has the graph made {when}."


def _used(bridge: CarriedTensor) -> str:
    site = bridge.event.site
    return f", used{site.within}{site.at}," if site.file else ""


def _advice(
    tracer: ErrorTracer, failing: BackwardRun, run: BackwardRun, bridge: CarriedTensor | None
) -> str:
    if run.event.op == "grad":
        return "pass `create_graph=True` to `torch.autograd.grad`, which then keeps the graph"
    if bridge is not None:
        x = bridge.text or "it"
        if _two_losses(failing, run, bridge):
            return (
                f"if the earlier loss should not train the modules upstream of `{x}`, give it "
                f"`{x}.detach()` there; otherwise go backward once through the sum of both "
                f"losses, or pass `retain_graph=True` to the backward{run.event.site.at}"
            )
        if tracer.made[bridge.node].epoch < 0:
            return f"compute `{x}` in each step: its graph allows one backward"
        kept = f"self.{x} = self.{x}.detach()" if bridge.attribute else f"{x} = {x}.detach()"
        if bridge.several:
            each = f"t.detach() for t in self.{x}"
            kept = f"self.{x} = " + (f"tuple({each})" if bridge.several is tuple else f"[{each}]")
        return (
            f"detach it: `{kept}` before its next use, or recompute it"
            " if gradients should flow upstream of it"
        )
    if failing.roots and failing.roots == run.roots:
        return _ADVICE_REPEATS
    return (
        "both losses share this part of the graph: go backward once through the sum of both, or"
        " pass `retain_graph=True` to the first backward"
    )


def _two_losses(failing: BackwardRun, run: BackwardRun, bridge: CarriedTensor) -> bool:
    """Return True if two losses of one step share the tensor, as a GAN's two losses share a
    generated batch. If one line repeats the backward, or a tensor is computed from itself, it is a
    loop over earlier steps instead."""
    one, other = run.event, failing.event
    site, x = bridge.event.site, re.escape(bridge.text or "")
    code = site.code if x else ""
    if re.match(rf"(?:[\w.]+, *)*{x}(?:, *[\w.]+)* *=[^=].*\b{x}\b", code):
        return False  # `h = cell(x, h)`
    here = (one.site.file, one.site.line) != (other.site.file, other.site.line)
    return not bridge.attribute and here and one.step == other.step


def _before(tracer: ErrorTracer, failing: BackwardRun) -> Explanation | None:
    """Explain a graph that was freed before this run began, by an unknown caller."""
    old = [c for n, c in tracer.carried.items() if tracer.made[n].epoch < 0 and n in failing.nodes]
    if not old:
        return None
    x = old[0].text or "a tensor"
    return Explanation(
        f"`{x}`{_used(old[0])} has a graph made before this step, which an earlier backward freed.",
        f"compute `{x}` in each step, or keep `{x}.detach()` if it should not be trained",
    )


_SIGN = r"backward through the graph a second time|buffers have already been freed"
_ADVICE = (
    "keep the graph with `backward.retain_graph=true`, or run forward again before each backward"
)
KIND = Kind({_SIGN: _ADVICE}, explain)
