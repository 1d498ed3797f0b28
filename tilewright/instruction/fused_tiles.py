"""Tiles that the blocks of a GPU may have for two products in one kernel: candidates, what refuses them, prices.

A warp, or a group of four, has rows of its own in every tile of the link, so that what it computes of them stays in
registers: sums of the first product become fragments of the second one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, inf

from tilewright.dataclass import dataclass
from tilewright.decision import Refusal
from tilewright.instruction.block_tiles import WARPS, extents, multiply_adds_per_cycle
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.layouts.bits import power_from
from tilewright.machine.description import SYSTEM_SHARED_BYTES, Gpu
from tilewright.machine.units import COPIES
from tilewright.operator.rules.gpu_fused import FusedShape
from tilewright.tiles.shared_memory import READ_BYTES, is_warpgroup

LEAST_GAIN = 1.02  # of one kernel over several, to become one

# Chosen: what is tried.
WARP_COUNTS = (4, 8)
LINK_POINTS = (32, 64, 128)
MOST_COLUMNS = 256  # of the result, whose sums a warp holds for 16 rows
MOST_DEPTH = 128  # points of a k tile; the whole depth lies in one where it has no more
STAGES = 2  # buffers: one is read while the other is filled

# Counted in machine code: instructions of a thread for an element of the link, exponentials apart.
ELEMENT_INSTRUCTIONS = 5  # of a softmax: largest value, exponent, power, sum, half a conversion and of what is around
ROUND_INSTRUCTIONS = 1  # without one: the conversion of the link
LANES_PER_CYCLE, EXPONENTIALS_PER_CYCLE = 128, 16  # of a multiprocessor, by CUDA's guide of instruction throughput
# Fitted to the times of 71 tiles of attention on an H200 (`bench/gpu/results`).
TRIP_CYCLES = {False: 1000, True: 420}  # of a tile of the link, for what orders it: of single warps, of groups of four
OVERLAP_LOSS = 0.5  # of the time of what should be hidden behind something longer
ALONE_LOSS = 0.8  # the same where one group of four warps computes, whose products wait for what it makes of them

# Assumed.
SPARE_REGISTERS = 40  # of a thread, for addresses, rows and what passes


@dataclass(frozen=True)
class FusedTile:
    """The tile of a block, and the records that execute the two products."""

    shape: FusedShape
    records: tuple[Intrinsic, Intrinsic]

    def __str__(self) -> str:
        return f"{self.shape} with {' and '.join(dict.fromkeys(record.name for record in self.records))}"


@dataclass(frozen=True)
class FusedProblem:
    """Sizes of two products: so many batches of m x l x k and m x n x l, of elements of `size` bytes.

    `softmax` says that there is one between them, `hidden` which part of the link a mask hides tile by tile, `reads`
    whether the epilogue of the first one reads memory.
    """

    batches: int
    m: int
    link: int
    n: int
    k: int
    size: int
    softmax: bool
    hidden: float = 0.0
    reads: bool = False


def choose_tile(
    problem: FusedProblem, records: Sequence[Intrinsic], machine: Gpu
) -> tuple[FusedTile | None, float, tuple[Refusal, ...]]:
    """The tile with the fewest predicted cycles, these, and what was refused; None where no tile fits."""
    refused = [
        why for tile in _tiles(problem, records, machine) if (why := _refuse(tile, problem, machine)) is not None
    ]
    ranked = sorted(all_tiles(problem, records, machine), key=lambda each: each[1])
    best, cycles = ranked[0] if ranked else (None, inf)
    return best, cycles, tuple({each.rule: each for each in reversed(refused)}.values())


def all_tiles(problem: FusedProblem, records: Sequence[Intrinsic], machine: Gpu) -> list[tuple[FusedTile, float]]:
    """Every tile that fits, with its predicted cycles."""
    tiles = [tile for tile in _tiles(problem, records, machine) if _refuse(tile, problem, machine) is None]
    return [(tile, tile_cycles(tile, problem, machine)) for tile in tiles]


def _tiles(problem: FusedProblem, records: Sequence[Intrinsic], machine: Gpu) -> Iterator[FusedTile]:
    stages = STAGES if COPIES in machine.features else 1
    columns, link, rows = (max(16, power_from(size)) for size in (problem.n, problem.link, problem.m))
    depth = min(max(16, power_from(problem.k)), MOST_DEPTH)
    for points in LINK_POINTS:
        firsts, seconds = (_widest(records, count) for count in (points, columns))
        for group in [group for group in firsts if group in seconds]:
            first, second = firsts[group], seconds[group]
            for warps in WARP_COUNTS:
                height = extents(first)[0] * (warps // WARPS if is_warpgroup(first) else warps)
                if points <= max(link, LINK_POINTS[0]) and (height <= rows or warps == WARP_COUNTS[0]):
                    shape = FusedShape(height, points, columns, depth, warps, stages)
                    yield FusedTile(shape, (first, second))


def _widest(records: Sequence[Intrinsic], columns: int) -> dict[str, Intrinsic]:
    """Of each group of lanes the record that takes most of so many columns at once."""
    found: dict[str, Intrinsic] = {}
    for record in records:
        n = extents(record)[1]
        if n <= columns and (record.group not in found or n > extents(found[record.group])[1]):
            found[record.group] = record
    return found


def _refuse(tile: FusedTile, problem: FusedProblem, machine: Gpu) -> Refusal | None:
    needed, lanes = registers(tile, problem), machine.warp_sizes[0]
    most = min(machine.max_registers_per_thread, machine.registers_per_multiprocessor // (tile.shape.warps * lanes))
    if needed > most:
        return Refusal(str(tile), "registers", f"about {needed} of a thread, {most} there are")
    bytes_ = shared_bytes(tile, problem)
    if bytes_ > machine.shared_bytes_per_block:
        return Refusal(str(tile), "shared memory", f"{bytes_} bytes, {machine.shared_bytes_per_block} there are")
    return None


def registers(tile: FusedTile, problem: FusedProblem) -> int:
    """About the registers of a thread: sums of both products, the link as fragments, fragments of a, and spare ones."""
    shape = tile.shape
    rows = shape.rows / shape.warps
    words = rows * (shape.link + shape.columns) + rows * (shape.link + shape.depth) * problem.size / 4
    return ceil(words / 32) + SPARE_REGISTERS


def shared_bytes(tile: FusedTile, problem: FusedProblem) -> int:
    """Shared memory of a block: a of the first product, the other factors in every stage, what masks pass through."""
    shape = tile.shape
    kept = shape.depth >= problem.k
    slices = shape.link * (shape.depth + shape.columns) + (0 if kept else shape.rows * shape.depth)
    passing = READ_BYTES * shape.rows * shape.link if problem.reads else 0
    return ((shape.rows * shape.depth if kept else 0) + shape.stages * slices) * problem.size + passing


def tile_cycles(tile: FusedTile, problem: FusedProblem, machine: Gpu) -> float:
    """Predicted cycles of the kernel.

    A tile of the link takes as long as its products, its instructions, its exponentials or what it reads from L2,
    whichever is longest, and a part of the others. What a mask hides is not computed.
    """
    shape = tile.shape
    blocks = problem.batches * -(-problem.m // shape.rows)
    trips = -(-problem.link // shape.link) * (1 - problem.hidden)
    first, second = (multiply_adds_per_cycle(record) for record in tile.records)
    depth = -(-problem.k // shape.depth) * shape.depth
    products = shape.rows * shape.link * (depth / first + shape.columns / second)
    elements = shape.rows * shape.link
    instructions = ELEMENT_INSTRUCTIONS if problem.softmax else ROUND_INSTRUCTIONS
    vector = (elements * instructions + (shape.rows * shape.columns if problem.softmax else 0)) / LANES_PER_CYCLE
    exponentials = elements / EXPONENTIALS_PER_CYCLE if problem.softmax else 0.0
    brought = shape.link * (depth + shape.columns) + (0 if shape.depth >= problem.k else shape.rows * depth)
    rate = min(machine.l2_port_bytes_per_cycle, machine.l2_bytes_per_cycle / min(blocks, machine.multiprocessors))
    parts = [products, vector, exponentials, brought * problem.size / rate]
    per_unit, groups = -(-blocks // machine.multiprocessors), is_warpgroup(tile.records[0])
    together = min(resident(tile, problem, machine), per_unit)
    loss = ALONE_LOSS if groups and shape.warps == WARPS and problem.softmax else OVERLAP_LOSS
    trip = TRIP_CYCLES[groups] / together + max(parts) + loss * (sum(parts) - max(parts))
    trip = max(trip, (machine.copy_cycles / max(1, shape.stages - 1) + parts[-1]) / together)
    around = machine.copy_cycles + machine.block_cycles
    return per_unit * (trips * trip + around / together) + around


def resident(tile: FusedTile, problem: FusedProblem, machine: Gpu) -> int:
    """Blocks that a multiprocessor holds at once; one where blocks stay."""
    if is_warpgroup(tile.records[0]):
        return 1
    threads = tile.shape.warps * machine.warp_sizes[0]
    needed = -(-registers(tile, problem) // 8) * 8 * threads
    return max(1, min(
        machine.shared_bytes_per_multiprocessor // (shared_bytes(tile, problem) + SYSTEM_SHARED_BYTES),
        machine.registers_per_multiprocessor // needed, machine.max_threads_per_multiprocessor // threads,
    ))  # fmt: skip


def moving_cycles(bytes_: int, machine: Gpu) -> float:
    """Cycles of a kernel that reads and writes so many bytes, at the rate of L2 where that holds them."""
    cache = max(each.bytes for each in machine.caches)
    rate = machine.dram.bytes_per_second / machine.clock_hz
    return bytes_ / (machine.l2_bytes_per_cycle if bytes_ <= cache // 2 else rate)
