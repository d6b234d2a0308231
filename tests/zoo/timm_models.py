"""timm: a model or more of nearly every module that it has, in the smallest size it takes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from zoo.entries import Entry, Made

#: Kind → timm's module → models of it.
_MODELS = {
    "convolutional": {
        "byobnet": "mobileone_s1 repvgg_a0 mobileone_s0 gernet_s",
        "convmixer": "convmixer_768_32",
        "convnext": "convnext_zepto_rms convnextv2_atto convnext_atto_ols",
        "cspnet": "cs3darknet_focus_s",
        "cspnext": "cspnext_tiny",
        "densenet": "densenet121",
        "dla": "dla46x_c",
        "dpn": "dpn48b",
        "efficientnet": "mobilenetv2_035 efficientnet_b0 mixnet_s mnasnet_050 fbnetc_100 tinynet_e",
        "fasternet": "fasternet_t0",
        "ghostnet": "ghostnet_050 ghostnetv2_100 ghostnetv3_050",
        "hardcorenas": "hardcorenas_b",
        "hgnet": "hgnetv2_b0",
        "hrnet": "hrnet_w18_small",
        "inception_next": "inception_next_atto",
        "inception_resnet_v2": "inception_resnet_v2",
        "inception_v3": "inception_v3",
        "inception_v4": "inception_v4",
        "lcnetv2": "lcnetv2_small",
        "mambaout": "mambaout_femto",
        "mobilenetv3": "lcnet_035 mobilenetv3_small_050 mobilenetv4_conv_small_035",
        "nasnet": "nasnetalarge",
        "nfnet": "nf_regnet_b0",
        "pnasnet": "pnasnet5large",
        "rdnet": "rdnet_tiny",
        "regnet": "regnetx_002 regnetz_005 regnety_002",
        "repghost": "repghostnet_050",
        "res2net": "res2next50",
        "resnest": "resnest14d",
        "resnet": "resnet10t ecaresnet26t resnext26ts",
        "resnetv2": "resnetv2_18",
        "rexnet": "rexnet_100",
        "selecsls": "selecsls42",
        "senet": "legacy_seresnet18",
        "sknet": "skresnet18",
        "starnet": "starnet_s050",
        "tresnet": "tresnet_m",
        "vovnet": "ese_vovnet19b_slim_dw",
        "xception": "legacy_xception",
        "xception_aligned": "xception41p",
    },
    "transformer": {
        "beit": "beit_base_patch16_224",
        "cait": "cait_xxs24_224",
        "crossvit": "crossvit_tiny_240",
        "davit": "davit_tiny",
        "deepseek_vit": "deepseek_vit_412m",
        "deit": "deit_tiny_patch16_224 deit_tiny_distilled_patch16_224",
        "eva": "vit_tiny_patch16_dinov3_qkvb eva02_tiny_patch14_224",
        "focalnet": "focalnet_tiny_srf",
        "gcvit": "gcvit_xxtiny",
        "gemma4_vit": "gemma4_vit_167m_enc",
        "hiera": "hiera_tiny_224",
        "hieradet_sam2": "sam2_hiera_tiny",
        "mvitv2": "mvitv2_tiny",
        "naflexvit": "naflexvit_base_patch16_parfac_gap",
        "nest": "nest_tiny",
        "pit": "pit_ti_224",
        "pvt_v2": "pvt_v2_b0",
        "qwen3_vit": "qwen3_vit_88m",
        "swin_transformer": "swin_tiny_patch4_window7_224",
        "swin_transformer_v2": "swinv2_tiny_window16_256",
        "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
        "tnt": "tnt_s_legacy_patch16_224",
        "twins": "twins_svt_small",
        "vision_transformer": "vit_tiny_patch16_224 vit_wee_patch16_reg1_gap_256",
        "vision_transformer_relpos": "vit_srelpos_small_patch16_224",
        "vision_transformer_sam": "samvit_base_patch16_224",
        "volo": "volo_d1_224",
        "xcit": "xcit_nano_12_p8_224",
    },
    "hybrid": {
        "byoanet": "lambda_resnet26rpt_256",
        "coat": "coat_tiny coat_lite_tiny",
        "convit": "convit_tiny",
        "cpubone": "cpubone_nano",
        "csatv2": "csatv2",
        "edgenext": "edgenext_xx_small",
        "efficientformer": "efficientformer_l1",
        "efficientformer_v2": "efficientformerv2_s0",
        "efficientvim": "efficientvim_m1",
        "efficientvit_mit": "efficientvit_b0",
        "efficientvit_msra": "efficientvit_m0",
        "fastvit": "fastvit_t8",
        "iformer": "iformer_t",
        "levit": "levit_128s",
        "lowformer": "lowformer_b0",
        "maxxvit": "maxvit_pico_rw_256 coatnet_pico_rw_224 maxvit_rmlp_pico_rw_256",
        "metaformer": "poolformerv2_s12 caformer_s18",
        "mobilenetv5": "mobilenetv5_base",
        "mobilevit": "mobilevit_xxs",
        "nextvit": "nextvit_small",
        "repvit": "repvit_m1",
        "sequencer": "sequencer2d_s",
        "shvit": "shvit_s1",
        "swiftformer": "swiftformer_xs",
        "tiny_vit": "tiny_vit_5m_224",
        "visformer": "visformer_tiny",
        "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
        "vitamin": "vitamin_small_224",
    },
    "mixer": {
        "mlp_mixer": "gmlp_ti16_224 mixer_s32_224 resmlp_12_224",
    },
}
#: What 64 × 64 does not suit.
_SIZES = {
    "deepseek_vit_412m": 112,
    "efficientformer_l1": 224,
    "gemma4_vit_167m_enc": 96,
    "inception_resnet_v2": 96,
    "inception_v3": 96,
    "inception_v4": 96,
}
#: Models for one size, which they are reported.
_TOLD = {
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "coat_lite_tiny",
    "coat_tiny",
    "coatnet_pico_rw_224",
    "convit_tiny",
    "deit_tiny_distilled_patch16_224",
    "deit_tiny_patch16_224",
    "efficientformerv2_s0",
    "eva02_tiny_patch14_224",
    "gcvit_xxtiny",
    "gmlp_ti16_224",
    "hiera_tiny_224",
    "lambda_resnet26rpt_256",
    "levit_128s",
    "maxvit_pico_rw_256",
    "maxvit_rmlp_pico_rw_256",
    "mixer_s32_224",
    "nest_tiny",
    "pit_ti_224",
    "resmlp_12_224",
    "swin_tiny_patch4_window7_224",
    "swinv2_cr_tiny_224",
    "swinv2_tiny_window16_256",
    "tnt_s_legacy_patch16_224",
    "visformer_tiny",
    "vit_srelpos_small_patch16_224",
    "vit_tiny_patch16_224",
    "vit_tiny_r_s16_p8_224",
    "vit_wee_patch16_reg1_gap_256",
    "vitamin_small_224",
    "volo_d1_224",
}
#: How a constructor is reported to build less, and who takes it.
_LESS: list[tuple[str, Any, str]] = [
    (
        "depths",
        (1, 1, 1, 1),
        (
            "coatnet_pico_rw_224 convnext_atto_ols convnextv2_atto davit_tiny "
            "efficientformer_l1 efficientformerv2_s0 efficientvit_b0 fasternet_t0 "
            "inception_next_atto lcnetv2_small mambaout_femto maxvit_pico_rw_256 "
            "maxvit_rmlp_pico_rw_256 nf_regnet_b0 pvt_v2_b0 swin_tiny_patch4_window7_224 "
            "swinv2_cr_tiny_224 swinv2_tiny_window16_256 tiny_vit_5m_224 twins_svt_small"
        ),
    ),
    ("block_config", (2, 2, 2, 2), "densenet121"),
    (
        "layers",
        (1, 1, 1, 1),
        (
            "ecaresnet26t fastvit_t8 legacy_seresnet18 res2next50 resnetv2_18 "
            "sequencer2d_s skresnet18 swiftformer_xs tresnet_m"
        ),
    ),
    (
        "depth",
        2,
        (
            "beit_base_patch16_224 cait_xxs24_224 convit_tiny deepseek_vit_412m "
            "deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 "
            "eva02_tiny_patch14_224 gemma4_vit_167m_enc "
            "naflexvit_base_patch16_parfac_gap qwen3_vit_88m samvit_base_patch16_224 "
            "tnt_s_legacy_patch16_224 visformer_tiny vit_srelpos_small_patch16_224 "
            "vit_tiny_patch16_224 vit_tiny_patch16_dinov3_qkvb vit_tiny_r_s16_p8_224 "
            "vit_wee_patch16_reg1_gap_256 vitamin_small_224 xcit_nano_12_p8_224"
        ),
    ),
    ("depth", (1, 1, 1), "levit_128s pit_ti_224"),
    ("depths", (1, 1, 1), "efficientvim_m1"),
    ("depth", (1, 1, 1, 1), "efficientvit_m0 repvit_m1 shvit_s1"),
]


def entries() -> Iterator[Entry]:
    """Every entry of the group."""
    for kind, families in _MODELS.items():
        for family, names in families.items():
            for name in names.split():
                yield Entry("timm", kind, family, name, functools.partial(_make, name))


def _make(name: str) -> Made:
    import timm

    size = _SIZES.get(name, 64)
    options: dict[str, Any] = {"img_size": size} if name in _TOLD else {}
    options |= {key: value for key, value, names in _LESS if name in names.split()}
    model = timm.create_model(name, pretrained=False, num_classes=10, **options)
    return model, torch.randn(2, 3, size, size)
