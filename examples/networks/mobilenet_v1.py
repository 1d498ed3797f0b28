"""MobileNet-V1, width 1, for 224×224 images (Howard et al. 2017)."""

from __future__ import annotations

from torch import nn

from examples.networks.resnet import convolution

LAYERS = (  # filters, stride: table 1 of the paper
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1),
)  # fmt: skip


def separable(channels: int, filters: int, stride: int) -> nn.Sequential:
    """A depthwise 3×3 convolution and a 1×1 one."""
    depthwise = [convolution(channels, channels, 3, stride, groups=channels), nn.ReLU()]
    return nn.Sequential(*depthwise, convolution(channels, filters, 1), nn.ReLU())


class MobileNetV1(nn.Sequential):
    """`separable_stem` replaces the first convolution, which is a full one, as the code of AMOS does."""

    def __init__(self, separable_stem: bool = False) -> None:
        stem = [convolution(3, 32, 3, stride=2), nn.ReLU()]
        layers: list[nn.Module] = [separable(3, 32, 2)] if separable_stem else stem
        channels = 32
        for filters, stride in LAYERS:
            layers.append(separable(channels, filters, stride))
            channels = filters
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
