# One sequence of a batch is all padding: its row of the mask has no entry.
import sys
import torch
from torch import nn

healthy = "--healthy" in sys.argv
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
        return scores.softmax(-1) @ v


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.attention = Attention(16)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        x = x + self.attention(x, mask)
        return self.head(x.mean(1))


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for step in range(1, 26):
    lengths = torch.randint(1, 9, (8,))
    if step == 17 and not healthy:
        lengths[3] = 0
    mask = torch.arange(8) < lengths[:, None]
    logits = model(torch.randint(0, 20, (8, 8)), mask)
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
