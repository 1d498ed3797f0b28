"""Architectures of timm: `timm.create_model(name, pretrained=False)`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.models.definition import Architecture, Built, image


def _model(name: str, size: int, **fields: Any) -> Built:
    import timm

    return timm.create_model(name, pretrained=False, **fields), (image(size),)


def _entry(name: str, size: int = 224, notes: str = "", **fields: Any) -> Architecture:
    return Architecture(name, "timm", "timm", partial(_model, name, size, **fields), notes=notes)


ARCHITECTURES = [
    _entry("levit_128s"),
    _entry("coat_lite_tiny"),
    _entry("coatnet_nano_rw_224"),
    _entry("poolformer_s12"),
    _entry("mixer_s32_224"),
    _entry("gmlp_ti16_224"),
    _entry("resmlp_12_224"),
    _entry("beit_base_patch16_224", depth=2, notes="2 layers"),
    _entry("cait_xxs24_224", depth=4, notes="4 layers"),
    _entry("deit_tiny_patch16_224"),
    _entry("xcit_nano_12_p16_224"),
    _entry("pit_ti_224"),
    _entry("tnt_s_patch16_224", depth=3, notes="3 layers"),
    _entry("twins_svt_small"),
    _entry("pvt_v2_b0"),
    _entry("crossvit_tiny_240", 240),
    _entry("convit_tiny"),
    _entry("nf_regnet_b0", 192),
    _entry("hrnet_w18_small"),
    _entry("dla34"),
    _entry("ese_vovnet19b_dw"),
    _entry("ghostnet_100"),
    _entry("repvgg_a0"),
    _entry("rexnet_100"),
    _entry("res2net50_26w_4s"),
    _entry("skresnet18"),
    _entry("efficientformer_l1"),
    _entry("mobilevit_xxs", 256),
    _entry("edgenext_xx_small", 256),
    _entry("fastvit_t8", 256),
    _entry("focalnet_tiny_srf"),
    _entry("davit_tiny"),
    _entry("gcvit_xxtiny"),
    _entry("inception_next_tiny"),
    _entry("mobilenetv4_conv_small"),
    _entry("halonet26t", 256),
    _entry("sequencer2d_s"),
    _entry("volo_d1_224"),
]
