"""Changes of each arm to a training, against the same training changed by hand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradscope.experiment import arm_runs
from gradscope.experiment.arms import BY_NAME
from gradscope.experiment.comparison import Dependence
from gradscope.experiment.interventions.no_dropout import dropout_of
from gradscope.experiment.interventions.other_seed import SHIFT
from gradscope.experiment.script_facts import note_facts


@contextmanager
def arm(name: str, factor: float | None = None) -> Iterator[dict[str, Any]]:
    """Within this, what an arm changes is changed; gives its notes."""
    file = importlib.import_module(f"gradscope.experiment.interventions.{name}")
    notes: dict[str, Any] = {}
    with ExitStack() as patches:
        file.install(patches, notes, factor)
        yield notes


class Seen(nn.Module):
    """Keeps what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        self.given.append(x.detach().clone())
        out: torch.Tensor = self.fc(x)
        return out


def stepped(lr: float = 0.1, decay: float = 0.0, **options: Any) -> torch.Tensor:
    """The weight after two steps of SGD."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=lr, weight_decay=decay, **options)
    for _ in range(2):
        optimizer.zero_grad()
        (weight * torch.arange(3.0)).sum().backward()
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == lr  # the script sees its own
    return weight.detach()


def test_the_learning_rate_is_multiplied_in_the_steps_alone() -> None:
    plain = stepped(0.25)
    with arm("learning_rate", 10.0):
        assert torch.equal(stepped(0.025), plain)
    assert torch.equal(stepped(0.25), plain)


def test_weight_decay_is_left_out() -> None:
    plain = stepped()
    assert not torch.equal(stepped(decay=0.5), plain)
    with arm("no_weight_decay"):
        assert torch.equal(stepped(decay=0.5), plain)


def scheduled() -> torch.Tensor:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        (weight * torch.arange(3.0)).sum().backward()
        optimizer.step()
        scheduler.step()
    return weight.detach()


def test_without_a_schedule_the_rate_is_the_constructors() -> None:
    with arm("no_schedule"):
        assert torch.equal(scheduled(), stepped(0.1))


def test_gradients_are_not_clipped() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 4.0)
    with arm("no_clipping"):
        norm = nn.utils.clip_grad_norm_([weight], 1.0)
        nn.utils.clip_grad_value_([weight], 0.5)
    assert norm.item() == pytest.approx(48**0.5, rel=1e-6)
    assert torch.equal(weight.grad, torch.full((3,), 4.0))
    nn.utils.clip_grad_value_([weight], 0.5)
    assert torch.equal(weight.grad, torch.full((3,), 0.5))


def test_nothing_is_dropped() -> None:
    x = torch.ones(4, 8, 16)
    attention = nn.MultiheadAttention(16, 2, dropout=0.9, batch_first=True)
    model = nn.ModuleList([nn.Dropout(0.9), attention, nn.LSTM(16, 4, 2, dropout=0.9)])
    with arm("no_dropout"):
        torch.optim.SGD(model.parameters(), lr=0.1)
        assert torch.equal(model[0](x), x)
        assert torch.equal(F.dropout(x, 0.9), x)
        for call in (lambda: attention(x, x, x)[0], lambda: model[2](x)[0]):
            assert torch.equal(call(), call())
        q = torch.randn(1, 2, 5, 8)
        one, other = (F.scaled_dot_product_attention(q, q, q, dropout_p=0.9) for _ in range(2))
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("module", "probability"),
    [(nn.Dropout(0.3), 0.3), (nn.LSTM(2, 2, 2, dropout=0.2), 0.2), (nn.Linear(2, 2), 0.0)],
    ids=["Dropout", "LSTM", "Linear"],
)
def test_dropout_is_known(module: nn.Module, probability: float) -> None:
    assert dropout_of(module) == probability


def test_autocast_is_off() -> None:
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    with arm("float32"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_every_seed_is_another() -> None:
    state = torch.get_rng_state()
    try:
        torch.manual_seed(3 + SHIFT)
        wanted = torch.rand(2)
        with arm("other_seed"):
            torch.manual_seed(3)
            assert torch.equal(torch.rand(2), wanted)
            torch.random.manual_seed(seed=3)
            assert torch.equal(torch.rand(2), wanted)
    finally:
        torch.set_rng_state(state)


@pytest.mark.parametrize(
    ("dropped", "probability"),
    [
        (lambda x: F.dropout(x, 0.3), 0.3),
        (lambda x: F.dropout2d(x[None], p=0.4, training=True), 0.4),
        (lambda x: F.dropout(input=x), 0.5),
        (lambda x: F.dropout(x, 0.3, False), 0.0),
        (lambda x: F.alpha_dropout(x, 0.3), 0.0),
    ],
)
def test_dropout_of_functions_is_known(dropped: Callable[..., Any], probability: float) -> None:
    notes: dict[str, Any] = {}
    torch.manual_seed(0)
    plain = dropped(torch.ones(3, 4, 4))
    with ExitStack() as patches:
        note_facts(patches, notes)
        torch.manual_seed(0)
        assert torch.equal(dropped(torch.ones(3, 4, 4)), plain)
    assert notes.get("dropout", 0.0) == probability


def test_dropout_of_functions_in_a_compiled_model_is_left_alone() -> None:
    with ExitStack() as patches:
        note_facts(patches, {})
        drop = torch.compile(lambda x: F.dropout(x, 0.5) + 1, backend="eager", fullgraph=True)
        assert set(drop(torch.ones(8)).tolist()) <= {1.0, 3.0}


def trained(batches: Callable[[], Iterator[tuple[torch.Tensor, torch.Tensor]]]) -> Any:
    """Train a model; return its inputs, and the targets of its losses."""
    model = Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    targets = []
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        targets.append(y)
        optimizer.step()
    return model.given, targets


X, Y = torch.arange(36.0).reshape(12, 3), torch.arange(12) // 3 % 2


def sliced() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for start in range(0, 12, 4):
        yield X[start : start + 4], Y[start : start + 4]


def loaded() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(2):
        yield from DataLoader(TensorDataset(X, Y), batch_size=4)


def test_one_batch_of_a_loader_is_repeated_with_its_targets() -> None:
    with arm("one_batch") as notes:
        given, targets = trained(loaded)
    assert len(given) == 6
    assert all(torch.equal(x, X[:4]) for x in given)
    assert all(torch.equal(y, Y[:4]) for y in targets)
    assert (notes["loaded"], notes["changed"], notes["targets"]) == (6, 0, 6)


def test_what_a_script_writes_into_its_batch_is_not_repeated() -> None:
    with arm("one_batch"):
        firsts = [x.mul_(2)[0, 1].item() for x, _ in loaded()]
    assert set(firsts) == {2.0}


def test_without_a_loader_arguments_and_targets_of_the_loss_are_replaced() -> None:
    seen: list[torch.Tensor] = []
    plain = F.cross_entropy
    F.cross_entropy = lambda out, y: (seen.append(y), plain(out, y))[1]
    try:
        with arm("one_batch") as notes:
            given, _ = trained(sliced)
    finally:
        F.cross_entropy = plain
    assert all(torch.equal(x, X[:4]) for x in given)
    assert all(torch.equal(y, Y[:4]) for y in seen)
    assert (notes["loaded"], notes["changed"], notes["targets"]) == (0, 2, 3)
    assert notes["losses"][0][1] == 0.0


def test_micro_batches_of_a_step_stay_apart() -> None:
    with arm("one_batch"):
        model = Seen()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            for x, y in list(sliced())[:2]:
                F.cross_entropy(model(x + len(model.given) // 2), y).backward()
            optimizer.step()
    assert torch.equal(model.given[2], model.given[0])
    assert torch.equal(model.given[3], model.given[1])
    assert not torch.equal(model.given[0], model.given[1])


@pytest.mark.parametrize("draws", [True, False])
def test_a_batch_that_is_drawn_is_drawn_again(draws: bool) -> None:
    """The loss is made by hand, so only the script knows the targets."""
    targets = []
    with arm("one_batch") as notes:
        torch.manual_seed(0)
        model = Seen()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(6):
            rows = torch.randint(12, (4,)) if draws else torch.arange(step, step + 4)
            targets.append(Y[rows])
            optimizer.zero_grad()
            (model(X[rows])[:, 0] - targets[-1]).square().mean().backward()
            optimizer.step()
    drawn = all(torch.equal(one, targets[3]) for one in targets[3:])
    assert drawn == draws
    assert (notes["drawn"] > 0, notes["other"] > 0) == (True, not draws)
    fault = arm_runs._unchanged(BY_NAME["one-batch"], notes)
    assert (fault is None) == draws


def test_inputs_that_stay_while_targets_change_are_noted() -> None:
    with arm("one_batch") as notes:
        trained(lambda: ((X[:4], Y[i : i + 4]) for i in (0, 2, 4)))
    assert (notes["changed"], notes["fresh"]) == (0, 2)


class Positions(nn.Module):
    """Logits of two classes at each position of sequences of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.fc(x)
        return out


