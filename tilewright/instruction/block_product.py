"""Products that blocks of a GPU's threads run: the role of every loop, and the tile of a block by the MMA schedule.

Roles come from which reads a loop indexes: m loops index one factor and the result, an n loop the other one and the
result, k loops are summed, what indexes both factors and the result is a batch. Windows are loops that share an index.
The tile is the cheapest of `block_tiles`, over the matrix records of the machine and what `instruction.mma` deduces for
the product of all m by n by all k, each rounded up: what sticks out is masked, and so costs no more than the tile it is
part of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from math import prod
from typing import Literal

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.errors import ScheduleError
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Cast, Compute, Read, static_shape
from tilewright.instruction.block_tiles import BlockProblem, Candidate, Ranking, is_boxed, precision_of, rank, sliced
from tilewright.instruction.canonical import keeps_value
from tilewright.instruction.in_place import loops_of, product_factors
from tilewright.instruction.mma.deduce import deduce_mma
from tilewright.instruction.mma.eligibility import usable
from tilewright.instruction.mma.policy import Options, Policy
from tilewright.instruction.mma.problem import MmaProblem, bits, element_type
from tilewright.instruction.mma.schedule import LISTS, MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, mma_target, view
from tilewright.instruction.mma.trace import Trace
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import Registry, standard
from tilewright.layouts.bits import log2, power_from
from tilewright.layouts.copy_engine import CLUSTERS
from tilewright.machine.description import Gpu
from tilewright.operator.rules.gpu_product import BlockShape

ROUNDING = "round-operands"  # the pass that rounds what instructions read as tf32
# Chosen, where the deduction leaves it open and for multiply-adds.
STAGES = 3  # slices of k in shared memory where copies are asynchronous: one is read while two are on their way
FMA_DEPTH = 8  # points of k for which a thread keeps its rows and columns in registers
# Tiles of a block without a matrix instruction, and rows and columns of a thread: the first that fits.
FMA_TILES = (((128, 128), (8, 8)), ((128, 64), (8, 4)), ((64, 64), (4, 4)))
FMA_REGISTERS = 192  # of a thread, for sums and what it keeps: 8 x 8 of f32, for which ptxas 13.0 takes 153 in all


@dataclass(frozen=True)
class BlockProduct:
    """A compute as a product: factor `a` is indexed by the m loops, `b` by the n loop; `outer` loops are not tiled."""

    compute: Compute
    outer: tuple[Axis, ...]
    m_loops: tuple[Axis, ...]
    n_loop: Axis
    k_loops: tuple[Axis, ...]
    a: Read
    b: Read

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Points of all m loops, of the n loop, of all k loops."""
        return _points(self.m_loops), _points((self.n_loop,)), _points(self.k_loops)

    def __str__(self) -> str:
        roles = ("outer", self.outer), ("m", self.m_loops), ("n", (self.n_loop,)), ("k", self.k_loops)
        loops = ", ".join(f"{role} {' '.join(axis.name for axis in axes)}" for role, axes in roles if axes)
        return f"{self.a.tensor.name} x {self.b.tensor.name} ({loops})"


def find_block_product(compute: Compute) -> tuple[BlockProduct | None, Decision | None]:
    """The product that a compute is, if blocks are to run it, and why; no decision for what is no sum of products."""
    factors = product_factors(compute)
    if factors is None or any(axis.extent == 0 for axis in compute.loops):
        return None, None
    subject, refused = f"product of {compute.name}", []
    found: list[BlockProduct] = []
    for a, b in (factors, factors[::-1]):
        rule = _refuse(compute, a, b)
        if rule is None:
            found += _products(compute, a, b)
        else:
            refused.append(Refusal(f"{a.tensor.name} x {b.tensor.name}", rule))
    if not found:
        return None, Decision(subject, "none", "it runs as a nest", refused=tuple(dict.fromkeys(refused)))
    ranked = sorted(found, key=_preference)
    second = str(ranked[1]) if len(ranked) > 1 else ""
    reason, more = (_advantage(each) for each in (ranked[0], ranked[min(1, len(ranked) - 1)]))
    more = more if second else ""
    return ranked[0], Decision(subject, str(ranked[0]), reason, second, more, tuple(dict.fromkeys(refused)))


