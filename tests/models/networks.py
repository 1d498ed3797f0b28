"""Networks of torch.nn alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from tests.models.definition import Architecture, Built, image


def perceptron() -> Built:
    return nn.Sequential(nn.Linear(33, 47), nn.GELU(), nn.LayerNorm(47), nn.Linear(47, 10)), (torch.randn(3, 33),)


def lstm() -> Built:
    return nn.LSTM(128, 256, num_layers=2, batch_first=True, bidirectional=True), (torch.randn(2, 40, 128),)


def gru() -> Built:
    return nn.GRU(128, 256, num_layers=2), (torch.randn(40, 2, 128),)


def rnn() -> Built:
    return nn.RNN(128, 256, num_layers=2, nonlinearity="relu"), (torch.randn(40, 2, 128),)


def transformer() -> Built:
    module = nn.Transformer(256, 8, 2, 2, 1024, batch_first=True, norm_first=True)
    return module, (torch.randn(1, 50, 256), torch.randn(1, 37, 256))


def transformer_encoder() -> Built:
    """The layer's fast path in evaluation mode is one operator of ATen."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 3), (torch.randn(2, 64, 256),)


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(256, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.attention(x, x, x)


def attention() -> Built:
    return _SelfAttention(), (torch.randn(2, 100, 256),)


def dcgan() -> Built:
    widths = (100, 512, 256, 128, 64)
    layers: list[nn.Module] = []
    for i, (wide, narrow) in enumerate(pairwise(widths)):
        layers.append(nn.ConvTranspose2d(wide, narrow, 4, 1 if i == 0 else 2, 0 if i == 0 else 1, bias=False))
        layers += [nn.BatchNorm2d(narrow), nn.ReLU(True)]
    layers += [nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return nn.Sequential(*layers), (torch.randn(4, 100, 1, 1),)


class _UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        inputs = (3, *widths)
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(inputs, widths, strict=False))
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(self.block(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def block(a: int, b: int) -> nn.Module:
        half = [nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), *half)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


def unet() -> Built:
    return _UNet(), (image(128),)


class _WaveNet(nn.Module):
    def __init__(self, width: int = 64, dilations: tuple[int, ...] = tuple(2**i for i in range(8))) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=d) for d in dilations)
        self.mixed = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in dilations)
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.first(x), torch.zeros(())
        for gated, mixed in zip(self.gated, self.mixed, strict=True):
            content, gate = gated(functional.pad(x, (gated.dilation[0], 0))).chunk(2, 1)
            rest, skip = mixed(content.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + rest, total + skip
        return self.last(total)


def wavenet() -> Built:
    return _WaveNet(), (torch.randn(1, 1, 1000),)


class _DiffusionBlock(nn.Module):
    def __init__(self, a: int, b: int, time: int, attends: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, a), nn.GroupNorm(8, b)])
        self.convolutions = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
        self.time = nn.Linear(time, b)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()
        self.attention = nn.MultiheadAttention(b, 4, batch_first=True) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.convolutions[0](functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        y = self.skip(x) + self.convolutions[1](functional.silu(self.norms[1](y)))
        if self.attention is None:
            return y
        rows = y.flatten(2).transpose(1, 2)
        return y + self.attention(rows, rows, rows, need_weights=False)[0].transpose(1, 2).reshape(y.shape)


class _DiffusionUNet(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        sizes = ((width, width), (width, 2 * width), (2 * width, 4 * width))
        self.down = nn.ModuleList(_DiffusionBlock(a, b, time, b == 4 * width) for a, b in sizes)
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for _, b in sizes[:-1])
        self.middle = _DiffusionBlock(4 * width, 4 * width, time, True)
        self.up = nn.ModuleList(_DiffusionBlock(2 * b, a, time, False) for a, b in sizes[::-1])
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        waves = torch.exp(-9.21 * torch.arange(half) / half).to(x.dtype)
        angles = step[:, None] * waves[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, kept = self.first(x), []
        for i, block in enumerate(self.down):
            x = block(self.shrink[i - 1](x) if i else x, time)
            kept.append(x)
        x = self.middle(x, time)
        for i, block in enumerate(self.up):
            x = block(torch.cat([functional.interpolate(x, scale_factor=2.0) if i else x, kept.pop()], 1), time)
        return self.last(x)


def diffusion() -> Built:
    return _DiffusionUNet(), (image(32), torch.tensor([417.0]))


class _GraphNetwork(nn.Module):
    """Messages along edges, summed at their targets, then the mean of each graph."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.messages = nn.ModuleList(nn.Sequential(nn.Linear(2 * width, width), nn.ReLU()) for _ in range(3))
        self.updates = nn.ModuleList(nn.GRUCell(width, width) for _ in range(3))
        self.last = nn.Linear(width, 7)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graphs: torch.Tensor) -> torch.Tensor:
        x = self.first(nodes)
        source, target = edges[0], edges[1]
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([x[source], x[target]], 1))
            x = update(torch.zeros_like(x).index_add(0, target, sent), x)
        sums = torch.zeros(4, x.shape[1], dtype=x.dtype).index_add(0, graphs, x)
        counts = torch.zeros(4, dtype=x.dtype).index_add(0, graphs, torch.ones_like(graphs, dtype=x.dtype))
        return self.last(sums / counts.clamp(min=1)[:, None])


def graph_network() -> Built:
    edges, graphs = torch.randint(0, 200, (2, 900)), torch.randint(0, 4, (200,)).sort().values
    return _GraphNetwork(), (torch.randn(200, 16), edges, graphs)


class _Mixture(nn.Module):
    """Two experts of eight for each row, of dense form: all experts run, and gates are 0 for the others."""

    def __init__(self, width: int = 128, hidden: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).softmax(-1).topk(2, -1)
        gates = torch.zeros(x.shape[0], self.up.shape[0], dtype=x.dtype).scatter(1, chosen, scores)
        every = torch.einsum("enh,ehd->end", functional.silu(torch.einsum("nd,edh->enh", x, self.up)), self.down)
        return torch.einsum("end,ne->nd", every, gates / gates.sum(-1, keepdim=True))


def mixture() -> Built:
    return _Mixture(), (torch.randn(65, 128),)


class _DeepSpeech(nn.Module):
    def __init__(self, bins: int = 161, width: int = 256) -> None:
        super().__init__()
        self.spectrum = nn.Sequential(
            *(nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)),
            *(nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20)),
        )
        self.recurrent = nn.GRU(32 * ((bins + 3) // 4), width, 2, batch_first=True, bidirectional=True)
        self.letters = nn.Linear(2 * width, 29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.spectrum(x).flatten(1, 2).transpose(1, 2)
        return self.letters(self.recurrent(y)[0]).log_softmax(-1)


def deep_speech() -> Built:
    return _DeepSpeech(), (torch.randn(1, 1, 161, 100),)


def _entry(name: str, build: Callable[[], Built], **fields: object) -> Architecture:
    return Architecture(name, "torch.nn", "torch", build, **fields)


ARCHITECTURES = [
    _entry("perceptron", perceptron),
    _entry("lstm", lstm),
    _entry("gru", gru),
    _entry("rnn", rnn),
    _entry("transformer", transformer),
    _entry("transformer-encoder", transformer_encoder),
    _entry("multihead-attention", attention),
    _entry("dcgan", dcgan),
    _entry("unet", unet),
    _entry("wavenet", wavenet),
    _entry("diffusion-unet", diffusion),
    _entry("graph-network", graph_network),
    _entry("mixture-of-experts", mixture),
    _entry("deep-speech", deep_speech),
]
