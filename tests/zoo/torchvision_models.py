"""torchvision: classification, segmentation, detection, video, optical flow, quantizable models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoo.entries import Entry, Made

#: What two pictures of 64 × 64 are too small for, and how a model is reported its size.
_SIZES = {"inception_v3": 299, "quantized_inception_v3": 299, "maxvit_t": 224, "ssd300_vgg16": 300}
_CLASSIFIERS = {
    "alexnet": ("alexnet",),
    "convnext": ("convnext_tiny",),
    "densenet": ("densenet121", "densenet169"),
    "efficientnet": ("efficientnet_b0", "efficientnet_b3", "efficientnet_v2_s"),
    "googlenet": ("googlenet",),
    "inception": ("inception_v3",),
    "maxvit": ("maxvit_t",),
    "mnasnet": ("mnasnet0_5", "mnasnet1_0"),
    "mobilenet": ("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    "regnet": tuple(f"regnet_{xy}_{size}" for xy in "xy" for size in ("400mf", "1_6gf")),
    "resnet": ("resnet18", "resnet34", "resnet50", "resnet101"),
    "resnext": ("resnext50_32x4d",),
    "shufflenet": ("shufflenet_v2_x0_5", "shufflenet_v2_x1_0"),
    "squeezenet": ("squeezenet1_0", "squeezenet1_1"),
    "swin": ("swin_t", "swin_v2_t"),
    "vgg": ("vgg11_bn",),
    "vit": ("vit_b_16", "vit_b_32"),
    "wide-resnet": ("wide_resnet50_2",),
}
_SEGMENTERS = {
    "deeplabv3": ("deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50"),
    "fcn": ("fcn_resnet50",),
    "lraspp": ("lraspp_mobilenet_v3_large",),
}
_DETECTORS = {
    "faster-rcnn": (
        "fasterrcnn_resnet50_fpn",
        "fasterrcnn_mobilenet_v3_large_fpn",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
    ),
    "fcos": ("fcos_resnet50_fpn",),
    "keypoint-rcnn": ("keypointrcnn_resnet50_fpn",),
    "mask-rcnn": ("maskrcnn_resnet50_fpn",),
    "retinanet": ("retinanet_resnet50_fpn",),
    "ssd": ("ssd300_vgg16",),
    "ssdlite": ("ssdlite320_mobilenet_v3_large",),
}
_VIDEOS = {
    "video-resnet": ("r3d_18", "mc3_18", "r2plus1d_18"),
    "s3d": ("s3d",),
    "mvit": ("mvit_v1_b", "mvit_v2_s"),
    "swin3d": ("swin3d_t",),
}
_QUANTIZABLE = (
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "resnet18",
    "resnet50",
    "shufflenet_v2_x0_5",
)
#: Prepared for quantization-aware training as well: convolutions with fake quantization.
_AWARE = ("mobilenet_v2", "resnet18", "shufflenet_v2_x0_5")


def entries() -> Iterator[Entry]:
    """Every entry of the group."""
    made: list[tuple[str, dict[str, tuple[str, ...]], Callable[[str], Made]]] = [
        ("classification", _CLASSIFIERS, _classifier),
        ("segmentation", _SEGMENTERS, _segmenter),
        ("detection", _DETECTORS, _detector),
        ("video", _VIDEOS, _video),
        ("optical flow", {"raft": ("raft_small", "raft_large")}, _flow),
    ]
    for kind, families, make in made:
        for family, names in families.items():
            for name in names:
                yield Entry("torchvision", kind, family, name, functools.partial(make, name))
    for name in _QUANTIZABLE:
        full = f"quantized_{name}"
        make = functools.partial(_classifier, full)
        yield Entry("torchvision", "quantization", f"quantizable {name}", full, make)
    for name in _AWARE:
        make = functools.partial(_quantization_aware, f"quantized_{name}")
        yield Entry("torchvision", "quantization", f"quantizable {name}", f"{name}-qat", make)


def _model(name: str, **options: Any) -> nn.Module:
    import torchvision.models

    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model


def _classifier(name: str) -> Made:
    size = _SIZES.get(name, 64)
    options: dict[str, Any] = {"num_classes": 10}
    if name.startswith("vit_"):
        options["image_size"] = size
    if "inception" in name or "googlenet" in name:
        options["init_weights"] = False
    if name.startswith("quantized_"):
        options["quantize"] = False
    return _model(name, **options), torch.randn(2, 3, size, size)


def _quantization_aware(name: str) -> Made:
    from torch.ao import quantization

    model, inputs = _classifier(name)
    model.train()
    model.fuse_model(is_qat=True)
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    quantization.prepare_qat(model, inplace=True)
    return model, inputs


def _segmenter(name: str) -> Made:
    aux = {} if name.startswith("lraspp") else {"aux_loss": True}
    model = _model(name, weights_backbone=None, num_classes=5, **aux)
    return model, torch.randn(2, 3, 64, 64)


def _detector(name: str) -> Made:
    fixed = name.startswith("ssd")
    size = 320 if fixed else 96
    sizes = {} if fixed else {"min_size": 96, "max_size": 128}
    if "rcnn" in name:  # boxes to learn from: the heads' work goes with them
        sizes |= {"box_batch_size_per_image": 16, "rpn_post_nms_top_n_train": 64}
    model = _model(name, weights_backbone=None, **sizes)
    boxes = torch.tensor([[10.0, 10.0, 50.0, 60.0], [30.0, 20.0, 90.0, 80.0]])
    target: dict[str, Tensor] = {"boxes": boxes, "labels": torch.tensor([1, 2])}
    if name.startswith("maskrcnn"):
        target["masks"] = torch.zeros(2, size, size, dtype=torch.uint8)
        target["masks"][:, 20:40, 30:50] = 1
    if name.startswith("keypointrcnn"):
        target["labels"] = torch.ones(2, dtype=torch.int64)
        points = [torch.linspace(b[0] + 1, b[2] - 1, 17) for b in boxes]
        rows = [torch.linspace(b[1] + 1, b[3] - 1, 17) for b in boxes]
        target["keypoints"] = torch.stack(
            [torch.stack([x, y, torch.ones(17)], 1) for x, y in zip(points, rows, strict=True)]
        )
    images = [torch.rand(3, size, size) for _ in range(2)]
    return model, (images, [target, {key: value.clone() for key, value in target.items()}])


def _video(name: str) -> Made:
    if name == "s3d":  # pools over 7 × 7 places, which takes clips of 224 × 224
        return _model(name, num_classes=10), torch.randn(2, 3, 16, 224, 224)
    if name.startswith("mvit"):
        return _mvit(second=name.startswith("mvit_v2")), torch.randn(2, 3, 4, 64, 64)
    side = 64 if name.startswith("swin3d") else 32
    return _model(name, num_classes=10), torch.randn(2, 3, 4, side, side)


def _mvit(*, second: bool) -> nn.Module:
    """As torchvision builds it, from four of its sixteen blocks."""
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 96, 96 * 2, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 8, 8]),
        MSBlockConfig(2, 96 * 2, 96 * 2, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 4, 4]),
        MSBlockConfig(2, 96 * 2, 96 * 4, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 4, 4]),
        MSBlockConfig(4, 96 * 4, 96 * 4, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
    ]
    if not second:  # the first version widens after a block, the second before it
        wide = {"residual_pool": False, "residual_with_cls_embed": True}
        wide |= {"rel_pos_embed": False, "proj_after_attn": False}
    else:
        wide = {"residual_pool": True, "residual_with_cls_embed": False}
        wide |= {"rel_pos_embed": True, "proj_after_attn": True}
    return MViT((64, 64), 4, blocks, num_classes=10, stochastic_depth_prob=0.2, **wide)


def _flow(name: str) -> Made:
    frames = torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)
    return _model(name), (*frames, 2)