def block_shape(
    product: BlockProduct, machine: Gpu, *, input_precision: str = "ieee", intrinsics: Registry | None = None,
    off: Collection[str] = (), no_boxes: str = "", result: str = "",
    choose: Callable[[Ranking], Candidate | None] = lambda ranking: None, route: str = "auto", cluster: int = 1,
) -> tuple[BlockShape, Decision]:  # fmt: skip
    """The tile of a block for a product: the cheapest of `block_candidates`; without one, for multiply-adds.

    `choose` is asked first. A tile whose operands come by boxes is one of `cluster` blocks that share them; prices know
    nothing of that.
    """
    subject = f"block of {product.compute.name}"
    m, n, k = product.sizes
    a, b, c = _types(product)
    found, deductions = block_candidates(
        product, machine, input_precision=input_precision, intrinsics=intrinsics, off=off, no_boxes=no_boxes,
        result=result, route=route,
    )  # fmt: skip
    by_route = "" if route == "auto" else f" by {route}"
    what = f"{m}x{n}x{k} {a},{b}->{c}{by_route}"
    if not found.candidates:
        target = mma_target(machine, intrinsics)
        stages = STAGES if target.async_copies else 1
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
        f"{first.shared_bytes} bytes of block memory"
    )
    reason += _reading(first, off)
    if cluster > 1:
        alone = _alone(first, (m, n), cluster, machine, off)
        first = first if alone else replace(first, shape=replace(first.shape, cluster=cluster))
        shared = f"{cluster} blocks bring together what all read, where that is less, as asked: measured on no GPU"
        reason += f"; no clusters of {cluster} blocks: {alone}" if alone else f"; {shared}"
    tile = (first.shape.m, first.shape.n, first.shape.k)
    other = next((each for each in others if (each.shape.m, each.shape.n, each.shape.k) != tile), None)
    second, price = (str(other), f"{other.cycles:.0f} cycles") if other else ("", "")
    cost = Cost(cycles=first.cycles)
    other_cost = Cost(cycles=other.cycles) if other and asked is None else None
    return first.shape, Decision(subject, str(first), reason, second, price, found.refused, cost, other_cost)


