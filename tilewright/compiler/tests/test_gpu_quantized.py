"""Products of bytes on the blocks of a GPU: every pair of signs, zero points, and whole quantised models."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL, rows, some
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.tests.test_gpu_products import Build, check, products, ptx
from tilewright.compiler.tests.test_quantized_products import MODELS, TYPES
from tilewright.expr.core import Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.options import Options

SIGNS = [("u8", "u8", "u8"), ("u8", "i8", "u8s8"), ("i8", "u8", "s8u8"), ("i8", "i8", "s8")]
SHAPES = {"sm_75": "mma_m8n8k16", "sm_80": "mma_m16n8k32", "sm_90a": "mma_m16n8k32"}


def product(x: str, w: str, sizes: tuple[int, int, int], transposes: str = "") -> Build:
    """A product of two inputs of bytes, summed in i32; `transposes` names the factors stored the other way round."""
    m, n, k = sizes

    def build(b: GraphBuilder) -> Tensor:
        first = b.input("x", (k, m) if "a" in transposes else (m, k), x)
        second = b.input("w", (n, k) if "b" in transposes else (k, n), w)
        return linalg.matmul(first, second, transpose_a="a" in transposes, transpose_b="b" in transposes,
                             accumulate="i32", out_dtype="i32")  # fmt: skip

    return build


@pytest.mark.covering(1)
@pytest.mark.parametrize(("sizes", "transposes"), [((17, 9, 35), ""), ((100, 65, 31), "b"), ((33, 40, 72), "ab")])
@pytest.mark.parametrize("machine", SHAPES)
@pytest.mark.parametrize(("x", "w", "name"), SIGNS)
def test_every_pair_of_signs_at_ragged_sizes(
    x: str, w: str, name: str, machine: str, sizes: tuple[int, int, int], transposes: str
) -> None:
    """Bytes are read with the signs that they have: below zero, and above 127."""
    module = check(product(x, w, sizes, transposes), machine)
    (decided,) = products(module)
    assert decided["instruction"] == f"{SHAPES[machine]}_{name}_s32"
    assert f".s32.{name[:2]}.{name[-2:]}.s32" in ptx(module)


@pytest.mark.parametrize(("x", "w", "name"), some(SIGNS, 2))
def test_products_of_four_warps(x: str, w: str, name: str) -> None:
    module = check(product(x, w, (256, 256, 256), "b"), "sm_90a")
    assert re.fullmatch(rf"wgmma_m64n\d+k32_{name}_s32", products(module)[0]["instruction"])
    assert f".s32.{name[:2]}.{name[-2:]}" in ptx(module)
    assert (".version 8.4" in ptx(module)) == (x != w)


@pytest.mark.parametrize(("build", "types"), rows(MODELS, TYPES) if FULL else list(zip(MODELS, TYPES, strict=False)))
def test_every_product_of_a_model_runs_on_bytes(build: Any, types: tuple[Any, Any, int, int]) -> None:
    """Zero points leave the products: bytes are multiplied, what they add is a correction.

    A pass of graphs rewrites them, for all machines: `test_quantized_products` has every model of every type.
    """
    x, w, x_zero, w_zero = types
    graph = build(x, w, x_zero, w_zero)
    (tensor,) = graph.inputs
    limits = np.iinfo(x)
    array = np.random.default_rng(0).integers(limits.min, limits.max + 1, tensor.shape).astype(x)
    module = compile_graph(graph, "sm_80", 1, Options(cache=False, verify_each=True), "emulator")
    assert products(module)
    assert all(each["instruction"].startswith("mma_m16n8k32_") for each in products(module))
    np.testing.assert_array_equal(module(array), evaluate(graph, [array])[0])


def test_a_route_without_a_pair_of_signs_stores_a_factor_with_another() -> None:
    """WMMA multiplies bytes of one type: what differs is stored with the other sign, by a constant by its values."""
    graph = MODELS[3](np.int8, np.uint8, 5, 130)
    module = compile_graph(graph, "sm_80", 1, Options(cache=False, mma="wmma"), "emulator")
    array = np.random.default_rng(0).integers(-128, 128, graph.inputs[0].shape).astype(np.int8)
    np.testing.assert_array_equal(module(array), evaluate(graph, [array])[0])
    assert products(module)[0]["instruction"] in ("wmma_16x16x16_s8_s32", "wmma_16x16x16_u8_s32")


@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
def test_bytes_without_a_sign_by_wmma(machine: str) -> None:
    module = check(product("u8", "u8", (100, 65, 31), "b"), machine, mma="wmma")
    assert products(module)[0]["instruction"] == "wmma_16x16x16_u8_s32"
