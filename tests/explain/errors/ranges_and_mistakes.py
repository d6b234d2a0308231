"""Programs that ask for a class that is not there, for too much memory, or fail in plain Python."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from explain.errors.cases import Program, broken

X = torch.linspace(-1, 1, 12).reshape(3, 4)
IDS = torch.tensor([[0, 1], [2, 5]])


@broken("target-out-of-range", None, "3", "classes", "0 to 2", "target", "3 classes", "`0`")
def classes_counted_from_one(mended: bool) -> Program:
    target = torch.tensor([1, 2, 3])

    def loss(output, target):
        return F.cross_entropy(output, target - 1 if mended else target)  # here

    return Program(nn.Sequential(nn.Linear(4, 3)), X, target, loss)


@broken("target-out-of-range", None, "255", "ignore_index=255")
def void_pixels_of_a_segmentation(mended: bool) -> Program:
    def loss(output, target):
        return F.cross_entropy(output, target, ignore_index=255 if mended else -100)  # here

    target = torch.tensor([[[0, 1, 255]]])
    return Program(nn.Sequential(nn.Conv2d(1, 2, 1)), torch.ones(1, 1, 1, 3), target, loss)


@broken("target-out-of-range", None, "-1", "ignore_index=-1")
def unlabelled_marked_by_minus_one(mended: bool) -> Program:
    def loss(output, target):
        ignored = -1 if mended else -100
        return F.nll_loss(output.log_softmax(1), target, ignore_index=ignored)  # here

    return Program(nn.Sequential(nn.Linear(4, 3)), X, torch.tensor([0, 1, -1]), loss)


@broken("index-out-of-range", "emb", "5", "num_embeddings=5", "0 to 4", "emb")
def word_behind_the_vocabulary(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6 if mended else 5, 4)

        def forward(self, ids):
            return self.emb(ids)  # here

    return Program(Net(), IDS)


@broken("index-out-of-range", "positions", "num_embeddings=4", "positions", "4")
def longer_than_the_positions(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.positions = nn.Embedding(9, 4), nn.Embedding(6 if mended else 4, 4)

        def forward(self, ids):
            places = torch.arange(ids.shape[1])
            return self.words(ids) + self.positions(places)  # here

    return Program(Net(), torch.zeros(2, 6, dtype=torch.long))


@broken("index-out-of-range", "emb", "-100", "padding")
def ignored_labels_embedded(mended: bool) -> Program:
    """Labels with -100 shifted into the decoder's input."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 4)

        def forward(self, labels):
            if mended:
                labels = labels.masked_fill(labels == -100, 0)
            return self.emb(labels)  # here

    return Program(Net(), torch.tensor([[1, 2, -100]]))


@broken("index-out-of-range", "", "7", "gather", "4")
def action_that_has_no_value(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x):
            actions = torch.tensor([[0], [3 if mended else 7], [1]])
            return self.q(x).gather(1, actions)  # here

    return Program(Net(), X)


@broken("target-out-of-range", None, "3", "one_hot", "num_classes=3")
def one_hot_of_too_few_classes(mended: bool) -> Program:
    def loss(output, target):
        classes = F.one_hot(target, 4 if mended else 3)  # here
        return (output * classes[:, :3]).mean()

    return Program(nn.Sequential(nn.Linear(4, 3)), X, torch.tensor([0, 1, 3]), loss)


@broken("out-of-memory", "attention", "2.842 PiB", "[1, 8, 10000000, 10000000]")
def attention_over_far_too_long_a_text(mended: bool) -> Program:
    class Attention(nn.Module):
        def forward(self, q, k):
            return q @ k.transpose(-2, -1)  # here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.w = Attention(), nn.Parameter(torch.ones(()))

        def forward(self, q):
            q = q * self.w
            return self.attention(q, q)

    length = 100 if mended else 10_000_000
    return Program(Net(), torch.zeros(1, 8, 1, 1).expand(1, 8, length, 1), loss="sum")


@broken("out-of-memory", "", "PiB")
def buffer_of_an_absurd_size(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x):
            buffer = torch.empty(10 if mended else 10**15)  # here
            return self.w * buffer.zero_().sum() + x.sum()

    return Program(Net(), X)


@broken("out-of-memory", None, "one_hot", "PiB")
def one_hot_of_hashed_ids(mended: bool) -> Program:
    def loss(output, target):
        classes = F.one_hot(target, 2 if mended else 10**14)  # here
        return (output * classes).sum()

    return Program(nn.Sequential(nn.Linear(4, 2)), X, torch.tensor([0, 1, 1]), loss)


