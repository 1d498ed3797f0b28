"""BERT-base (Devlin et al. 2019): the encoder alone, or with embeddings of token ids and a padding mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 768
HEADS = 12
VOCABULARY = 30522


class Attention(nn.Module):
    """Self-attention over `HEADS` heads, written out as two products around a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        batch, sequence, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, sequence, HEADS, WIDTH // HEADS).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        if bias is not None:
            scores = scores + bias
        mixed = scores.softmax(dim=-1) @ value
        return self.project(mixed.transpose(1, 2).reshape(batch, sequence, WIDTH))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, bias))
        return self.output_norm(x + self.feed_forward(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """`embeddings` [batch, sequence, 768] through `layers` layers; `bias` is added to the attention scores."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, embeddings: Tensor, bias: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            embeddings = layer(embeddings, bias)
        return embeddings


class Bert(nn.Module):
    """`tokens` [batch, sequence] are ids, `mask` is 1 for a token and 0 for padding (i64 both)."""

    def __init__(self, layers: int, positions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(positions, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.encoder = Encoder(layers)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask[:, None, None, :].to(self.positions.dtype)) * -1e9
        return self.encoder(self.norm(self.tokens(tokens) + self.positions), bias)  # type: ignore[no-any-return]
