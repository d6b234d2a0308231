"""The loss that a model returns beside its other outputs: which is taken, and what is reported."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from gradscope.errors import ModelError
from gradscope.loading.losses import Criterion

Pair = namedtuple("Pair", ["loss", "logits"])

WEIGHTS = torch.linspace(-1, 1, 15).reshape(3, 5).requires_grad_()
LOGITS = torch.ones(2, 3) @ WEIGHTS
SEQUENCE = LOGITS.expand(4, 2, 5)
LOSS = LOGITS.square().mean()
OTHER = LOGITS.abs().mean()
CUT = LOSS.detach()
TEMPERATURE = torch.nn.Parameter(torch.tensor(2.0))


@dataclass
class Out:
    logits: torch.Tensor
    loss: torch.Tensor | None = None
    aux_loss: torch.Tensor | None = None
    perplexity: torch.Tensor | None = None


class Named(OrderedDict):
    """As transformers' outputs are: a mapping, and attributes."""

    def __getattr__(self, name):
        return self.get(name)


TAKEN = {
    # what: (output, name, loss)
    "behind the scores": ((LOGITS, LOSS), "output[1]", LOSS),
    "before the scores": ([LOSS, LOGITS], "output[0]", LOSS),
    "with nothing between": ((SEQUENCE, None, LOSS), "output[2]", LOSS),
    "a named tuple": (Pair(LOSS, LOGITS), "output.loss", LOSS),
    "a dataclass": (Out(LOGITS, LOSS, OTHER), "output.loss", LOSS),
    "an output of transformers": (Named(loss=LOSS, logits=LOGITS), "output.loss", LOSS),
    "an object": (SimpleNamespace(loss=LOSS, logits=LOGITS), "output.loss", LOSS),
    "nested": ((LOGITS, [SEQUENCE, {"a": LOSS, "b": LOGITS}]), "output[1][1].a", LOSS),
    "nested by name": ((OTHER, {"loss": LOSS, "x": LOGITS}), "output[1].loss", LOSS),
    "by another name": ({"logits": LOGITS, "nll": LOSS}, "output.nll", LOSS),
    "a name that holds it": ({"x": LOGITS, "a": OTHER, "ce_loss": LOSS}, "output.ce_loss", LOSS),
    "the first of two": ((LOGITS, LOSS, OTHER), "output[1]", LOSS),
    "a mapping of losses": ({"a": LOSS, "b": OTHER}, "output", LOSS + OTHER),
    "a mapping beside scores": (({"a": LOSS, "b": OTHER}, LOGITS), "output[0]", LOSS + OTHER),
    "a loss before its parts": ((LOSS, {"a": OTHER, "b": OTHER}), "output[0]", LOSS),
    "a mapping with a metric": ({"ce": LOSS, "acc": CUT}, "output", LOSS),
    "alone": (LOSS, "output", LOSS),
    "with its parts for a log": ({"x": LOGITS, "my_loss": LOSS, "ce": CUT}, "output.my_loss", LOSS),
    "with its parts in a mapping": ((LOSS, LOGITS, {"ce": CUT, "kl": CUT}), "output[0]", LOSS),
    "a total with its parts": ({"total_loss": LOSS, "ce": CUT, "kl": CUT}, "output", LOSS),
    "a perplexity with a graph": (
        {"x": LOGITS, "perplexity": OTHER, "ce": LOSS},
        "output.ce",
        LOSS,
    ),
    "a number of one": ((SEQUENCE, TEMPERATURE.exp(), LOSS), "output[2]", LOSS),
    "a list of losses": ([LOSS, OTHER], "output", LOSS + OTHER),
    "a list beside scores": ((LOGITS, [LOSS, OTHER]), "output[1]", LOSS + OTHER),
    "of shape [1]": ((LOGITS, LOSS.reshape(1)), "output[1]", LOSS.reshape(1)),
    "double precision": ((LOGITS, LOSS.double()), "output[1]", LOSS.double()),
}


