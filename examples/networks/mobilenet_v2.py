"""MobileNet-V2, width 1, for 224×224 images (Sandler et al. 2018)."""

from __future__ import annotations

from torch import Tensor, nn

from examples.networks.resnet import convolution

STAGES = (  # expansion, channels, blocks, stride of the first block: table 2 of the paper
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """1×1 expansion, 3×3 depthwise, 1×1 projection without activation; added to the input where shapes agree."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = channels * expansion
        expand = [convolution(channels, width, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = [convolution(width, width, 3, stride, groups=width), nn.ReLU6()]
        self.body = nn.Sequential(*expand, *depthwise, convolution(width, filters, 1))
        self.residual = channels == filters and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [convolution(3, 32, 3, stride=2), nn.ReLU6()]
        channels = 32
        for expansion, filters, blocks, stride in STAGES:
            for index in range(blocks):
                layers.append(InvertedResidual(channels, filters, 1 if index else stride, expansion))
                channels = filters
        head = [convolution(channels, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, *head, nn.Linear(1280, 1000))
