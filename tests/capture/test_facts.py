"""Facts on modules and the graph for rules, against the modules themselves."""

from __future__ import annotations

import itertools
import json
import linecache

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import gradscope
from gradscope.capture.facts import Buffers, _row_tables, misspelt_flags, module_facts
from gradscope.errors import ModelError
from gradscope.records.json import dumps, loads
from gradscope.records.modules import ModuleFacts, ParameterStats
from gradscope.records.report import Report

pytestmark = pytest.mark.slow

PICTURES = [
    ("resnet18", {}),
    ("densenet121", {}),
    ("mobilenet_v3_small", {}),
]


def named(report: Report) -> dict[str, ModuleFacts]:
    return {facts.name: facts for facts in report.modules}


def linked(report: Report) -> list[tuple[str, str | None, str, str | None]]:
    return [(link.op, link.name, link.into, link.into_name) for link in report.links]


def picture_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, num_classes=5)


# ------------------------------------------------------------------------------- modules


class Odd(nn.Module):
    """A module that runs twice, one that never runs, one that goes by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.never = nn.Conv1d(4, 4, 1)
        self.tied = self.twice
        self.drop = nn.Dropout(0.25)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.twice(self.twice(x))) * self.scale


def test_modules_as_they_are():
    model = Odd()
    model.never.eval()
    facts = named(gradscope.inspect(model, torch.randn(2, 4), layers=["twice"]))
    assert list(facts) == ["", "twice", "never", "drop"]  # whatever the patterns select
    assert [facts[n].calls for n in facts] == [1, 2, 0, 1]
    assert [facts[n].training for n in facts] == [True, True, False, True]
    assert facts["twice"].aliases == ("tied",)
    assert facts[""].parameters == ("scale",)
    assert facts["never"].parameters == ("never.weight", "never.bias")
    assert facts["never"].kinds == ("Conv1d", "_ConvNd")
    assert facts[""].kinds == ()
    assert facts["drop"].settings == {"p": 0.25, "inplace": False}
    assert facts["twice"].settings == {}


def test_kinds_are_of_torch_nn_alone():
    class Mine(nn.BatchNorm2d):
        pass

    wrapped = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    model = nn.ModuleDict({"mine": Mine(2), "wrapped": wrapped})
    facts = {f.name: f for f in module_facts(model, {})}
    assert facts["mine"].kinds == ("BatchNorm2d", "_BatchNorm", "_NormBase")
    assert facts["wrapped"].kinds == ("Linear",)
    settings = {"momentum": 0.1, "eps": 1e-5, "affine": True, "track_running_stats": True}
    assert facts["mine"].settings == settings


def test_a_setting_that_is_none_is_one():
    facts = module_facts(nn.BatchNorm1d(2, momentum=None), {})
    assert facts[0].settings["momentum"] is None


def test_dropout_as_others_write_it():
    facts = module_facts(torchvision.ops.StochasticDepth(0.3, "row"), {})
    assert facts[0].settings == {"p": 0.3}


def test_modules_of_a_run_that_failed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(3, 4), nn.ReLU())
    with pytest.raises(ModelError) as raised:
        gradscope.inspect(model, torch.randn(2, 4))
    assert {n: f.calls for n, f in named(raised.value.report).items()} == {
        "": 1, "0": 1, "1": 1, "2": 0,
    }  # fmt: skip


# ------------------------------------------------------------------------------- buffers


@pytest.mark.parametrize(("name", "options"), PICTURES, ids=[n for n, _ in PICTURES])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_written_buffers_are_those_that_changed(name, options, mode):
    model = picture_model(name).train(mode == "train")
    x = torch.randn(2, 3, 64, 64)
    before = {n: b.clone() for n, b in model.named_buffers()}
    buffers = Buffers(model)
    model(x)
    written = {name for facts in buffers.entered(module_facts(model, {})) for name in facts.written}
    changed = {n for n, b in model.named_buffers() if not torch.equal(b, before[n])}
    assert written == changed
    assert bool(written) is (mode == "train")


class Writes(nn.Module):
    """Every way to write to a buffer, and buffers that nothing happens to."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("functional_mean", "functional_var"):
            self.register_buffer(name, torch.ones(4))
        self.register_buffer("in_place", torch.zeros(2, 3))
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("behind", torch.zeros(3))
        self.register_buffer("resized", torch.zeros(3))
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool))
        self.register_buffer("nan", torch.full((4,), float("nan")))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("whole", torch.zeros(3, dtype=torch.long))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.in_place[0] += 1
        self.replaced = self.replaced + 1
        self.behind.data.add_(1)  # the version stays
        self.resized.resize_(5)  # as observers of quantization do
        self.whole += 1
        return F.batch_norm(x, self.functional_mean, self.functional_var, training=True)


