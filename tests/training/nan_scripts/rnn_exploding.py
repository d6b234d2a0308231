"""A recurrence without a squashing function: it doubles what it carries with every word."""
import sys
import torch
import torch.nn as nn

longest = 32 if "--healthy" in sys.argv else 1000


class LinearCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.recur = nn.Linear(dim, dim, bias=False)
        nn.init.orthogonal_(self.recur.weight, gain=2.0)

    def forward(self, h, x):
        return self.recur(h) + x


class Reader(nn.Module):
    def __init__(self, vocab=11, dim=8):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.cell = LinearCell(dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, text):
        h = torch.ones(text.shape[0], 8)
        for word in text[:, :longest].T:
            h = self.cell(h, self.words(word))
        return self.out(nn.functional.normalize(h, dim=1))


torch.manual_seed(0)
reader = Reader()
optimizer = torch.optim.SGD(reader.parameters(), lr=1e-6)
for document in range(1, 25):
    words = 260 if document == 20 else 4 + document % 5
    loss = nn.functional.cross_entropy(reader(torch.randint(11, (3, words))), torch.tensor([0, 1, 0]))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()
