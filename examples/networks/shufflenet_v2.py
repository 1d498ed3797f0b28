"""ShuffleNet-V2, width 1, for 224×224 images (Ma et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.networks.resnet import convolution

STAGES = ((116, 4), (232, 8), (464, 4))  # channels, units: table 5 of the paper


class Unit(nn.Module):
    """Half of the channels pass through 1×1, depthwise 3×3 and 1×1; then channels of both halves alternate.

    A unit with stride 2 gives all channels to both branches, and the other branch a depthwise and a 1×1 convolution.
    """

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        half = filters // 2
        self.split = stride == 1
        entering = channels // 2 if self.split else channels
        self.right = nn.Sequential(
            convolution(entering, half, 1),
            nn.ReLU(),
            convolution(half, half, 3, stride, groups=half),
            convolution(half, half, 1),
            nn.ReLU(),
        )
        down = (convolution(channels, channels, 3, stride, groups=channels), convolution(channels, half, 1), nn.ReLU())
        self.left = nn.Identity() if self.split else nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1) if self.split else (x, x)
        return shuffle(torch.cat((self.left(left), self.right(right)), dim=1))


def shuffle(x: Tensor) -> Tensor:
    """Interleave the two halves of the channels."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class ShuffleNetV2(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [convolution(3, 24, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        channels = 24
        for filters, units in STAGES:
            for index in range(units):
                layers.append(Unit(channels, filters, 1 if index else 2))
                channels = filters
        head = [convolution(channels, 1024, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, *head, nn.Linear(1024, 1000))
