"""Tiles that the blocks of a GPU may have for a product: candidates over its matrix records, what refuses them, prices.

Two routes share every rule. Records of one warp read slices of k that threads copy; records of four warps read slices
that the copy engine brings into a circular buffer, on machines with the units for that. A candidate fixes the record,
the tile, how warps share it, how many slices are on their way and how many blocks share a sum; its price is predicted
cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from math import ceil, prod

from tilewright.dataclass import dataclass
from tilewright.decision import Refusal
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.problem import bits as element_bits
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import GROUP_LANES, Fragment, Intrinsic, Operand
from tilewright.layouts.access import LINE_BYTES, SECTOR_BYTES
from tilewright.layouts.bits import power_from
from tilewright.layouts.copy_engine import FRAGMENT_BYTES, ROW_MULTIPLE
from tilewright.machine.description import SYSTEM_SHARED_BYTES, Gpu
from tilewright.machine.units import CLUSTERS, COPIES, WARPGROUP_UNITS
from tilewright.operator.rules.gpu_product import BlockShape, TileLoops
from tilewright.tiles.shared_memory import is_warpgroup, product_bytes

# What instructions and passes have.
WARPS = GROUP_LANES["warpgroup128"] // GROUP_LANES["warp32"]  # of a group that computes a product together
REGISTER_BITS = 32
STEP_WORDS = 8  # of a row of an operand that products of four warps read at once: 32 bytes
THREE = 3  # products on tf32 for one of f32
TOGETHER = 4  # of these threes, each with sums of its own, by `tf32x3`

STEPS = 2  # of k whose fragments matrix loads bring ahead: this one and the next
SPARE_SCALARS = 60  # scalar registers for arguments, descriptions of memory, conditions; from above, of LLVM's code

# Chosen: what is tried.
WARP_GRIDS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))
GROUP_GRIDS = ((1, 1), (2, 1), (1, 2))  # groups of four warps along m and n
WARP_ROWS, WARP_COLUMNS = (16, 32, 64), (8, 16, 32, 64, 128)
SLICE_BYTES = (32, 64, 128)  # of a row of k: one step, two, the rows of a swizzle
MOST_STAGES, SAFE_STAGES, USUAL_STAGES, FEWEST_STAGES = 8, 4, 3, 2
DEEPENED = 24  # candidates that are tried with other numbers of stages
MOST_SPLITS = 16
CLUSTER = 2  # blocks that bring together what all of them read, where no other number is asked for

# Fitted to the times of some 500 tiles of 30 products on an H200 (`bench.gpu.tile_prices`). The first of a pair is for
# slices that threads copy, the second for bulk copies.
REACHED = {False: 1.0, True: 0.85}  # of the rate of matrix instructions, which waits and a lower clock leave
SLICE_CYCLES = {False: 30, True: 5}  # of a slice for what orders it: a barrier of all threads; an mbarrier
OVERLAP_LOSS = {False: 0.45, True: 0.07}  # of the time of what should be hidden behind something longer
UNHIDDEN_LOSS = 0.9  # the same where threads copy and only one slice is on its way
ROW_CYCLES = 1.5  # of the copy engine, for each row of at most a line
OUTSIDE_CYCLES = 11  # of the copy engine, for each row that lies outside of an operand
CLUSTER_LOSS = 0.06  # of the time of a product, for blocks of a cluster that wait for each other
SPLIT_K_CYCLES = 4000  # of the second kernel of a split-K product, beside its launch
SPLIT_K_BYTES_PER_CYCLE = 960  # of partial sums, which the first kernel writes and the second reads


@dataclass(frozen=True)
class Reading:
    """How tiles of the operands of a product are read.

    `loops` are those that tiles have points of, where threads copy operands and where the copy engine does; None stands
    for one loop of all m rows and one of all k. `scattered` says of a and b whether threads would copy single elements.
    With `outside` an operand is 0 outside of its shape, as boxes are and other loads only under a mask. `distinct` is
    the number of elements of both operands together, where a product takes some of them several times; 0 where not.
    `loaded` says of a and b whether threads load them into registers on their way to shared memory, `off_sectors`
    whether their rows begin off the sectors of 32 bytes.
    """

    loops: tuple[TileLoops | None, TileLoops | None] = (None, None)
    scattered: tuple[bool, bool] = (False, False)
    outside: bool = False
    distinct: int = 0
    loaded: tuple[bool, bool] = (False, False)
    off_sectors: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class BlockProblem:
    """A product for blocks: sizes, how often it is done, types, and the bytes of an element of the stored result.

    `no_bulk_copies` says why the copy engine cannot move an operand; "" where it can. `input_precision` is that of
    `Options`.
    """

    m: int
    n: int
    k: int
    batches: int
    mma: MmaProblem
    result_bytes: int
    no_bulk_copies: str = ""
    input_precision: str = "ieee"
    reading: Reading = field(default_factory=Reading)

    def tiles(self, shape: BlockShape, record: Intrinsic) -> int:
        """Tiles of the result."""
        return self.batches * self.row_tiles(shape, is_warpgroup(record)) * -(-self.n // shape.n)

    def row_tiles(self, shape: BlockShape, bulk: bool) -> int:
        """Tiles along m of one batch, where bulk copies bring the operands (`bulk`) or threads do."""
        loops = self.reading.loops[bulk]
        return -(-self.m // shape.m) if loops is None else loops.row_tiles(shape.m)

    def k_tiles(self, shape: BlockShape, record: Intrinsic) -> int:
        """K tiles of a tile of the result."""
        loops = self.reading.loops[is_warpgroup(record)]
        return -(-self.k // shape.k) if loops is None else loops.k_tiles(shape.k)

    @property
    def has_plain_rows(self) -> bool:
        """Whether the tiles of a that bulk copies bring have points of one loop of m."""
        loops = self.reading.loops[True]
        return loops is None or len(loops.rows) == 1

    def sharing(self, shape: BlockShape) -> tuple[str, int]:
        """The operand that the blocks of a cluster bring together, and how many tiles there are along the cluster.

        As in the pass `multicast`, blocks that share b are neighbours along m, those that share a along n, and the
        operand is the one that leaves the fewest bytes to bring. The last cluster may have blocks beyond the last tile.
        ("", 0) where no operand leaves fewer bytes, and for tiles of several loops, of which no sharing is priced.
        """
        best, least = ("", 0), float(shape.m + shape.n)
        if shape.cluster == 1 or not self.has_plain_rows:
            return best
        rows, columns = self.row_tiles(shape, bulk=True), -(-self.n // shape.n)
        for operand, tiles, mine, other in (("b", rows, shape.n, shape.m), ("a", columns, shape.m, shape.n)):
            left = (mine / shape.cluster + other) * (tiles + -tiles % shape.cluster) / tiles
            if tiles >= shape.cluster and left < least:
                best, least = (operand, tiles), left
        return best

    @property
    def operand_bytes(self) -> int:
        return element_bits(self.mma.a) // 8

    @property
    def sum_bytes(self) -> int:
        return element_bits(self.mma.c) // 8

    @property
    def by_registers(self) -> str:
        """The operand whose fragments threads read for products of four warps, as in `tile.staged_dot`; "" for none."""
        if self.operand_bytes != FRAGMENT_BYTES or (self.mma.rhs_transposed and not self.mma.lhs_transposed):
            return ""
        return "a" if self.mma.lhs_transposed else "b"


def precision_of(record: Intrinsic, input_precision: str) -> str:
    """The precision of a product on a record: "tf32x3" where three on tf32 stand for one of f32, else ""."""
    return input_precision if record.sources[0].dtype == "tf32" and input_precision == "tf32x3" else ""


@dataclass(frozen=True)
class Candidate:
    """A tile of a block with a record, and its predicted cycles."""

    shape: BlockShape
    record: Intrinsic
    shared_bytes: int
    registers: int
    blocks: int  # of the first kernel
    cycles: float = 0.0
    by_registers: str = ""  # the operand whose fragments threads read for products of four warps
    deduced: bool = False  # proposed by the caller, not by the grid

    @property
    def warpgroup(self) -> bool:
        """Whether the copy engine brings what it reads."""
        return is_warpgroup(self.record)

    def __str__(self) -> str:
        return str(self.shape)


@dataclass(frozen=True)
class Ranking:
    """Candidates in the order of their prices, and refusals of what would have been cheaper than the first."""

    candidates: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]

    @property
    def deduced(self) -> Candidate | None:
        """The cheapest of those that the caller proposed."""
        return next((each for each in self.candidates if each.deduced), None)


def rank(
    problem: BlockProblem, machine: Gpu, records: tuple[Intrinsic, ...],
    deduced: tuple[tuple[BlockShape, Intrinsic], ...] = (), off: frozenset[str] = frozenset(),
) -> Ranking:  # fmt: skip
    """All candidates over `records`, cheapest first; `deduced` are tiles found otherwise, `off` passes left out."""
    price = Price(machine, problem)
    found: dict[BlockShape, Candidate] = {}
    refused: list[tuple[float, Refusal]] = []
    by_name = {record.name: record for record in records}
    generated = ((shape, by_name[shape.intrinsic]) for shape in _shapes(problem, records))
    for shape, record in (*deduced, *generated):
        known = (shape, record) in deduced
        rule = None if known and not problem.reading.outside else _refuse(shape, record, problem, machine, off)
        if rule is not None:
            made = _candidate(replace(shape, stages=FEWEST_STAGES), record, problem, machine)
            refused.append((price.of(made), replace(rule, candidate=str(made))))
            continue
        for each in _staged(shape, record, problem, machine, "split-k" in off):
            found.setdefault(each.shape, replace(each, cycles=price.of(each), deduced=known))
    for best in sorted(found.values(), key=lambda each: each.cycles)[:DEEPENED]:
        for each in (*_deepened(best, problem, machine), *_clustered(best, problem, machine, off)):
            found.setdefault(each.shape, replace(each, cycles=price.of(each)))
    ranked = sorted(found.values(), key=_order)
    return Ranking(tuple(ranked), _worth_telling(refused, ranked[0].cycles if ranked else float("inf")))


def _order(each: Candidate) -> tuple[float, float, int, int, int]:
    """Among equals the instruction with more multiply-adds per cycle; then more slices on their way, up to what usually
    hides a copy; more warps; more columns, as wide tiles took 0.98 of the time of tall ones on an H200.
    """
    rate = multiply_adds_per_cycle(each.record)
    return each.cycles, -rate, -min(each.shape.stages, SAFE_STAGES), -prod(each.shape.warps), -each.shape.n


def _worth_telling(refused: list[tuple[float, Refusal]], cycles: float) -> tuple[Refusal, ...]:
    """Of every rule the cheapest candidate that it refused, where that is cheaper than what was found."""
    told: dict[str, Refusal] = {}
    for price, refusal in sorted(refused, key=lambda each: each[0]):
        if price < cycles:
            told.setdefault(refusal.rule, replace(refusal, values=f"{refusal.values}; {price:.0f} cycles"))
    return tuple(told.values())


# Candidates -----------------------------------------------------------------------------------------------------------


def _shapes(problem: BlockProblem, records: tuple[Intrinsic, ...]) -> Iterator[BlockShape]:
    """Tiles no larger than the product along any loop, rounded up, whose rows fill sectors: in one stage and part."""
    narrowest = SECTOR_BYTES // min(problem.operand_bytes, problem.result_bytes)
    rows, columns, depth = (max(power_from(size), 16) for size in (problem.m, problem.n, problem.k))
    for record in records:
        m, n, k = extents(record)
        precision = precision_of(record, problem.input_precision)
        depths = [d for each in SLICE_BYTES if (d := each * 8 // bits(record.sources[0].dtype)) >= k]
        depths = [d for d in depths if d <= depth] or depths[:1]
        if is_warpgroup(record):
            turned = problem.by_registers == "b"  # instructions compute the transposed result
            for down, across in GROUP_GRIDS:
                for tiles in (1, 2):
                    tile, warps = (m * down * tiles, n * across), (WARPS * down, across)
                    if turned:
                        tile, warps = (tile[1], tile[0]), (warps[1], warps[0])
                    if (tile[0] <= rows or tile[0] == m) and min(narrowest, columns) <= tile[1] <= columns:
                        for deep in depths:
                            yield BlockShape(*tile, deep, warps, record.name, precision=precision)
            continue
        for down, across in WARP_GRIDS:
            for height in WARP_ROWS:
                for width in WARP_COLUMNS:
                    tile = (height * down, width * across)
                    if height % m or width % n or (tile[0] > rows and down > 1):
                        continue
                    if (tile[0] <= rows or height == m) and min(narrowest, columns) <= tile[1] <= columns:
                        for deep in depths:
                            yield BlockShape(*tile, deep, (down, across), record.name, precision=precision)


@cache
def extents(record: Intrinsic) -> tuple[int, int, int]:
    """M, N and K of a record that multiplies matrices."""
    spatial = [loop.extent for loop in record.loops if loop.kind == "S"]
    (k,) = (loop.extent for loop in record.loops if loop.kind == "R")
    return spatial[0], spatial[1], k


def multiply_adds_per_cycle(record: Intrinsic) -> float:
    """What a multiprocessor does on a record, by the record's cost."""
    return prod(extents(record)) / record.cost.issue_cycles * record.cost.units_per_core


