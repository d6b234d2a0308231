"""What the script's text and its own autograd functions show, and what looks like it."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import ClassVar

import pytest
import torch

from gradscope.training.loop import q_targets, script_lines, script_text
from gradscope.training.loop.construction import Made, _assigned
from gradscope.training.loop.custom_functions import CustomFunctions, _is_pure

SIZES = "n, t, c = x.shape\n"
SWAPPED = {
    "at once": f"{SIZES}y = x.view(n, c, t)",
    "in a block": f"{SIZES}with no_grad():\n    y = torch.reshape(x, (n, c, t))",
    "after its sizes": f"{SIZES}x = x.reshape(n, c, t)",
}
KEPT = {
    "permuted in a block": f"{SIZES}if a:\n    x = x.permute(0, 2, 1)\n    x = x.view(n, c, t)",
    "another function's": f"{SIZES}def f(x):\n    return x.reshape(n, c, t)",
    "a lambda's": f"{SIZES}f = lambda x: x.reshape(n, c, t)",
    "each of a list": f"{SIZES}y = [x.reshape(n, c, t) for x in turned]",
    "turned in place": "n, c = x.shape\nx.t_()\ny = x.reshape(c, n)",
    "shifted rows": f"x = F.pad(scores, (1, 0))\n{SIZES}y = x.reshape(n, c, t)[:, 1:]",
}
APART = "rng.shuffle(x)\nrng.shuffle(y)\n"
TOGETHER = {
    "two of one seed": "RandomState(0).shuffle(x)\nRandomState(0).shuffle(y)\n",
    "a state in between": "np.random.shuffle(x)\nnp.random.set_state(s)\nnp.random.shuffle(y)\n",
    "made anew": "rng.shuffle(x)\nrng = np.random.default_rng(0)\nrng.shuffle(y)\n",
}


def _read(text, find, monkeypatch):
    monkeypatch.setattr(script_text, "main_text", lambda: ("a.py", ast.parse(dedent(text))))
    return list(find())


@pytest.mark.parametrize(("texts", "count"), [(SWAPPED, 1), (KEPT, 0)])
def test_views(texts, count, monkeypatch):
    for name, text in texts.items():
        assert len(_read(text, script_text.written_views, monkeypatch)) == count, name


def test_shuffles(monkeypatch):
    pairs = "for a, b in zip(x, y):\n    pass\n"
    assert _read(APART + pairs, script_text.shuffled_apart, monkeypatch)
    for name, text in TOGETHER.items():
        assert not _read(text + pairs, script_text.shuffled_apart, monkeypatch), name


_TRAINER = """
def fit(bound, epochs):
    return Trainer(max_epochs=epochs, gradient_clip_val={given})
trainer = fit(1e-5, 3)
trainer.fit(net)
"""


@pytest.mark.parametrize(
    ("given", "more", "line"),
    [
        ("bound", "", "a.py:4"),
        ("0.5", "", "a.py:3"),
        ("bound", "fit(1, 2)", "a.py:3"),
        ("bound", "Arguments(max_grad_norm=1.0)", None),
    ],
)
def test_the_line_of_a_bound(given, more, line, tmp_path, monkeypatch):
    text, file = _TRAINER.format(given=given) + more, tmp_path / "a.py"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script_lines, "main_text", lambda: (str(file), ast.parse(text)))
    assert script_lines.bound_line("a.py:5") == line
    assert script_lines.bound_line("a.py:3") is None  # a line of the script that clips
    assert script_lines.bound_line("b.py:5") is script_lines.bound_line(None) is None


UNPAIRED = ("source, target = load()", "x, y = two_domains()", "x, y = unpaired(3)")


def test_domains_are_no_labels(monkeypatch):
    for line in UNPAIRED:
        first, second = line.partition(" = ")[0].split(", ")
        text = f"{line}\nrng.shuffle({first})\nrng.shuffle({second})\n"
        assert not _read(text, script_text.shuffled_apart, monkeypatch), line
    text = f"x, y = load()\n{APART}"
    assert _read(text, script_text.shuffled_apart, monkeypatch)


ON_TRAIN = "a = s.fit_transform(x_train)\n"
REFITTED = f"s = Scaler()\n{ON_TRAIN}b = s.fit_transform(x_test)"
FITTED_APART = {
    "with the training data": f"{ON_TRAIN}b = s.fit_transform(cat([x_train, x_val]))",
    "an object made anew": f"s = Scaler()\n{ON_TRAIN}s = Scaler()\nb = s.fit_transform(x_test)",
    "without transform": f"s = TSNE(2)\n{ON_TRAIN}b = s.fit_transform(x_test)",
    "one of two": f"if train:\n    {ON_TRAIN}else:\n    a = s.fit_transform(x_test)",
    "on a device": f"{ON_TRAIN}b = s.fit_transform(y_train.to(dev))",
}


def test_refitted_transforms(monkeypatch):
    assert len(_read(REFITTED, script_text.refitted_transforms, monkeypatch)) == 1
    for name, text in FITTED_APART.items():
        assert not _read(text, script_text.refitted_transforms, monkeypatch), name


RATES = {
    "LR = 0.1\nopt = SGD(p, lr=LR)": "1",
    "add('--lr')\np.add_argument('--lr', default='1e-1')\nopt = SGD(p, lr=args.lr)": "2",
    "class C:\n    lr: float = 0.1\nopt = SGD(p, lr=c.lr)": "2",
    "p.add_argument('--lr', default=1e-3)\nopt = SGD(p, lr=args.lr)": None,  # another was given
    "lr = 0\nif fast:\n    lr = 0.1\nopt = SGD(p, lr=lr)": None,
}


@pytest.mark.parametrize("text", RATES)
def test_the_line_of_a_learning_rate(text, tmp_path):
    file = tmp_path / "a.py"
    file.write_text(text)
    found = script_lines.written_rate(script_lines.ScriptLine(str(file), text.count("\n") + 1), 0.1)
    assert (found and found.rpartition(":")[2]) == RATES[text]


RETURNS = """
def finish(scores, rewards):
    total, returns = 0.0, []
    for r in {order}:
        total = r + gamma * total
        returns.append(total)
    {then}
