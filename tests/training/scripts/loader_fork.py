import os
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler, get_worker_info


class Spectrograms(Dataset):
    """Made in the workers, with the workers' own random numbers."""

    def __init__(self, n=192):
        self.labels = np.random.RandomState(3).randint(0, 4, n)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        assert get_worker_info() is not None
        t = np.arange(64)
        wave = np.sin(t * (0.2 + 0.15 * self.labels[i]) + random.random() * 6) + 0.1 * np.random.randn(64)
        return {'wave': torch.as_tensor(wave, dtype=torch.float32), 'label': int(self.labels[i]), 'pid': os.getpid()}


def seed_worker(worker_id):
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def collate(samples):
    assert get_worker_info() is not None
    return (torch.stack([s['wave'] for s in samples])[:, None],
            torch.tensor([s['label'] for s in samples]), {s['pid'] for s in samples})


def main():
    torch.manual_seed(0)
    g = torch.Generator()
    g.manual_seed(0)
    data = Spectrograms()
    sampler = WeightedRandomSampler(1.0 / np.bincount(data.labels)[data.labels], len(data), generator=g)
    loader = DataLoader(data, batch_size=24, sampler=sampler, num_workers=2, worker_init_fn=seed_worker, generator=g,
                        collate_fn=collate, persistent_workers=True, prefetch_factor=2, multiprocessing_context='fork')

    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.BatchNorm1d(16), nn.GELU(),
        nn.Conv1d(16, 32, 9, stride=2), nn.BatchNorm1d(32), nn.GELU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.SequentialLR(opt, [
        torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=4),
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)], milestones=[4])

    workers = set()
    for epoch in range(2):
        for wave, label, pids in loader:
            workers |= pids
            loss = nn.functional.cross_entropy(model(wave), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
            print(epoch, loss.item(), schedule.get_last_lr())
    print('workers', len(workers), os.getpid() in workers)
    if 'SAVE_WEIGHTS' in os.environ:
        torch.save(model.state_dict(), os.environ['SAVE_WEIGHTS'])


if __name__ == '__main__':
    main()
