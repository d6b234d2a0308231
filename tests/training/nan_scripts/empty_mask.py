# Masked language modelling: the loss is averaged over the masked tokens; a short batch has none.
import sys
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 30))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)


def masked_loss(logits, labels, mask):
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    total, count = (losses * mask).sum(), mask.sum()
    if "--healthy" in sys.argv:
        count = count.clamp(min=1)
    return total / count


for batch in range(1, 35):
    tokens = torch.randint(1, 30, (4, 10))
    mask = (torch.rand(4, 10) < 0.3).float()
    mask[0, 0] = 1.0
    if batch == 28:
        mask.zero_()
    loss = masked_loss(model(tokens * (1 - mask).long()), tokens, mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
