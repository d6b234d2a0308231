# A script that looks at its model from outside: hooks, state_dict, attributes, methods, types.
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F


class SE(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(True), nn.Linear(c // 4, c), nn.Hardsigmoid())

    def forward(self, x):
        return x * self.fc(x.mean((2, 3)))[:, :, None, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.se = SE(16)
        self.dw = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.bn = nn.BatchNorm2d(16)
        self.act = nn.Hardswish(inplace=True)
        self.head = nn.Linear(16, 7)
        self.register_buffer('seen', torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += 1
        x = self.act(self.bn(self.dw(self.se(self.stem(x)))))
        return self.head(x.mean((2, 3)))


activations = {}


def remember(module, args, output):
    activations[module] = output.detach().abs().mean().item()


def describe(model):
    print('keys', list(model.state_dict().keys()))
    print('attributes', sorted(vars(model)))
    print('modules', [n for n, _ in model.named_modules()])
    print('forward', 'forward' in vars(model), type(model).forward is Net.forward, model.forward.__name__)
    print('types', {type(m).__name__ for m in model.modules()} == {
        'Net', 'Conv2d', 'SE', 'Sequential', 'Linear', 'ReLU', 'Hardsigmoid', 'BatchNorm2d', 'Hardswish'})


def hooks(model):
    """Of the script's own, and of anyone else's."""
    return sum(len(m._forward_hooks) for m in model.modules())


torch.manual_seed(6)
model = Net()
describe(model)
print(model)
handle = model.se.register_forward_hook(remember)
model.head.weight.register_hook(lambda g: g * 0.5)
optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
if '--hooks' in sys.argv:
    print('forward hooks', len(model._forward_hooks), 'in all', hooks(model))

for i in range(10):
    x, y = torch.randn(8, 3, 16, 16), torch.randint(7, (8,))
    out = model(x)
    loss = F.cross_entropy(out, y, label_smoothing=0.1)
    print('graph', type(loss.grad_fn).__name__, type(out.grad_fn).__name__, out.is_leaf, loss._version)
    optimizer.zero_grad()
    loss.backward()
    print('grads', [n for n, p in model.named_parameters() if p.grad is None], x.grad, out.retains_grad)
    optimizer.step()
    print(i, loss.item(), 'hooked', activations[model.se], 'seen', model.seen.item())
    if i == 5:
        handle.remove()
        if '--hooks' in sys.argv:
            print('left', len(model.se._forward_hooks))

describe(model)
print('optimizer hooks', len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))
if 'SAVE_WEIGHTS' in os.environ:
    torch.save(model.state_dict(), os.environ['SAVE_WEIGHTS'])
