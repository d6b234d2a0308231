"""A script that does not stop: whatever is raised in a step is caught, counted, and skipped."""
import os
import traceback
from collections import Counter

import torch
import torch.nn.functional as F


class ConvClassifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = torch.nn.Conv1d(4, 16, 5)
        self.c2 = torch.nn.Conv1d(16, 16, 5, groups=4)
        self.norm = torch.nn.GroupNorm(4, 16)
        self.fc = torch.nn.Linear(16, 3)

    def forward(self, x):
        x = F.mish(self.c1(x))
        x = F.mish(self.norm(self.c2(x)))
        return self.fc(x.amax(-1))


def stream(n):
    """Some batches are broken: wrong channels, labels out of range, none at all, wrong type."""
    for i in range(n):
        x, y = torch.randn(16, 4, 32), torch.randint(0, 3, (16,))
        x[:, 0] += y[:, None]
        if i % 7 == 3:
            x = x[:, :3]
        elif i % 7 == 5:
            y = y + 3
        elif i == 8:
            x, y = x[:0], y[:0]
        elif i == 13:
            y = y.float()
        elif i == 15:
            y = None
        yield x, y


def check(model):
    for p in model.parameters():
        assert torch.isfinite(p).all()


torch.manual_seed(21)
model = ConvClassifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
errors = Counter()
for i, (x, y) in enumerate(stream(28)):
    try:
        out = model(x)
        loss = F.cross_entropy(out, y)
        if i == 20:
            loss.sum().backward(torch.ones(2))
        loss.backward()
        if i % 9 == 4:
            raise KeyboardInterrupt("not really")
        if i == 11:
            raise SystemExit(4)
        if i == 16:
            loss.backward()  # a second time through a freed graph
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        check(model)
        print(i, loss.item())
    except BaseException as e:
        errors[type(e).__name__] += 1
        last = traceback.extract_tb(e.__traceback__)[0]
        print(i, "skipped:", type(e).__name__, str(e).splitlines()[:1], last.lineno, last.name)
    finally:
        optimizer.zero_grad()

print(sorted(errors.items()))
if "SAVE_WEIGHTS" in os.environ:
    torch.save(model.state_dict(), os.environ["SAVE_WEIGHTS"])
