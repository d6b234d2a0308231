"""Models whose lines are drawn: whatever PyTorch can be asked, in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz.attempts import Attempt
from fuzz.configs import COMMANDS

_HEAD = """import signal
import torch
from torch import nn

class Lie:
    def __init__(self, x, kind):
        self.x, self.kind = x, kind
    @property
    def __class__(self):
        if self.kind is None:
            raise ValueError('boo')
        return self.kind

class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise ValueError('boo')

def rings(seconds=0.001):
    def ring(*_):
        raise ValueError('boo')
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)

class Net(nn.Module):
    def __init__(self):
"""
_SIZES = st.sampled_from(["-1", "0", "1", "2", "3", "4", "2**31", "2**63", "10**12", "None", "'a'"])
_LAYERS = st.sampled_from(
    [
        *("Linear", "Conv2d", "BatchNorm1d", "LayerNorm", "Embedding", "LSTM", "GRU", "Dropout"),
        *("ReLU", "Softmax", "Flatten", "Identity", "LazyLinear", "MultiheadAttention"),
        *("AdaptiveAvgPool1d", "PReLU", "Bilinear", "ModuleList", "ParameterList", "GroupNorm"),
    ]
)
_METHODS = st.sampled_from(
    [
        *("view", "reshape", "expand", "unbind", "chunk", "squeeze", "unsqueeze", "t", "sum"),
        *("mean", "softmax", "log", "sqrt", "exp", "pow", "abs", "argmax", "topk", "sort"),
        *("detach", "clone", "item", "tolist", "numpy", "backward", "to_sparse", "bool", "half"),
        *("add_", "mul_", "zero_", "relu_", "requires_grad_", "retain_grad", "resize_", "set_"),
        *("as_strided", "unfold", "index_select", "scatter_", "cumsum", "norm", "svd", "inverse"),
        *("type", "to", "cuda", "share_memory_", "register_hook", "__getitem__", "data_ptr"),
        *("repeat", "roll", "flip", "max", "min", "std", "var", "bernoulli", "multinomial"),
    ]
)
_LINES = st.sampled_from(
    [
        *("torch.set_grad_enabled(False)", "torch.set_default_dtype(torch.float64)", "self.w = x"),
        *("self.train(not self.training)", "self.zero_grad()", "self.x = nn.Linear(4, 4)"),
        *("self.register_buffer('b', x)", "del self.layer0", "torch.manual_seed(3)", "print(x)"),
        *("x = x.to('meta')", "x = torch.utils.checkpoint.checkpoint(self.layer0, x)"),
        *("x = torch.func.vmap(torch.sin)(x)", "x = x.data", "x.grad = x", "x = [x, {'a': x}]"),
        *("x = torch.empty(0)", "x = x + float('nan')", "x = x / 0", "raise ValueError('\\x1b')"),
        *("x = self.layer0(x)", "x = self.layer0(x)", "x = self.layer1(x)", "x = self(x)"),
        *("return", "return 5", "return x, x", "return {'loss': x}", "return {x: x}", "1 / 0"),
        *("return Lie(x, torch.Tensor)", "return x, Lie(x, dict)", "return {'a': Lie(x, None)}"),
        *("return Lie(x, tuple)", "x = self.layer0(x.as_subclass(Odd))", "x = x.as_subclass(Odd)"),
        *("return iter([x])", "return (x.sum(), None)", "yield x", "x = x[..., None].cpu()"),
    ]
)


@st.composite
def _calls(draw: st.DrawFn) -> str:
    arguments = ", ".join(draw(st.lists(_SIZES, max_size=2)))
    return f"x = x.{draw(_METHODS)}({arguments})"


@st.composite
def models(draw: st.DrawFn) -> Attempt:
    """``net.py`` with layers of any sizes and a forward of a few lines."""
    layers = ["super().__init__()"]
    for number in range(draw(st.integers(0, 2))):
        sizes = ", ".join(draw(st.lists(_SIZES, max_size=3)))
        layers.append(f"self.layer{number} = nn.{draw(_LAYERS)}({sizes})")
    if draw(st.booleans()):
        layers = ["super().__init__()", "self.layer0 = nn.Linear(4, 4)"]
    lines = draw(st.lists(st.one_of(_LINES, _calls()), max_size=4))
    source = _HEAD + "".join(f"        {line}\n" for line in layers)
    source += "    def forward(self, x):\n" + "".join(f"        {line}\n" for line in lines)
    words = (*draw(COMMANDS), "./net.py:Net", "input.shape=[2, 4]")
    return Attempt("model", words, {"net.py": source + "        return x\n"})
