"""One decoder layer of Llama 2 7B (Touvron et al. 2023): RMS norms, rotary embeddings, causal attention, SwiGLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 4096
HEADS = 32
HIDDEN = 11008  # of the feed-forward network
THETA = 10000.0  # base of the wavelengths of the rotary embedding


class RmsNorm(nn.Module):
    """``x / sqrt(mean(x²) + eps) * weight``, computed in f32."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


def rotary(sequence: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle by which each position turns each dimension: [sequence, width].

    Dimensions i and i + width/2 turn together.
    """
    frequencies = THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(sequence, dtype=torch.float64)[:, None] * frequencies.repeat(2)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` [batch, heads, sequence, width] with each pair of dimensions rotated by the angle of its position."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Causal self-attention; queries and keys are rotated by their positions."""

    def __init__(self, sequence: int, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.project = (nn.Linear(width, width, bias=False) for _ in range(4))
        cosine, sine = rotary(sequence, width // heads)
        self.register_buffer("cosine", cosine)
        self.register_buffer("sine", sine)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, width = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)

        query = rotate(heads(self.query(x)), self.cosine, self.sine)
        key = rotate(heads(self.key(x)), self.cosine, self.sine)
        mixed = nn.functional.scaled_dot_product_attention(query, key, heads(self.value(x)), is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, sequence, width))  # type: ignore[no-any-return]


class LlamaLayer(nn.Module):
    """`x` [batch, sequence, width] through one layer; the sequence is fixed, because the angles are buffers."""

    def __init__(self, sequence: int, width: int = WIDTH, heads: int = HEADS, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(sequence, width, heads)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.feed_forward_norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]