@broken("out-of-memory", "", "PiB")
def table_of_pairs_in_numpy(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            pairs = np.zeros((3, 4) if mended else (10**8, 10**8), dtype=np.float32)  # here
            return (x * self.w) + torch.from_numpy(pairs)

    return Program(Net(), X)


@broken("out-of-memory", "proj", "x.new_ones(n, 1, 1)", "PiB", "[50000000, 1, 50000000]")
def weights_made_in_forward(mended: bool) -> Program:
    class Lazy(nn.Module):
        def forward(self, x):
            n = 4 if mended else 50_000_000
            return x[0, 0] * (x.new_ones(n, 1, 1) * x.new_ones(1, 1, n))  # here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.w = Lazy(), nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.proj(x * self.w)

    return Program(Net(), X)


@broken("model-error", "1", "batch", "BatchNorm")
def batch_norm_of_one_sample(mended: bool) -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return Program(model, X if mended else X[:1])


@broken("model-error", "", "mask", "forward(x, mask)")
def argument_of_forward_missing(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x, mask):
            return self.fc(x) * mask

    return Program(Net(), (X, torch.ones(3, 1)) if mended else X)


@broken("model-error", "1", "tuple", "[3, 2]", "Linear")
def tuple_of_an_lstm_in_a_sequential(mended: bool) -> Program:
    """nn.LSTM returns (output, (h, c)), which nn.Sequential hands on."""

    class First(nn.Module):
        def forward(self, pair):
            return pair[0]

    layers = [nn.LSTM(4, 2)] + ([First()] if mended else []) + [nn.Linear(2, 2)]
    return Program(nn.Sequential(*layers), X)


@broken("model-error", "", "labels", "input_ids")
def key_that_the_batch_lacks(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 4)

        def forward(self, **batch):
            return self.emb(batch["input_ids" if mended else "labels"])  # here

    return Program(Net(), {"input_ids": IDS})


@broken("model-error", "", "forward", "foward")
def forward_misspelt(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def foward(self, x):
            return self.fc(x)

    if mended:
        Net.forward = Net.foward
    return Program(Net(), X)


@broken("model-error", "", "self.fc3", "fc2")
def layer_that_was_never_made(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.fc1(x)
            return self.fc2(x) if mended else self.fc3(x)  # here

    return Program(Net(), X)


@broken("model-error", "", "None", "return")
def return_forgotten(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Body(), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.body(x).relu())  # here

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            if mended:
                return y
            return None

    return Program(Net(), X)


@broken("target-out-of-range", None, "3", "0 to 2", "3 classes", "`head`")
def loss_module_given_one_class_more(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 4 if mended else 3)

        def forward(self, x):
            return self.head(x)

    loss = nn.CrossEntropyLoss()
    return Program(Net(), X, torch.tensor([0, 2, 3]), lambda output, ids: loss(output, ids))


@broken("model-error", None, "-1", "BCEWithLogitsLoss", "sigmoid", "logits")
def scores_where_probabilities_are_wanted(mended: bool) -> Program:
    model = nn.Sequential(nn.Linear(4, 4), nn.Hardtanh())
    nn.init.eye_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    if mended:
        model.append(nn.Sigmoid())
    return Program(model, X, torch.ones(3, 4), nn.BCELoss())


@broken("model-error", None, "NaN", "the origin of the NaN")
def nan_where_probabilities_are_wanted(mended: bool) -> Program:
    """The same message, and a sigmoid would not help."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, x):
            y = self.fc(x).sigmoid()
            return y if mended else y * (x[:, :1] * 0).log().mul(0)

    return Program(Net(), X, torch.ones(3, 1), nn.BCELoss())


@broken("model-error", "head", "`h` [3, 4]", "inference_mode", "no_grad", "h.clone()")
def features_of_inference(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            with torch.no_grad() if mended else torch.inference_mode():
                h = self.body(x)
            return self.head(h)  # here

    return Program(Net(), X)


@broken("model-error", "act", "Sum.backward", "[4]", "[3, 4]", "`x`")
def gradient_of_the_wrong_shape(mended: bool) -> Program:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 if mended else g.sum(0)  # here

    class Act(nn.Module):
        def forward(self, x):
            return Sum.apply(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.act = nn.Linear(4, 4), Act()

        def forward(self, x):
            return self.act(self.fc(x))

    return Program(Net(), X)


@broken("model-error", "", "2 arguments", "(x, k)", "returned 1", "None")
def gradient_for_one_of_two_arguments(mended: bool) -> Program:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            return (g * ctx.k, None) if mended else g * ctx.k  # here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return Scale.apply(self.fc(x), 2.0)

    return Program(Net(), X)


@broken("model-error", "", "inside the one before", "Net.forward", "loop")
def forward_that_calls_itself(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            x = self.fc(x)
            return x if mended else self(x)  # here

    return Program(Net(), X)
