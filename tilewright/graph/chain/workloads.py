"""The chains of published evaluations: batch GEMM chains G1-G12 and convolution chains C1-C8 (spec 1, section 6.1).

Sizes are those of the thesis, tables 3.5 and 3.6.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import conv
from tilewright.expr.text import parse_graph


class GemmChain(NamedTuple):
    """``E[batch, m, n] = (A[batch, m, k] · B[batch, k, l]) · D[batch, l, n]``"""

    batch: int
    m: int
    n: int
    k: int
    l: int


class ConvChain(NamedTuple):
    """Two convolutions of a square image, each padded by (kernel - 1) / 2 and cropped to the extent over the stride."""

    channels: int
    height: int
    width: int
    middle: int  # filters of the first convolution
    filters: int
    stride1: int
    stride2: int
    kernel1: int
    kernel2: int


GEMM_CHAINS = (
    GemmChain(8, 512, 64, 64, 512),
    GemmChain(12, 512, 64, 64, 512),
    GemmChain(16, 512, 64, 64, 512),
    GemmChain(12, 256, 64, 64, 256),
    GemmChain(16, 256, 64, 64, 256),
    GemmChain(16, 256, 80, 80, 256),
    GemmChain(12, 208, 64, 64, 208),
    GemmChain(16, 208, 64, 64, 208),
    GemmChain(16, 208, 80, 80, 208),
    GemmChain(1, 512, 64, 64, 256),
    GemmChain(1, 768, 64, 64, 384),
    GemmChain(1, 1024, 64, 64, 512),
)

CONV_CHAINS = (
    ConvChain(64, 112, 112, 192, 128, 2, 1, 3, 1),
    ConvChain(32, 147, 147, 64, 80, 2, 1, 3, 1),
    ConvChain(64, 56, 56, 128, 64, 1, 1, 3, 1),
    ConvChain(128, 28, 28, 256, 128, 1, 1, 3, 1),
    ConvChain(16, 227, 227, 64, 16, 4, 1, 3, 1),
    ConvChain(64, 56, 56, 64, 64, 1, 1, 1, 3),
    ConvChain(64, 56, 56, 64, 64, 1, 1, 1, 1),
    ConvChain(256, 56, 56, 256, 64, 1, 1, 1, 1),
)

NETWORKS = (
    "bert-small", "bert-base", "bert-large", "vit-base-14", "vit-large-14", "vit-huge-14", "vit-base-16",
    "vit-large-16", "vit-huge-16", "mlp-mixer-512", "mlp-mixer-768", "mlp-mixer-1024",
)  # fmt: skip
"""Whose chains `GEMM_CHAINS` are, in their order; those of MLP-Mixer by their rows."""

NAMES = (
    *(f"gemm-chain-G{number}" for number in range(1, len(GEMM_CHAINS) + 1)),
    *(f"gemm-chain-G{number}-softmax" for number in range(1, len(GEMM_CHAINS) + 1)),
    *(f"conv-chain-C{number}" for number in range(1, len(CONV_CHAINS) + 1)),
)


#: Workloads by kind: what the names begin and end with.
KINDS = {
    "attention": ("gemm-chain-G", "-softmax"),
    "gemm-chain": ("gemm-chain-G", ""),
    "conv-chain": ("conv-chain-C", ""),
}


def workload(name: str, dtype: DType = "f32") -> tuple[Compute, ...]:
    """The expressions of a chain by name. Raises InvalidArgument for any other name."""
    if name not in NAMES:
        raise InvalidArgument(
            f"unknown workload {name!r}",
            where="workload",
            help="gemm-chain-G1 to -G12, the same with -softmax, or conv-chain-C1 to -C8",
        )
    kind, _, rest = name.partition("-chain-")
    number, _, softmax = rest.partition("-")
    if kind == "gemm":
        chain = GEMM_CHAINS[int(number[1:]) - 1]
        return attention(*chain, dtype) if softmax else two_products(*chain, dtype)
    c = CONV_CHAINS[int(number[1:]) - 1]
    strides, kernels = (c.stride1, c.stride2), (c.kernel1, c.kernel2)
    return two_convolutions(c.channels, c.height, c.middle, c.filters, strides, kernels, dtype)


def shaped(kind: str, shape: str) -> str:
    """The name of a workload by its kind and its shape: a number of the thesis' tables, or a network.

    Raises InvalidArgument for another kind, or a shape that the kind does not have.

    >>> shaped("attention", "bert-base")
    'gemm-chain-G2-softmax'
    """
    if kind not in KINDS:
        raise InvalidArgument(f"unknown workload {kind!r}", where="--workload", help=f"one of {', '.join(KINDS)}")
    prefix, suffix = KINDS[kind]
    if prefix == "gemm-chain-G" and shape.lower() in NETWORKS:
        shape = f"G{NETWORKS.index(shape.lower()) + 1}"
    name = f"{prefix[:-1]}{shape.upper()}{suffix}"
    if name not in NAMES:
        networks = f" or a network: {', '.join(NETWORKS)}" if prefix == "gemm-chain-G" else ""
        count = len(GEMM_CHAINS if prefix == "gemm-chain-G" else CONV_CHAINS)
        raise InvalidArgument(f"{kind} has no shape {shape!r}", where="--shape",
                              help=f"{prefix[-1]}1 to {prefix[-1]}{count}{networks}")  # fmt: skip
    return name


def two_products(batch: int, m: int, n: int, k: int, l: int, dtype: DType) -> tuple[Compute, ...]:
    """``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]``; no batch loop where it has one step."""
    loop, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch > 1 else ("", "", "")
    return parse_graph(f"""
        input A: {dtype}[{size}{m}, {k}]
        input B: {dtype}[{size}{k}, {l}]
        input D: {dtype}[{size}{l}, {n}]
        C: {dtype}[{loop}m:{m}, l:{l}] += A[{index}m, k] * B[{index}k, l] over k:{k}
        E: {dtype}[{loop}m:{m}, n:{n}] += C[{index}m, l] * D[{index}l, n] over l:{l}
        output E""").nodes


def attention(batch: int, m: int, n: int, k: int, l: int, dtype: DType) -> tuple[Compute, ...]:
    """Two products around the five operators of a softmax."""
    loop, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch > 1 else ("", "", "")
    return parse_graph(f"""
        input Q: {dtype}[{size}{m}, {k}]
        input K: {dtype}[{size}{k}, {l}]
        input V: {dtype}[{size}{l}, {n}]
        S: {dtype}[{loop}m:{m}, l:{l}] += Q[{index}m, k] * K[{index}k, l] over k:{k}
        Max: {dtype}[{loop}m:{m}] max= S[{index}m, l] over l:{l}
        Sub: {dtype}[{loop}m:{m}, l:{l}] = S[{index}m, l] - Max[{index}m]
        Exp: {dtype}[{loop}m:{m}, l:{l}] = exp(Sub[{index}m, l])
        Sum: {dtype}[{loop}m:{m}] += Exp[{index}m, l] over l:{l}
        Div: {dtype}[{loop}m:{m}, l:{l}] = Exp[{index}m, l] / Sum[{index}m]
        A: {dtype}[{loop}m:{m}, n:{n}] += Div[{index}m, l] * V[{index}l, n] over l:{l}
        output A""").nodes


def two_convolutions(
    channels: int, size: int, middle: int, filters: int, strides: tuple[int, int], kernels: tuple[int, int],
    dtype: DType, batch: int = 1,
) -> tuple[Compute, ...]:  # fmt: skip
    """Two convolutions of padding (kernel - 1) / 2; the first result is cropped to the extent over the stride."""
    builder = GraphBuilder()
    rows = size // strides[0]
    x = builder.input("x", (batch, channels, size, size), dtype)
    w1 = builder.input("w1", (middle, channels, kernels[0], kernels[0]), dtype)
    w2 = builder.input("w2", (filters, middle, kernels[1], kernels[1]), dtype)
    t = conv.conv(x, w1, strides=strides[0], pads=(kernels[0] - 1) // 2, name="conv1")
    if t.shape[2] != rows:
        t = t[:, :, :rows, :rows]
    y = conv.conv(t, w2, strides=strides[1], pads=(kernels[1] - 1) // 2, name="conv2")
    return builder.finish([y]).nodes


def unpadded_convolutions(chain: ConvChain, dtype: DType) -> tuple[Compute, ...]:
    """The two sums of a convolution chain alone, as tile trees of dataflows have them: what padding adds is input.

    Windows of one point are no loops, so that the rows of the first convolution are those of the second where its
    kernel has one point.

    The last result has the extents of the padded chain; the first has as many rows as it needs for that.
    """
    rows = chain.height // chain.stride1 // chain.stride2
    between = chain.stride2 * (rows - 1) + chain.kernel2
    size = chain.stride1 * (between - 1) + chain.kernel1

    def at(axis: str, stride: int, window: str, kernel: int) -> str:
        place = axis if stride == 1 else f"{stride} * {axis}"
        return place if kernel == 1 else f"{place} + {window}"

    def sums(channel: str, extent: int, windows: str, kernel: int) -> tuple[str, str]:
        """The loops of a sum, with and without their extents; a window of one point is no loop."""
        loops = (channel, *windows) if kernel > 1 else (channel,)
        return ", ".join(f"{loop}:{extent if loop == channel else kernel}" for loop in loops), ", ".join(loops)

    channels, middle, k1, k2 = chain.channels, chain.middle, chain.kernel1, chain.kernel2
    over1, c = sums("c", channels, "rs", k1)
    over2, l = sums("l", middle, "uv", k2)
    x = f"X[c, {at('h', chain.stride1, 'r', k1)}, {at('w', chain.stride1, 's', k1)}]"
    t = f"T[l, {at('p', chain.stride2, 'u', k2)}, {at('q', chain.stride2, 'v', k2)}]"
    return parse_graph(f"""
        input X: {dtype}[{channels}, {size}, {size}]
        input W1: {dtype}[{middle}, {channels}{f", {k1}, {k1}" * (k1 > 1)}]
        input W2: {dtype}[{chain.filters}, {middle}{f", {k2}, {k2}" * (k2 > 1)}]
        T: {dtype}[l:{middle}, h:{between}, w:{between}] += {x} * W1[l, {c}] over {over1}
        Y: {dtype}[k:{chain.filters}, p:{rows}, q:{rows}] += {t} * W2[k, {l}] over {over2}
        output Y""").nodes