@pytest.mark.parametrize(("output", "name", "loss"), TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("spec", [None, "output"])
def test_taken(output, name, loss, spec):
    criterion = Criterion(spec, None, seed=0)
    assert torch.equal(criterion(output), loss)
    assert criterion.without_graph == ()
    assert criterion.inferred is (spec is None)
    if spec is None:
        assert criterion.name == name
        assert criterion.notices[0].startswith(f"loss: {name} (")


LEFT = {
    # what: (output, the loss instead)
    "several numbers": ((LOGITS, OTHER.expand(2)), "cross_entropy"),
    "an integer": ((LOGITS, torch.tensor(3)), "cross_entropy"),
    "a learned temperature": ((SEQUENCE, LOGITS, TEMPERATURE.exp()), "sum"),
    "the temperature itself": ((LOGITS, TEMPERATURE), "cross_entropy"),
    "a metric by name": ({"x": LOGITS, "accuracy": CUT}, "cross_entropy"),
    "metrics in a mapping": ((LOGITS, {"acc": CUT, "ppl": CUT}), "cross_entropy"),
    "a perplexity": (Out(LOGITS, perplexity=OTHER), "cross_entropy"),
    "a part of a loss": (Out(LOGITS, aux_loss=OTHER), "cross_entropy"),
    "auxiliary scores": (Out(LOGITS, aux_loss=LOGITS), "cross_entropy"),
    "one row of one score": ({"age": LOGITS[:1, :1], "sex": LOGITS[:1, :1]}, "sum"),
    "a setting": ((LOGITS, 0.5), "cross_entropy"),
    "the value of one sample": ((LOGITS[:1], LOSS.reshape(1)), "cross_entropy"),
}


@pytest.mark.parametrize(("output", "name"), LEFT.values(), ids=LEFT)
def test_left(output, name):
    criterion = Criterion(None, None, seed=0)
    assert criterion(output).requires_grad
    assert (criterion.name, criterion.without_graph) == (name, ())


CUTS = {
    "behind the scores": ((LOGITS, CUT), ("output[1]",)),
    "before the scores": ((CUT, LOGITS), ("output[0]",)),
    "by another name": ({"x": LOGITS, "nll": CUT}, ("output.nll",)),
    "nested": ((LOGITS, {"a": [CUT]}), ("output[1].a[0]",)),
    "a mapping": ((LOGITS, {"ce": CUT, "acc": CUT}), ("output[1].ce",)),
    "a plain number": ({"x": LOGITS, "loss": 0.7}, ("output.loss",)),
    "a part of it": (Out(LOGITS, aux_loss=CUT), ("output.aux_loss",)),
}


@pytest.mark.parametrize(("output", "names"), CUTS.values(), ids=CUTS)
def test_one_without_a_graph_is_named(output, names):
    criterion = Criterion(None, None, seed=0)
    assert criterion(output).requires_grad
    assert criterion.name == "cross_entropy"
    assert criterion.without_graph == names
    assert f"without a graph: `{names[0]}`" in criterion.notices[0]


BESIDE = {
    "a tuple": ((LOGITS, LOSS, CUT), "output[1]", ("output[2]",)),
    "before it": ((CUT, LOSS, LOGITS), "output[1]", ("output[0]",)),
    "a mapping": ({"x": LOGITS, "ce": LOSS, "kl": CUT}, "output.ce", ("output.kl",)),
    "a mapping of losses": ({"ce": LOSS, "kl": CUT, "acc": CUT}, "output", ("output.kl",)),
    "a mapping of losses inside": (
        (LOGITS, {"a": LOSS, "b": OTHER, "c": CUT}),
        "output[1]",
        ("output[1].c",),
    ),
}


@pytest.mark.parametrize(("output", "taken", "names"), BESIDE.values(), ids=BESIDE)
def test_one_without_a_graph_beside_the_loss_is_named(output, taken, names):
    criterion = Criterion(None, None, seed=0)
    assert criterion(output).requires_grad
    assert (criterion.name, criterion.without_graph) == (taken, names)


CALLED_LOSS = {
    "a mapping": {"logits": LOGITS, "loss": CUT},
    "a dataclass": Out(LOGITS, CUT, OTHER),
    "a named tuple": Pair(CUT, LOGITS),
    "deep inside": (LOGITS, {"loss": CUT, "x": LOGITS}),
    "alone": CUT,
}


@pytest.mark.parametrize("output", CALLED_LOSS.values(), ids=CALLED_LOSS)
def test_what_is_called_loss_is_taken_without_a_graph(output):
    assert Criterion(None, None, seed=0)(output) is CUT


def test_a_graphless_number_is_what_loss_output_takes():
    assert Criterion("output", None, seed=0)((LOGITS, CUT)) is CUT
    with pytest.raises(ModelError, match=r"and `output\.loss`, a plain number") as caught:
        Criterion("output", None, seed=0)({"x": LOGITS, "loss": 0.7})
    assert "without `.item()`" in caught.value.problems[0].help


def said(output):
    criterion = Criterion(None, None, seed=0)
    criterion(output)
    return criterion.notices[0]


def test_what_is_said():
    assert said((LOGITS, LOSS)) == "loss: output[1] (the model's own: a number with a graph)"
    assert said((LOGITS, LOSS, OTHER, CUT)) == (
        "loss: output[1] (the model's own: the first of 2 with a graph; not in it: `output[2]`; "
        "without a graph: `output[3]`)"
    )
    assert said({"a": LOSS, "b": OTHER}) == "loss: output (the model's own: the sum of `a`, `b`)"
    assert said(LOSS) == "loss: output (the one number that the model returns)"
    assert said(Out(LOGITS, aux_loss=OTHER)) == (
        "loss: cross_entropy (the first floating output `logits` is [2, 5]; not in it: "
        "`output.aux_loss`)"
    )
    assert said(SEQUENCE) == "loss: sum (a stand-in: the first floating output is [4, 2, 5])"


class Heads(torch.nn.Module):
    """A body with two heads and a probe that trains on its own; ``returns`` makes the output."""

    def __init__(self, returns):
        super().__init__()
        self.body, self.one, self.two = (torch.nn.Linear(8, n) for n in (8, 4, 4))
        self.probe = torch.nn.Linear(8, 2)
        self.returns = returns

    def forward(self, x):
        h = self.body(x).relu()
        a, b = self.one(h), self.two(h)
        loss_a = torch.nn.functional.cross_entropy(a, torch.zeros(len(x), dtype=torch.long))
        loss_b = b.abs().mean()
        found = {"x": torch.cat([a, b], 1), "h": h, "a": a, "loss_a": loss_a, "loss_b": loss_b}
        found["probe"] = self.probe(h.detach()).square().mean()
        found["total"] = loss_a + loss_b + found["probe"]
        return self.returns(SimpleNamespace(**found))


FORMS = {
    # what: (what the model returns, the loss, what is named as cut)
    "its copy for a log": (
        lambda m: (m.total, {"loss": m.total.detach(), "acc": torch.tensor(0.5)}), "output[0]", (),
    ),
    "a log behind the scores": (
        lambda m: (m.x, m.total, {"loss": m.total.detach()}), "output[1]", (),
    ),
    "a total beside a log": (
        lambda m: {"total_loss": m.total, "log": {"loss": m.total.detach()}},
        "output.total_loss", (),
    ),
    "a part's loss deeper": (
        lambda m: {"enc": {"z": m.h, "loss": m.probe}, "total_loss": m.total},
        "output.total_loss", (),
    ),
    "a probe's": (lambda m: (m.x, m.probe), "cross_entropy", ()),
    "a probe's by name": (lambda m: {"x": m.x, "probe_loss": m.probe}, "cross_entropy", ()),
    "a mean of activations": (lambda m: (m.x, m.h.mean()), "cross_entropy", ()),
    "parts and total in a tuple": (
        lambda m: (m.a, m.loss_a, m.loss_b, m.total), "output[3]", (),
    ),
    "parts and total by name": (
        lambda m: {"x": m.x, "a_loss": m.loss_a, "b_loss": m.loss_b, "total_loss": m.total},
        "output.total_loss", (),
    ),
    "metrics beside losses": (
        lambda m: {"loss_a": m.loss_a, "loss_b": m.loss_b, "class_error": torch.tensor(3.0)},
        "output", (),
    ),
    "a total and its parts cut": (
        lambda m: {"total": m.total, "a": m.loss_a.detach(), "b": m.loss_b.detach()}, "output", (),
    ),
    "a loss with a metric's word": (
        lambda m: {"x": m.x, "norm_loss": m.total}, "output.norm_loss", (),
    ),
    "a leaf of its number": (
        lambda m: (m.x, torch.tensor(m.total.item(), requires_grad=True)),
        "cross_entropy", ("output[1]",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("returns", "name", "cut"), FORMS.values(), ids=FORMS)
def test_what_models_return(returns, name, cut):
    criterion = Criterion(None, None, seed=0)
    assert criterion(Heads(returns)(torch.ones(6, 8))).requires_grad
    assert (criterion.name, criterion.without_graph) == (name, cut)


def test_the_sum_counts_no_part_twice():
    model = Heads(lambda m: {"a_loss": m.loss_a, "b_loss": m.loss_b, "total_loss": m.total})
    output = model(torch.ones(6, 8))
    assert torch.equal(Criterion(None, None, seed=0)(output), output["total_loss"])


def test_losses_of_low_and_high_rates_are_both_in_the_sum():
    model = Heads(lambda m: {"lr_loss": m.loss_a, "hr_loss": m.loss_b})
    output = model(torch.ones(6, 8))
    loss = Criterion(None, None, seed=0)(output)
    assert torch.equal(loss, output["lr_loss"] + output["hr_loss"])


def test_a_model_of_single_numbers_has_a_loss():
    model = torch.nn.Linear(1, 1)
    output = model(torch.ones(4, 1))
    loss = output.square().mean()
    criterion = Criterion(None, None, seed=0)
    assert torch.equal(criterion((output, loss)), loss)
