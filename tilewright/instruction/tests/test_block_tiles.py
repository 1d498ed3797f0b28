"""Tiles of products on the blocks of a GPU: which are found, what refuses others, what decides."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from tilewright.expr.core import Axis
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.instruction import block_tiles
from tilewright.instruction.block_tiles import (
    BlockProblem,
    Candidate,
    Price,
    Ranking,
    Reading,
    extents,
    registers,
    scalar_registers,
)
from tilewright.instruction.gpu_products import GpuProducts, block_candidates, block_shape
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.products import find_product
from tilewright.intrinsics.registry import standard
from tilewright.kernel.passes.gpu import tf32x3
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.operator.rules.gpu_product import BlockShape, TileLoops

Sizes = tuple[int, int, int]


def ranked(sizes: Sizes, machine: str | Gpu = "sm_90a", dtype: str = "f16", batch: int = 0, **given: Any) -> Ranking:
    m, n, k = sizes
    lead = (batch,) if batch else ()
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (*lead, m, k), dtype), b.input("w", (*lead, k, n), dtype))])
    machine = gpu(machine) if isinstance(machine, str) else machine
    product, _ = find_product(graph.nodes[0], GpuProducts(machine))
    assert product is not None
    return block_candidates(product, machine, result=dtype, **given)[0]


def gpu(name: str) -> Gpu:
    machine = resolve(name)
    assert isinstance(machine, Gpu)
    return machine


@pytest.mark.parametrize("size", [2048, 4096, 8192])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_large_products_are_of_four_warps_where_there_are_such(size: int, dtype: str) -> None:
    first = ranked((size, size, size), dtype=dtype).candidates[0]
    assert (first.shape.m, first.shape.n, first.shape.k) == (128, 256, 64)
    assert (first.shape.intrinsic, first.shape.warps) == (f"wgmma_m64n256k16_{dtype}_f32", (8, 1))
    assert (first.shape.stages, first.shape.splits) == (4, 1)


@pytest.mark.parametrize("size", [1024, 4096, 8192])
def test_on_single_warps_a_warp_has_no_more_than_its_registers(size: int) -> None:
    first = ranked((size, size, size), "sm_80").candidates[0]
    assert first.shape.intrinsic == "mma_m16n8k16_f16_f32"
    assert first.shape.m * first.shape.n >= 128 * 128
    assert first.shape.stages >= 3
    assert first.registers <= 255


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_three_products_are_priced_as_three_and_hold_their_parts(machine: str) -> None:
    one, three = (
        ranked((4096, 4096, 4096), machine, "f32", input_precision=precision, route="mma.sync").candidates
        for precision in ("tf32", "tf32x3")
    )
    assert {each.shape.precision for each in one} == {""}
    assert {each.shape.precision for each in three} == {"tf32x3"}
    assert 2 < three[0].cycles / one[0].cycles < 4
    held = {replace(each.shape, precision=""): each.registers for each in one}
    assert all(each.registers > held.get(replace(each.shape, precision=""), 0) for each in three)
    assert three[0].registers <= 255


def test_three_products_hold_sums_of_a_step_for_as_many_as_the_pass_computes_together() -> None:
    assert block_tiles.TOGETHER == tf32x3.TOGETHER
    found = ranked((4096, 4096, 4096), "sm_80", "f32", input_precision="tf32x3", route="mma.sync").candidates[0]
    one = replace(found.shape, precision="")
    fragments = (one.m // one.warps[0] + one.n // one.warps[1]) * 8 // 32
    assert found.registers == registers(one, found.record, gpu("sm_80")) + 2 * fragments + 4 * block_tiles.TOGETHER


def test_three_products_are_of_single_warps() -> None:
    """Bulk copies do not pass registers, in which factors are split: that is told, since they would be cheaper."""
    found = ranked((4096, 4096, 4096), "sm_90a", "f32", input_precision="tf32x3")
    assert not any(each.warpgroup for each in found.candidates)
    refusal = next(each for each in found.refused if each.rule == "tf32x3")
    assert "split in registers" in refusal.values


def test_machines_that_multiply_f32_make_one_product() -> None:
    names = [
        {each.shape.intrinsic for each in ranked((256, 256, 256), "gfx942", "f32", input_precision=asked).candidates}
        for asked in ("ieee", "tf32", "tf32x3")
    ]
    assert names[0] == names[1] == names[2] != set()
    assert not ranked((256, 256, 256), "gfx942", "f32", input_precision="tf32x3").candidates[0].shape.precision


@pytest.mark.parametrize(
    ("sizes", "machine", "dtype", "tile", "warps"),
    [
        ((4096, 4096), "sm_80", "f32", (128, 128), (4, 2)),
        ((1024, 1024), "sm_80", "f32", (128, 64), (4, 2)),  # 64 tiles of 128 x 128 on 108 multiprocessors
        ((512, 512), "sm_80", "f32", (64, 64), (4, 2)),
        ((4096, 4096), "sm_75", "f32", (128, 64), (4, 2)),  # 128 x 128 results fill what memory a block may have
        ((4096, 4096), "sm_75", "f64", (64, 64), (4, 2)),  # sums of two registers
        ((5, 4096), "sm_80", "f32", (16, 64), (1, 2)),
    ],
)
def test_multiply_adds_have_the_largest_tile_that_fits(
    sizes: tuple[int, int], machine: str, dtype: str, tile: tuple[int, int], warps: tuple[int, int]
) -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (sizes[0], 64), dtype), b.input("w", (64, sizes[1]), dtype))])
    product, _ = find_product(graph.nodes[0], GpuProducts(gpu(machine)))
    assert product is not None
    shape, _ = block_shape(product, gpu(machine))
    assert (shape.intrinsic, (shape.m, shape.n), shape.warps) == ("fma", tile, warps)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_what_a_machine_waits_for_decides(machine: str) -> None:
    """Where copies take longer, more slices are on their way; where blocks cost more, no tile is as cheap."""
    usual = ranked((4096, 4096, 4096), machine)
    slow = ranked((4096, 4096, 4096), replace(gpu(machine), copy_cycles=7000.0))
    assert slow.candidates[0].shape.stages > usual.candidates[0].shape.stages
    assert slow.candidates[0].cycles > usual.candidates[0].cycles
    costly = ranked((4096, 4096, 4096), replace(gpu(machine), block_cycles=1e5))
    assert costly.candidates[0].cycles > usual.candidates[0].cycles + 9e4


def test_what_would_be_cheaper_is_refused_by_name() -> None:
    found = ranked((4096, 4096, 4096))
    assert {refusal.rule for refusal in found.refused} == {"registers"}
    assert "256x256" in found.refused[0].candidate
    assert "255 there are" in found.refused[0].values
    assert not any(each.registers > 255 for each in found.candidates)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"off": ("tensor-copies",)}, "pass tensor-copies"),
        ({"no_bulk_copies": "rows of x are 6 bytes apart"}, "bulk copies"),
    ],
    ids=["switched off", "no bulk copies"],
)
def test_without_boxes_single_warps_do_it(given: dict[str, Any], rule: str) -> None:
    found = ranked((4096, 4096, 4096), **given)
    assert not any(each.warpgroup for each in found.candidates)
    assert rule in {refusal.rule for refusal in found.refused}


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_k_is_cut_where_tiles_are_few_and_sums_long(machine: str) -> None:
    first = ranked((256, 256, 16384), machine).candidates[0]
    assert first.shape.splits > 1
    assert first.blocks <= gpu(machine).multiprocessors
    assert ranked((4096, 4096, 512), machine).candidates[0].shape.splits == 1
    assert ranked((256, 256, 16384), machine, off=("split-k",)).candidates[0].shape.splits == 1


def test_many_batches_need_no_parts() -> None:
    assert ranked((256, 256, 16384), batch=64).candidates[0].shape.splits == 1


@pytest.mark.parametrize("sizes", [(1000, 500, 300), (16, 4096, 4096), (5, 7, 9)], ids=str)
def test_candidates_keep_their_limits(sizes: Sizes) -> None:
    machine = gpu("sm_90a")
    found = ranked(sizes).candidates
    assert list(found) == sorted(found, key=lambda each: each.cycles)
    for each in found:
        shape, (m, n, k) = each.shape, extents(each.record)
        rows = m * shape.warps[0] // (4 if each.warpgroup else 1)
        assert (shape.m % rows, shape.n % (n * shape.warps[1]), shape.k % k) == (0, 0, 0)
        assert each.shared_bytes <= machine.shared_bytes_per_block
        assert registers(shape, each.record, machine) == each.registers <= machine.max_registers_per_thread


def test_what_threads_load_passes_their_registers() -> None:
    copied, loaded = (
        ranked((4096, 64, 512), "sm_80", reading=Reading(loaded=(each, False))).candidates for each in (False, True)
    )
    held = {replace(each.shape, stages=1, splits=1): each.registers for each in copied}
    for each in loaded:
        elements = each.shape.m * each.shape.k / (32 * each.shape.warps[0] * each.shape.warps[1])
        passing = ceil(1.5 * elements)  # a register for each, half of one for its place
        assert each.registers == held[replace(each.shape, stages=1, splits=1)] + passing <= 255
    assert len(loaded) < len(copied)


def test_threads_of_wider_warps_hold_less() -> None:
    narrow, wide, none = (replace(gpu("sm_80"), warp_sizes=(lanes,)) for lanes in (32, 64, 1 << 30))
    for each in ranked((256, 256, 256), "sm_80").candidates:
        fixed = registers(each.shape, each.record, none)
        assert registers(each.shape, each.record, narrow) == each.registers
        assert registers(each.shape, each.record, wide) - fixed == (each.registers - fixed) // 2 > 0


# Machines without asynchronous copies, whose threads load what they copy; on most lanes load their fragments too.
BY_REGISTERS = ("sm_75", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


@pytest.mark.parametrize("machine", BY_REGISTERS)
@pytest.mark.parametrize("sizes", [(2048, 2048, 2048), (2041, 1037, 1031), (16, 4096, 4096), (7, 17, 13)], ids=str)
def test_every_machine_ranks_the_grid_and_what_is_deduced(sizes: Sizes, machine: str) -> None:
    found = ranked(sizes, machine)
    deduced = found.deduced
    assert deduced is not None
    assert deduced in found.candidates
    assert len({(each.shape.m, each.shape.n, each.shape.k) for each in found.candidates}) > 1
    assert found.candidates[0].cycles <= deduced.cycles


@pytest.mark.parametrize("machine", BY_REGISTERS)
def test_what_the_grid_proposes_fits_the_registers_of_a_block(machine: str) -> None:
    facts = gpu(machine)
    for each in ranked((2048, 2048, 2048), machine).candidates:
        threads = each.shape.warps[0] * each.shape.warps[1] * facts.warp_sizes[0]
        most = min(facts.max_registers_per_thread, facts.registers_per_multiprocessor // threads)
        assert each.deduced or each.registers <= most


def test_k_tiles_pass_registers_where_no_copy_is_asynchronous() -> None:
    """128 x 64 x 32 halves on 4 warps are 24 words of a thread; single halves take a register and a half each."""
    machine, record = gpu("sm_75"), standard().find("mma_m16n8k8_f16_f32")
    shape = BlockShape(128, 64, 32, (2, 2), record.name)
    free = registers(shape, record, replace(machine, features=frozenset({"cp_async"})))
    assert registers(shape, record, machine) == free + (128 + 64) * 32 // 2 // 128
    assert registers(shape, record, machine, (True, True)) == free + (128 + 64) * 32 * 3 // 2 // 128


def test_lanes_that_load_hold_the_fragments_of_a_k_tile() -> None:
    """RDNA 3 has 8 registers of a lane for 16 x 16 halves, of a and of b alike."""
    machine, record = gpu("gfx1100"), standard().find("wmmar3_16x16x16_f16_f32")
    one, two = (registers(BlockShape(64, 128, k, (2, 2), record.name), record, machine) for k in (16, 32))
    passing = (64 + 128) * 16 // 2 // 128
    assert two - one == (2 + 4) * 8 + passing


def test_more_spare_registers_refuse_tiles() -> None:
    machine = gpu("gfx1100")
    usual, fewer = (ranked((2048, 2048, 2048), each) for each in (machine, replace(machine, spare_registers=120)))
    assert {each.shape for each in fewer.candidates if not each.deduced} < {each.shape for each in usual.candidates}
    assert "registers" in {refusal.rule for refusal in fewer.refused}


def test_elements_that_are_loaded_alone_hold_scalar_registers() -> None:
    """Of 102 on CDNA each has one for its offset: 128 x 128 bytes of both operands, on 256 threads, have 128."""
    machine, record = gpu("gfx942"), standard().find("mfma_16x16x32_s8_s32")
    shape = BlockShape(128, 128, 128, (2, 2), record.name)
    assert scalar_registers(shape, machine, (True, True)) == 128 + block_tiles.SPARE_SCALARS > 102
    ragged, aligned = (
        ranked((2041, 1037, 1031), machine, "i8", reading=Reading(loaded=(each, each))) for each in (True, False)
    )
    tiles = [{each.shape for each in ranking.candidates if not each.deduced} for ranking in (ragged, aligned)]
    assert tiles[0] < tiles[1]
    assert "scalar registers" in {refusal.rule for refusal in ragged.refused}


@pytest.mark.parametrize(
    ("machine", "dtype"), [("sm_75", "f16"), ("gfx942", "f16"), ("gfx1201", "f16"), ("sm_80", "f16")]
)
def test_decisions_record_what_is_deduced_with_its_cycles(machine: str, dtype: str) -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (2048, 2048), dtype), b.input("w", (2048, 2048), dtype))])
    product, _ = find_product(graph.nodes[0], GpuProducts(gpu(machine)))
    assert product is not None
    _, decision = block_shape(product, gpu(machine), result=dtype)
    (proposal,) = decision.proposals
    assert proposal.by == "the MMA deduction"
    assert decision.cost is not None
    assert proposal.cost is not None
    assert (decision.cost.cycles or 0) <= (proposal.cost.cycles or 0)
    assert (
        f"proposed by the MMA deduction: {proposal.candidate} ({proposal.cost.cycles:.0f} cycles)" in decision.explain()
    )


def test_decisions_name_the_record_and_what_came_second() -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (4096, 4096), "f16"), b.input("w", (4096, 4096), "f16"))])
    product, _ = find_product(graph.nodes[0], GpuProducts(gpu("sm_90a")))
    assert product is not None
    shape, decision = block_shape(product, gpu("sm_90a"), result="f16")
    text = decision.explain()
    assert f"{shape}" in text
    assert "wgmma_m64n256k16_f16_f32" in text
    assert "second: " in text
    assert "refused: 256x256" in text


def pairs(ranking: Ranking, m: int, n: int) -> tuple[Candidate, Candidate]:
    """The cheapest candidate of a tile without clusters, and the same in pairs of blocks."""
    alone = next(each for each in ranking.candidates if (each.shape.m, each.shape.n) == (m, n))
    return alone, next(each for each in ranking.candidates if each.shape == replace(alone.shape, cluster=2))


def test_blocks_beyond_the_last_tile_have_a_price() -> None:
    """Eleven tiles along m are six pairs: 144 blocks on 132 multiprocessors, where tiles alone come out even."""
    alone, paired = pairs(ranked((1408, 3072, 1024)), 128, 256)
    assert (alone.blocks, paired.blocks) == (132, 144)
    assert paired.cycles > 1.8 * alone.cycles
    alone, paired = pairs(ranked((1536, 2816, 1024)), 128, 256)
    assert (alone.blocks, paired.blocks) == (132, 132)
    assert paired.cycles < 1.1 * alone.cycles


def test_pairs_that_would_bring_more_are_no_candidates() -> None:
    """Three tiles of 64 x 256 along n: pairs would share 64 rows of a, and a fourth block would read 256 columns."""
    shapes = {each.shape for each in ranked((64, 768, 256)).candidates}
    assert {shape.cluster for shape in shapes if shape.n == 64} == {1, 2}
    assert {shape.cluster for shape in shapes if shape.n == 256} == {1}


@pytest.mark.parametrize("images", [1, 32])
def test_rows_outside_are_those_of_the_tiles_of_each_image(images: int) -> None:
    """784 points of an image are seven tiles of 128 rows, of which the last has 16."""
    loops = TileLoops((Axis("p", 784),), (Axis("c", 64),), images)
    mma = MmaProblem((images * 784,), (64,), (64,), (), "f16", "f16", "f32")
    problem = BlockProblem(images * 784, 64, 64, 1, mma, 2, reading=Reading((loops, loops)))
    price = Price(gpu("sm_90a"), problem)
    assert price._rows_outside(BlockShape(128, 64, 64, (8, 1), "wgmma_m64n64k16_f16_f32")) == 16
