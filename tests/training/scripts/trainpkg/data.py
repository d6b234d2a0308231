import torch
from torch.utils.data import IterableDataset


class Stripes(IterableDataset):
    """Stripes in four directions."""

    def __init__(self, batches: int, size: int = 16, seed: int = 0) -> None:
        self.batches, self.size, self.seed = batches, size, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        axis = torch.arange(self.size, dtype=torch.float32)
        for _ in range(self.batches):
            label = torch.randint(4, (24,), generator=g)
            angle = label * torch.pi / 4
            phase = torch.rand(24, generator=g) * 6
            wave = (axis[None, :, None] * angle.cos()[:, None, None]
                    + axis[None, None] * angle.sin()[:, None, None] + phase[:, None, None])
            yield wave.sin()[:, None] + 0.1 * torch.randn(24, 1, 16, 16, generator=g), label
