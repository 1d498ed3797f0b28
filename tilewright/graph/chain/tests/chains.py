"""Chains of tests: two products, three products, two convolutions, attention; and the sizes of Tables 3.5 and 3.6."""

from __future__ import annotations

from tilewright.expr.core import Compute
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import conv, elementwise, pool
from tilewright.expr.text import parse_graph
from tilewright.graph.chain import workloads
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.workloads import CONV_CHAINS, GEMM_CHAINS

Computes = tuple[Compute, ...]
TABLE_3_5 = {f"G{number}": chain for number, chain in enumerate(GEMM_CHAINS, 1)}
TABLE_3_6 = {f"C{number}": chain for number, chain in enumerate(CONV_CHAINS, 1)}


def two_products(m: int, n: int, k: int, l: int, batch: int = 1, dtype: str = "f16") -> Computes:
    """``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]``, with a batch where it is given."""
    return workloads.two_products(batch, m, n, k, l, dtype)


def gemm_chain(m: int, n: int, k: int, l: int, batch: int = 1, dtype: str = "f16") -> Chain:
    return chain_of(two_products(m, n, k, l, batch, dtype))


def three_products(m: int, k: int, l: int, n: int, p: int, relu: bool = False) -> Computes:
    """``A·B·D·F``, with a relu behind every product where asked."""

    def behind(name: str, axes: str) -> tuple[str, str]:
        read = f"{name}[{', '.join(part.split(':')[0] for part in axes.split(', ')) if axes else ''}]"
        return (f"{name}.relu: f16[{axes}] = max({read}, 0.0)", f"{name}.relu") if relu else ("", name)

    first, c = behind("C", f"m:{m}, l:{l}")
    second, e = behind("E", f"m:{m}, n:{n}")
    third, g = behind("G", f"m:{m}, p:{p}")
    return parse_graph(f"""
        input A: f16[{m}, {k}]
        input B: f16[{k}, {l}]
        input D: f16[{l}, {n}]
        input F: f16[{n}, {p}]
        C: f16[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
        {first}
        E: f16[m:{m}, n:{n}] += {c}[m, l] * D[l, n] over l:{l}
        {second}
        G: f16[m:{m}, p:{p}] += {e}[m, n] * F[n, p] over n:{n}
        {third}
        output {g}""").nodes


def attention(m: int, l: int, k: int, n: int, batch: int = 1) -> Computes:
    """Two products around the five operators of a softmax."""
    return workloads.attention(batch, m, n, k, l, "f32")


def two_convolutions(
    channels: int, size: int, middle: int, filters: int, strides: tuple[int, int], kernels: tuple[int, int],
    batch: int = 1,
) -> Computes:  # fmt: skip
    """Two convolutions of padding (kernel - 1) / 2; the first result is cropped to the extent over the stride."""
    return workloads.two_convolutions(channels, size, middle, filters, strides, kernels, "f16", batch)


def conv_relu_pool_conv() -> Computes:
    """Two convolutions with a relu and a maximum over windows of 2 by 2 between them."""
    builder = GraphBuilder()
    x = builder.input("x", (1, 8, 20, 20), "f32")
    w1, w2 = builder.input("w1", (12, 8, 3, 3), "f32"), builder.input("w2", (10, 12, 3, 3), "f32")
    first = elementwise.relu(conv.conv(x, w1, pads=1, name="conv1"))
    pooled = pool.max_pool(first, [2, 2], strides=2)
    return builder.finish([conv.conv(pooled, w2, pads=1, name="conv2")]).nodes


def conv_chain(name: str) -> Computes:
    """One of Table 3.6."""
    return workloads.workload(f"conv-chain-{name}", "f16")
