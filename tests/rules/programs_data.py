"""Inputs, masks, dropout and norms that leave nothing to learn from."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rules.rule_programs import Program, program
from rules.small_transformers import Block, Decoder, Mixture

G = torch.Generator().manual_seed(5)
X = torch.randn(32, 8, generator=G)
Y = torch.arange(32) % 3
TOKENS = torch.randint(1, 9, (8, 10), generator=G)
TOKENS[:, 7:] = 0


@program("GS204", "0", severity="info")
def pixels_up_to_255(mended):
    """An MLP on bytes."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    pixels = torch.randint(0, 256, (32, 8), generator=torch.Generator().manual_seed(1)).float()
    return Program(net, pixels / 255 if mended else pixels, F.cross_entropy, Y)


@program("GS204", "0", severity="info")
def a_column_in_thousands(mended):
    """A table with an income, and a norm before the first layer in the twin."""
    columns = X.clone()
    columns[:, 0] = 40_000 + 9_000 * columns[:, 0]
    first = [nn.BatchNorm1d(8)] if mended else []
    net = nn.Sequential(*first, nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    return Program(net, columns, F.cross_entropy, Y)


@program("GS204", "0", severity="info")
def pixels_divided_by_255_twice(mended):
    """A dataset divides, and the loop again."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    pixels = torch.rand(32, 8, generator=torch.Generator().manual_seed(1))
    return Program(net, pixels if mended else pixels / 255, F.cross_entropy, Y)


@program("GS204", "0", severity="info")
def pixels_normalized_with_the_statistics_of_bytes(mended):
    """`Normalize((127.5,), (127.5,))` after `ToTensor`, which has divided by 255."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    pixels = torch.rand(32, 8, generator=torch.Generator().manual_seed(1))
    middle = 0.5 if mended else 127.5
    return Program(net, (pixels - middle) / middle, F.cross_entropy, Y)


@program("GS512", "2", severity="info")
def dropout_by_the_probability_to_keep(mended):
    """As `tf.nn.dropout(x, keep_prob=0.9)`."""
    net = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Dropout(0.1 if mended else 0.9), nn.Linear(64, 3)
    )
    return Program(net, X, F.cross_entropy, Y)


@program("GS512", "1", severity="info")
def channels_that_are_nearly_all_dropped(mended):
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.Dropout2d(0.2 if mended else 0.8), nn.Flatten(), nn.Linear(1152, 3)
    )
    return Program(net, X.view(4, 1, 8, 8), F.cross_entropy, Y[:4])


@program("GS514", "2*", severity="error")
def a_layer_norm_over_the_score(mended):
    """The norm follows the layer with one output."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *_head(mended))
    return Program(net, X, F.mse_loss, X[:, :1])


def _head(mended):
    if mended:
        return nn.LayerNorm(16), nn.Linear(16, 1)
    return nn.Sequential(nn.Linear(16, 1), nn.LayerNorm(1)), nn.Identity()


@program("GS514", "1", severity="error")
def as_many_groups_as_features(mended):
    """A GroupNorm of [N, 16] with 16 groups."""
    net = nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4 if mended else 16, 16), nn.Linear(16, 3))
    return Program(net, X, F.cross_entropy, Y)


class Reader(nn.Module):
    """Attention over tokens, 0 of which are padding."""

    def __init__(self, mended):
        super().__init__()
        self.embed = nn.Embedding(9, 16, padding_idx=0)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.mended = mended

    def forward(self, tokens):
        found = self.embed(tokens)
        mask = tokens == 0 if self.mended else tokens != 0
        found, _ = self.attention(found, found, found, key_padding_mask=mask)
        return self.head(found.mean(1))


@program("GS515", "attention", severity="error")
def attention_to_the_padding(mended):
    return Program(Reader(mended), TOKENS, F.cross_entropy, Y[:8])


class Encoder(nn.Module):
    """The same with a library's encoder, and embeddings that know of no padding."""

    def __init__(self, mended):
        super().__init__()
        self.embed = nn.Embedding(9, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)
        self.mended = mended

    def forward(self, tokens):
        mask = (tokens != 0) ^ self.mended
        found = self.encoder(self.embed(tokens), src_key_padding_mask=mask)
        return self.head(found.mean(1))


