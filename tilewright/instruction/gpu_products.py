"""Products on the blocks of a GPU: which of a compute's mappings is preferred, and the tile of a block for it.

The tile is the cheapest of `block_tiles`, over the matrix records of the machine and what `instruction.mma` deduces for
the product of all rows by all columns by all sums, each rounded up: what sticks out is masked, and so costs no more
than the tile it is part of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Proposal, Refusal
from tilewright.errors import ScheduleError
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Read
from tilewright.instruction.block_tiles import (
    BlockProblem,
    Candidate,
    Ranking,
    Reading,
    precision_of,
    rank,
    sliced,
)
from tilewright.instruction.mma.deduce import deduce_mma
from tilewright.instruction.mma.eligibility import usable
from tilewright.instruction.mma.policy import Options, Policy, Table
from tilewright.instruction.mma.problem import MmaProblem, bits, element_type
from tilewright.instruction.mma.schedule import LISTS, MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, mma_target, view
from tilewright.instruction.mma.trace import Trace
from tilewright.instruction.products import MappedProduct, iterations
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, standard
from tilewright.intrinsics.shapes import multiply_add
from tilewright.layouts.bits import log2, power_from
from tilewright.machine.description import Gpu
from tilewright.machine.units import CLUSTERS
from tilewright.operator.rules.gpu_product import BlockShape
from tilewright.options import OPAQUE_MMA
from tilewright.tiles.shared_memory import is_opaque, is_warpgroup

DEDUCTION = "the MMA deduction"  # as decisions name it
ROUNDING = "round-to-tf32"  # the pass that rounds what instructions read as tf32
# Chosen, where the deduction leaves it open and for multiply-adds.
STAGES = 3  # slices of k in shared memory where copies are asynchronous: one is read while two are on their way
FMA_DEPTH = 16  # of a k tile of multiply-adds
FMA_STAGES = 2  # of those: a slice is on its way while another one, of 16 x 64 instructions of a thread, is multiplied
# Tiles of a block without a matrix instruction, and rows and columns of a thread: the first that fits.
FMA_TILES = (((128, 128), (8, 8)), ((128, 64), (8, 4)), ((64, 64), (4, 4)))
FMA_REGISTERS = 96  # of a thread, for sums and factors of two points of k: 8 x 8 of f32, 128 in all with ptxas 13.0


Rankings = dict[Hashable, Ranking]
"""Rankings by all that they depend on but the machine."""


@dataclass(frozen=True, eq=False)
class GpuProducts:
    """What a GPU says about products; see `products.Target`. `route` is one of `options.ROUTES`.

    A product is matched with a multiply-add of its types, which every GPU has. Which record computes the tile of a
    block is chosen with the tile: `block_shape`.
    """

    machine: Gpu
    registry: Registry | None = None
    route: str = "auto"
    packs: bool = False

    def records(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> list[tuple[Intrinsic, ...]]:
        """Multiply-adds of these types, in both orders of the factors; narrow floats are summed in f32."""
        inputs = factors[0].dtype, factors[1].dtype
        try:
            types = [element_type(dtype) for dtype in (*inputs, result)]
        except ScheduleError:
            refused.append(Refusal(f"{inputs[0]} x {inputs[1]} -> {result}", "some record has these dtypes"))
            return []
        if len({dtypes.is_float(dtype) for dtype in types}) > 1:
            refused.append(Refusal(f"{inputs[0]} x {inputs[1]} -> {result}", "all are integers, or all are floats"))
            return []
        return [(multiply_add(*pair, _sums(result)),) for pair in dict.fromkeys((inputs, inputs[::-1]))]

    def lanes(self, factors: tuple[Read, Read], result: str, refused: list[Refusal]) -> Sequence[Iterable[Intrinsic]]:
        """A thread multiplies and adds whatever lies along its registers: no records."""
        return ()

    def refuse(self, product: MappedProduct) -> str:
        """A tile has rows and columns."""
        return "" if product.rows else "a loop indexes the rows: a row alone is a reduction"

    def can_pack(self, product: MappedProduct) -> bool:
        """Blocks bring tiles of b to shared memory from wherever it lies."""
        return True

    def ordered(self, found: Sequence[MappedProduct]) -> list[MappedProduct]:
        """The fewest products of tiles first; among equals columns that neighbour in the result, then a as written."""

        def key(each: MappedProduct) -> tuple[int, bool, bool, int]:
            return (*_preference(each), each.mapping.match.swapped, each.compute.axes.index(each.columns))

        return sorted(found, key=key)

    def reason(self, product: MappedProduct) -> str:
        """How many products of tiles, and where their columns lie."""
        products, apart = _preference(product)
        plural = "product" if products == 1 else "products"
        return f"{products} {plural}, columns {'not ' if apart else ''}along the result"

    def cost(self, product: MappedProduct) -> None:
        """None: tiles have costs, `block_shape`."""

    def price(self, product: MappedProduct) -> tuple[float, int] | None:
        """Cycles of a multiprocessor per multiply-add on the fastest instruction that takes the types, without tf32;
        blocks pack nothing. None where no instruction takes them.
        """
        target, mma = mma_target(self.machine, self.registry), _problem(product)
        registry = standard() if self.registry is None else self.registry
        records = _records(target, registry, mma, _forbidden(target, mma, self.route))
        costs = [record.cost.issue_cycles / record.macs / record.cost.units_per_core for record in records]
        return (min(costs), 0) if costs else None


def _preference(product: MappedProduct) -> tuple[int, bool]:
    last = [axis for axis in product.compute.axes if axis.extent != 1][-1]
    return iterations(product.outer), product.columns != last


def _sums(result: str) -> str:
    """The type in which a product with results of this type is summed."""
    return "f32" if result in ("f16", "bf16") else result


def block_shape(
    product: MappedProduct, machine: Gpu, *, input_precision: str = "ieee", intrinsics: Registry | None = None,
    off: Collection[str] = (), no_bulk_copies: str = "", result: str = "",
    choose: Callable[[Ranking], Candidate | None] = lambda ranking: None, route: str = "auto",
    cluster: int | None = None, reading: Reading | None = None, known: Rankings | None = None,
) -> tuple[BlockShape, Decision]:  # fmt: skip
    """The tile of a block for a product: the cheapest of `block_candidates`; without one, for multiply-adds.

    `choose` is asked first. With a `cluster`, the tile is the cheapest for blocks that share nothing, and so many
    blocks bring its operands together, where they come by bulk copies.
    """
    subject = f"block of {product.compute.name}"
    m, n, k = product.sizes
    a, b, c = _types(product)
    found, deductions = block_candidates(
        product, machine, input_precision=input_precision, intrinsics=intrinsics, off=off,
        no_bulk_copies=no_bulk_copies, result=result, route=route, reading=reading, known=known,
    )  # fmt: skip
    if cluster is not None:
        found = replace(found, candidates=tuple(each for each in found.candidates if each.shape.cluster == 1))
    cluster = cluster or 1
    by_route = "" if route == "auto" else f" by {route}"
    what = f"{m}x{n}x{k} {a},{b}->{c}{by_route}"
    if not found.candidates:
        target = mma_target(machine, intrinsics)
        stages = FMA_STAGES if target.async_copies else 1
        rounded, words = (_rounded(m), _rounded(n)), -(-bits(c) // 32)
        shape = _fma_shape(rounded, words, target.subgroup_size, stages, machine)
        reason = f"no matrix instruction takes {a},{b}->{c}{by_route}{_without(a, input_precision)}"
        reason += f"; no clusters of {cluster} blocks for multiply-adds" if cluster > 1 else ""
        return shape, Decision(subject, str(shape), reason, refused=(*deductions, *found.refused))
    asked = choose(found)
    first, *others = found.candidates if asked is None else (asked, *found.candidates)
    reason = (
        f"it was chosen; {first.cycles:.0f} predicted cycles for {what}"
        if asked is not None
        else f"of {len(found.candidates)} tiles for {what} the one with the fewest predicted cycles, "
        f"{first.cycles:.0f}: {first.blocks} blocks on {machine.multiprocessors} multiprocessors, "
        f"{first.shared_bytes} bytes of shared memory"
    )
    reason += _reading(first, off)
    if cluster > 1:
        alone = _alone(first, (m, n), cluster, machine, off)
        first = first if alone else replace(first, shape=replace(first.shape, cluster=cluster))
        shared = f"{cluster} blocks bring together what all read, where that is less, as asked"
        reason += f"; no clusters of {cluster} blocks: {alone}" if alone else f"; {shared}"
    tile = (first.shape.m, first.shape.n, first.shape.k)
    other = next((each for each in others if (each.shape.m, each.shape.n, each.shape.k) != tile), None)
    second, price = (str(other), f"{other.cycles:.0f} cycles") if other else ("", "")
    cost = Cost(cycles=first.cycles)
    other_cost = Cost(cycles=other.cycles) if other and asked is None else None
    deduced = found.deduced
    proposals = () if deduced is None else (Proposal(str(deduced), DEDUCTION, Cost(cycles=deduced.cycles)),)
    return first.shape, Decision(
        subject, str(first), reason, second, price, found.refused, cost, other_cost, proposals=proposals
    )  # fmt: skip


def _alone(tile: Candidate, sizes: tuple[int, int], cluster: int, machine: Gpu, off: Collection[str]) -> str:
    """Why so many blocks cannot share what they read of a product of m rows and n columns; empty where they can."""
    if CLUSTERS not in machine.features:
        return f"{machine.name} has none"
    if "multicast" in off:
        return "multicast is switched off"
    if not tile.warpgroup:
        return "its operands come without the copy engine"
    tiles = [-(-size // side) for size, side in zip(sizes, (tile.shape.m, tile.shape.n), strict=True)]
    return "" if max(tiles) >= cluster else f"there are {tiles[0]} x {tiles[1]} tiles"


def block_candidates(
    product: MappedProduct, machine: Gpu, *, input_precision: str = "ieee", intrinsics: Registry | None = None,
    off: Collection[str] = (), no_bulk_copies: str = "", result: str = "", route: str = "auto",
    reading: Reading | None = None, known: Rankings | None = None,
) -> tuple[Ranking, tuple[Refusal, ...]]:  # fmt: skip
    """Every tile that a block may have on a matrix instruction, cheapest first, and why none was deduced.

    What `instruction.mma` deduces is one of them; all have one price.

    `off` names passes that are left out, `no_bulk_copies` says why the copy engine cannot move an operand, `result` is
    the type in which the result is stored (default: that of the sums). `route` is a value of `Options.mma`; "auto"
    takes instructions of unspecified fragment layouts only where there are no others. `input_precision` is that of
    `Options`, `reading` that of `BlockProblem`. `known` keeps rankings for this machine: networks repeat their layers.
    """
    target, mma = mma_target(machine, intrinsics), _problem(product, input_precision != "ieee")
    m, n, k = product.sizes
    stages = STAGES if target.async_copies else 1
    forbidden = _forbidden(target, mma, route)
    table: Table | None = OPAQUE_MMA if any(not x.distributable for x in _allowed(target, forbidden)) else None
    deduction = deduce_mma(mma, target, options=Options(stages=stages, forbid=forbidden, tensor_core_table=table))
    deduced: tuple[tuple[BlockShape, Intrinsic], ...] = ()
    registry = standard() if intrinsics is None else intrinsics
    if deduction.schedule is not None:
        schedule = _in_powers(deduction.schedule)
        record = schedule.intrinsic.record
        warps = (schedule.m_subgroups[0], schedule.n_subgroups[0])
        precision = precision_of(record, input_precision)
        shape = BlockShape(*schedule.tile, warps, record.name, stages, precision=precision)
        deduced = ((sliced(shape, record, machine), record),)
    records = _records(target, registry, mma, forbidden)
    if route != "auto":
        records = tuple(record for record in records if not is_warpgroup(record))
    result_bytes = dtypes.size_bytes(result) if result else bits(mma.c) // 8
    batches, reading = iterations(product.outer), reading or Reading()
    problem = BlockProblem(m, n, k, batches, mma, result_bytes, no_bulk_copies, input_precision, reading)
    refusals = tuple(Refusal(path, str(reason)) for path, reason in deduction.refusals)
    key = problem, records, deduced, frozenset(off)
    known = {} if known is None else known
    if key not in known:
        known[key] = rank(problem, machine, records, deduced, frozenset(off))
    return known[key], refusals


def _problem(product: MappedProduct, tf32: bool = False) -> MmaProblem:
    """The product of all m by n by all k, each rounded up."""
    m, n, k = ((_rounded(size),) for size in product.sizes)
    return MmaProblem(m, n, k, (), *_types(product), tf32_allowed=tf32,
                      lhs_transposed=_transposed(product.a, product.depth),
                      rhs_transposed=_transposed(product.b, (product.columns,)))  # fmt: skip


def _without(a: str, input_precision: str) -> str:
    return " with input_precision ieee" if a == "f32" and input_precision == "ieee" else ""


def _reading(chosen: Candidate, off: Collection[str]) -> str:
    """What an instruction that reads tf32 makes of f32."""
    if chosen.record.sources[0].dtype != "tf32":
        return ""
    if chosen.shape.precision:
        return "; f32 is the sum of two tf32, three products for one"
    if chosen.by_registers and ROUNDING not in off:
        name = chosen.by_registers
        return f"; f32 is rounded to tf32 in {name}, whose fragments threads read, else cut: it passes no registers"
    if chosen.warpgroup:
        return "; f32 is cut to tf32, since operands in shared memory pass no registers in which to round"
    return "; f32 is cut to tf32" if ROUNDING in off else "; f32 is rounded to tf32"


def _allowed(target: MmaTarget, forbidden: Collection[str]) -> list[MmaIntrinsic]:
    return [x for x in target.intrinsics if x.name not in forbidden]


def matrix_records(product: MappedProduct, machine: Gpu, intrinsics: Registry | None, route: str) -> list[Intrinsic]:
    """The records of a machine that take the types of a product and say which lane holds which element."""
    target, mma = mma_target(machine, intrinsics), _problem(product)
    registry = standard() if intrinsics is None else intrinsics
    found = _records(target, registry, mma, _forbidden(target, mma, route))
    return [record for record in found if not is_opaque(record) and (route == "auto" or not is_warpgroup(record))]


def _forbidden(target: MmaTarget, mma: MmaProblem, route: str) -> frozenset[str]:
    """The instructions of one warp that a route leaves out, and those that are made up of others."""
    virtual = {x.name for x in target.intrinsics if x.virtual}
    told = {x.name for x in target.intrinsics if x.distributable}
    opaque = {x.name for x in target.intrinsics} - told
    if route == OPAQUE_MMA:
        return frozenset(virtual | told)
    fitting = [x for x in target.own_intrinsics if x.name in told - virtual]
    none = not any(usable(mma, fitting, Policy(aligned_only=False), Trace()))
    return frozenset(virtual if route == "auto" and none else virtual | opaque)


def _records(target: MmaTarget, registry: Registry, mma: MmaProblem, opaque: frozenset[str]) -> tuple[Intrinsic, ...]:
    """Records for the types of a problem: those of one warp that the target lists, and those of four warps of all
    widths that are powers of two, where it lists one.
    """
    flags = Policy(aligned_only=False)
    own = [x for x in target.own_intrinsics if x.name not in opaque]
    found = [x.record for x in usable(mma, own, flags, Trace())]
    types = {(x.a, x.b, x.c) for x in usable(mma, list(target.warpgroup_intrinsics), flags, Trace())}
    if types:
        seen = [(record, x) for record in registry if record.group == "warpgroup128" and (x := view(record))]
        found += [record for record, x in seen if (x.a, x.b, x.c) in types and x.n & (x.n - 1) == 0]
    return tuple(found)


# Tiles ----------------------------------------------------------------------------------------------------------------


def _types(product: MappedProduct) -> tuple[str, str, str]:
    """Element types of the factors and of the sums; narrow floats are summed in f32."""
    a, b = (element_type(read.dtype) for read in (product.a, product.b))
    return a, b, _sums(product.compute.output.dtype)


def _transposed(read: Read, innermost: tuple[Axis, ...]) -> bool:
    """Whether a factor is not stored along these loops, as its indices have it."""
    last = affine(read.indices[-1])
    assert last is not None
    return not any(axis in last.terms for axis in innermost)


def _rounded(size: int) -> int:
    """The size of a problem whose tiles are masked: a power of two of 16 or more up to 64, then a multiple of 64."""
    return max(16, power_from(size)) if size <= 64 else -(-size // 64) * 64


def _in_powers(schedule: MmaSchedule) -> MmaSchedule:
    """The schedule with every count lowered to a power of two, as layouts want; what fits still fits."""
    for name in LISTS:
        for dim, count in enumerate(getattr(schedule, name)):
            schedule = schedule.with_count(name, dim, 1 << log2(count))
    return schedule


def _fma_shape(rounded: tuple[int, int], words: int, lanes: int, stages: int, machine: Gpu) -> BlockShape:
    """The first tile for multiply-adds, of `words` per sum, that registers hold, that leaves half of shared memory
    where it passes through that, and of which every multiprocessor gets one; with as many warps as it has sums for.
    """
    for tile, box in FMA_TILES:
        held, passing = (prod(box) + 2 * sum(box)) * words, 4 * words * prod(tile)
        blocks = prod(-(-size // most) for size, most in zip(rounded, tile, strict=True))
        fits = held <= FMA_REGISTERS and 2 * passing <= machine.shared_bytes_per_block
        if fits and blocks >= machine.multiprocessors:
            break
    m, n = (min(most, size) for most, size in zip(tile, rounded, strict=True))
    rows, columns = 1, 1
    while rows * columns * lanes * prod(box) < m * n:
        rows, columns = (2 * rows, columns) if 2 * m // rows > n // columns else (rows, 2 * columns)
    return BlockShape(m, n, FMA_DEPTH, (rows, columns), "fma", stages)
