import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import sys

assert "torch" not in sys.modules, "the settings above come too late"

import random

import numpy as np
import torch
import torch.nn as nn

print(torch.cuda.is_available(), torch.cuda.device_count(), torch.get_num_threads())


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
model = TextCNN()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 5e-3, step_size_up=4, cycle_momentum=False)
signatures = torch.randn(4, 3, 24)
for step in range(15):
    labels = torch.randint(0, 4, (32,))
    optimizer.zero_grad()
    logits = model(augment(signatures[labels]))
    loss = nn.functional.multi_margin_loss(logits, labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item(), scheduler.get_last_lr()[0])

print(random.random(), np.random.rand(), torch.rand(()).item())
if os.environ.get("SAVE_WEIGHTS"):
    torch.save(model.state_dict(), os.environ["SAVE_WEIGHTS"])
