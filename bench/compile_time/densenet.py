"""DenseNet-121, a concatenation per layer (Huang et al., "Densely connected convolutional networks", CVPR 2017)."""

from __future__ import annotations

import torch
from torch import nn

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """1x1 and 3x3 convolutions of the normalised input; the result is appended to the channels of the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_normalised(channels),
            nn.Conv2d(channels, 4 * GROWTH, 1, bias=False),
            *_normalised(4 * GROWTH),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.layers(x)], 1)


class DenseNet121(nn.Sequential):
    """Images N x 3 x 224 x 224 to N x 1000 scores."""

    def __init__(self) -> None:
        channels = 2 * GROWTH
        layers: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            *_normalised(channels),
            nn.MaxPool2d(3, 2, 1),
        ]
        for number, depth in enumerate(BLOCKS):
            layers += [DenseLayer(channels + GROWTH * layer) for layer in range(depth)]
            channels += GROWTH * depth
            if number + 1 < len(BLOCKS):
                layers += [*_normalised(channels), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
                channels //= 2
        layers += [*_normalised(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
        super().__init__(*layers)


def _normalised(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU()
