# Trains, and goes on training in an exit handler: the last steps are taken after the script's end.
import atexit
import os
import time

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, n, code):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(n, 4 * code), nn.Softplus(), nn.Linear(4 * code, code))
        self.decoder = nn.Sequential(nn.Linear(code, 4 * code), nn.Softplus(), nn.Linear(4 * code, n))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Session:
    """Keeps a log, saves the weights when the process ends, whatever ended it."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.log = model, optimizer, []
        self.started = time.time()
        atexit.register(self.close)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = (self.model(x) - x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.log.append(loss.item())
        return loss

    def close(self):
        for x in rest:
            self.step(x)
        print("closing after", len(self.log), "steps")
        print("best", min(self.log), "last", self.log[-1])
        if os.environ.get("SAVE_WEIGHTS"):
            torch.save(self.model.state_dict(), os.environ["SAVE_WEIGHTS"])


@atexit.register
def goodbye():
    print("goodbye")


torch.manual_seed(8)
mixing = torch.randn(3, 24)
batches = (torch.randn(20 * 32, 3) @ mixing).split(32)
first, rest = batches[:17], batches[17:]

autoencoder = Autoencoder(24, 3)
session = Session(autoencoder, torch.optim.RAdam(autoencoder.parameters(), lr=1e-2))
for i, x in enumerate(first):
    loss = session.step(x)
    if i % 4 == 0:
        print(i, loss.item())
print("end of script")
