"""Programs whose shapes do not meet: layers, flattening, skips, heads, states, losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from explain.errors.cases import Program, broken

IMAGES = torch.linspace(-1, 1, 2 * 28 * 28).reshape(2, 1, 28, 28)
WORDS = torch.linspace(-1, 1, 2 * 5 * 8).reshape(2, 5, 8)


@broken("shape-mismatch", "conv1", "conv1.weight", "3 channels", "[2, 1, 28, 28]", "Conv2d(1, 8")
def grey_images_into_a_colour_network(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1 if mended else 3, 8, 3)

        def forward(self, x):
            return self.conv1(x)  # here

    return Program(Net(), IMAGES)


@broken("shape-mismatch", "conv", "permute(0, 3, 1, 2)", "3 channels", "last")
def channels_last_images(mended: bool) -> Program:
    """NumPy and PIL give [N, H, W, C]."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            if mended:
                x = x.permute(0, 3, 1, 2)
            return self.conv(x)  # here

    return Program(Net(), torch.zeros(2, 12, 12, 3))


@broken("shape-mismatch", "fc", "in_features", "400", "16 · 14 · 14", "3136", "x.flatten(1)")
def linear_sized_for_other_images(mended: bool) -> Program:
    """LeNet's 16 · 5 · 5 on images of another size (androidkt.com, mat1 and mat2)."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 16, 3, padding=1)
            self.fc = nn.Linear(16 * 14 * 14 if mended else 16 * 5 * 5, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv(x)), 2)
            return self.fc(x.flatten(1))  # here

    return Program(Net(), IMAGES, [1, 2], "cross_entropy")


@broken("shape-mismatch", "2", "nn.Flatten()", "in_features", "512")
def flatten_forgotten(mended: bool) -> Program:
    flat = nn.Flatten() if mended else nn.Identity()
    model = nn.Sequential(nn.Conv2d(1, 2, 13), flat, nn.Linear(2 * 16 * 16, 4))
    return Program(model, IMAGES, [1, 2], "cross_entropy")


@broken("shape-mismatch", "out", "out.weight", "in_features", "16", "8")
def linear_after_a_wider_layer(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16 if mended else 8, 2)

        def forward(self, x):
            return self.out(self.hidden(x).relu())  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "block", "out", "[2, 4, 14, 14]", "identity", "1×1", "stride")
def skip_around_a_stride(mended: bool) -> Program:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, stride=2, padding=1)
            self.down = nn.Conv2d(4, 4, 1, stride=2)

        def forward(self, x):
            identity = self.down(x) if mended else x
            out = self.conv(x)
            return out + identity  # here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.block = nn.Conv2d(1, 4, 1), Block()

        def forward(self, x):
            return self.block(self.stem(x))

    return Program(Net(), IMAGES)


@broken("shape-mismatch", "0", "y", "x", "1×1", "channels", "8", "4")
def skip_around_more_channels(mended: bool) -> Program:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 8, 3, padding=1)
            self.project = nn.Conv2d(4, 8, 1)

        def forward(self, x):
            y = self.conv(x)
            if mended:
                x = self.project(x)
            y += x  # here
            return y

    return Program(nn.Sequential(Block()), torch.zeros(2, 4, 6, 6))


@broken("shape-mismatch", "", "up", "[2, 4, 12, 12]", "skip", "[2, 4, 13, 13]", "dimension 2")
def decoder_of_an_odd_size(mended: bool) -> Program:
    """A U-Net on images whose size is no multiple of two."""

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(1, 4, 3, padding=1)
            self.up_conv = nn.ConvTranspose2d(4, 4, 2, stride=2)

        def forward(self, x):
            skip = self.down(x)
            up = self.up_conv(F.max_pool2d(skip, 2))
            if mended:
                up = F.interpolate(up, skip.shape[2:])
            return torch.cat([up, skip], 1)  # here

    return Program(UNet(), torch.zeros(2, 1, 13, 13))


@broken("shape-mismatch", "", "stack", "[3]", "[2]", "pad")
def sequences_of_several_lengths_stacked(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, a, b):
            if mended:
                b = F.pad(b, (0, 1))
            return self.w * torch.stack([a, b])  # here

    return Program(Net(), (torch.zeros(3), torch.zeros(2)))


@broken("shape-mismatch", "attention", "q", "k", "transpose(-2, -1)")
def keys_not_transposed(mended: bool) -> Program:
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ (k.transpose(-2, -1) if mended else k)  # here
            return scores.softmax(-1) @ v

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()

        def forward(self, x):
            return self.attention(x)

    return Program(Net(), WORDS)


@broken("shape-mismatch", "", "does not divide into 3", "80", "[2, 5, 8]")
def heads_that_do_not_divide(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x):
            heads = 4 if mended else 3
            y = self.proj(x)
            y = y.view(2, 5, heads, 8 // heads)  # here
            return y.transpose(1, 2)

    return Program(Net(), WORDS)


@broken("shape-mismatch", "", "reshape", "contiguous")
def viewed_after_a_transpose(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(8, 8)

        def forward(self, x):
            y = self.proj(x).transpose(1, 2)
            return y.reshape(2, -1) if mended else y.view(2, -1)  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "lstm", "input_size", "6", "8", "[2, 5, 8]")
def words_wider_than_the_lstm(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8 if mended else 6, 3, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "lstm", "hidden", "batch_first", "(1, 2, 3)", "[1, 5, 3]")
def state_for_the_wrong_axis(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 3, batch_first=True)

        def forward(self, x):
            h = x.new_zeros(1, x.size(0 if mended else 1), 3)
            return self.lstm(x, (h, h))[0]  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "1", "num_features", "8", "[2, 4, 26, 26]", "4 channels")
def norm_of_other_channels(mended: bool) -> Program:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4 if mended else 8))
    return Program(model, IMAGES)


@broken("shape-mismatch", "norm", "normalized_shape", "[5]", "[2, 5, 8]")
def layer_norm_over_the_wrong_axis(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8 if mended else 5)

        def forward(self, x):
            return self.norm(x)  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "2", "kernel", "5", "[2, 4, 3, 3]", "pool")
def images_too_small_for_the_kernels(mended: bool) -> Program:
    last = nn.Conv2d(4, 4, 3 if mended else 5)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=3), nn.MaxPool2d(3), last)
    return Program(model, IMAGES)


@broken("shape-mismatch", "", "self.positions", "[1, 4, 8]", "[2, 5, 8]")
def positions_for_shorter_sequences(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.zeros(1, 5 if mended else 4, 8))

        def forward(self, x):
            return x + self.positions  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", None, "[2, 1]", "[2]", "squeeze(1)")
def binary_targets_of_another_shape(mended: bool) -> Program:
    def loss(output, target):
        if mended:
            output = output.squeeze(1)
        return F.binary_cross_entropy_with_logits(output, target)  # here

    return Program(nn.Sequential(nn.Flatten(), nn.Linear(40, 1)), WORDS, torch.ones(2), loss)


@broken("shape-mismatch", None, "10", "2", "view")
def batch_flattened_on_one_side_only(mended: bool) -> Program:
    """A language model whose logits are flattened and whose targets are not."""

    def loss(output, target):
        target = target[:, :1].expand(2, 5).flatten() if mended else target[:, 0]
        return F.cross_entropy(output.view(-1, 3), target)  # here

    return Program(nn.Sequential(nn.Linear(8, 3)), WORDS, torch.ones(2, 5).long(), loss)


@broken("shape-mismatch", None, "[2, 5, 3]", "[2, 5]", "transpose(1, 2)")
def classes_on_the_last_axis(mended: bool) -> Program:
    """cross_entropy wants the classes at dimension 1."""

    def loss(output, target):
        return F.cross_entropy(output.transpose(1, 2) if mended else output, target)  # here

    return Program(nn.Sequential(nn.Linear(8, 3)), WORDS, torch.ones(2, 5).long(), loss)


@broken("shape-mismatch", "self_attn", "embed_dim", "6", "8")
def attention_of_another_width(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(8 if mended else 6, 2, batch_first=True)

        def forward(self, x):
            return self.self_attn(x, x, x)[0]  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", None, "[2, 1]", "[2]", "squeeze(1)")
def binary_loss_module_on_two_shapes(mended: bool) -> Program:
    """Target size must be the same as input size: the loss as a module."""
    loss = nn.BCEWithLogitsLoss()
    last = [nn.Flatten(0)] if mended else []
    model = nn.Sequential(nn.Flatten(), nn.Linear(40, 1), *last)
    return Program(model, WORDS, torch.ones(2), lambda output, target: loss(output, target))


@broken("shape-mismatch", "encoder.layers.0.self_attn", "embed_dim", "8", "12")
def transformer_of_another_width(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 8 if mended else 12)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

        def forward(self, x):
            return self.encoder(self.embed(x))  # here

    return Program(Net(), WORDS)


@broken("shape-mismatch", "fc", "512", "2048", "512 · 2 · 2", "AdaptiveAvgPool2d(1)")
def backbone_without_its_pooling(mended: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Conv2d(3, 512, 3), nn.Linear(512, 10)
            self.pool = nn.AdaptiveAvgPool2d(1)

        def forward(self, x):
            x = self.body(x)
            if mended:
                x = self.pool(x)
            x = torch.flatten(x, 1)
            return self.fc(x)  # here

    return Program(Net(), torch.zeros(2, 3, 4, 4))


@broken("shape-mismatch", "norm", "batch dimension is missing", "x.unsqueeze(0)", "BatchNorm2d")
def image_without_a_batch(mended: bool) -> Program:
    """The convolution takes one image; the normalisation after it is the first to complain."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.norm(self.conv(x))  # here

    image = torch.zeros(3, 8, 8)
    return Program(Net(), image.unsqueeze(0) if mended else image)