def test_every_way_to_write_to_a_buffer():
    model = Writes()
    buffers = Buffers(model)
    model(torch.randn(6, 4))
    names = ("behind", "functional_mean", "functional_var", "in_place", "replaced")
    names += ("resized", "whole")
    assert buffers.written() == {model: names}


def test_a_frozen_batch_norm_still_writes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    model[:2].requires_grad_(False)
    facts = named(gradscope.inspect(model, torch.randn(2, 3, 8, 8), mode="train"))
    names = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert set(facts["1"].written) == names
    assert model[1].num_batches_tracked == 0  # given back as it was
    model[1].eval()
    assert named(gradscope.inspect(model, torch.randn(2, 3, 8, 8)))["1"].written == ()


# ------------------------------------------------------------------------------- misspelt flags

MEANT = [
    "require_grad", "required_grad", "requires_gradient", "require_grads", "requiers_grad",
    "requires_grads", "requires_gradients", "requries_grad", "requireGrad", "requiresGrad",
    "Requires_grad", "requires_gard", "requires_grad_", "requiring_grad",
]  # fmt: skip
OTHERS = [
    "retain_grad", "training", "use_grad", "needs_input_grad", "gradient_checkpointing", "grad",
    "requires_grid", "requires_graph", "required", "_requires_grad", "is_grad", "stop_gradient",
]  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_a_misspelt_flag(name):
    layer = nn.Linear(2, 2)
    setattr(layer.weight, name, False)
    assert misspelt_flags(layer.weight) == (name,)
    setattr(layer, name, False)
    assert module_facts(layer, {})[0].misspelt == (name,)


@pytest.mark.parametrize("name", OTHERS)
def test_other_attributes(name):
    layer = nn.Linear(2, 2)
    setattr(layer.bias, name, None if name == "grad" else False)
    assert misspelt_flags(layer.bias) == ()
    setattr(layer, name, False)
    assert module_facts(layer, {})[0].misspelt == ()


def test_a_flag_that_agrees_says_nothing():
    layer = nn.Linear(2, 2)
    layer.weight.require_grad = layer.require_grad = True
    assert misspelt_flags(layer.weight) == module_facts(layer, {})[0].misspelt == ()
    layer.requires_grad_(False)
    assert misspelt_flags(layer.weight) == ("require_grad",)
    assert module_facts(layer, {})[0].misspelt == ("require_grad",)


def test_requires_grad_of_a_module_does_nothing():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model[0].requires_grad = False
    model[1].requires_grad = False  # owns no parameter
    report = gradscope.inspect(model, torch.randn(3, 2))
    assert {n: f.misspelt for n, f in named(report).items() if f.misspelt} == {
        "0": ("requires_grad",)
    }


