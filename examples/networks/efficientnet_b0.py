"""EfficientNet-B0 for 224×224 images (Tan and Le 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.networks.resnet import convolution

STAGES = (  # expansion, kernel, stride of the first block, channels, blocks: table 1 of the paper
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class SqueezeExcitation(nn.Module):
    """Each channel is multiplied by a factor in (0, 1), which follows from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(self.mean(x)))))


class MBConv(nn.Module):
    """1×1 expansion, depthwise, squeeze and excitation, 1×1 projection; added to the input where shapes agree."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = channels * expansion
        expand = [convolution(channels, width, 1), nn.SiLU()] if expansion > 1 else []
        depthwise = [convolution(width, width, kernel, stride, groups=width), nn.SiLU()]
        projection = convolution(width, filters, 1)
        self.body = nn.Sequential(*expand, *depthwise, SqueezeExcitation(width, channels // 4), projection)
        self.residual = channels == filters and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


class EfficientNetB0(nn.Sequential):
    """Without dropout and stochastic depth, which inference leaves out."""

    def __init__(self) -> None:
        layers: list[nn.Module] = [convolution(3, 32, 3, stride=2), nn.SiLU()]
        channels = 32
        for expansion, kernel, stride, filters, blocks in STAGES:
            for index in range(blocks):
                layers.append(MBConv(channels, filters, kernel, 1 if index else stride, expansion))
                channels = filters
        head = [convolution(channels, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, *head, nn.Linear(1280, 1000))
