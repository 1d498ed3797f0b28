"""Chains of tests: two products, three products, two convolutions, attention; and the sizes of Tables 3.5 and 3.6."""

from __future__ import annotations

from bench.cases.chains import CONV_CHAINS, GEMM_CHAINS
from tilewright.expr.core import Compute
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import conv, elementwise
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.loops import Chain, chain_of

Computes = tuple[Compute, ...]
TABLE_3_5 = {f"G{number}": chain for number, chain in enumerate(GEMM_CHAINS, 1)}
TABLE_3_6 = {f"C{number}": chain for number, chain in enumerate(CONV_CHAINS, 1)}


def two_products(m: int, n: int, k: int, l: int, batch: int = 0, dtype: str = "f16") -> Computes:
    """``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]``, with a batch where it is given."""
    loop, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch else ("", "", "")
    return parse_graph(f"""
        input A: {dtype}[{size}{m}, {k}]
        input B: {dtype}[{size}{k}, {l}]
        input D: {dtype}[{size}{l}, {n}]
        C: {dtype}[{loop}m:{m}, l:{l}] += A[{index}m, k] * B[{index}k, l] over k:{k}
        E: {dtype}[{loop}m:{m}, n:{n}] += C[{index}m, l] * D[{index}l, n] over l:{l}
        output E""").nodes


def gemm_chain(m: int, n: int, k: int, l: int, batch: int = 0, dtype: str = "f16") -> Chain:
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


def attention(m: int, l: int, k: int, n: int, batch: int = 0) -> Computes:
    """Two products around the five operators of a softmax."""
    loop, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch else ("", "", "")
    return parse_graph(f"""
        input Q: f32[{size}{m}, {k}]
        input K: f32[{size}{k}, {l}]
        input V: f32[{size}{l}, {n}]
        S: f32[{loop}m:{m}, l:{l}] += Q[{index}m, k] * K[{index}k, l] over k:{k}
        Max: f32[{loop}m:{m}] max= S[{index}m, l] over l:{l}
        Sub: f32[{loop}m:{m}, l:{l}] = S[{index}m, l] - Max[{index}m]
        Exp: f32[{loop}m:{m}, l:{l}] = exp(Sub[{index}m, l])
        Sum: f32[{loop}m:{m}] += Exp[{index}m, l] over l:{l}
        Div: f32[{loop}m:{m}, l:{l}] = Exp[{index}m, l] / Sum[{index}m]
        A: f32[{loop}m:{m}, n:{n}] += Div[{index}m, l] * V[{index}l, n] over l:{l}
        output A""").nodes


def two_convolutions(
    channels: int, size: int, middle: int, filters: int, strides: tuple[int, int], kernels: tuple[int, int],
    batch: int = 1, relu: bool = False,
) -> Computes:  # fmt: skip
    """Two convolutions of padding (kernel - 1) / 2; the first result is cropped to the extent over the stride."""
    builder = GraphBuilder()
    first = size // strides[0]
    x = builder.input("x", (batch, channels, size, size), "f16")
    w1 = builder.input("w1", (middle, channels, kernels[0], kernels[0]), "f16")
    w2 = builder.input("w2", (filters, middle, kernels[1], kernels[1]), "f16")
    t = conv.conv(x, w1, strides=strides[0], pads=(kernels[0] - 1) // 2, name="conv1")
    if t.shape[2] != first:
        t = t[:, :, :first, :first]
    if relu:
        t = elementwise.relu(t)
    y = conv.conv(t, w2, strides=strides[1], pads=(kernels[1] - 1) // 2, name="conv2")
    return builder.finish([y]).nodes


def conv_chain(name: str) -> Computes:
    """One of Table 3.6."""
    c = TABLE_3_6[name]
    strides, kernels = (c.stride1, c.stride2), (c.kernel1, c.kernel2)
    return two_convolutions(c.channels, c.height, c.middle, c.filters, strides, kernels)
