"""Programs whose dtypes or devices do not meet. The meta device stands in for a second one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from explain.errors.cases import Program, broken

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IMAGES = torch.linspace(-1, 1, 128).reshape(2, 1, 8, 8)


@broken("dtype-mismatch", "fc", "float64", "float32", "fc.weight", ".float()")
def numbers_out_of_numpy(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            x = torch.from_numpy(np.asarray([[0.1, 0.2, 0.3, 0.4]])) + x
            return self.fc(x.float() if mended else x)  # here

    return Program(Net(), X)


@broken("dtype-mismatch", "0", "int64", "float32", "0.weight")
def ids_into_a_linear_layer(mended: bool) -> Program:
    ids = torch.arange(12).reshape(3, 4)
    return Program(nn.Sequential(nn.Linear(4, 2)), ids.float() if mended else ids)


@broken("dtype-mismatch", "conv", "float16", "float32", "conv.weight")
def half_of_the_model_in_half(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.conv = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3)
            if not mended:
                self.conv.half()

        def forward(self, x):
            return self.conv(self.stem(x))  # here

    return Program(Net(), IMAGES)


@broken("dtype-mismatch", "0", "uint8", "float32", "255")
def bytes_of_a_picture(mended: bool) -> Program:
    images = torch.randint(0, 255, (2, 1, 8, 8), dtype=torch.uint8)
    return Program(nn.Sequential(nn.Conv2d(1, 2, 3)), images / 255 if mended else images)


@broken("dtype-mismatch", None, "int64", "target", ".float()")
def binary_targets_of_integers(mended: bool) -> Program:
    def loss(output, target):
        if mended:
            target = target.float()
        return F.binary_cross_entropy(output.sigmoid().squeeze(1), target)  # here

    return Program(nn.Sequential(nn.Linear(4, 1)), X, torch.tensor([0, 1, 1]), loss)


@broken("dtype-mismatch", None, "float32", "target", ".long()")
def class_ids_as_floats(mended: bool) -> Program:
    def loss(output, target):
        return F.cross_entropy(output, target.long() if mended else target)  # here

    return Program(nn.Sequential(nn.Linear(4, 2)), X, torch.tensor([0.0, 1.0, 1.0]), loss)


@broken("dtype-mismatch", None, "int64", "[3, 2]", "argmax(1)")
def one_hot_targets_of_integers(mended: bool) -> Program:
    def loss(output, target):
        classes = F.one_hot(target, 2)
        return F.cross_entropy(output, classes.float() if mended else classes)  # here

    return Program(nn.Sequential(nn.Linear(4, 2)), X, torch.tensor([0, 1, 1]), loss)


@broken("dtype-mismatch", "", "bool", "~", "mask")
def mask_subtracted_from_one(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            mask = x > 0
            keep = ~mask if mended else 1 - mask  # here
            return self.fc(x) * keep

    return Program(Net(), X)


@broken("dtype-mismatch", "emb", "float32", "int64", ".long()", "indices", "fill: randint(5)")
def ids_as_floats(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 4)

        def forward(self, ids):
            return self.emb(ids.long() if mended else ids)  # here

    return Program(Net(), torch.tensor([[0.0, 1.0], [2.0, 3.0]]))


@broken("dtype-mismatch", "", "int64", "mean", ".float()")
def mean_of_counts(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x):
            counts = (x > 0).long().sum(1)
            return self.w * (counts.float() if mended else counts).mean()  # here

    return Program(Net(), X)


@broken("dtype-mismatch", "", "float32", "float64", "index")
def written_into_another_dtype(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            out = torch.zeros(3, 4, dtype=torch.float32 if mended else torch.float64)
            rows = torch.tensor([0, 2])
            out[rows] = self.fc(x)[rows]  # here
            return out

    return Program(Net(), X)


@broken("device-mismatch", "", "self.scale", "meta", "cpu", "register_buffer")
def constant_that_is_no_buffer(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.scale = torch.ones(4, device="cpu" if mended else "meta")

        def forward(self, x):
            return self.fc(x) * self.scale  # here

    return Program(Net(), X)


@broken("device-mismatch", "", "mask", "meta", "cpu", "device=")
def mask_made_on_another_device(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            scores = self.fc(x)
            mask = torch.ones(3, 3, device=x.device if mended else "meta").triu(1) > 0
            return scores.masked_fill(mask, 0.0)  # here

    return Program(Net(), X)


@broken("device-mismatch", "", "nn.ModuleList", "meta", "cpu")
def layers_in_a_plain_list(mended: bool) -> Program:
    """Layers that ``model.to(device)`` does not find."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.blocks = [nn.Linear(4, 4, device="cpu" if mended else "meta")]

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)  # here
            return x

    return Program(Net(), X)


