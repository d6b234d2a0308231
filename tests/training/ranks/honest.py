"""Trainings under DistributedDataParallel with nothing wrong between the ranks, a run for each.

Data as people feed it: samplers, uneven last batches, sentences of any length, streams.
"""

import itertools
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import gradscope

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()


def train(name, net, batches, loss_of, accumulate=1):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradscope.watch(model, optimizer, every=4, out=f"{name}.run"):
        for number, batch in enumerate(batches, 1):
            last = number % accumulate == 0
            with nullcontext() if last else model.no_sync():
                (loss_of(model, batch) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()


def digits(epochs, size=100, **options):
    """Images with a sampler; 100 are no multiple of the batch."""
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(size, 1, 8, 8, generator=draw), torch.randint(4, (size,), generator=draw)
    )
    sampler = DistributedSampler(data, **options)
    loader = DataLoader(data, 8, sampler=sampler, drop_last=options.get("drop_last", False))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from loader


def classifier():
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)]
    return nn.Sequential(*layers)


def classified(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Tagger(nn.Module):
    """Of sentences whose first axis is their length."""

    def __init__(self):
        super().__init__()
        self.words, self.run = nn.Embedding(50, 8), nn.GRU(8, 16)
        self.out = nn.Linear(16, 50)

    def forward(self, x):
        return self.out(self.run(self.words(x))[0])


class Sentences(IterableDataset):
    """A stream of which each rank takes its own; most sentences are cut at 24 words."""

    def __iter__(self):
        draw = torch.Generator().manual_seed(2)
        for number in range(200):
            length = int(torch.randint(4, 60, (), generator=draw).clamp(max=24))
            sentence = torch.randint(50, (length,), generator=draw)
            if number % WORLD == RANK:
                yield sentence


def sentences(size):
    return DataLoader(Sentences(), batch_size=size, collate_fn=pad_sequence, drop_last=True)


def tagged(model, batch):
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


class Pooled(nn.Module):
    """Of graphs whose nodes are the first axis."""

    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, nodes):
        return self.out(self.inside(nodes).relu().mean(0))


def graphs(count):
    draw = torch.Generator().manual_seed(10 + RANK)
    for _ in range(count):
        nodes = int(torch.randint(5, 30, (), generator=draw))
        yield torch.randn(nodes, 8, generator=draw)


def noise(count):
    """Return random batches with a seed for each rank."""
    draw = torch.Generator().manual_seed(20 + RANK)
    return (torch.randn(16, 8, generator=draw) for _ in range(count))


train("padded", classifier(), digits(3), classified)
train("dropped", classifier(), digits(3, drop_last=True), classified)
train("accumulated", classifier(), digits(4), classified, accumulate=3)
train("unshuffled", classifier(), digits(3, shuffle=False), classified)
train("one", Tagger(), sentences(1), tagged)
train("four", Tagger(), itertools.chain(sentences(4), sentences(4)), tagged)
train("graphs", Pooled(), graphs(24), lambda model, batch: model(batch).square().mean())
train("noise", Pooled(), noise(24), lambda model, batch: model(batch).square().mean())
dist.destroy_process_group()
