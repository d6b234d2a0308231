"""Attention, experts and the residual stream, against explicit computations in float64."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradscope
from gradscope.capture.hooks import select_layers
from gradscope.capture.recorder import Recorder
from gradscope.capture.transformer import attention, patches
from gradscope.records.transformer import PROBES

#: What the first forward computed: `inspect` gives a model back as it was, and may run it again.
FIRST: list[Tensor] = []


def remember(*tensors: Tensor) -> None:
    if not FIRST:
        FIRST[:] = [one.detach() for one in tensors]


@pytest.fixture(autouse=True)
def forgotten():
    FIRST.clear()


def by_hand(logits: Tensor, visible: Tensor) -> dict[str, list[float]]:
    """The figures of logits [batch, heads, queries, keys], by loops over rows."""
    found: dict[str, list[float]] = {}
    for head in range(logits.shape[1]):
        entropy, even, sink, ahead, largest = [], [], [], [], []
        for sample in range(logits.shape[0]):
            for row in range(logits.shape[2]):
                seen = visible[sample, head, row]
                if seen.any():
                    largest.append(logits[sample, head, row][seen].max().item())
                if seen.sum() < 2:
                    continue
                weights = [0.0] * len(seen)
                kept = logits[sample, head, row][seen].double()
                normal = (kept - kept.max()).exp() / (kept - kept.max()).exp().sum()
                for place, weight in zip(seen.nonzero().flatten().tolist(), normal, strict=True):
                    weights[place] = weight.item()
                own = -sum(w * math.log(w) for w in weights if w)
                entropy.append(own)
                even.append(own / math.log(int(seen.sum())))
                sink.append(weights[0])
                ahead.append(sum(weights[row + 1 :]))
        columns = {
            "logit_max": max(largest),
            "entropy": sum(entropy) / len(entropy),
            "entropy_min": min(entropy),
            "evenness": sum(even) / len(even),
            "sink": sum(sink) / len(sink),
            "ahead": sum(ahead) / len(ahead) if len(seen) == logits.shape[2] else None,
        }
        for key, value in columns.items():
            found.setdefault(key, []).append(value)
    return found


def agrees(call, expected) -> None:
    for key, values in expected.items():
        found = list(getattr(call, key))
        assert found == (values if None in values else pytest.approx(values, rel=1e-6, abs=1e-6)), (
            key
        )


class Attends(nn.Module):
    """Attention of four heads of eight numbers, by the function that is given."""

    def __init__(self, attend, kv: int = 4):
        super().__init__()
        self.num_heads = 4
        self.q, self.kv = nn.Linear(32, 32), nn.Linear(32, 2 * 8 * kv)
        self.out = nn.Linear(32, 32)
        self.attend = attend

    def forward(self, x):
        b, t, _ = x.shape
        q = 3 * self.q(x).view(b, t, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, t, -1, 16).transpose(1, 2).chunk(2, -1)
        remember(q, k)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(b, t, 32))


MASK = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.6
MASK[..., 0] = True
BIAS = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(1))
CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
ALL = torch.ones(6, 6, dtype=torch.bool)
sdpa = F.scaled_dot_product_attention  # imported by name


def eager(q, k, v, visible=ALL, bias=0.0, cap=None, fill=-math.inf):
    scores = q @ k.transpose(-1, -2) / math.sqrt(8) + bias
    if cap:
        scores = cap * torch.tanh(scores / cap)
    return scores.masked_fill(~visible, fill).softmax(-1) @ v


def with_sink(q, k, v):
    scores = torch.cat([q @ k.mT / math.sqrt(8), torch.ones(2, 4, 6, 1)], -1)
    return F.softmax(scores, -1)[..., :-1] @ v


def einsum(q, k, v):
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(8), dim=2)
    return torch.einsum("bqkh,bkhd->bhqd", weights, v)


CASES = {
    "fused": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), 4, ALL, 0.0),
    "by name": (lambda q, k, v: sdpa(q, k, v, is_causal=True), 4, CAUSAL, 0.0),
    "grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=True),
        2,
        CAUSAL,
        0.0,
    ),
    "boolean mask": (lambda q, k, v: sdpa(q, k, v, MASK), 4, MASK, 0.0),
    "added bias": (lambda q, k, v: sdpa(q, k, v, attn_mask=BIAS), 4, ALL, BIAS),
    "eager": (eager, 4, ALL, 0.0),
    "eager causal": (lambda q, k, v: eager(q, k, v, CAUSAL, fill=-1e9), 4, CAUSAL, 0.0),
    "ALiBi": (lambda q, k, v: eager(q, k, v, CAUSAL, BIAS), 4, CAUSAL, BIAS),
    "einsum": (einsum, 4, ALL, 0.0),
}


def logits(bias) -> Tensor:
    q, k = (one.double() for one in FIRST)
    k = k.repeat_interleave(4 // k.shape[1], 1)
    return q @ k.mT / math.sqrt(8) + bias


def given() -> Tensor:
    return torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("case", CASES)
def test_attention_equals_an_explicit_softmax_in_float64(case, way):
    attend, kv, visible, bias = CASES[case]
    torch.manual_seed(0)
    model = Attends(attend, kv)
    (call,) = gradscope.inspect(model, given()).attention
    assert (call.name, call.queries, call.keys, call.rows) == ("", 6, 6, 12)
    scores = logits(bias)
    agrees(call, by_hand(scores, visible.expand(scores.shape)))
    assert set(call.masked_rows) == set(call.nan_rows) == {0.0}


def test_a_softcap_and_a_learned_sink_are_in_the_logits(way):
    model = Attends(lambda q, k, v: eager(q, k, v, cap=0.5))
    (call,) = gradscope.inspect(model, given()).attention
    scores = 0.5 * torch.tanh(logits(0.0) / 0.5)
    agrees(call, by_hand(scores, ALL.expand(scores.shape)))
    FIRST.clear()
    (call,) = gradscope.inspect(Attends(with_sink), given()).attention
    scores = torch.cat([logits(0.0), torch.ones(2, 4, 6, 1)], -1)
    assert call.keys == 7
    agrees(call, by_hand(scores, torch.ones_like(scores, dtype=torch.bool)))


def test_masked_rows_and_nan_rows(way):
    nothing = torch.ones(6, 6, dtype=torch.bool)
    nothing[:2] = False
    (call,) = gradscope.inspect(Attends(lambda q, k, v: sdpa(q, k, v, nothing)), given()).attention
    assert set(call.masked_rows) == {2 / 6}
    assert set(call.nan_rows) == {0.0}
    (call,) = gradscope.inspect(
        Attends(lambda q, k, v: eager(q, k, v, nothing).nan_to_num()), given()
    ).attention
    assert set(call.masked_rows) == set(call.nan_rows) == {2 / 6}


@pytest.mark.parametrize("weights", [False, True])
def test_torchs_own_attention(weights):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mha = nn.MultiheadAttention(32, 4, batch_first=True)

        def forward(self, x):
            return self.mha(x, x, x, need_weights=weights)[0]

    torch.manual_seed(0)
    model = Net()
    x = given()
    (call,) = gradscope.inspect(model, x).attention
    assert call.name == "mha"
    assert call.op == ("softmax" if weights else "scaled_dot_product_attention")
    mha = model.mha
    q, k, _ = F.linear(x, mha.in_proj_weight, mha.in_proj_bias).double().chunk(3, -1)
    q, k = (one.view(2, 6, 4, 8).transpose(1, 2) for one in (q, k))
    agrees(call, by_hand(q @ k.mT / math.sqrt(8), ALL.expand(2, 4, 6, 6)))


def test_what_is_no_attention():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.classes = nn.Linear(32, 4), nn.Linear(32, 3, bias=False)
            self.experts = nn.Parameter(torch.randn(4, 32))

        def forward(self, x):
            routed = torch.einsum("btd,ed->bte", x, self.experts).softmax(-1)
            return self.classes(x).softmax(-1).sum() + self.gate(x).softmax(-1).sum() + routed.sum()

    assert gradscope.inspect(Net(), given()).attention == ()


def test_rows_are_spread_over_samples_and_positions():
    assert attention.evenly(3, 8) == [0, 1, 2]
    assert attention.evenly(9, 3) == [0, 4, 8]
    assert attention.evenly(9, 1) == [8]
    model = Attends(lambda q, k, v: sdpa(q, k, v, is_causal=True))
    (call,) = gradscope.inspect(model, torch.randn(3, 400, 32)).attention
    assert call.rows == 63


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(self.up(x).relu())


class Mixture(nn.Module):
    """Top-k routing by hand, with a capacity."""

    def __init__(self, k=2, capacity=None, choose="topk"):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(Expert() for _ in range(4))
        self.k, self.capacity, self.choose = k, capacity, choose

    def forward(self, x):
        rows = x.reshape(-1, 8)
        scores = self.gate(rows).softmax(-1)
        if self.choose == "topk":
            weights, chosen = torch.topk(scores, self.k, dim=-1)
        else:
            weights, chosen = (one.unsqueeze(-1) for one in scores.max(-1))
        remember(scores, chosen)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            token, place = token[: self.capacity], place[: self.capacity]
            out[token] += weights[token, place, None] * expert(rows[token])
        return out.view(x.shape)


@pytest.mark.parametrize(
    ("k", "capacity", "choose"), [(2, None, "topk"), (2, 5, "topk"), (1, None, "max")]
)
def test_experts_equal_a_count_by_hand(k, capacity, choose):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), Mixture(k, capacity, choose))
    (call,) = gradscope.inspect(model, torch.randn(3, 7, 8)).experts
    scores, chosen = FIRST
    counts = [(chosen == number).sum().item() for number in range(4)]
    assert (call.name, call.top_k, call.tokens) == ("1", k, 21)
    assert call.share == pytest.approx([count / (21 * k) for count in counts], rel=1e-12)
    spread = -sum(one * math.log(one) for one in call.share if one)
    assert call.effective == pytest.approx(math.exp(spread))
    p = scores.double()
    assert call.entropy == pytest.approx(-(p * p.log()).sum(-1).mean().item(), rel=1e-6)
    kept = sum(min(count, capacity or 99) for count in counts)
    assert call.dropped == pytest.approx(1 - kept / (21 * k), abs=1e-12)


def test_a_choice_of_classes_is_no_routing():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Expert() for _ in range(8))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            self.right = (x.argmax(-1) == 0).float().mean()
            return x

    assert gradscope.inspect(Net(), torch.randn(5, 8)).experts == ()


class Block(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()
        self.norm, self.mlp, self.inplace = nn.LayerNorm(8), Expert(), inplace

    def forward(self, x):
        if self.inplace:
            x += self.mlp(self.norm(x.clone()))
            return x
        return x + self.mlp(self.norm(x))


def test_the_residual_stream_equals_a_computation_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
    x = torch.randn(2, 5, 8)
    calls = gradscope.inspect(model, x).residual
    assert [call.name for call in calls] == ["1", "2"]
    before = model[0](x)
    for call, block in zip(calls, model[1:3], strict=True):
        after = block(before)
        h, y = before.double(), after.double()
        expected = {
            "rms": y.square().mean().sqrt(),
            "kurtosis": (y - y.mean()).pow(4).mean() / y.var(correction=0) ** 2,
            "max_to_median": y.abs().max() / y.abs().median(),
            "largest": y.abs().max(),
            "added": (y - h).norm() / y.norm(),
            "cosine": F.cosine_similarity(y.flatten(), h.flatten(), dim=0),
        }
        for key, value in expected.items():
            assert getattr(call, key) == pytest.approx(value.item(), rel=1e-6), key
        before = after


def test_blocks_that_overwrite_their_input_and_modules_that_do_not_add():
    model = nn.Sequential(nn.Linear(8, 8), Block(True), Block(True))
    calls = gradscope.inspect(model, torch.randn(5, 8)).residual
    assert [call.added for call in calls] == [None] * 2
    model = nn.Sequential(nn.Linear(8, 8), Expert(), Expert())
    assert gradscope.inspect(model, torch.randn(5, 8)).residual == ()


def test_nothing_is_left_replaced():
    before = [torch.softmax, torch.topk, F.scaled_dot_product_attention, sdpa]
    gradscope.inspect(Attends(lambda q, k, v: sdpa(q, k, v)), given(), verify=True)
    after = [torch.softmax, torch.topk, F.scaled_dot_product_attention, sdpa]
    assert all(one is other for one, other in zip(after, before, strict=True))
    assert not {"softmax", "topk", "argmax", "max"} & set(vars(torch.Tensor))


def attended(q, k, v):
    best = torch.topk(torch.softmax(q @ k.transpose(-1, -2), dim=-1), 2, -1)[0]
    return F.scaled_dot_product_attention(q, k, v) + best.sum()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_a_model_may_compile_a_script_while_functions_are_observed():
    class Scripts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x = self.linear(x)
            return torch.jit.script(attended)(x, x, x)

    report = gradscope.inspect(Scripts(), torch.randn(2, 3, 4), loss="sum")
    assert report.status == "ok" and report.attention == ()


def test_a_subclass_of_tensor_knows_the_functions():
    class Knows(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            known.append(
                function is torch.softmax
                or function is torch.Tensor.softmax
                or function is F.scaled_dot_product_attention
            )
            return super().__torch_function__(function, types, args, kwargs or {})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x = self.linear(x).as_subclass(Knows)
            del known[:]
            y = torch.softmax(x, -1), x.softmax(-1), F.scaled_dot_product_attention(x, x, x)
            all_known.append(list(known))
            return sum(one.as_subclass(torch.Tensor) for one in y)

    known, all_known = [], []
    gradscope.inspect(Net(), torch.randn(2, 3, 4), loss="sum")
    assert all_known == [[True, True, True]]


@pytest.mark.parametrize("subclass", [False, True])
def test_a_module_that_forward_imports_finds_pytorchs_own(subclass, tmp_path, monkeypatch):
    class Imports(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is torch.Tensor.softmax:
                import late_softmax  # noqa: F401
            return super().__torch_function__(function, types, args, kwargs or {})

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            if subclass:
                self.linear(x).as_subclass(Imports).softmax(-1)
            import late_softmax

            x = self.linear(x)
            return late_softmax.softmax(x, -1) + F.scaled_dot_product_attention(x, x, x)

    (tmp_path / "late_softmax.py").write_text("from torch import softmax, topk\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = list(sys.meta_path)
    report = gradscope.inspect(Net(), torch.randn(2, 3, 4), loss="sum")
    late = sys.modules.pop("late_softmax")
    assert late.softmax is torch.softmax and late.topk is torch.topk
    assert type(late.softmax) is type(torch.sum)
    assert not {"softmax", "topk", "argmax", "max"} & set(vars(torch.Tensor))
    assert report.attention == () and sys.meta_path == path


def test_a_recorder_ends_with_its_last_reference():
    """A search for models would find what waits for the collector."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    recorder = Recorder(net, select_layers(net, ["**"]), probes=PROBES)
    with recorder.installed():
        net(torch.randn(2, 4)).sum().backward()
    recorder.take_calls(), recorder.take_parts()
    kept = weakref.ref(recorder), weakref.ref(net)
    was = gc.isenabled()
    gc.disable()
    try:
        del recorder, net
        assert [one() for one in kept] == [None, None]
    finally:
        if was:
            gc.enable()


@pytest.fixture
def main(monkeypatch):
    """A script that imported a function by name; multiprocessing gives its module a second."""
    main = ModuleType("__main__")
    main.sdpa = sdpa
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, main)
    return main


def test_what_a_script_imported_by_name_is_observed_in_every_sample(main):
    x = torch.ones(1, 1, 2, 4)
    for _ in range(3):
        seen = []
        with ExitStack() as stack:
            patches.observe_functions(stack, lambda name, *_, seen=seen: seen.append(name))
            main.sdpa(x, x, x)
        assert seen == ["scaled_dot_product_attention"]
        assert main.sdpa is sdpa is F.scaled_dot_product_attention


def test_an_error_on_the_way_leaves_no_function_replaced(main, monkeypatch):
    def fails(*_):
        raise RuntimeError("mine")

    monkeypatch.setattr(patches, "_Imports", fails)
    with pytest.raises(RuntimeError, match="mine"), ExitStack() as stack:
        patches.observe_functions(stack, print)
    assert main.sdpa is sdpa is F.scaled_dot_product_attention
    assert "softmax" not in vars(torch.Tensor)
