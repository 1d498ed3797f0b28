"""Which matrix instructions products may take: the user says, level 3 explains, and the code is right either way."""

from __future__ import annotations

import pytest

import tilewright
from tests.covering import some
from tilewright.compiler.tests.test_gpu_products import CONVOLUTIONS, SIZES, check, graph_of, product, products, ptx
from tilewright.errors import InvalidArgument
from tilewright.instruction.gpu_products import GpuProducts, block_candidates
from tilewright.instruction.products import find_product
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options

F16 = "wmma_16x16x16_f16_f32"


@pytest.mark.parametrize(
    ("dtype", "machine", "instruction"),
    some([
        ("f16", "sm_75", F16), ("f16", "sm_80", F16),
        ("bf16", "sm_80", "wmma_16x16x16_bf16_f32"), ("f16", "sm_90a", F16),
        ("i8", "sm_75", "wmma_16x16x16_s8_s32"), ("i8", "sm_80", "wmma_16x16x16_s8_s32"),
        ("f64", "sm_90a", "wmma_8x8x4_f64_f64"), ("f64", "sm_80", "wmma_8x8x4_f64_f64"),
    ], 4),
)  # fmt: skip
def test_wmma_where_it_is_asked_for(dtype: str, machine: str, instruction: str) -> None:
    module = check(product(dtype, (40, 24, 48), epilogue="bias"), machine, mma="wmma")
    (decided,) = products(module)
    assert decided["instruction"] == instruction
    assert "wmma.mma.sync" in ptx(module)
    assert "by wmma the one with the fewest predicted cycles" in module.explain(all=True)


def test_f32_read_with_fewer_bits() -> None:
    module = check(product("f32", (40, 24, 48), "b"), tolerance=4e-3, input_precision="tf32", mma="wmma")
    assert products(module)[0]["instruction"] == "wmma_16x16x8_tf32_f32"


def test_the_fixed_tiles_of_the_table_are_candidates() -> None:
    """What `schedule-mma --tensor-core-table wmma` answers is priced with the others, and may be chosen."""
    build, machine = product("f16", (64, 64, 64)), resolve("sm_80")
    assert isinstance(machine, Gpu)
    found, _ = find_product(graph_of(build).nodes[0], GpuProducts(machine))
    assert found is not None
    ranking, _ = block_candidates(found, machine, route="wmma")
    table = [each for each in ranking.candidates if (each.shape.m, each.shape.n, each.shape.k) == (32, 32, 32)]
    assert any(each.shape.warps == (2, 2) for each in table)
    assert {each.shape.intrinsic for each in ranking.candidates} == {F16}
    assert all(each.shape.intrinsic != F16 for each in block_candidates(found, machine)[0].candidates)


def test_one_warp_where_it_is_asked_for() -> None:
    graph = graph_of(product("f16", (256, 256, 256)))
    for mma, instruction in (("auto", "wgmma"), ("mma.sync", "mma_m16n8k16")):
        module = tilewright.compile(graph, machine="sm_90a", options=Options(cache=False, mma=mma))
        assert products(module)[0]["instruction"].startswith(instruction)
    check(product("f16", (65, 70, 72)), "sm_90a", mma="mma.sync")


def test_types_that_a_route_has_not_are_told() -> None:
    module = check(product("bf16", (40, 24, 48)), "sm_75", mma="wmma")
    assert products(module)[0]["instruction"] == "fma"
    assert "no matrix instruction takes bf16,bf16->f32 by wmma" in module.explain(all=True)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_75", "sm_80"])
@pytest.mark.parametrize(
    ("transposes", "batch", "epilogue"), [("a", (), "gelu"), ("b", (2,), "residual"), ("ab", (), ""), ("", (2, 3), "")]
)
def test_ragged_products(transposes: str, batch: tuple[int, ...], epilogue: str, machine: str) -> None:
    for sizes in some([(SIZES[4], SIZES[5], SIZES[7]), (100, 65, 31)], 1):
        module = check(product("f16", sizes, transposes, batch, False, epilogue), machine, mma="wmma")
        assert products(module)[0]["instruction"] == F16


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["i8", "f64"])
@pytest.mark.parametrize("transposes", ["", "a", "b", "ab"])
def test_ragged_products_of_bytes_and_of_f64(dtype: str, transposes: str) -> None:
    for sizes in some([(17, 9, 70), (100, 65, 31)], 1):
        module = check(product(dtype, sizes, transposes), "sm_80", mma="wmma")
        assert products(module)[0]["instruction"].startswith("wmma_")


@pytest.mark.parametrize("name", some([name for name in CONVOLUTIONS if name != "stride 2"], 2))
def test_convolutions(name: str) -> None:
    assert products(check(CONVOLUTIONS[name], mma="wmma"))[0]["instruction"] == F16


def test_routes_that_there_are_not() -> None:
    with pytest.raises(InvalidArgument, match="there is no mma 'wgmma'"):
        Options(mma="wgmma")


@pytest.mark.parametrize(
    ("machine", "mma"),
    [("gfx1100", "wmma"), ("gfx1100", "mma.sync"), ("gfx942", "wmma"), ("host", "wmma")],
)
def test_routes_that_a_machine_has_not(machine: str, mma: str) -> None:
    with pytest.raises(InvalidArgument, match=f"has no matrix instructions of '{mma}'") as caught:
        tilewright.compile(graph_of(product("f16", (64, 64, 64))), machine=machine, options=Options(mma=mma))
    assert '"auto"' in str(caught.value)
