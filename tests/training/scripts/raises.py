import os

import torch
import torch.nn as nn


class Encoder(nn.Module):
    """A GRU over words of varying length; one of them is longer than the table of positions."""

    def __init__(self, vocab=30, dim=16, longest=10):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(longest, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        where = torch.arange(tokens.shape[1])
        h, _ = self.gru(self.words(tokens) + self.positions(where))
        return self.out(h)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2)

    def step(self, tokens):
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, lengths):
        for i, length in enumerate(lengths):
            print(i, self.step(torch.randint(0, 30, (8, length))), flush=True)
            if "SAVE_WEIGHTS" in os.environ:
                torch.save(self.model.state_dict(), os.environ["SAVE_WEIGHTS"])


def main():
    torch.manual_seed(0)
    trainer = Trainer(Encoder())
    trainer.fit([5, 8, 11, 6, 9, 7, 12, 4])


if __name__ == "__main__":
    main()
