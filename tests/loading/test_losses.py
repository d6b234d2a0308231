"""The choice of the loss, its inputs, and the message if none can be chosen."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradscope.errors import ConfigError, ModelError, Place
from gradscope.loading.losses import Criterion, resolve

Pair = namedtuple("Pair", ["ids", "scores"])


@dataclass
class Answer:
    hidden: torch.Tensor
    loss: torch.Tensor | None = None


def scores(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


LOGITS = scores(2, 5)
IMAGE = scores(2, 5, 3, 3)
ONE = torch.tensor(1.5)
INFERRED = {
    # what: (output, target, name, value)
    "scores": (
        LOGITS,
        torch.tensor([1, 4]),
        "cross_entropy",
        F.cross_entropy(LOGITS, torch.tensor([1, 4])),
    ),
    "one id for all": (
        LOGITS,
        torch.tensor(2),
        "cross_entropy",
        F.cross_entropy(LOGITS, torch.tensor([2, 2])),
    ),
    "soft targets": (
        LOGITS,
        LOGITS.softmax(1).double(),
        "cross_entropy",
        F.cross_entropy(LOGITS, LOGITS.softmax(1)),
    ),
    "32-bit ids": (
        LOGITS,
        torch.tensor([1, 4], dtype=torch.int32),
        "cross_entropy",
        F.cross_entropy(LOGITS, torch.tensor([1, 4])),
    ),
    "one score": (scores(4, 1), None, "sum", scores(4, 1).sum()),
    "a vector": (scores(4), None, "sum", scores(4).sum()),
    "a sequence": (scores(2, 3, 7), None, "sum", scores(2, 3, 7).sum()),
    "a picture": (IMAGE, None, "sum", IMAGE.sum()),
    "a picture with a class for each place": (
        IMAGE,
        torch.ones(2, 3, 3).long(),
        "cross_entropy",
        F.cross_entropy(IMAGE, torch.ones(2, 3, 3).long()),
    ),
    "a model's own loss": (Answer(LOGITS, ONE), None, "output.loss", ONE),
    "a model without labels": (
        Answer(LOGITS),
        torch.tensor([0, 0]),
        "cross_entropy",
        F.cross_entropy(LOGITS, torch.tensor([0, 0])),
    ),
    "a mapping with a loss": ({"logits": LOGITS, "loss": ONE}, None, "output.loss", ONE),
    "a mapping of losses": ({"a": ONE, "b": ONE.reshape(1)}, None, "output", ONE * 2),
    "a mapping of tensors": (OrderedDict(out=IMAGE, aux=IMAGE), None, "sum", IMAGE.sum()),
    "after integers": (Pair(torch.ones(2).long(), scores(3)), None, "sum", scores(3).sum()),
    "deep inside": ([{"a": ("text", None, [scores(3)])}], None, "sum", scores(3).sum()),
}


@pytest.mark.parametrize(("output", "target", "name", "value"), INFERRED.values(), ids=INFERRED)
def test_inferred(output, target, name, value):
    criterion = Criterion(None, target, seed=0)
    torch.testing.assert_close(criterion(output, None), value)
    assert criterion.name == name
    assert any(notice.startswith(f"loss: {name} (") for notice in criterion.notices)


def test_what_is_said():
    criterion = Criterion(None, None, seed=0)
    criterion({"x": LOGITS}, None)
    criterion({"x": LOGITS}, None)
    loss, target = criterion.notices
    assert loss == "loss: cross_entropy (the first floating output `x` is [2, 5])"
    assert target.startswith("target: random classes [")


def test_an_unused_target_is_said():
    criterion = Criterion(None, torch.ones(4), seed=0)
    criterion(scores(4), None)
    assert "target: not used by the sum; set `loss` to compare with it" in criterion.notices


VALUES = scores(4, 1)
NAMED = {
    "cross_entropy": (
        "cross_entropy",
        LOGITS,
        [1, 4],
        F.cross_entropy(LOGITS, torch.tensor([1, 4])),
    ),
    "cross_entropy of one row": (
        "cross_entropy",
        LOGITS[0],
        3,
        F.cross_entropy(LOGITS[0], torch.tensor(3)),
    ),
    "nll": ("nll", LOGITS, [1, 4], F.nll_loss(LOGITS, torch.tensor([1, 4]))),
    "mse": ("mse", LOGITS, LOGITS + 2, torch.tensor(4.0)),
    "mse of one number": ("mse", LOGITS, 0.0, LOGITS.square().mean()),
    "mse of a column": ("mse", VALUES, (VALUES + 1)[:, 0].double(), torch.tensor(1.0)),
    "bce_with_logits": (
        "bce_with_logits",
        VALUES,
        torch.tensor([0, 1, 1, 0]),
        F.binary_cross_entropy_with_logits(VALUES, torch.tensor([[0.0], [1.0], [1.0], [0.0]])),
    ),
    "sum": ("sum", LOGITS, None, LOGITS.sum()),
    "mean": ("mean", {"a": LOGITS}, None, LOGITS.mean()),
    "logit": ("logit", LOGITS, [1, 4], LOGITS[0, 1] + LOGITS[1, 4]),
    "the highest logit": ("logit", LOGITS, None, LOGITS.max(1).values.sum()),
    "logit of one row": ("logit", LOGITS[0], 2, LOGITS[0, 2]),
    "logit over a picture": (
        "logit",
        IMAGE,
        torch.tensor([1, 4]),
        IMAGE[0, 1].sum() + IMAGE[1, 4].sum(),
    ),
    "output": ("output", {"a": ONE, "b": ONE}, None, ONE * 2),
}


@pytest.mark.parametrize(("spec", "output", "target", "value"), NAMED.values(), ids=NAMED)
def test_named(spec, output, target, value):
    criterion = Criterion(spec, target, seed=0)
    torch.testing.assert_close(criterion(output, None), value)
    assert criterion.name == spec


def difference(output, target):
    return (output["y"] - target).sum()


def only(output):
    return output["y"].sum()


CALLED = {
    "a function of output and target": (
        difference,
        {"y": LOGITS},
        LOGITS - 1,
        torch.tensor(10.0),
        "difference",
    ),
    "a function of output": (only, {"y": LOGITS}, None, LOGITS.sum(), "only"),
    "a bound function": (
        partial(F.cross_entropy, reduction="sum"),
        {"y": LOGITS},
        torch.tensor([1, 4]),
        2 * F.cross_entropy(LOGITS, torch.tensor([1, 4])),
        "cross_entropy",
    ),
    "torch's class takes the first floating output": (
        nn.CrossEntropyLoss(),
        {"y": LOGITS},
        torch.tensor(2),
        F.cross_entropy(LOGITS, torch.tensor([2, 2])),
        "CrossEntropyLoss",
    ),
    "torch's class of values": (nn.L1Loss(), LOGITS, LOGITS + 3, torch.tensor(3.0), "L1Loss"),
}


@pytest.mark.parametrize(("spec", "output", "target", "value", "name"), CALLED.values(), ids=CALLED)
def test_called(spec, output, target, value, name):
    criterion = Criterion(spec, target, seed=0)
    torch.testing.assert_close(criterion(output, None), value)
    assert criterion.name == name


def test_torchs_class_of_classes_without_a_target_gets_random_ones():
    criterion = Criterion(nn.CrossEntropyLoss(), None, seed=0)
    assert criterion(LOGITS, None).isfinite()
    assert criterion.notices[0].startswith("target: random classes [")


def test_the_batchs_target_wins():
    criterion = Criterion("cross_entropy", torch.tensor([0, 0]), seed=0)
    found = criterion(LOGITS, torch.tensor([1, 4]))
    assert torch.equal(found, F.cross_entropy(LOGITS, torch.tensor([1, 4])))


class TestRandomTargets:
    def test_every_step_gets_the_same_and_no_global_state_is_touched(self):
        criterion = Criterion("cross_entropy", "random", seed=3)
        before = torch.get_rng_state()
        assert torch.equal(criterion(LOGITS, None), criterion(LOGITS, None))
        assert torch.equal(torch.get_rng_state(), before)
        assert len(criterion.notices) == 1

    def test_the_seed_chooses(self):
        output = scores(64, 100)
        one, two = (Criterion("cross_entropy", None, seed=seed)(output, None) for seed in (0, 1))
        assert one != two

    def test_every_class_can_come(self):
        criterion = Criterion("logit", "random", seed=0)
        output = torch.eye(3).repeat(100, 1)
        assert 0 < criterion(output, None) < 300

    @pytest.mark.parametrize("name", ["mse", "bce_with_logits"])
    def test_values_where_they_are_asked_for(self, name):
        criterion = Criterion(name, "random", seed=0)
        assert criterion(LOGITS, None).isfinite()
        assert criterion.notices[0].startswith("target: random")

    def test_a_function_of_ones_own(self):
        criterion = Criterion(
            lambda output, target: F.cross_entropy(output, target), "random", seed=0
        )
        assert criterion(LOGITS, None).isfinite()

    def test_dense(self):
        criterion = Criterion(None, "random", seed=0)
        assert criterion(IMAGE, None).isfinite()
        assert criterion.name == "cross_entropy"
        assert "target: random classes [2, 3, 3] of 5" in criterion.notices


def test_an_external_gradient_starts_from_the_output_as_it_is():
    for output in (LOGITS, torch.ones(2, dtype=torch.complex64)):
        criterion = Criterion(None, None, seed=0, external_gradient=True)
        assert criterion({"x": torch.ones(2).long(), "y": output}, None) is output
        assert criterion.name == "external gradient"
    named = Criterion("sum", None, seed=0, external_gradient=True)
    assert torch.equal(named(LOGITS, None), LOGITS.sum())


def test_on_meta_there_are_shapes_only():
    criterion = Criterion(None, None, seed=0)
    assert criterion(torch.empty(2, 5, device="meta"), None).shape == ()


REFUSED = {
    # what: (spec, output, target, message)
    "complex": (None, torch.ones(2, dtype=torch.complex64), None, "no loss can be made.*complex64"),
    "integers": (None, {"ids": torch.ones(3).long()}, None, r"it holds int64 \[3\]"),
    "no tensor": ("cross_entropy", "text", None, "no cross_entropy can be made.*a str"),
    "no own loss": ("output", LOGITS, None, "the output has no loss"),
    "too few ids": ("cross_entropy", LOGITS, [1], r"batch needs \[2\] class ids"),
    "ids of another shape": ("cross_entropy", IMAGE, [1, 2], r"go with class ids \[2, 3, 3\]"),
    "classes that stand last": (
        "cross_entropy",
        scores(2, 3, 7),
        torch.ones(2, 3).long(),
        r"the scores \[2, 3, 7\] need the classes at dimension 1, but the 7 classes are last",
    ),
    "flat ids of a sequence": (
        "cross_entropy",
        scores(2, 3, 7),
        torch.ones(6).long(),
        r"the target is \[6\]; the scores \[2, 3, 7\]",
    ),
    "values as ids": ("cross_entropy", LOGITS, [0.5, 1.0], r"float32 \[2\].*expects class ids"),
    "nothing to compare": ("mse", LOGITS, None, "mse has no target to compare"),
    "silent broadcasting": ("mse", scores(4, 2), torch.ones(4), "compares like shapes"),
    "one number as scores": ("cross_entropy", torch.tensor(1.0), None, r"expects scores \[N, C\]"),
    "a structured target": ("cross_entropy", LOGITS, [{"a": 1}], "compares with numbers"),
    "a loss that is no tensor": (
        lambda output: 1.0,
        LOGITS,
        None,
        "returned a float, not a tensor",
    ),
    "no class": ("cross_entropy", torch.ones(2, 0), None, "no class to draw"),
}


@pytest.mark.parametrize(("spec", "output", "target", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(spec, output, target, message):
    with pytest.raises(ModelError, match=message):
        Criterion(spec, target, seed=0)(output, None)


def test_what_to_do_where_the_classes_stand_last():
    """A language model's [N, T, C] with one token for each place."""
    logits, ids = scores(2, 3, 7), torch.ones(2, 3).long()
    with pytest.raises(ModelError) as caught:
        Criterion("cross_entropy", ids, seed=0)(logits, None)
    help = caught.value.problems[0].help
    assert "`logits.movedim(-1, 1)`" in help
    assert "`logits.flatten(0, 1)` with `target.flatten()`" in help
    moved = Criterion("cross_entropy", ids, seed=0)(logits.movedim(-1, 1), None)
    assert torch.equal(moved, F.cross_entropy(logits.flatten(0, 1), ids.flatten()))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.float32])
