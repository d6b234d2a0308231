"""Several losses: each shown, and each by itself at the layers that they share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradscope
from gradscope import plugins
from gradscope.errors import ModelError, OptionError
from gradscope.records import json as record_json
from gradscope.records.report import Report
from gradscope.reporters.views import View

markdown = plugins.load("gradscope.reporters.report", "markdown")
terminal = plugins.load("gradscope.reporters.report", "terminal")

X = torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(4, 8)
Y = torch.arange(4) % 3


class Multi(nn.Module):
    """A trunk with two heads, and a third head that the second loss uses only."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 6))
        self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 1)
        self.double()

    def forward(self, x):
        h = self.trunk(x)
        return {"one": self.one(h), "two": self.two(h)}


def losses(output, target=None):
    return {"ce": F.cross_entropy(output["one"], Y), "l2": 3 * output["two"].square().mean()}


@pytest.fixture
def model() -> Multi:
    torch.manual_seed(0)
    return Multi()


def by_itself(model, loss):
    """Each parameter's gradient of one loss."""
    model.zero_grad()
    losses(model(X))[loss].backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def test_each_of_a_mapping_is_shown_and_their_sum_is_the_loss(model):
    report = gradscope.inspect(model, X, loss=losses)
    expected = losses(model(X))
    assert [part.name for part in report.losses] == ["ce", "l2"]
    assert [part.value for part in report.losses] == pytest.approx(
        [t.item() for t in expected.values()], rel=1e-12
    )
    assert report.loss == pytest.approx(sum(expected.values()).item(), rel=1e-12)
    assert "loss: losses (of what it returned the sum of `ce`, `l2`)" in report.run.notices
    first = terminal.render(report, View()).splitlines()[1]
    assert first.startswith("loss losses = ")
    assert "(ce " in first
    assert ", l2 " in first


def test_the_gradient_of_each_where_they_meet(model):
    report = gradscope.inspect(model, X, loss=losses, tasks=True)
    tasks = report.tasks
    assert tasks.tasks == ("ce", "l2")
    assert tasks.pairs == ((0, 1),)
    assert [layer.name for layer in tasks.layers] == ["trunk.0", "trunk.2"]
    assert tasks.alone == (("one", "ce"), ("two", "l2"))
    ce, l2 = by_itself(model, "ce"), by_itself(model, "l2")
    for layer in (*tasks.layers, tasks.total):
        names = [n for n in ce if n in l2 and n.startswith(layer.name or "")]
        a, b = (torch.cat([of[n].flatten() for n in names]) for of in (ce, l2))
        assert layer.parameters == a.numel()
        assert layer.norms == pytest.approx([a.norm().item(), b.norm().item()], rel=1e-12)
        cosine = (a @ b / (a.norm() * b.norm())).item()
        assert layer.cosines == pytest.approx([cosine], rel=1e-10)
    assert all(p.grad is None for p in model.parameters())


def test_losses_that_want_opposite_things(model):
    def opposed(output):
        return {
            "up": output["two"].sum(),
            "down": -2 * output["two"].sum(),
            "no": 0 * losses(output)["ce"],
        }

    report = gradscope.inspect(model, X, loss=opposed, tasks=True)
    (up_down, up_no, down_no) = report.tasks.total.cosines
    assert up_down == pytest.approx(-1, abs=1e-12)
    assert up_no is down_no is None
    assert report.tasks.total.norms[2] == 0


def test_a_model_that_returns_its_losses(model):
    class Own(Multi):
        def forward(self, x):
            found = losses(super().forward(x))
            return sum(found.values()), found

    report = gradscope.inspect(Own(), X, tasks=True)
    assert report.run.loss == "output[0]"
    assert report.tasks.tasks == ("[1].ce", "[1].l2")


def test_the_tables(model):
    report = gradscope.inspect(model, X, loss=losses, tasks=True)
    text = terminal.render(report, View())
    rows = text[text.index("tasks  each loss separately") :].splitlines()
    assert rows[1].split() == ["layer", "parameters", "grad", "ce", "grad", "l2", "cos", "ce·l2"]
    assert rows[3].startswith("all that is shared")
    assert "reached by one loss only: one (ce), two (l2)" in text
    assert "### Tasks" in markdown.render(report, View())
    again = record_json.loads(record_json.dumps(report), Report)
    assert again.tasks == report.tasks
    assert again.losses == report.losses
    assert '"tasks"' not in record_json.dumps(gradscope.inspect(model, X, loss=losses))


def test_one_loss_has_nothing_to_compare(model):
    with pytest.raises(OptionError, match="`tasks` compares several losses"):
        gradscope.inspect(model, X, loss=lambda output: output["two"].sum(), tasks=True)


RETURNED = {
    "a number and its parts": (
        lambda one, two: (one + two, {"a": one, "b": two}),
        ["[1].a", "[1].b"],
    ),
    "a total among its parts": (
        lambda one, two: {"a": one, "b": two, "sum": one + two},
        ["a", "b"],
    ),
    "a list": (lambda one, two: [one, two], ["0", "1"]),
    "a number and a log": (lambda one, two: (one + two, {"a": one.item()}), []),
}


@pytest.mark.parametrize(("returned", "parts"), RETURNED.values(), ids=RETURNED)
def test_what_a_loss_may_return(model, returned, parts):
    report = gradscope.inspect(model, X, loss=lambda output: returned(*losses(output).values()))
    assert report.loss == pytest.approx(sum(losses(model(X)).values()).item(), rel=1e-12)
    assert [part.name for part in report.losses] == parts


def test_several_numbers_without_names_are_refused(model):
    with pytest.raises(ModelError, match="several numbers, and none includes the others"):
        gradscope.inspect(model, X, loss=lambda output: tuple(losses(output).values()))


def test_one_of_a_mapping_without_a_graph_is_named(model):
    def cut(output):
        found = losses(output)
        return {**found, "l2": found["l2"].detach()}

    report = gradscope.check(model, X, loss=cut)
    (found,) = [f for f in report.findings if f.code == "GS507"]
    assert found.message.startswith("`l2` has no graph")
    assert found.message.endswith("started from the sum of the others.")


def test_the_sum_of_several_is_not_judged_as_a_first_cross_entropy(model):
    def large(output):
        return {"ce": F.cross_entropy(output["one"], Y), "far": (output["two"] + 100).mean()}

    found = {f.code for f in gradscope.check(model, X, loss=large).findings}
    alone = gradscope.check(model, X, loss=lambda output: sum(large(output).values()))
    assert "GS506" not in found
    assert "GS506" in {f.code for f in alone.findings}  # of one number nobody knows better