@program("GS515", "encoder*", severity="error")
def an_encoder_that_reads_the_padding(mended):
    return Program(Encoder(mended), TOKENS, F.cross_entropy, Y[:8])


class Classifier(Encoder):
    """The same with a token of its own before the others."""

    def forward(self, tokens):
        tokens_and_own = F.pad(tokens, (1, 0), value=8)
        mask = (tokens_and_own != 0) ^ self.mended
        own = self.embed.weight[-1].expand(len(tokens), 1, -1)
        found = torch.cat([own, self.embed(tokens)], 1)
        return self.head(self.encoder(found, src_key_padding_mask=mask)[:, 0])


@program("GS515", "encoder*", severity="error")
def a_token_of_its_own_that_reads_the_padding(mended):
    return Program(Classifier(mended), TOKENS, F.cross_entropy, Y[:8])


IDS = torch.randint(0, 24, (4, 12), generator=torch.Generator().manual_seed(0))


def _words(scores, ids):
    return F.cross_entropy(scores.flatten(0, 1), ids.flatten())


@program("GS515", "blocks.0.attention", severity="error")
def a_causal_mask_that_shows_the_future(mended):
    model = Decoder(mask=(lambda causal: causal) if mended else (lambda causal: ~causal))
    return Program(model, IDS, _words, IDS.roll(-1, 1))


@program("GS515", "blocks.0.attention", severity="error")
def a_mask_that_hides_every_token(mended):
    """True means masked for this mask, and no token is."""
    model = Decoder(mask=lambda causal: torch.full_like(causal, mended))
    return Program(model, IDS, _words, IDS)


def _stream(mended):
    """One feature of the first block is as large as language models have them."""
    blocks = nn.Sequential(*(Block(32, False) for _ in range(2)))
    with torch.no_grad():
        blocks[0].mlp[2].bias[3] = 0.5 if mended else 4000.0
    return nn.Sequential(nn.Linear(16, 32), blocks, nn.Linear(32, 3)).bfloat16()


def _mean_class(scores, y):
    return F.cross_entropy(scores.float().mean(1), y)


@program("GS305", "1.0", severity="info")
def a_massive_feature_in_bfloat16(mended):
    x = torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    return Program(_stream(mended), x, _mean_class, Y[:8])


@program("GS305", "1.0", severity="info")
def a_massive_feature_only_in_half_precision_counts(mended):
    x = torch.randn(8, 6, 16, generator=torch.Generator().manual_seed(0))
    model = _stream(False)
    return Program(
        model.float() if mended else model, x if mended else x.bfloat16(), _mean_class, Y[:8]
    )


class _Routed(nn.Module):
    """A mixture whose router prefers some experts by its bias."""

    def __init__(self, bias):
        super().__init__()
        self.mixture = Mixture(8)
        self.mixture.gate.weight.data.mul_(0.1)
        self.mixture.gate.bias = nn.Parameter(torch.tensor(bias))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x + self.mixture(x)).mean(1))


_MANY = torch.randn(32, 40, 8, generator=torch.Generator().manual_seed(2))


@program("GS208", "mixture", severity="warning")
def two_experts_that_get_every_token(mended):
    bias = [0.0] * 8 if mended else [5.0, 5.0, *[0.0] * 6]
    return Program(_Routed(bias), _MANY, F.cross_entropy, Y)


@program("GS208", "mixture", severity="warning")
def three_experts_that_every_token_prefers(mended):
    model = _Routed([0.0] * 8 if mended else [9.0, 6.0, 6.0, *[0.0] * 5])
    return Program(model, _MANY, F.cross_entropy, Y)
