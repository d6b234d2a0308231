"""Prints everything that a script can ask about how it was started, and trains a little."""
import inspect
import os
import sys

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
import signal
import warnings

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
print("threads", torch.get_num_threads())
print("recursion", sys.getrecursionlimit(), "switch", sys.getswitchinterval())
warnings.warn("a warning of the script's own")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))

    def forward(self, x):
        return self.body(x)


torch.manual_seed(1)
net = Net()
print(Net.__module__, Net.__qualname__, repr(net.body[0]), inspect.getsourcelines(Net)[1])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(32, 6), torch.randint(3, (32,))
for step in range(9):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    if step % args.every == 0:
        print(step, loss.item())
print("rng", torch.rand(1).item(), torch.is_grad_enabled(), torch.get_default_dtype())
print("stdin", repr(sys.stdin.read()))
if "SAVE_WEIGHTS" in os.environ:
    torch.save(net.state_dict(), os.environ["SAVE_WEIGHTS"])
