"""ResNet-18 and ResNet-50 for 224×224 images (He et al. 2016; the 50 strides in its 3×3 convolutions, "v1.5")."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def convolution(channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the size (or divides it by `stride`), with its batch norm."""
    conv = nn.Conv2d(channels, filters, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


class Residual(nn.Module):
    """``relu(body(x) + shortcut(x))``; the shortcut is a 1×1 convolution where the shapes differ."""

    def __init__(self, body: nn.Module, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = channels == filters and stride == 1
        self.shortcut = nn.Identity() if same else convolution(channels, filters, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def basic_block(channels: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(convolution(channels, width, 3, stride), nn.ReLU(), convolution(width, width, 3))
    return Residual(body, channels, width, stride)


def bottleneck(channels: int, width: int, stride: int) -> Residual:
    body = nn.Sequential(
        convolution(channels, width, 1),
        nn.ReLU(),
        convolution(width, width, 3, stride),
        nn.ReLU(),
        convolution(width, 4 * width, 1),
    )
    return Residual(body, channels, 4 * width, stride)


def resnet18() -> nn.Module:
    return resnet(basic_block, expansion=1, blocks=(2, 2, 2, 2))


def resnet50() -> nn.Module:
    return resnet(bottleneck, expansion=4, blocks=(3, 4, 6, 3))


def resnet(
    block: Callable[[int, int, int], Residual],
    expansion: int,
    blocks: tuple[int, ...],
    width: int = 64,
    classes: int = 1000,
) -> nn.Module:
    """Stages of so many `blocks`, each `expansion` times as wide as inside; the first is `width` wide inside."""
    layers: list[nn.Module] = [convolution(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, count in enumerate(blocks):
        inside = width << stage
        for index in range(count):
            layers.append(block(channels, inside, 2 if stage and not index else 1))
            channels = expansion * inside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
