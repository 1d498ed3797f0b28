"""BERT-base (Devlin et al. 2019): the encoder alone, or with embeddings of token ids and a padding mask."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 768
HEADS = 12
VOCABULARY = 30522


class Attention(nn.Module):
    """Self-attention: two products around a softmax, or with `one_call` torch's function for all of it."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, one_call: bool = False) -> None:
        super().__init__()
        self.heads, self.one_call = heads, one_call
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        batch, sequence, width = x.shape
        depth = width // self.heads

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, sequence, self.heads, depth).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        if self.one_call:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, bias)
        else:
            scores = query @ key.transpose(-1, -2) * depth**-0.5
            if bias is not None:
                scores = scores + bias
            mixed = scores.softmax(dim=-1) @ value
        return self.project(mixed.transpose(1, 2).reshape(batch, sequence, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, one_call: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, heads, one_call)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, bias))
        return self.output_norm(x + self.feed_forward(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """`embeddings` [batch, sequence, width] through `layers` layers; `bias` is added to the attention scores."""

    def __init__(self, layers: int, width: int = WIDTH, heads: int = HEADS, one_call: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads, one_call) for _ in range(layers))

    def forward(self, embeddings: Tensor, bias: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            embeddings = layer(embeddings, bias)
        return embeddings


class Bert(nn.Module):
    """`tokens` [batch, sequence] are ids, `mask` is 1 for a token and 0 for padding (i64 both)."""

    def __init__(
        self, layers: int, positions: int, width: int = WIDTH, heads: int = HEADS, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(positions, width))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.encoder = Encoder(layers, width, heads)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        bias = (1.0 - mask[:, None, None, :].to(self.positions.dtype)) * -1e9
        return self.encoder(self.norm(self.tokens(tokens) + self.positions), bias)  # type: ignore[no-any-return]