"""
REVERSED = (
    ("reversed(rewards)", "return (stack(scores) * torch.tensor(returns)).sum()"),
    ("rewards[::-1]", "loss = sum(-s * g for s, g in zip(scores, returns))"),
)
IN_ORDER = (
    ("reversed(rewards)", "returns.reverse()\n    loss = stack(scores) * tensor(returns)"),
    ("reversed(rewards)", "loss = sum(s * g for s, g in zip(reversed(scores), returns))"),
    ("rewards[::-1]", "loss = stack(scores[::-1]) * tensor(returns)"),
    ("reversed(rewards)", "print(np.mean(returns))"),
    ("reversed(rewards)", "return returns"),
    ("rewards", "loss = stack(scores) * tensor(returns)"),
)


def test_returns(monkeypatch):
    for order, then in REVERSED:
        text = RETURNS.format(order=order, then=then)
        (found,) = _read(text, script_text.reversed_returns, monkeypatch)
        assert (found.name, found.words, found.location) == ("returns", ("total",), "a.py:6")
    for order, then in IN_ORDER:
        text = RETURNS.format(order=order, then=then)
        assert not _read(text, script_text.reversed_returns, monkeypatch), then


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("torch.exp(old_logp[j] - dist.log_prob(a))", 1),
        ("(b.logp_old - logp).exp()", 1),
        ("torch.exp(dist.log_prob(a) - old_logp)", 0),
        ("torch.exp(threshold - log_distance)", 0),
        ("torch.exp(old - new)", 0),
    ],
)
def test_ratios(value, count, monkeypatch):
    text = f"ratio = {value}\nloss = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)\n"
    assert len(_read(text, script_text.inverted_ratios, monkeypatch)) == count


ENDS = """
s2, r, done = env.step(a)
{stored}
y = r + GAMMA * best * {factor}
"""


@pytest.mark.parametrize(
    ("stored", "factor", "count"),
    [
        ("memory.append((s, a, r, s2, done))", "d", 1),
        ("memory.append((s, a, r, s2, done))", "done.float()", 1),
        ("memory.append((s, a, r, s2, not done))", "d", 0),
        ("memory.append((s, a, r, s2, 0.0 if done else 1.0))", "d", 0),
        ("while not done:\n    pass", "done", 1),
        ("alive = 1 - done", "done", 0),
        ("memory.append((s, a, r, s2, done))", "alive", 0),
    ],
)
def test_ends_of_episodes(stored, factor, count, monkeypatch):
    monkeypatch.setattr(q_targets, "main_text", lambda: ("a.py", ast.parse(text)))
    text = ENDS.format(stored=stored, factor=factor)
    assert len(list(q_targets.inverted_ends())) == count


def test_a_flag_that_is_no_factor_of_a_value(monkeypatch):
    tree = ast.parse("r, done = f()\ny = r + gamma * done")
    monkeypatch.setattr(q_targets, "main_text", lambda: ("a.py", tree))
    assert not list(q_targets.inverted_ends())


class Centred(torch.autograd.Function):
    """Its backward makes zeros of ones."""

    @staticmethod
    def forward(ctx, x):
        return x - x.sum(1, keepdim=True) / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.sum(1, keepdim=True) / 4


class Stopped(Centred):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return 0 * gradient


class Strict(Centred):
    @staticmethod
    def forward(ctx, x):
        assert x.dtype == torch.float32
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * [2.0][gradient.dtype == torch.float64]


def _counting():
    calls = {"n": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls["n"] += 1
            return x.sign()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Counted


class Noted(Centred):
    calls: ClassVar = {"n": 0}

    @staticmethod
    def forward(ctx, x):
        Noted.calls["n"] += 1
        return x.sign()


@pytest.mark.parametrize(("kind", "found"), [(Centred, 0), (Strict, 0), (Stopped, 1)])
def test_functions_without_a_gradient(kind, found):
    functions = CustomFunctions()
    functions.keep(kind, [torch.rand(3, 4).requires_grad_()])
    functions.check(1)
    assert len(functions.records()) == found


@pytest.mark.parametrize("kind", [_counting(), Noted])
def test_functions_that_count_their_calls_are_not_called(kind):
    assert not _is_pure(kind)
    assert _is_pure(Centred)


def test_layers_of_an_argument_are_made_elsewhere(tmp_path):
    file = tmp_path / "net.py"
    text = "def make(layers):\n    spare = nn.Linear(2, 2)\n    return nn.Sequential(*layers)\n"
    for text_of, line in ((text, 3), (text.replace("(layers)", "()"), 2)):
        file.write_text(text_of)
        other = file.rename(tmp_path / f"net{line}.py")
        assert _assigned(Made(str(other), 3, 0), "Linear").number_of_line == line
