'''Saves whole models with pickle in the middle of training, deep-copies them, loads the best one
back and goes on with it.'''
import copy
import hashlib
import io
import os
import pickle
import tempfile

import torch
from torch import nn, optim


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        a = self.up(self.norm(x))
        return x + self.down(torch.relu(a).square())


def build(dim=16, depth=3):
    return nn.Sequential(nn.Linear(8, dim), *[Residual(dim) for _ in range(depth)], nn.Linear(dim, 1))


def fingerprint(model):
    h = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        h.update(name.encode() + tensor.numpy().tobytes())
    return h.hexdigest()[:16]


def evaluate(model, x, y):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
    model.train(was_training)
    return loss.item()


torch.manual_seed(77)
x = torch.randn(320, 8)
y = torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2]
x_val, y_val, x, y = x[256:], y[256:], x[:256], y[:256]

net = build()
opt = optim.AdamW(net.parameters(), lr=1e-2)
best, best_loss = None, float('inf')
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(3):
        for idx in torch.randperm(256).split(64):
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(x[idx]).squeeze(-1), y[idx])
            loss.backward()
            opt.step()
        val = evaluate(net, x_val, y_val)
        print('epoch', epoch, 'train', loss.item(), 'val', val, fingerprint(net))

        path = os.path.join(folder, f'epoch{epoch}.pt')
        torch.save(net, path)                                     # the whole module
        again = torch.load(path, weights_only=False)
        assert fingerprint(again) == fingerprint(net)
        print('  keys', sorted(k for k in vars(again) if k not in vars(build())))
        print('  bytes', len(pickle.dumps(net)), len(pickle.dumps(opt)))

        if val < best_loss:
            best, best_loss = copy.deepcopy(net), val
        if epoch == 2:
            # A crash is played: everything is thrown away and loaded again.
            buffer = io.BytesIO()
            torch.save({'net': net.state_dict(), 'opt': opt.state_dict()}, buffer)
            del net, opt
            buffer.seek(0)
            state = torch.load(buffer)
            net = build()
            net.load_state_dict(state['net'])
            opt = optim.AdamW(net.parameters(), lr=1e-2)
            opt.load_state_dict(state['opt'])

    twin = copy.deepcopy(best)
    tune = optim.SGD(twin.parameters(), lr=1e-3)
    for idx in torch.arange(256).split(64):
        tune.zero_grad()
        loss = nn.functional.mse_loss(twin(x[idx]).squeeze(-1), y[idx])
        loss.backward()
        tune.step()
        print('tuning', loss.item())
    print('best', best_loss, evaluate(best, x_val, y_val), 'tuned', evaluate(twin, x_val, y_val))

if os.environ.get('SAVE_WEIGHTS'):
    torch.save({'best': best.state_dict(), 'net': net.state_dict(), 'twin': twin.state_dict()},
               os.environ['SAVE_WEIGHTS'])