class Switched(nn.Module):
    """Keeps a switch of that name for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad = True
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x if self.requires_grad else x.detach())


def test_a_switch_of_the_modules_own():
    model = Switched()
    model.requires_grad_ = lambda on: None  # no flag at all
    model.inner.requires_grad_(False)
    assert module_facts(model, {})[0].misspelt == ()


def test_misspelt_flags_of_parameters_in_a_report():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    for parameter in model[0].parameters():
        parameter.require_grad = False
    report = gradscope.inspect(model, torch.randn(3, 2))
    flags = {p.name: p.misspelt for p in report.parameters}
    wrong = ("require_grad",)
    assert flags == {"0.weight": wrong, "0.bias": wrong, "1.weight": (), "1.bias": ()}
    assert loads(dumps(report), Report) == report


# ------------------------------------------------------------------------------- steps


def moved(model: nn.Module, **options: object) -> dict[str, ParameterStats]:
    sgd = {"_target_": "torch.optim.SGD", "lr": 0.1}
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    report = gradscope.inspect(model, x, loss="sum", **{"optimizer": sgd, **options})
    return {p.name: p for p in report.parameters}


def test_what_a_step_moves():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[2].bias)
    model[0].bias.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    held = [p for n, p in model.named_parameters() if n != "1.bias"]
    got = moved(model, optimizer=lambda _: torch.optim.SGD(held, lr=0.1))
    assert {n: (p.moved, p.update_ratio == 0, p.in_optimizer) for n, p in got.items()} == {
        "0.weight": (False, True, True),  # its gradient is zero behind a zero weight
        "0.bias": (False, True, True),  # frozen
        "1.weight": (True, False, True),
        "1.bias": (None, False, False),
        "2.weight": (False, True, True),
        "2.bias": (True, False, True),
    }
    assert got["1.weight"].update_ratio is None  # of nothing there is not a share
    assert got["1.bias"].update_ratio is None


def test_nothing_moves_at_a_rate_of_zero():
    got = moved(nn.Linear(3, 3), optimizer={"_target_": "torch.optim.SGD", "lr": 0.0})
    assert {(p.moved, p.update_ratio) for p in got.values()} == {(False, 0.0)}


def test_a_step_to_nan_is_not_a_step_of_nothing():
    class Rooted(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + (self.bias * 0).sqrt()

    got = moved(Rooted(3, 3))
    assert got["bias"].moved is True
    assert got["bias"].update_ratio is None


def test_without_an_optimizer_nobody_knows():
    got = moved(nn.Linear(3, 3), optimizer=None)
    assert {(p.moved, p.update_ratio) for p in got.values()} == {(None, None)}


# ------------------------------------------------------------------------------- links


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_batch_norms_follow_their_convolutions(name):
    model = picture_model(name)
    order = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    kinds = dict(model.named_modules())
    expected = {
        (before, after)
        for before, after in itertools.pairwise(order)
        if isinstance(kinds[before], nn.Conv2d) and isinstance(kinds[after], nn.BatchNorm2d)
    }
    report = gradscope.inspect(model, torch.randn(2, 3, 64, 64))
    found = {(a, b) for op, a, into, b in linked(report) if into == "NativeBatchNormBackward0"}
    assert found == expected
    assert {op for op, _, into, _ in linked(report) if "BatchNorm" in into} == {
        "ConvolutionBackward0"
    }
    assert linked(report)[-2:] == [
        ("AddmmBackward0", order_of_last_linear(model), "LogSoftmaxBackward0", None),
        ("LogSoftmaxBackward0", None, "NllLossBackward0", None),
    ]
    assert not any(link.shared for link in report.links)


def order_of_last_linear(model: nn.Module) -> str:
    return [n for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]


class Head(nn.Module):
    """A body, then whatever a test wants to do to the logits."""

    def __init__(self, end) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.end = end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end(self.fc(x))


ENDS = {
    "softmax": (lambda x: x.softmax(-1), "SoftmaxBackward0", ""),
    "log-softmax": (lambda x: F.log_softmax(x, -1), "LogSoftmaxBackward0", ""),
    "relu": (torch.relu, "ReluBackward0", ""),
    "relu6 in a view": (lambda x: F.relu6(x).view(-1, 6), "HardtanhBackward0", ""),
    "a module": (nn.Softmax(-1), "SoftmaxBackward0", "end"),
    "slices, casts and permutations": (
        lambda x: x.relu().double()[:, 1:].t().contiguous().t().unsqueeze(0).squeeze(0).float(),
        "ReluBackward0",
        "",
    ),
    "picked rows": (lambda x: x.clamp(min=0)[torch.tensor([0, 1, 2, 2])], "ClampBackward1", ""),
    "in place": (lambda x: x.relu_(), "ReluBackward0", ""),
    "in place on a view": (lambda x: (x.view(-1).relu_(), x)[1], "CopySlices", ""),
    "plain": (lambda x: x, "AddmmBackward0", "fc"),
}


@pytest.mark.parametrize(("end", "op", "name"), ENDS.values(), ids=ENDS)
def test_what_goes_into_a_cross_entropy(end, op, name):
    target = torch.tensor([0, 1, 2, 3])
    report = gradscope.inspect(Head(end), torch.randn(4, 4), target=target, loss="cross_entropy")
    assert linked(report)[-2:] == [
        (op, name, "LogSoftmaxBackward0", None),
        ("LogSoftmaxBackward0", None, "NllLossBackward0", None),
    ]


def test_what_goes_into_a_binary_cross_entropy():
    target = torch.ones(4, 6)
    report = gradscope.inspect(
        Head(torch.sigmoid), torch.randn(4, 4), target=target, loss="bce_with_logits"
    )
    into = "BinaryCrossEntropyWithLogitsBackward0"
    assert linked(report) == [("SigmoidBackward0", "", into, None)]
    report = gradscope.inspect(
        Head(nn.Sigmoid()),
        torch.randn(4, 4),
        target=target,
        loss=nn.functional.binary_cross_entropy,
    )
    assert linked(report) == [("SigmoidBackward0", "end", "BinaryCrossEntropyBackward0", None)]


def test_a_result_that_others_read_too():
    class Tapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x)
            return self.bn(y) + y

    report = gradscope.inspect(Tapped(), torch.randn(2, 3, 4, 4), loss="sum")
    assert linked(report) == [
        ("ConvolutionBackward0", "conv", "NativeBatchNormBackward0", "bn"),
    ]
    assert report.links[0].shared
    assert loads(dumps(report), Report) == report


def test_calls_are_told_apart():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn(self.fc(torch.tanh(self.bn(self.fc(x)))))

    links = gradscope.inspect(Twice(), torch.randn(3, 4), loss="sum").links
    assert [(link.name, link.call, link.into_name, link.into_call) for link in links] == [
        ("fc", 0, "bn", 0),
        ("fc", 1, "bn", 1),
    ]


def test_a_frozen_producer_has_no_node():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert linked(gradscope.inspect(model, torch.randn(3, 4), loss="sum")) == []


def test_a_transformer_for_sequences():
    from transformers import BertConfig, BertForTokenClassification

    small = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=3,
    )  # fmt: skip
    model = BertForTokenClassification(small)
    inputs = {"input_ids": torch.randint(50, (2, 7)), "labels": torch.randint(3, (2, 7))}
    report = gradscope.inspect(model, inputs)
    assert linked(report) == [
        ("AddmmBackward0", "classifier", "LogSoftmaxBackward0", ""),
        ("LogSoftmaxBackward0", "", "NllLossBackward0", ""),
    ]
    facts = named(report)
    assert facts["bert.embeddings"].written == ()
    assert facts["dropout"].settings["p"] == 0.1


def test_positions_of_a_file_that_was_edited(tmp_path):
    """The text at the function's line may be another one by now."""
    file, made = tmp_path / "edited.py", {}
    text = "\n\ndef forward(self, x):\n    return x + self.pe[:x.size(0)]\n"
    for now, tables in ((text, ("pe",)), ("\n\ndef forward(self, x,\n", ()), ("", ())):
        file.write_text(now)
        exec(compile(text, str(file), "exec"), made)
        linecache.checkcache(str(file))
        _row_tables.cache_clear()
        assert _row_tables(made["forward"].__code__) == tables, now


# ------------------------------------------------------------------------------- the record


def test_a_report_without_the_new_keys_reads_as_before():
    report = gradscope.inspect(Odd(), torch.randn(2, 4))
    data = json.loads(dumps(report))
    assert "settings" not in data["modules"][1]  # what is empty is left out
    assert "written" not in data["modules"][1]
    assert loads(json.dumps(data), Report) == report
    del data["modules"], data["links"]
    assert loads(json.dumps(data), Report).modules == ()