def _staged(
    shape: BlockShape, record: Intrinsic, problem: BlockProblem, machine: Gpu, whole: bool
) -> Iterator[Candidate]:
    """The shape with stages for which there is room, and with parts of k; `whole` leaves parts out.

    A circular buffer takes what memory there is; where threads copy, several blocks may share it: 3 stages at first.
    """
    slices, tiles = problem.k_tiles(shape, record), problem.tiles(shape, record)
    splits = [1]
    while not whole and tiles * splits[-1] < machine.multiprocessors and 2 * splits[-1] <= min(slices, MOST_SPLITS):
        splits.append(2 * splits[-1])
    for parts in splits:
        trips = -(-slices // parts)
        if parts == 1 or (slices % parts == 0 and trips >= FEWEST_STAGES):
            counts = _stages(shape, record, problem, machine, trips)
            most = max(counts) if is_warpgroup(record) else min(max(counts), USUAL_STAGES)
            yield _candidate(replace(shape, stages=most, splits=parts), record, problem, machine)


def _deepened(best: Candidate, problem: BlockProblem, machine: Gpu) -> Iterator[Candidate]:
    """A candidate with other numbers of stages."""
    shape, record = best.shape, best.record
    trips = ceil(problem.k_tiles(shape, record) / shape.splits)
    for stages in _stages(shape, record, problem, machine, trips):
        yield _candidate(replace(shape, stages=stages), record, problem, machine)


def _clustered(best: Candidate, problem: BlockProblem, machine: Gpu, off: frozenset[str]) -> Iterator[Candidate]:
    """A candidate in clusters of blocks, where `multicast` can have them share boxes of an operand."""
    shape = replace(best.shape, cluster=CLUSTER)
    alone = not best.warpgroup or CLUSTERS not in machine.features or "multicast" in off or shape.splits > 1
    operand, tiles = ("", 0) if alone else problem.sharing(shape)
    if operand:
        yield replace(best, shape=shape, blocks=best.blocks // tiles * (tiles + -tiles % CLUSTER))


def _stages(shape: BlockShape, record: Intrinsic, problem: BlockProblem, machine: Gpu, trips: int) -> list[int]:
    """How many slices may be on their way: no more than there are, and the next tile's first; 1 without copies."""
    if COPIES not in machine.features:
        return [1]
    room = machine.shared_bytes_per_block
    counts = range(FEWEST_STAGES, min(MOST_STAGES, trips + 1) + 1)
    fits = [n for n in counts if shared_bytes(shape, record, problem, n) <= room]
    return fits or [FEWEST_STAGES]


def _candidate(shape: BlockShape, record: Intrinsic, problem: BlockProblem, machine: Gpu) -> Candidate:
    tiles, bytes_ = problem.tiles(shape, record), shared_bytes(shape, record, problem, shape.stages)
    read = problem.by_registers if is_warpgroup(record) else ""
    needed = registers(shape, record, machine, problem.reading.loaded, read)
    return Candidate(shape, record, bytes_, needed, tiles * shape.splits, by_registers=read)


def shared_bytes(shape: BlockShape, record: Intrinsic, problem: BlockProblem, stages: int) -> int:
    """Shared memory of all slices, in so many stages, and of the result on its way out."""
    tile, staged = (shape.m, shape.n, shape.k), stages * slice_bytes(shape, problem)
    return product_bytes(
        record, staged, stages, tile, shape.warps, problem.result_bytes, problem.sum_bytes, shape.splits
    )


def slice_bytes(shape: BlockShape, problem: BlockProblem) -> int:
    """Bytes of one slice of both operands."""
    return (shape.m + shape.n) * shape.k * problem.operand_bytes


def registers(
    shape: BlockShape, record: Intrinsic, machine: Gpu, loaded: tuple[bool, bool] = (False, False),
    by_registers: str = "",
) -> int:  # fmt: skip
    """About the registers of a thread: sums, fragments, what passes on its way to shared memory, and spare ones.

    Fragments are those of this step of k and the next where matrix loads bring them, those of the whole k tile where
    lanes load what they hold: an assembler puts these loads side by side. Of products of four warps only the operand
    `by_registers` has fragments. Three products on tf32 have the high and low parts of fragments besides, and sums of a
    step of k for some of them. `loaded` is that of `Reading`. What an assembler takes beyond is `spare_registers` and
    `step_registers` of the machine.
    """
    lanes = machine.warp_sizes[0]
    rows, columns = shape.m // shape.warps[0], shape.n // shape.warps[1]
    sums = rows * columns * bits(record.destination.dtype) // REGISTER_BITS // lanes
    spare = machine.spare_registers
    if is_warpgroup(record):
        outer = shape.n // shape.warps[1] if by_registers == "b" else rows
        return sums + spare + (2 * outer * STEP_WORDS // lanes if by_registers else 0)
    spare += _passing(shape, record, machine, loaded)
    m, n, step = extents(record)
    if _lanes_load(record):
        return sums + _tile_fragments(shape, record) + spare
    fragments = (rows + columns) * step * bits(record.sources[0].dtype) // REGISTER_BITS // lanes
    copies = STEPS
    if shape.precision:
        copies += 2
        sums += min(sums, TOGETHER * m * n * bits(record.destination.dtype) // REGISTER_BITS // lanes)
    return sums + copies * fragments + spare + machine.step_registers * max(0, shape.k // step - STEPS)


def _passing(shape: BlockShape, record: Intrinsic, machine: Gpu, loaded: tuple[bool, bool]) -> int:
    """Registers of a thread for a k tile on its way to shared memory.

    They are one for each element that is `loaded`, and half of one for its place where lanes share no scalar registers;
    where there are no asynchronous copies the words of the others too.
    """
    copied = 0 if COPIES in machine.features else bits(record.sources[0].dtype)
    alone = REGISTER_BITS if machine.scalar_registers is not None else REGISTER_BITS * 3 // 2
    a, b = (alone if single else copied for single in loaded)
    return _of_a_thread(shape, machine, a, b, REGISTER_BITS)


def _of_a_thread(shape: BlockShape, machine: Gpu, a: int, b: int, whole: int) -> int:
    """Of what counts `a` and `b` for each element of a k tile of both operands: how often `whole` for each thread."""
    threads = prod(shape.warps) * machine.warp_sizes[0]
    return -(-(shape.m * a + shape.n * b) * shape.k // (whole * threads))


def scalar_registers(shape: BlockShape, machine: Gpu, loaded: tuple[bool, bool]) -> int:
    """About the scalar registers of a warp: an offset for each element of a k tile that is `loaded`, and spare ones."""
    return _of_a_thread(shape, machine, *loaded, 1) + SPARE_SCALARS


def _lanes_load(record: Intrinsic) -> bool:
    """Whether lanes load the fragments that they hold."""
    return any(move.via == "vector load" for move in record.memory)


def _tile_fragments(shape: BlockShape, record: Intrinsic) -> int:
    """Registers of a lane for the fragments of a k tile, as the record counts them."""
    m, n, k = extents(record)
    a, b = (_held(operand) for operand in record.sources)
    return (shape.m // shape.warps[0] // m * a + shape.n // shape.warps[1] // n * b) * (shape.k // k)


def sliced(shape: BlockShape, record: Intrinsic, machine: Gpu) -> BlockShape:
    """The shape with k tiles of which registers hold all fragments beside the sums, where lanes load fragments."""
    if not _lanes_load(record):
        return shape
    m, n, k = extents(record)
    sums = shape.m // shape.warps[0] // m * (shape.n // shape.warps[1] // n) * _held(record.destination)
    room = machine.max_registers_per_thread - machine.spare_registers - sums
    while shape.k > k and _tile_fragments(shape, record) > room:
        shape = replace(shape, k=shape.k // 2)
    return shape


def _held(operand: Operand) -> int:
    """Registers of a lane for a fragment of an operand."""
    assert isinstance(operand.layout, Fragment), f"{operand.role} is no fragment"
    return operand.layout.elements * bits(operand.dtype) // REGISTER_BITS


# Rules ----------------------------------------------------------------------------------------------------------------


def _refuse(
    shape: BlockShape, record: Intrinsic, problem: BlockProblem, machine: Gpu, off: frozenset[str]
) -> Refusal | None:
    """The first rule that a shape breaks, with the values that break it."""
    lanes = machine.warp_sizes[0]
    threads = shape.warps[0] * shape.warps[1] * lanes
    warpgroup = is_warpgroup(record)
    needed = registers(shape, record, machine, problem.reading.loaded, problem.by_registers)
    most = min(machine.max_registers_per_thread, machine.registers_per_multiprocessor // threads)
    if needed > most:
        return Refusal("", "registers", f"about {needed} of a thread, {most} there are")
    scalars = scalar_registers(shape, machine, problem.reading.loaded)
    if machine.scalar_registers is not None and scalars > machine.scalar_registers:
        return Refusal("", "scalar registers", f"about {scalars} of a warp, {machine.scalar_registers} there are")
    if threads + warpgroup * WARPS * lanes > machine.max_threads_per_block:
        return Refusal("", "threads", f"{threads}, {machine.max_threads_per_block} at most")
    stages = FEWEST_STAGES if warpgroup or COPIES in machine.features else 1
    bytes_, room = shared_bytes(shape, record, problem, stages), machine.shared_bytes_per_block
    if bytes_ > room:
        return Refusal("", "shared memory", f"{bytes_} bytes with {stages} stages, {room} there are")
    by_boxes = not problem.no_bulk_copies and "tensor-copies" not in off
    if problem.reading.outside and not warpgroup and by_boxes:
        return Refusal("", "outside", "threads would mask what they copy, boxes have zeros there")
    if warpgroup and "tensor-copies" in off:
        return Refusal("", "pass tensor-copies", "it is switched off")
    if warpgroup and not machine.features >= WARPGROUP_UNITS:
        return Refusal("", "units", f"the machine lacks {', '.join(sorted(WARPGROUP_UNITS - machine.features))}")
    if warpgroup and shape.precision:
        return Refusal("", shape.precision, "operands are split in registers, which bulk copies do not pass")
    if warpgroup and problem.no_bulk_copies:
        return Refusal("", "bulk copies", problem.no_bulk_copies)
    return None


# Prices ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """Predicted cycles of a product on a machine, from what a multiprocessor does for its blocks.

    A slice takes as long as its products, as reading and writing it in shared memory, or as bringing it from L2,
    whichever is longest, and no less than latency and way over the slices that are on it. Blocks that are on a
    multiprocessor together hide each other's waiting; the one with the most blocks decides. Accuracy: an order of
    candidates, not a time; what blocks share in L2 is not modelled, nor the power that a device may draw.
    """

    machine: Gpu
    problem: BlockProblem

    def of(self, each: Candidate) -> float:
        machine, problem, shape = self.machine, self.problem, each.shape
        per_unit = -(-each.blocks // machine.multiprocessors)
        together = min(self.resident(each), per_unit)
        trips = -(-problem.k_tiles(shape, each.record) // shape.splits)
        products, memory, feed = self.slice_cycles(each)
        ordering = SLICE_CYCLES[each.warpgroup]
        warps = prod(shape.warps) * together
        products *= max(1.0, machine.subcores / warps)
        longest = max(products, memory, feed)
        loss = OVERLAP_LOSS[each.warpgroup]
        if not each.warpgroup and shape.stages <= FEWEST_STAGES:
            loss = UNHIDDEN_LOSS
        shared = longest + loss * (products + memory + feed - longest)
        busy = trips * (shared + ordering / together)
        latency, own = machine.copy_cycles, machine.block_cycles
        chain = trips * max(products + ordering, (latency + feed) / max(1, shape.stages - 1))
        out = shape.m * shape.n * problem.result_bytes / self.l2(each) if shape.splits == 1 else 0.0
        around = latency + own + out
        if each.warpgroup:  # blocks that stay: the next tile's slices are there when this one's result leaves
            total = latency + max(per_unit * (busy + own + out), per_unit * (chain + own))
        else:
            total = max(per_unit * (busy + around / together), ceil(per_unit / together) * (chain + around))
        if shape.cluster > 1:
            total *= 1 + CLUSTER_LOSS
        least = self.least()
        return max(total, least) + loss * min(total, least) + self.adding(each)

    def slice_cycles(self, each: Candidate) -> tuple[float, float, float]:
        """Cycles of one slice: of its products, of shared memory, of the way from L2 and through the copy engine."""
        shape, machine = each.shape, self.machine
        m = extents(each.record)[0]
        record_rate = multiply_adds_per_cycle(each.record)
        machine_rate = machine.fma_per_cycle.get(_RATE.get(self.problem.mma.a, self.problem.mma.a), record_rate)
        size, bytes_ = self.problem.operand_bytes, slice_bytes(shape, self.problem)
        products = shape.m * shape.n * shape.k * (THREE if shape.precision else 1)
        rows, columns = shape.m // shape.warps[0], shape.n // shape.warps[1]
        warps = shape.warps[0] * shape.warps[1]
        feed = self._brought(each) / self.l2(each)
        read = warps * (rows + columns) * shape.k * size
        written = bytes_ if each.warpgroup else self._copied_rows(shape) * LINE_BYTES
        if each.warpgroup:  # a group reads its b once for each of its products
            groups = warps // WARPS
            rows, columns = (columns, rows) if self.problem.by_registers == "b" else (rows, columns)
            read = groups * (WARPS * rows + columns * (WARPS * rows // m)) * shape.k * size
            engine = ROW_CYCLES * self._copied_rows(shape) + OUTSIDE_CYCLES * self._rows_outside(shape)
            feed = max(feed, engine)
        shared = (read + written) / machine.shared_bytes_per_cycle
        return products / (REACHED[each.warpgroup] * min(record_rate, machine_rate)), shared, feed

    def _copied_rows(self, shape: BlockShape) -> int:
        """Rows of at most a line of 128 bytes in a slice of both operands, as these are stored."""
        return sum(rows for rows, _ in self._lines(shape))

    def _lines(self, shape: BlockShape) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of a slice of a and of b, as they are stored: how many rows of at most a line there are, and their bytes."""
        size, mma = self.problem.operand_bytes, self.problem.mma
        a = (shape.k, shape.m) if mma.lhs_transposed else (shape.m, shape.k)
        b = (shape.n, shape.k) if mma.rhs_transposed else (shape.k, shape.n)
        (of_a, wide_a), (of_b, wide_b) = ((rows, columns * size) for rows, columns in (a, b))
        return (of_a * ceil(wide_a / LINE_BYTES), min(wide_a, LINE_BYTES)), (
            of_b * ceil(wide_b / LINE_BYTES), min(wide_b, LINE_BYTES)
        )  # fmt: skip

    def _rows_outside(self, shape: BlockShape) -> float:
        """Rows of a slice that lie outside of an operand stored along k, the mean over all tiles.

        None are counted where tiles have points of several loops.
        """
        mma, p = self.problem.mma, self.problem
        if not p.has_plain_rows:
            return 0.0
        sides = (
            (p.m, p.row_tiles(shape, bulk=True), shape.m, not mma.lhs_transposed),
            (p.n, ceil(p.n / shape.n), shape.n, mma.rhs_transposed),
        )
        return sum(side - size / tiles for size, tiles, side, along in sides if along)

    def _brought(self, each: Candidate) -> float:
        """Bytes that a block reads from L2 for a slice.

        Where threads copy, an element that has no neighbours in the tile costs a sector. Where the copy engine copies,
        rows that begin off the sectors cost every line that they reach, in the mean over the multiples of 16 bytes at
        which they may begin. On an H200, operands with rows of 2000 bytes cost that much, and those with rows of 4000
        bytes, which is a multiple of a sector, no more than those of 4096. A block of a cluster reads its part of the
        operand that the cluster shares.
        """
        shape, size, reading = each.shape, self.problem.operand_bytes, self.problem.reading
        if not each.warpgroup:
            one, other = (SECTOR_BYTES if scattered else size for scattered in reading.scattered)
            return (shape.m * one + shape.n * other) * shape.k
        beyond = LINE_BYTES - ROW_MULTIPLE
        shared, _ = self.problem.sharing(shape)
        return sum(
            rows * (wide + beyond * off) / (shape.cluster if operand == shared else 1)
            for operand, (rows, wide), off in zip("ab", self._lines(shape), reading.off_sectors, strict=True)
        )

    def resident(self, each: Candidate) -> int:
        """Blocks that a multiprocessor holds at once; one where blocks stay."""
        if each.warpgroup:
            return 1
        machine = self.machine
        threads = each.shape.warps[0] * each.shape.warps[1] * machine.warp_sizes[0]
        return max(1, min(
            machine.shared_bytes_per_multiprocessor // (each.shared_bytes + SYSTEM_SHARED_BYTES),
            machine.registers_per_multiprocessor // (-(-each.registers // 8) * 8 * threads),
            machine.max_threads_per_multiprocessor // threads, machine.max_blocks_per_multiprocessor,
        ))  # fmt: skip

    def l2(self, each: Candidate) -> float:
        """Bytes per cycle from L2 for one of the multiprocessors that work."""
        return self._l2_of(min(each.blocks, self.machine.multiprocessors))

    def _l2_of(self, active: int) -> float:
        return min(self.machine.l2_port_bytes_per_cycle, self.machine.l2_bytes_per_cycle / active)

    def adding(self, each: Candidate) -> float:
        """Cycles that split-K adds: partial sums are written, and a second kernel reads and adds them."""
        shape = each.shape
        if shape.splits == 1:
            return 0.0
        machine = self.machine
        parts = each.blocks * shape.m * shape.n * self.problem.sum_bytes
        return machine.launch_seconds * machine.clock_hz + SPLIT_K_CYCLES + parts / SPLIT_K_BYTES_PER_CYCLE

    def least(self) -> float:
        """Of moving every operand once from device memory, and the result there."""
        p = self.problem
        taken = p.batches * (p.m + p.n) * p.k
        read = min(taken, p.reading.distinct or taken)
        moved = read * p.operand_bytes + p.batches * p.m * p.n * p.result_bytes
        return moved / self.machine.dram.bytes_per_second * self.machine.clock_hz


_RATE: Mapping[str, str] = {"f32": "tf32", "i8": "s8", "u8": "s8"}  # how machine files name rates