@broken("device-mismatch", "head", "head.weight", "meta", "cpu")
def head_left_behind(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.head = nn.Linear(4, 2, device="cpu" if mended else "meta")

        def forward(self, x):
            return self.head(self.stem(x))  # here

    return Program(Net(), X)


@broken("device-mismatch", "lstm", "hidden", "meta", "cpu")
def state_made_on_another_device(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(4, 2)

        def forward(self, x):
            h = torch.zeros(1, 2, device="cpu" if mended else "meta")
            return self.lstm(x, (h, h))[0]  # here

    return Program(Net(), X)


@broken("device-mismatch", None, "meta", "cpu", "weight")
def class_weights_left_behind(mended: bool) -> Program:
    loss = nn.CrossEntropyLoss(torch.ones(2, device="cpu" if mended else "meta"))
    return Program(nn.Sequential(nn.Linear(4, 2)), X, torch.tensor([0, 1, 1]), loss)


@broken("device-mismatch", "", "memory", "meta", "cpu")
def memory_joined_from_another_device(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            memory = torch.zeros(2, 4, device="cpu" if mended else "meta")
            return torch.cat([self.fc(x), memory])  # here

    return Program(Net(), X)


@broken("dtype-mismatch", None, "int32", "target.long()")
def class_ids_of_four_bytes(mended: bool) -> Program:
    """Labels out of an array of int32, which cross entropy does not take."""
    ids = torch.tensor([0, 1, 1], dtype=torch.int32)
    model = nn.Sequential(nn.Linear(4, 2))
    return Program(model, X, ids.long() if mended else ids, nn.CrossEntropyLoss())


@broken("dtype-mismatch", "", "float16", "-1e+09", "65504", "torch.finfo(a.dtype).min")
def mask_too_low_for_half(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x):
            a = (self.q(x) @ x.T).half()
            low = torch.finfo(a.dtype).min if mended else -1e9
            a = a.masked_fill(torch.eye(3, dtype=torch.bool), low)  # here
            return a.float().softmax(-1)

    return Program(Net(), X)


def _table(read):
    """A table of 50 rows that is read by a function, not by an Embedding."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(50, 4))

        def forward(self, x):
            return read(self.table, x)  # here

    return Net()


NUMBERS = torch.rand(3)


@broken("dtype-mismatch", "", "float32", "indices must be int64", "fill: randint(50)")
def random_numbers_into_a_functional_embedding(mended: bool) -> Program:
    return Program(_table(lambda t, x: F.embedding(x, t)), NUMBERS.long() if mended else NUMBERS)


@broken("dtype-mismatch", "", "the index", "float32", "fill: randint(50)", "x.long()")
def random_numbers_into_index_select(mended: bool) -> Program:
    read = lambda t, x: torch.index_select(t, 0, x)  # noqa: E731
    return Program(_table(read), NUMBERS.long() if mended else NUMBERS)


@broken("dtype-mismatch", "", "the index", "float32", "fill: randint(50)")
def random_numbers_as_an_index(mended: bool) -> Program:
    return Program(_table(lambda t, x: t[x]), NUMBERS.long() if mended else NUMBERS)