@pytest.mark.parametrize("form", ["flat", "classes second", "numbers", "one dropped"])
@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_targets_are_shifted_along_each_sequence(form: str, shift: float) -> None:
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[0, 0, 1, 0, 1], [1, 0, 0, 0, 1]])
    seen = []
    plain = F.cross_entropy, F.mse_loss
    F.cross_entropy = lambda out, y: (seen.append(y), plain[0](out, y))[1]
    F.mse_loss = lambda out, y: (seen.append(y), plain[1](out, y))[1]
    try:
        with arm("shifted_targets", shift) as notes:
            model = Positions()
            torch.optim.SGD(model.parameters(), lr=0.0)
            out = model(x)
            if form == "flat":
                F.cross_entropy(out.flatten(0, 1), y.flatten())
            elif form == "classes second":
                F.cross_entropy(out.transpose(1, 2), y)
            elif form == "numbers":
                F.mse_loss(out[..., 0], y.float())
            else:
                y = y[:, 1:]
                F.cross_entropy(out[:, :-1].flatten(0, 1), y.flatten())
    finally:
        F.cross_entropy, F.mse_loss = plain
    assert torch.equal(seen[0].reshape(y.shape).long(), y.roll(int(shift), 1))
    assert (notes["shifted"], notes["given"]) == (1, 0)


