"""Models of PyTorch and transformers that are right are clean, and say what cannot be judged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradscope

transformers = pytest.importorskip("transformers")

SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(3, 97, (2, 10), generator=torch.Generator().manual_seed(0))
DECODED = IDS[:, :7]


def verdicts(report) -> dict[str, str]:
    return {one.axis: one.verdict for one in report.axes}


def message(report, axis: str) -> str:
    return next(one.message for one in report.axes if one.axis == axis)


def test_gpt2_is_clean_at_the_promised_cost():
    config = transformers.GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    report = gradscope.leaks(transformers.GPT2LMHeadModel(config), {"input_ids": IDS})
    found = verdicts(report)
    assert [found[axis] for axis in ("time", "batch", "padding", "mask", "cache")] == ["clean"] * 5
    assert (report.forwards, report.backwards) == (6, 2)


def test_a_loss_of_shifted_labels_is_clean():
    config = transformers.GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    batch = {"input_ids": IDS, "labels": IDS.clone()}
    report = gradscope.leaks(transformers.GPT2LMHeadModel(config), batch)
    assert verdicts(report)["label"] == "clean"
    assert report.leaks == ()


def test_a_pooled_output_needs_its_padding_on_the_right():
    config = transformers.BertConfig(**SMALL, intermediate_size=48, max_position_embeddings=32)
    report = gradscope.leaks(transformers.BertForSequenceClassification(config), {"input_ids": IDS})
    assert report.leaks == ()
    assert verdicts(report)["padding"] == "clean"


def test_the_decoder_of_a_sequence_model_is_judged():
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config)
    report = gradscope.leaks(model, {"input_ids": IDS, "decoder_input_ids": DECODED})
    assert verdicts(report)["time"] == "clean"
    report = gradscope.leaks(model, {"input_ids": IDS, "labels": DECODED})
    assert report.leaks == ()
    assert verdicts(report)["time"] == "not-judged"
    assert verdicts(report)["label"] == "clean"


def test_a_transformer_without_its_mask_leaks():
    model = nn.Transformer(16, 4, 1, 1, 32, batch_first=True)
    batch = {"src": torch.randn(2, 6, 16), "tgt": torch.randn(2, 8, 16)}
    (leak,) = gradscope.leaks(model, batch, causal=True).leaks
    assert (leak.axis, leak.layer) == ("time", "decoder.layers.0.self_attn")
    batch["tgt_mask"] = nn.Transformer.generate_square_subsequent_mask(8)
    assert gradscope.leaks(model, batch, causal=True).leaks == ()


@pytest.mark.parametrize("first", [True, False])
def test_a_recurrent_network_is_causal_in_either_layout(first):
    x = torch.randn(2, 9, 8) if first else torch.randn(9, 2, 8)
    axes = None if first else {"time": 0}
    report = gradscope.leaks(nn.LSTM(8, 8, batch_first=first), x, causal=True, axes=axes)
    assert verdicts(report)["time"] == verdicts(report)["batch"] == "clean"


def test_batch_norm_mixes_the_batch_by_design():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    report = gradscope.leaks(model, torch.randn(2, 3, 8, 8))
    assert verdicts(report)["batch"] == "by-design"
    assert "`1` (BatchNorm)" in message(report, "batch")
    assert report.status == "ok"


def test_rounding_is_no_leak():
    """A convolution by FFT with enough room changes the past in its last bits."""

    class LongConvolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(16, 4))

        def forward(self, x):
            room = 2 * x.shape[1]
            product = torch.fft.rfft(x, room, 1) * torch.fft.rfft(self.kernel, room, 0)
            return torch.fft.irfft(product, room, 1)[:, : x.shape[1]]

    report = gradscope.leaks(LongConvolution(), torch.randn(2, 16, 4), causal=True)
    assert verdicts(report)["time"] == "clean"


def test_a_straight_through_gradient_is_not_called_a_leak():
    class StraightThrough(nn.Module):
        def forward(self, x):
            later = x.flip(1)
            return x + later - later.detach()

    report = gradscope.leaks(StraightThrough(), torch.randn(2, 6, 4), causal=True)
    assert verdicts(report)["time"] == "not-judged"
    assert "the gradient reaches later inputs" in message(report, "time")


@pytest.mark.parametrize(
    ("x", "options", "axis", "why"),
    [
        (torch.randn(2, 1, 4), {"causal": True}, "time", "one position"),
        (torch.randn(2, 6, 4), {}, "time", "not known to be causal"),
        (torch.randn(2, 6, 4), {"causal": False}, "time", "not causal"),
        (torch.randn(2, 4), {"causal": True}, "time", "no input has a time axis"),
        (torch.randn(2, 6, 4), {}, "padding", "no input is a mask"),
        (torch.randn(2, 6, 4), {}, "label", "no input is a label"),
        (torch.randn(2, 6, 4), {}, "cache", "takes no cache"),
    ],
)
def test_what_cannot_be_judged_says_why(x, options, axis, why):
    report = gradscope.leaks(nn.Linear(4, 4), x, **options)
    assert verdicts(report)[axis] == "not-judged"
    assert why in message(report, axis)


class Gated(nn.Module):
    """A causal model with a leak behind a gate, which begins with zero; ``scale`` is its head's."""

    def __init__(self, gate: float, scale: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((4,), gate))
        self.scale = scale

    def forward(self, x):
        return (x + self.gate * x.mean(1, keepdim=True)) * self.scale


def test_a_branch_of_zeros_is_told():
    report = gradscope.leaks(Gated(0.0, 1.0), torch.randn(2, 6, 4), causal=True)
    assert "`gate` is all zeros" in " ".join(report.run.notices)
    report = gradscope.leaks(Gated(1.0, 1.0), torch.randn(2, 6, 4), causal=True)
    assert verdicts(report)["time"] == "leaks"


@pytest.mark.parametrize(("scale", "why"), [(0.0, "no output depends"), (float("nan"), "are NaN")])
def test_outputs_that_say_nothing_are_not_clean(scale, why):
    report = gradscope.leaks(Gated(1.0, scale), torch.randn(2, 6, 4), causal=True)
    assert {verdicts(report)[axis] for axis in ("time", "batch")} == {"not-judged"}
    assert why in message(report, "time")


def test_a_number_beside_the_input_has_no_axis():
    """As transformers' `Trainer` gives `num_items_in_batch`."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x, num_lens_in_batch):
            return self.head(x) / num_lens_in_batch

    report = gradscope.leaks(Scaled(), (torch.randn(3, 5, 4), torch.tensor(7.0)), causal=True)
    assert verdicts(report)["time"] == "clean"
