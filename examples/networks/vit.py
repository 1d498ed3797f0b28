"""ViT-B/16 for 224×224 images (Dosovitskiy et al. 2021): norms in front, class token, 197 positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.networks.bert import HEADS, WIDTH, Attention

PATCH = 16
IMAGE = 224  # pixels along a side


class Layer(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), None)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class ViT(nn.Module):
    def __init__(
        self, layers: int = 12, width: int = WIDTH, heads: int = HEADS, image: int = IMAGE, patch: int = PATCH
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.classify = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        token = self.class_token.expand(image.shape[0], -1, -1)
        x = torch.cat((token, patches), dim=1) + self.positions
        return self.classify(self.norm(self.layers(x))[:, 0])  # type: ignore[no-any-return]