def test_targets_of_samples_are_not_shifted() -> None:
    with arm("shifted_targets", 1.0) as notes:
        trained(sliced)
    assert notes["shifted"] == 0
    fault = arm_runs._unchanged(BY_NAME["targets-earlier"], notes)
    assert fault == "no loss function gets a target of each position"


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_a_shift_that_gives_the_inputs_away_is_noted(shift: float) -> None:
    """The next token, or the next number: shifted by one, it is the model's input."""
    made = torch.Generator().manual_seed(0)
    tokens, numbers = torch.randint(9, (4, 9), generator=made), torch.randn(4, 9, generator=made)
    with arm("shifted_targets", shift) as notes:
        language = nn.Sequential(nn.Embedding(9, 9))
        other = nn.Linear(1, 1)
        torch.optim.SGD([*language.parameters(), *other.parameters()], lr=0.0)
        F.cross_entropy(language(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        assert notes["given"] == (shift > 0)
        F.mse_loss(other(numbers[:, :-1, None])[..., 0], 2 * numbers[:, 1:] + 3)
        assert notes["given"] == 2 * (shift > 0)
    fault = arm_runs._unchanged(BY_NAME["targets-earlier"], notes)
    assert (fault == "the shifted targets are the inputs") == (shift > 0)


def test_no_input_is_the_mean_of_the_first_batch() -> None:
    with arm("no_input") as notes:
        given, targets = trained(sliced)
    mean = X[:4].double().mean(0).float().expand(4, 3)
    assert all(torch.equal(x, mean) for x in given)
    assert torch.equal(torch.cat(targets), Y)
    assert (notes["changed"], notes["given"], notes["constant"]) == (3, 3, 0)


def test_an_input_that_is_equal_for_all_samples_is_noted() -> None:
    with arm("no_input") as notes:
        trained(lambda: ((X[i].expand(4, 3), Y[:4]) for i in range(3)))
        assert (notes["given"], notes["constant"]) == (3, 3)
        trained(lambda: ((X[i : i + 1], Y[i : i + 1]) for i in range(3)))
    assert (notes["given"], notes["constant"]) == (6, 3)


def related(
    targets: Callable[[torch.Tensor], torch.Tensor], *, bits: bool = True, calls: int = 16
) -> Any:
    """The relation of targets to 16 bits or numbers that the arm measures."""
    made = torch.Generator().manual_seed(0)
    with arm("no_input") as notes:
        model = nn.Linear(16, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(calls):
            x = torch.randn(64, 16, generator=made)
            x = (x > 0).float() if bits else x
            F.cross_entropy(model(x), targets(x)).backward()
            optimizer.step()
    return Dependence(**notes["relation"])


def test_targets_that_depend_on_inputs_are_known_without_a_model() -> None:
    """Parity, which a linear model cannot learn, and the labels of other samples."""
    shuffled = torch.Generator().manual_seed(1)

    def parity(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1).long() % 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return x[torch.randperm(64, generator=shuffled), 0].long()

    assert related(parity).is_found
    assert related(lambda x: x[:, 0].long()).strength > 10
    for lost in (other, lambda x: torch.zeros(64, dtype=torch.long)):
        found = related(lost)
        assert found.strength < 5
        assert found.is_found is None  # of bits, it sees too few relations
    signs = related(lambda x: other(x > 0), bits=False)
    assert signs.is_found is False


def test_a_relation_of_a_tenth_is_seen_where_the_test_says_so() -> None:
    """One number has a tenth of the variance; with a sixth of the samples only more is seen."""
    noise = torch.Generator().manual_seed(2)

    def faint(x: torch.Tensor) -> torch.Tensor:
        return (0.1**0.5 * x[:, 3] + 0.9**0.5 * torch.randn(64, generator=noise) > 0).long()

    many, few = (related(faint, bits=False, calls=calls) for calls in (24, 4))
    assert many.planted > 5
    assert many.is_found
    assert few.planted > 5
    assert few.is_found is False
    assert (many.share, few.share) == (0.1, 0.2)


def test_a_sketch_keeps_inner_products() -> None:
    """Of numbers, and of tokens: how many places have the same one."""
    from gradscope.experiment.interventions._relation import sketch

    x = torch.randn(8, 5000, generator=torch.Generator().manual_seed(0))
    exact, found = x.double() @ x.double().T, sketch(x, 1024).double()
    # The standard deviation is at most sqrt(2 / width) of the product of the norms.
    bound = 6 * (2 / 1024) ** 0.5 * exact.diagonal().max()
    assert (found @ found.T - exact).abs().max() < bound
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9], [5, 6, 7, 8]])
    few = sketch(tokens, 1024)
    assert (few @ few.T).tolist() == [[4, 2, 0], [2, 4, 0], [0, 0, 4]]