def test_a_loss_of_the_users_own_gets_the_target_as_it_was_given(dtype):
    target = torch.ones(2, dtype=dtype)
    for loss in (nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy):
        with pytest.raises(RuntimeError, match=r"expected target dtype|expected scalar type Long"):
            loss(LOGITS, target)
        with pytest.raises(RuntimeError, match=r"expected target dtype|expected scalar type Long"):
            Criterion(loss, target, seed=0)(LOGITS, None)
    assert Criterion("cross_entropy", torch.ones(2, dtype=torch.int32), seed=0)(LOGITS).ndim == 0


def test_one_id_stands_for_every_row_of_a_loss_of_the_users_own():
    loss = nn.CrossEntropyLoss()
    expected = loss(LOGITS, torch.tensor([1, 1]))
    assert torch.equal(Criterion(loss, 1, seed=0)(LOGITS), expected)


def test_the_losss_own_exception_passes_unchanged():
    with pytest.raises(IndexError, match="out of bounds"):
        Criterion("cross_entropy", [1, 9], seed=0)(LOGITS, None)

    def mistaken(output, target):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Criterion(mistaken, torch.ones(2), seed=0)(LOGITS, None)


class TestResolve:
    def test_names_and_none_are_kept(self):
        assert resolve("mse", pytest.fail) == "mse"
        assert resolve(None, pytest.fail) is None

    def test_a_target_is_built(self):
        made = nn.L1Loss()
        assert resolve({"_target_": "torch.nn.L1Loss"}, lambda mapping, key: made) is made

    @pytest.mark.parametrize(
        ("loss", "help"),
        [
            ("cross_entrpy", "did you mean `cross_entropy`?"),
            ("zzz", "one of cross_entropy, mse"),
            ("./loss.py:mine", "{_target_: ./loss.py:mine}"),
            ("torch.nn.L1Loss", "{_target_: torch.nn.L1Loss}"),
        ],
    )
    def test_unknown(self, loss, help):
        with pytest.raises(ConfigError, match="unknown loss") as caught:
            resolve(loss, pytest.fail, lambda key: Place("model.yaml", key=key))
        assert help in caught.value.problems[0].help
        assert caught.value.problems[0].place.key == "loss"

    def test_what_cannot_be_called(self):
        with pytest.raises(ConfigError, match="a int, which cannot be called"):
            resolve({"_target_": "x.y"}, lambda mapping, key: 3)
