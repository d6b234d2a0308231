from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from .data import Stripes
from .models import Mixer


@dataclass
class Config:
    lr: float = 2e-3
    batches: int = 12
    accumulate: int = 2
    seed: int = 0


class Engine:
    def __init__(self, config: Config) -> None:
        self.config = config
        torch.manual_seed(config.seed)
        self.mixer = Mixer()
        self.optim = torch.optim.AdamW(self.mixer.parameters(), lr=config.lr)

    def run(self) -> None:
        loader = DataLoader(Stripes(self.config.batches), batch_size=None)
        for i, (x, y) in enumerate(loader, 1):
            loss = torch.nn.functional.cross_entropy(self.mixer(x), y) / self.config.accumulate
            loss.backward()
            if i % self.config.accumulate == 0:
                self.optim.step()
                self.optim.zero_grad()
            print(f"{i:3d} {loss.item()!r}")