def test_tokens_become_one_token_and_labels_and_masks_stay() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 2)
            self.given: Any = None

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> torch.Tensor:
            self.given = input_ids, attention_mask, labels
            out: torch.Tensor = self.embed(input_ids).sum()
            return out

    ids, mask = torch.tensor([[4, 5], [6, 7]]), torch.tensor([[1, 0], [1, 1]])
    with arm("no_input"):
        model = Tokens()
        torch.optim.SGD(model.parameters(), lr=0.0)
        model(ids, attention_mask=mask, labels=ids)
    tokens, masked, labels = model.given
    assert torch.equal(tokens, torch.full((2, 2), 4))
    assert masked is mask
    assert labels.tolist() == ids.tolist()


def test_inputs_are_shifted_against_their_targets() -> None:
    with arm("mismatched"):
        given, targets = trained(sliced)
    for got, (x, _) in zip(given, sliced(), strict=True):
        assert not (got == x).all(1).any()  # no sample is at its place
        assert sorted(got[:, 0].tolist()) == sorted(x[:, 0].tolist())
    assert torch.equal(torch.cat(targets), Y)


def test_a_batch_of_one_cannot_be_shifted() -> None:
    with arm("mismatched") as notes:
        trained(lambda: ((X[i : i + 1], Y[i : i + 1]) for i in range(3)))
    assert (notes["calls"], notes["changed"]) == (3, 0)


