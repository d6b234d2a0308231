"""Occlusion, RISE and Score-CAM against second implementations and against themselves."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from saliency.saliency_nets import network, off
from torch import nn
from torch.nn.functional import interpolate

from gradscope.errors import OptionError
from gradscope.progress import handled_by
from gradscope.saliency import occlusion, rise, score_cam
from gradscope.saliency._subject import Objective, Subject

pytestmark = pytest.mark.slow

NETS = ("digits", "resnet18", "densenet121", "vit")
TARGETS = torch.tensor([2, 5])
WITHIN = 1e-5


@pytest.fixture(scope="module")
def captum():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("captum.attr", reason="the second implementation")


@pytest.fixture(scope="module")
def cams():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("pytorch_grad_cam", reason="the second implementation")


def subject_of(net, x, **options):
    return Subject(net, x, Objective(TARGETS[: len(x)]), **options)


def score_by_hand(net, picture, target):
    with torch.no_grad():
        return float(net(picture[None])[0, target])


# Occlusion


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("options", [{"window": 17, "stride": 13}, {"window": 20, "baseline": 0.3}])
def test_occlusion_is_captums(name, options, captum):
    # A fall is a small difference of large logits: float64 distinguishes definitions, not
    # roundings.
    net, x = network(name)
    net, x = net.double(), x.double()
    with subject_of(net, x) as subject:
        ours = occlusion.attribute(subject, **options)
    window, stride = options["window"], options.get("stride", options["window"] // 2)
    channels = x.shape[1]
    theirs = captum.Occlusion(net).attribute(
        x,
        target=TARGETS,
        sliding_window_shapes=(channels, window, window),
        strides=(channels, stride, stride),
        baselines=options.get("baseline", 0.0),
        perturbations_per_eval=4,
    )
    assert off(ours, theirs[:, 0]) <= WITHIN


def test_occlusion_by_hand():
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False))
    x = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    with torch.no_grad():
        net[1].weight.fill_(1.0)
    with Subject(net, x, Objective(torch.tensor([0]))) as subject:
        ours = occlusion.attribute(subject, window=2, stride=2)
    # The score is the sum of the pixels, so each window falls by the sum of its own.
    falls = torch.tensor([[14.0, 22.0], [46.0, 54.0]])
    expected = falls.repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.allclose(ours[0], expected)


def test_occlusion_covers_the_last_rows_with_a_window_that_is_cut_off():
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(25, 1)), torch.rand(1, 1, 5, 5)
    with Subject(net, x, Objective(torch.tensor([0]))) as subject:
        ours = occlusion.attribute(subject, window=2, stride=2)
        assert ours.isfinite().all()
        last = x.clone()
        last[..., 4:, 4:] = 0
        fall = subject.scores - subject.score(last).detach()
    assert torch.allclose(ours[0, 4, 4], fall[0], atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 33},
        {"window": -1},
        {"window": 4, "stride": 5},
        {"stride": -2},
    ],
    ids=["larger than the picture", "negative", "gaps", "negative stride"],
)
def test_occlusion_refuses_windows_that_do_not_cover(options):
    net, x = network("digits")
    with subject_of(net, x) as subject, pytest.raises(OptionError) as refused:
        occlusion.attribute(subject, **options)
    assert refused.value.problems[0].help


# RISE


def plain_rise(net, x, target, count, grid, p, seed):
    """The definition, a mask at a time: an enlarged grid, cut at an offset."""
    draw = torch.Generator().manual_seed(seed)
    height, width = x.shape[-2:]
    cells = (torch.rand(count, grid, grid, generator=draw) < p).float()
    tall, wide = -(-height // grid), -(-width // grid)
    tops = torch.randint(tall, (count,), generator=draw)
    lefts = torch.randint(wide, (count,), generator=draw)
    total = torch.zeros(height, width, dtype=torch.float64)
    for cell, top, left in zip(cells, tops, lefts, strict=True):
        size = ((grid + 1) * tall, (grid + 1) * wide)
        large = interpolate(cell[None, None], size=size, mode="bilinear", align_corners=False)
        mask = large[0, 0, top : top + height, left : left + width]
        total += score_by_hand(net, x * mask, target) * mask.double()
    return total / (count * p)


@pytest.mark.parametrize("name", ["digits", "resnet18"])
def test_rise_is_its_definition(name):
    net, x = network(name)
    with subject_of(net, x, seed=4) as subject:
        ours = rise.attribute(subject, n_samples=70, grid=5, p=0.4)
    for i, target in enumerate(TARGETS.tolist()):
        theirs = plain_rise(net, x[i], target, 70, 5, 0.4, seed=4)
        assert off(ours[i].double(), theirs) <= WITHIN


def test_rise_depends_on_the_seed_alone():
    net, x = network("digits")
    maps = []
    for seed in (1, 1, 2):
        with subject_of(net, x, seed=seed) as subject:
            torch.rand(3)  # the global state is none of its business
            maps.append(rise.attribute(subject, n_samples=40))
    assert off(maps[0], maps[1]) <= WITHIN  # rounding: batches are as large as was fastest
    assert off(maps[0], maps[2]) > 1e-2


def test_rise_with_every_cell_visible_is_the_score():
    net, x = network("digits")
    with subject_of(net, x) as subject:
        ours = rise.attribute(subject, n_samples=5, p=1.0)
        expected = subject.scores[:, None, None].expand_as(ours)
    assert off(ours, expected) <= WITHIN


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 1.5}, {"n_samples": 0}, {"grid": 29}])
def test_rise_refuses(options):
    net, x = network("digits")
    with subject_of(net, x) as subject, pytest.raises(OptionError):
        rise.attribute(subject, **options)


# Score-CAM


def scaled(maps):
    """0–1, as pytorch-grad-cam hands its maps out."""
    flat = maps - maps.amin((1, 2), keepdim=True)
    return flat / flat.amax((1, 2), keepdim=True)


@pytest.mark.parametrize(
    ("name", "layer"),
    [("digits", "conv2"), ("resnet18", "layer1")],
)
def test_score_cam_is_pytorch_grad_cams(name, layer, cams, monkeypatch):
    # Its one difference besides the scaling: ours leaves the corners unaligned, as the authors do.
    unaligned = functools.partial(nn.Upsample, mode="bilinear", align_corners=False)
    monkeypatch.setattr(nn, "UpsamplingBilinear2d", unaligned)
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, x = network(name)
    with subject_of(net, x, layer=layer) as subject:
        ours = score_cam.attribute(subject)
    with cams.ScoreCAM(net, [net.get_submodule(layer)]) as cam:
        theirs = cam(x, [ClassifierOutputTarget(int(t)) for t in TARGETS])
    assert off(scaled(ours), torch.from_numpy(theirs)) <= WITHIN


class AtFullSize(nn.Module):
    """Its layer's maps have the picture's size, so that nobody's upsampling matters."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def test_score_cam_is_pytorch_grad_cams_as_it_is(cams):
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    torch.manual_seed(0)
    net, x = AtFullSize().eval(), torch.randn(2, 3, 12, 12)
    targets = torch.tensor([1, 3])
    with Subject(net, x, Objective(targets), layer="conv") as subject:
        ours = score_cam.attribute(subject)
    with cams.ScoreCAM(net, [net.conv]) as cam:
        theirs = cam(x, [ClassifierOutputTarget(int(t)) for t in targets])
    assert off(scaled(ours), torch.from_numpy(theirs)) <= WITHIN


def test_score_cam_scores_constant_maps_once():
    torch.manual_seed(0)
    net, x = AtFullSize().eval(), torch.randn(1, 3, 12, 12)
    with torch.no_grad():
        net.conv.weight[:4] = 0  # four maps show nothing
    calls = []
    passes = handled_by(lambda stage: calls.append(stage.total))
    with passes, Subject(net, x, Objective(torch.tensor([1])), layer="conv") as subject:
        ours = score_cam.attribute(subject)
        weights = torch.tensor([score_by_hand(net, 0 * x[0], 1)] * 4 + [0.0, 0.0])
        for k in (4, 5):
            a = subject.activation[0, k]
            mask = (a - a.min()) / (a.max() - a.min())
            weights[k] = score_by_hand(net, x[0] * mask, 1)
        expected = (weights.softmax(0)[:, None, None] * subject.activation[0]).sum(0).relu()
    assert calls[-1] == 3
    assert off(ours[0], expected) <= WITHIN