def _alone(tile: Candidate, sizes: tuple[int, int], cluster: int, machine: Gpu, off: Collection[str]) -> str:
    """Why so many blocks cannot share what they read of a product of m rows and n columns; empty where they can."""
    if CLUSTERS not in machine.features:
        return f"{machine.name} has none"
    if "share-copies" in off:
        return "share-copies is switched off"
    if not tile.boxed:
        return "its operands come without the copy engine"
    tiles = [-(-size // side) for size, side in zip(sizes, (tile.shape.m, tile.shape.n), strict=True)]
    return "" if max(tiles) >= cluster else f"there are {tiles[0]} x {tiles[1]} tiles"


def block_candidates(
    product: BlockProduct, machine: Gpu, *, input_precision: str = "ieee", intrinsics: Registry | None = None,
    off: Collection[str] = (), no_boxes: str = "", result: str = "", route: str = "auto",
) -> tuple[Ranking, tuple[Refusal, ...]]:  # fmt: skip
    """Every tile that a block may have on a matrix instruction, cheapest first, and why none was deduced.

    `off` names passes that are left out, `no_boxes` says why the copy engine cannot move an operand, `result` is the
    type in which the result is stored (default: that of the sums). `route` is a value of `Options.mma`; "auto" takes
    instructions of unspecified fragment layouts only where there are no others. `input_precision` is that of `Options`.
    """
    target, mma = mma_target(machine, intrinsics), _problem(product, input_precision != "ieee")
    m, n, k = product.sizes
    stages = STAGES if target.async_copies else 1
    forbidden = _forbidden(target, mma, route)
    table: Literal["wmma"] | None = "wmma" if any(not x.distributable for x in _allowed(target, forbidden)) else None
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
    records: tuple[Intrinsic, ...] = ()
    if target.async_copies or table is not None or not deduced:
        records = _records(target, registry, mma, forbidden)
    if route != "auto":
        records = tuple(record for record in records if not is_boxed(record))
    result_bytes = dtypes.size_bytes(result) if result else bits(mma.c) // 8
    problem = BlockProblem(m, n, k, _points(product.outer), mma, result_bytes, no_boxes, input_precision)
    refusals = tuple(Refusal(path, str(reason)) for path, reason in deduction.refusals)
    return rank(problem, machine, records, deduced, frozenset(off)), refusals


def multiply_add_cycles(
    product: BlockProduct, machine: Gpu, intrinsics: Registry | None = None, route: str = "auto"
) -> float | None:
    """Cycles of a multiprocessor per multiply-add on the fastest instruction that takes the types of a product.

    None where no instruction does, without tf32.
    """
    target, mma = mma_target(machine, intrinsics), _problem(product)
    registry = standard() if intrinsics is None else intrinsics
    records = _records(target, registry, mma, _forbidden(target, mma, route))
    costs = (record.cost.issue_cycles / record.macs / record.cost.units_per_core for record in records)
    return min(costs, default=None)


def _problem(product: BlockProduct, tf32: bool = False) -> MmaProblem:
    """The product of all m by n by all k, each rounded up."""
    m, n, k = ((_rounded(size),) for size in product.sizes)
    return MmaProblem(m, n, k, (), *_types(product), tf32_allowed=tf32,
                      lhs_transposed=_transposed(product.a, product.k_loops),
                      rhs_transposed=_transposed(product.b, (product.n_loop,)))  # fmt: skip


def _without(a: str, input_precision: str) -> str:
    return " with input_precision ieee" if a == "f32" and input_precision == "ieee" else ""


def _reading(chosen: Candidate, off: Collection[str]) -> str:
    """What an instruction that reads tf32 makes of f32."""
    if chosen.record.sources[0].dtype != "tf32":
        return ""
    if chosen.shape.precision:
        return "; f32 is the sum of two tf32, three products for one"
    if chosen.boxed:
        return "; f32 is cut to tf32, since operands in block memory pass no registers in which to round"
    return "; f32 is cut to tf32" if ROUNDING in off else "; f32 is rounded to tf32"


def _allowed(target: MmaTarget, forbidden: Collection[str]) -> list[MmaIntrinsic]:
    return [x for x in target.intrinsics if x.name not in forbidden]


def _forbidden(target: MmaTarget, mma: MmaProblem, route: str) -> frozenset[str]:
    """The instructions of one warp that a route leaves out, and those that are made up of others."""
    virtual = {x.name for x in target.intrinsics if x.virtual}
    told = {x.name for x in target.intrinsics if x.distributable}
    opaque = {x.name for x in target.intrinsics} - told
    if route == "wmma":
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


# Roles ----------------------------------------------------------------------------------------------------------------


def _refuse(compute: Compute, a: Read, b: Read) -> str | None:
    """The rule that keeps a compute from being a product of these factors, or None."""
    body = compute.body
    assert isinstance(body, Apply)
    for factor in body.args:
        if isinstance(factor, Cast) and not keeps_value(factor.arg.dtype, factor.dtype):
            return "casts of factors keep their values"
    try:
        for dtype in (a.dtype, b.dtype, compute.output.dtype):
            element_type(dtype)
    except ScheduleError:
        return "factors and sums are of types that products have"
    if dtypes.is_float(a.dtype) != dtypes.is_float(compute.output.dtype) or dtypes.is_float(a.dtype) != dtypes.is_float(
        b.dtype
    ):
        return "factors and sums are all integers or all floats"
    in_a, in_b = loops_of(a), loops_of(b)
    live = [axis for axis in compute.loops if axis.extent != 1]
    if any(axis not in in_a and axis not in in_b for axis in live):
        return "every loop indexes a factor"
    if not any(axis in compute.reduce for axis in live):
        return "there is something to sum"
    if not any(axis in in_a and axis not in in_b for axis in live if axis in compute.axes):
        return "a loop indexes the rows: a row alone is a reduction"
    if not any(axis in in_b and axis not in in_a for axis in live if axis in compute.axes):
        return "a loop indexes the columns: a column alone is a reduction"
    return None


def _products(compute: Compute, a: Read, b: Read) -> Iterator[BlockProduct]:
    """One product per loop that may be n; other loops of b are outside."""
    in_a, in_b = loops_of(a), loops_of(b)
    live = [axis for axis in compute.axes if axis.extent != 1]
    m_loops = tuple(axis for axis in live if axis in in_a and axis not in in_b)
    k_loops = tuple(axis for axis in compute.reduce if axis.extent != 1)
    for n_loop in live:
        if n_loop in in_b and n_loop not in in_a:
            outer = tuple(axis for axis in live if axis not in m_loops and axis != n_loop)
            yield BlockProduct(compute, outer, m_loops, n_loop, k_loops, a, b)


def _preference(product: BlockProduct) -> tuple[int, bool]:
    last = [axis for axis in product.compute.axes if axis.extent != 1][-1]
    return _points(product.outer), product.n_loop != last


def _advantage(product: BlockProduct) -> str:
    products, last = _preference(product)
    return f"{products} {'product' if products == 1 else 'products'}, columns {'not ' if last else ''}along the result"


def _points(axes: tuple[Axis, ...]) -> int:
    return prod(static_shape(tuple(axis.extent for axis in axes)))


# Tiles ----------------------------------------------------------------------------------------------------------------


def _types(product: BlockProduct) -> tuple[str, str, str]:
    """Element types of the factors and of the sums; narrow floats are summed in f32."""
    c = product.compute.output.dtype
    return element_type(product.a.dtype), element_type(product.b.dtype), "f32" if c in ("f16", "bf16") else c


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
    """The first tile for multiply-adds, of `words` per sum, that registers hold, that leaves half of block memory where
    it passes through that, and of which every multiprocessor gets one; with as many warps as it has sums for.
    """
    for tile, box in FMA_TILES:
        held, passing = (prod(box) + FMA_DEPTH * sum(box)) * words, 4 * words * prod(tile)
        blocks = prod(-(-size // most) for size, most in zip(rounded, tile, strict=True))
        fits = held <= FMA_REGISTERS and 2 * passing <= machine.shared_bytes_per_block
        if fits and blocks >= machine.multiprocessors:
            break
    m, n = (min(most, size) for most, size in zip(tile, rounded, strict=True))
    rows, columns = 1, 1
    while rows * columns * lanes * prod(box) < m * n:
        rows, columns = (2 * rows, columns) if m // rows > n // columns else (rows, 2 * columns)
    return BlockShape(m, n, FMA_DEPTH, (rows, columns), "fma", stages)
