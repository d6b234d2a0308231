"""``gradscope run --leaks``: found on the script's own batch, and the script sees none of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from processes import gradscope, python

from gradscope.runfile.reader import RunFile

#: It prints whatever an extra pass could change: draws, buffers, modes, counters, weights.
GPT = """
import hashlib, logging, random, sys, warnings
import torch
from torch import nn

words = sys.argv[1:]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(12, 12, dtype=torch.bool)))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 4
        if "leaky" not in words:
            scores = scores.masked_fill(~self.mask, float("-inf"))
        weights = scores.softmax(dim=-1)
        return self.drop(weights) @ v


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.places = nn.Embedding(12, 16)
        self.attention = Attention()
        self.head = nn.Linear(16, 30)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = {"of": [0]}

    def forward(self, ids):
        self.seen += 1
        self.calls["of"][0] += 1
        if not self.training:
            warnings.warn("in eval mode")
            logging.warning("in eval mode")
            if "fails" in words:
                raise ValueError("no eval mode here")
        print(random.random(), torch.rand(()).item(), self.training, file=sys.stderr)
        own = ids.clone()
        ids.zero_()
        x = self.tokens(own) + self.places(torch.arange(own.size(1)))
        return self.head(x + self.attention(x))


torch.manual_seed(0)
random.seed(0)
model = GPT()
kept = []
if "hooked" in words:
    model.head.register_forward_hook(lambda module, taken, given: kept.append(1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1 if "short" in words else 5):
    ids = torch.randint(30, (4, 13))
    taken = ids[:, :-1].clone()
    loss = nn.functional.cross_entropy(model(taken).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), torch.rand(()).item(), random.random(), model.seen.item(), model.calls)
    if step == 3 and "fails" not in words:
        with torch.no_grad():
            model.eval()(ids[:, :-1].clone())
            model.train()
print(len(kept))
held = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
bits = b"".join(tensor.numpy().tobytes() for tensor in held)
print(hashlib.sha256(bits).hexdigest())
if "looks" in words:
    print([name for name in sys.modules if name.startswith("gradscope.leaks")])
    print("gradscope.training.leak_check" in sys.modules)
"""

NORM = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
    print(step, model[1].running_mean.tolist(), model.training)
"""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GRADSCOPE_DEBUG": "1"}


def both(folder: Path, script: str, *words: str) -> tuple[str, str, RunFile]:
    """Return the script's output, equal without gradscope, and gradscope's own lines."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    alone = python(["train.py", *words], cwd=folder, env=ENVIRONMENT)
    run = ["run", "--leaks", "-o", "run.db", "train.py", *words]
    under = gradscope(run, cwd=folder, env=ENVIRONMENT)
    own = "".join(line for line in under.stderr.splitlines(True) if line.startswith("gradscope:"))
    assert (under.returncode, under.stdout) == (alone.returncode, alone.stdout)
    assert under.stderr.removesuffix(own) == alone.stderr
    assert alone.stdout
    return alone.stdout, own, RunFile.open(folder / "run.db")


def leaks(recorded: RunFile) -> list[tuple[str, str | None]]:
    with recorded:
        return [
            (one.finding.code, one.finding.location)
            for one in recorded.findings
            if one.finding.code.startswith("GS9")
        ]


def line_of(own: str) -> str:
    (line,) = re.findall(r"^gradscope: --leaks: (.*)$", own, re.MULTILINE)
    return line


def test_a_leak_is_found_with_its_line_and_the_script_goes_on_as_ever(tmp_path):
    _, own, recorded = both(tmp_path, GPT, "leaky")
    number = 1 + GPT.splitlines().index("        weights = scores.softmax(dim=-1)")
    assert leaks(recorded) == [("GS901", f"train.py:{number}")]
    assert line_of(own).startswith("leaks: time; clean: batch; not judged: padding (no input")
    assert "error[GS901] attention" in own
    assert f"at train.py:{number}, judged once, at step 2\n" in own
    assert "--no-causal" not in own


def test_its_mended_twin_is_silent(tmp_path):
    _, own, recorded = both(tmp_path, GPT)
    assert leaks(recorded) == []
    assert line_of(own).startswith("clean: time, batch; not judged: ")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("hooked", "not judged: the script has forward hooks on the model"),
        ("fails", "not judged: ValueError: no eval mode here"),
        ("short", "not judged: the script made fewer than 2 steps"),
    ],
)
def test_what_cannot_be_judged_says_why(word, why, tmp_path):
    _, own, recorded = both(tmp_path, GPT, "leaky", word)
    assert leaks(recorded) == []
    assert line_of(own).startswith(why)
    assert "gradscope: error: " not in own


def test_batch_norm_mixes_the_batch_by_design(tmp_path):
    _, own, recorded = both(tmp_path, NORM)
    assert leaks(recorded) == []
    assert line_of(own).startswith("by design: batch (in training `1` (BatchNorm) normalises")


#: As nanoGPT's: nothing in the model says that it is causal, but its targets do.
NANO = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(30, 16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 30)

    def forward(self, idx, targets=None):
        x = self.tokens(idx)
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal="leaky" not in sys.argv)[:, 0]
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

torch.manual_seed(0)
model = GPT()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    ids = torch.randint(30, (4, 11))
    optimizer.zero_grad()
    loss = model(ids[:, :-1], ids[:, 1:])[1]
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


@pytest.mark.parametrize("words", [("leaky",), ()])
def test_the_next_tokens_as_targets_say_that_it_is_causal(words, tmp_path):
    _, own, recorded = both(tmp_path, NANO, *words)
    number = 1 + next(n for n, text in enumerate(NANO.splitlines()) if "scaled_dot" in text)
    assert leaks(recorded) == ([("GS901", f"train.py:{number}")] if words else [])
    if not words:
        assert line_of(own).startswith("clean: time, batch, label; ")


GRAPH = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, nodes, adjacency):
        return self.head(adjacency @ nodes)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(7, 4), torch.ones(7, 7)).square().mean().backward()
    optimizer.step()
    print(step)
"""


def test_the_nodes_of_a_graph_are_no_samples(tmp_path):
    _, own, recorded = both(tmp_path, GRAPH)
    assert leaks(recorded) == []
    assert "batch (an input connects entries of another, as in a graph" in line_of(own)


def test_an_ignored_rule_reports_nothing(tmp_path):
    (tmp_path / "train.py").write_text(GPT, encoding="utf-8")
    words = ["run", "--leaks", "--ignore", "GS901", "-o", "run.db", "train.py", "leaky"]
    assert gradscope(words, cwd=tmp_path, env=ENVIRONMENT).returncode == 0
    assert leaks(RunFile.open(tmp_path / "run.db")) == []


def test_without_the_option_nothing_is_imported(tmp_path):
    (tmp_path / "train.py").write_text(GPT, encoding="utf-8")
    words = ["run", "-o", "run.db", "train.py", "leaky", "looks"]
    done = gradscope(words, cwd=tmp_path, env=ENVIRONMENT)
    assert done.stdout.splitlines()[-2:] == ["[]", "False"]
    assert "--leaks" not in done.stderr
    with RunFile.open(tmp_path / "run.db") as recorded:
        assert "leaks" not in recorded.run.options