@broken("shape-mismatch", "1", "BatchNorm1d", "nn.BatchNorm1d")
def norm_for_images_over_sequences(mended: bool) -> Program:
    """Three dimensions are no missing batch where the channels stand second."""
    norm = nn.BatchNorm1d(8) if mended else nn.BatchNorm2d(8)
    return Program(nn.Sequential(nn.Conv1d(4, 8, 3), norm), torch.zeros(2, 4, 9))


@broken("shape-mismatch", None, "[3, 1]", "[3, 2]", "target.squeeze(1)")
def class_ids_in_a_column(mended: bool) -> Program:
    ids = torch.tensor([[0], [1], [1]])
    model = nn.Sequential(nn.Linear(8, 2), nn.Flatten())
    x = torch.zeros(3, 8)
    return Program(model, x, ids.squeeze(1) if mended else ids, nn.CrossEntropyLoss())


@broken("shape-mismatch", None, "4 predictions", "3 targets", "give 4 targets")
def targets_of_another_batch(mended: bool) -> Program:
    ids = torch.tensor([0, 1, 1, 0])
    x = torch.zeros(4, 8)
    loss = nn.CrossEntropyLoss()
    return Program(nn.Sequential(nn.Linear(8, 2)), x, ids if mended else ids[:3], loss)
