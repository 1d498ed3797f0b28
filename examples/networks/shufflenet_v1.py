"""ShuffleNet v1 with 3 groups, width 1, for 224×224 images (Zhang et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.networks.resnet import convolution

GROUPS = 3
STAGES = ((240, 4), (480, 8), (960, 4))  # channels, units: table 1 of the paper


class Unit(nn.Module):
    """1×1 in groups, channels shuffled, depthwise 3×3, 1×1 in groups; added to the input.

    A unit with stride 2 has the averages of its input beside its result instead. The first unit of all reads too few
    channels for groups.
    """

    def __init__(self, channels: int, filters: int, stride: int, entering_groups: int) -> None:
        super().__init__()
        self.stride = stride
        leaving = filters - channels if stride == 2 else filters
        middle = leaving // 4
        self.enter = nn.Sequential(convolution(channels, middle, 1, groups=entering_groups), nn.ReLU())
        self.depthwise = convolution(middle, middle, 3, stride, groups=middle)
        self.leave = convolution(middle, leaving, 1, groups=GROUPS)
        self.shortcut = nn.AvgPool2d(3, 2, padding=1, count_include_pad=False) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(self.depthwise(shuffle(self.enter(x))))
        shortcut = self.shortcut(x)
        return torch.relu(torch.cat((shortcut, y), dim=1) if self.stride == 2 else shortcut + y)


def shuffle(x: Tensor) -> Tensor:
    """Neighbouring channels of one group move to different groups."""
    batch, channels, height, width = x.shape
    return x.reshape(batch, GROUPS, channels // GROUPS, height, width).transpose(1, 2).reshape(x.shape)


class ShuffleNetV1(nn.Sequential):
    def __init__(self) -> None:
        layers: list[nn.Module] = [convolution(3, 24, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        channels = 24
        for filters, units in STAGES:
            for index in range(units):
                layers.append(Unit(channels, filters, 1 if index else 2, 1 if channels == 24 else GROUPS))
                channels = filters
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
