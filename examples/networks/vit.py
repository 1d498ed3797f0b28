"""ViT-B/16 for 224×224 images (Dosovitskiy et al. 2021): norms in front, class token, 197 positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.networks.bert import WIDTH, Attention

PATCH = 16
PATCHES = (224 // PATCH) ** 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = Attention()
        self.feed_forward_norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), None)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]


class ViT(nn.Module):
    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(layers)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.classify = nn.Linear(WIDTH, 1000)

    def forward(self, image: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        token = self.class_token.expand(image.shape[0], -1, -1)
        x = torch.cat((token, patches), dim=1) + self.positions
        return self.classify(self.norm(self.layers(x))[:, 0])  # type: ignore[no-any-return]