def test_samples_that_come_again_are_counted_once() -> None:
    with arm("mismatched") as notes:
        trained(lambda: ((X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 0, 2)))
    assert (notes["samples"], notes["distinct"]) == (16, 8)


def test_a_sample_that_comes_again_has_the_same_wrong_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for rows in (slice(0, 8), slice(4, 12), slice(0, 8)):
            yield X[rows].flip(0), Y[rows].flip(0)

    with arm("mismatched") as notes:
        first, second, third = trained(twice)[0]
    assert torch.equal(first, third)
    assert torch.equal(second[4:], first[:4])  # samples 4 to 8, flipped
    assert notes["paired"]
    mismatched = importlib.import_module("gradscope.experiment.interventions.mismatched")
    monkeypatch.setattr(mismatched, "_MOST_BYTES", 0)
    with arm("mismatched") as notes:
        first, second, _ = trained(twice)[0]
    assert not torch.equal(second[4:], first[:4])
    assert not notes["paired"]


@pytest.mark.parametrize("name", ["one_batch", "no_input", "mismatched"])
def test_a_call_that_returns_a_loss_has_its_targets_named_or_is_whole(name: str) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, batch: Any, labels: Any = None) -> Any:
            x, y = (batch, labels) if labels is not None else batch
            return {"loss": F.cross_entropy(self.fc(x), y)}

    with arm(name) as notes:
        model = Whole()
        torch.optim.SGD(model.parameters(), lr=0.0)
        y = torch.tensor([0, 1, 1, 0])
        model(X[:4], labels=y)
        assert notes["own_loss"] == 0
        model((X[:4], y))
    assert (notes["calls"], notes["own_loss"]) == (2, 1)


def test_evaluation_and_what_a_model_made_are_left_alone() -> None:
    with arm("no_input") as notes:
        model, other = Seen(), Seen()
        torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.0)
        with torch.no_grad():
            model(X)
        other(model(X).repeat(1, 2)[:, :3])
    assert torch.equal(model.given[0], X)
    assert not torch.equal(model.given[1], X)
    assert other.given[0].std(0).max() < 1e-5  # of numbers of some tens: rows in float32
    assert (notes["calls"], notes["changed"]) == (2, 1)


def test_a_compiled_model_is_changed_too() -> None:
    with arm("no_input") as notes:
        model = Seen()
        compiled = torch.compile(model, backend="eager")
        torch.optim.SGD(model.parameters(), lr=0.0)
        compiled(X)
    assert notes["changed"] == 1
    assert model.given[0].std(0).max() == 0


@pytest.mark.parametrize(
    ("name", "target", "options", "lowest"),
    [
        ("cross_entropy", torch.tensor([0, 1]), {}, 0.0),
        ("cross_entropy", torch.tensor([[0.5, 0.5], [1.0, 0.0]]), {}, 0.34657359),
        ("cross_entropy", torch.tensor([0, 1]), {"label_smoothing": 0.1}, None),
        ("binary_cross_entropy_with_logits", torch.tensor([0.0, 1.0]), {}, 0.0),
        ("binary_cross_entropy", torch.tensor([0.5]), {}, 0.69314718),
        ("binary_cross_entropy", torch.tensor([0.5, 0.5]), {"reduction": "sum"}, 1.38629436),
        ("binary_cross_entropy", torch.tensor([0.5]), {"weight": torch.ones(1)}, None),
        ("mse_loss", torch.tensor([3.0]), {}, 0.0),
        ("kl_div", torch.tensor([0.5]), {}, None),
    ],
)
def test_the_lowest_loss(name: str, target: torch.Tensor, options: Any, lowest: Any) -> None:
    from gradscope.experiment.interventions.one_batch import floor

    found = floor(name, target, options)
    assert found == (None if lowest is None else pytest.approx(lowest, abs=1e-7))
