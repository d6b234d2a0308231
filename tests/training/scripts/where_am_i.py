"""Prints everything that a script can ask about how it was started, and trains a little.

Its settings must come before torch is imported.
"""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sys

assert "torch" not in sys.modules, "the settings above come too late"

import inspect

print("argv", sys.argv)
print("name", __name__)
print("file", __file__)
print("doc", __doc__)
print("package", __package__, "spec", __spec__)
print("globals", sorted(k for k in globals() if k.startswith("__")))
print("cwd", os.getcwd())
print("path[0]", sys.path[0])
print("main", sys.modules["__main__"].__file__, sys.modules["__main__"].__dict__ is globals())
print("loader", type(__loader__).__name__, "cached", globals().get("__cached__"))
print("flags", sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions)
print("imported", [m for m in ("torch", "numpy") if m in sys.modules])

import argparse
import random
import signal
import warnings

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("words", nargs="*")
parser.add_argument("--every", type=int, default=2)
parser.add_argument("-o", "--out", default="nowhere")
parser.add_argument("--select", action="append")
args = parser.parse_args()
print(args, parser.prog)

print("signals", signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT).__name__)
print("excepthook", sys.excepthook is sys.__excepthook__)
print("streams", sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdout.isatty())
print("threads", torch.get_num_threads(), "cuda", torch.cuda.is_available(), torch.cuda.device_count())
print("recursion", sys.getrecursionlimit(), "switch", sys.getswitchinterval())
warnings.warn("a warning of the script's own")


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)


def augment(x):
    """Python's, NumPy's and torch's random numbers: one draw more or less shows in the losses."""
    if random.random() < 0.5:
        x = x.flip(-1)
    x = x + torch.from_numpy(np.random.normal(0, 0.1, x.shape)).float()
    return x[..., torch.randperm(x.shape[-1])[:20]]


class TextCNN(nn.Module):
    def __init__(self, channels=8, classes=4):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(3, channels, k, padding="same") for k in (3, 5, 7)])
        self.bn = nn.BatchNorm1d(3 * channels)
        self.drop = nn.AlphaDropout(0.2)
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(3 * channels, classes))

    def forward(self, x):
        x = torch.cat([torch.selu(c(x)) for c in self.convs], 1)
        return self.fc(self.drop(self.bn(x)).mean(-1))


seed_everything(2024)
net = TextCNN()
print(TextCNN.__module__, TextCNN.__qualname__, repr(net.convs[0]), inspect.getsourcelines(TextCNN)[1])
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 5e-3, step_size_up=4, cycle_momentum=False)
signatures = torch.randn(4, 3, 24)
for step in range(15):
    labels = torch.randint(0, 4, (32,))
    optimizer.zero_grad()
    loss = nn.functional.multi_margin_loss(net(augment(signatures[labels])), labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % args.every == 0:
        print(step, loss.item(), scheduler.get_last_lr()[0])
print("rng", random.random(), np.random.rand(), torch.rand(1).item())
print("torch", torch.is_grad_enabled(), torch.get_default_dtype())
print("stdin", repr(sys.stdin.read()))
if "SAVE_WEIGHTS" in os.environ:
    torch.save(net.state_dict(), os.environ["SAVE_WEIGHTS"])
