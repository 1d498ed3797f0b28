"""Seconds of a CPU product under a schedule, predicted: what the joint search asks about every point of its space.

In: a `Product` (which loops are rows, vector and sums) and a `ProductPoint` (register tile, order of loops,
blocks of k). A call of the model is one step of k of a whole register tile: its multiply-adds at the measured rate, its
loads and the latency of a sum, beside each other. Everything outside is loops
through caches, which hold lines (`caches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from statistics import fmean

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Expr, Read, walk
from tilewright.instruction.caches import Step, Strided, levels_in_caches
from tilewright.instruction.model import Access, Hierarchy, Prediction, combined, core_cycles, core_latency, predict
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.operator.product_point import ProductPoint, k_unroll
from tilewright.search.cost import Evaluation
from tilewright.tiles.product import Product

WINDOW_INSTRUCTIONS = 224  # that a processor looks ahead: Skylake's reorder buffer; later ones have more
# How well times hide each other (`model.combined`), from 1200 schedules of ResNet-18's layers on Zen 1, Zen 5 and
# Emerald Rapids: bytes that come and go beside computing (3 fits the first two best, 2 the third), and what one step
# does at once.
OVERLAP_BYTES, OVERLAP_PORTS = 3.0, 8.0
# Parts of a cache that loops are tried in: of what exceeds it by little, most lines are found all the same, and some of
# what just fits are not. From 1200 schedules on Zen 3.
HOLDS = 0.7, 1.0, 1.4
TILE_CYCLES = 12  # to enter and leave the loop over the sums of a register tile: branches, the first loads


@dataclass(frozen=True)
class ProductCost:
    """The predicted cost of schedules of one product: a `Cost` of level 2.

    `record` is the multiply-add or dot product on one vector that executes it.
    """

    work: Product
    record: Intrinsic
    machine: Hierarchy

    def __call__(self, point: ProductPoint) -> Evaluation:
        return self.predict(point).evaluation()

    def predict(self, point: ProductPoint, blocks: Mapping[str, int] | None = None) -> Prediction:
        """Time and bottleneck of a point whose loops are distributed in `blocks` to the cores.

        The time is the mean of those with caches that hold less and more than they should (`HOLDS`); levels are those
        of the middle one.
        """
        steps, units, parallel = _steps(self.work, point, blocks or {}, self.machine.cores)
        accesses = _accesses(self.work, point)
        call_cycles = self._tile_cycles(point) / prod(step.count for step in steps)
        found = []
        for machine in self._machines:
            levels = levels_in_caches(steps, units, accesses, machine, parallel)
            found.append(predict(levels, call_cycles, machine, overlap=OVERLAP_BYTES))
        cycles, seconds = (fmean(getattr(each, name) for each in found) for name in ("cycles", "seconds"))
        return replace(found[len(found) // 2], cycles=cycles, seconds=seconds)

    @cached_property
    def _machines(self) -> tuple[Hierarchy, ...]:
        """The machine with caches of other sizes; what the last one does not hold is a matter of rates."""
        registers, *caches, last = self.machine.levels
        return tuple(
            replace(
                self.machine,
                levels=(
                    registers,
                    *(replace(each, capacity_bytes=each.capacity_bytes * holds) for each in caches),
                    last,
                ),
            )
            for holds in HOLDS
        )

    def _tile_cycles(self, point: ProductPoint) -> float:
        """Cycles of all register tiles on one core when all data are near; ragged tiles take what they need."""
        work = self.work
        first = work.depth[0].size
        k_block, tile = point.k_block(work), point.tile(work)
        visits = -(-first // k_block) if k_block else 1
        steps = prod(axis.size for axis in work.depth) / work.group / visits
        rows = [_pieces(axis.size, tile.get(axis.name, 1)) for axis in work.rows]
        lanes = prod(self.record.shape(self.record.destination))
        width = -(-tile[work.columns.name] // lanes)
        columns = _pieces(-(-work.columns.size // lanes), width)
        unrolled = k_unroll(work) // work.group
        total = 0.0
        for (count, vectors), *row_tiles in product(columns, *rows):
            height = prod(size for _, size in row_tiles)
            tiles = prod((each for each, _ in row_tiles), start=count)
            total += tiles * self._visit_cycles(height, vectors, steps, visits, unrolled)
        return total * visits * prod(axis.size for axis in work.outer)

    def _visit_cycles(self, rows: int, vectors: int, steps: float, visits: int, unrolled: int) -> float:
        """Cycles of some steps of one register tile; sums that are visited again are loaded and stored each time."""
        registers = self.machine.levels[0]
        vector_bytes = prod(self.record.shape(self.record.destination)) * dtypes.size_bytes(self.work.total.dtype)
        sums = rows * vectors
        multiply = sums * core_cycles(self.record, self.machine)
        load = rows * self.machine.broadcast_cycles + vectors * vector_bytes / registers.in_bytes_per_cycle
        underway = 1 + WINDOW_INSTRUCTIONS / (steps * (sums + rows + vectors))  # tiles at once
        latency = core_latency(self.record, self.machine) / underway
        moved = sums * vector_bytes / registers.out_bytes_per_cycle
        if visits > 1:
            moved += sums * vector_bytes / registers.in_bytes_per_cycle
        computed = steps * combined((multiply, load, latency), OVERLAP_PORTS)
        entered = TILE_CYCLES if steps > unrolled else 0
        return combined((computed, moved), OVERLAP_BYTES) + entered


def _pieces(extent: int, size: int) -> list[tuple[int, int]]:
    """Full tiles and the ragged one, as (count, size)."""
    full, rest = divmod(extent, size)
    return [(count, each) for count, each in ((full, size), (1, rest)) if count and each]


# Loops ----------------------------------------------------------------------------------------------------------------


def _steps(
    work: Product, point: ProductPoint, blocks: Mapping[str, int], cores: int
) -> tuple[list[Step], dict[str, float], frozenset[int]]:
    """The loops around a call, outermost first, elements per call, and which loops are distributed to cores."""
    extents = {axis.name: axis.size for axis in (*work.outer, *work.rows, work.columns, *work.depth)}
    tile, k_block = point.tile(work), point.k_block(work)
    units = {name: min(tile.get(name, 1), extent) for name, extent in extents.items()}
    units[work.depth[-1].name] = min(work.group, extents[work.depth[-1].name])
    trips = {name: -(-extent // units[name]) for name, extent in extents.items()}
    touched = {name: extents[name] / trips[name] for name in units}  # by ragged tiles less
    steps = []
    for axis in work.spatial:
        name = axis.name
        programs = min(blocks.get(name, 1), trips[name])
        if programs > 1:
            steps.append(Step(name, "S", programs))
            trips[name] = -(-trips[name] // programs)
    parallel = frozenset(range(len(steps)) if cores > 1 else ())
    first, *others = (axis.name for axis in work.depth)
    for name in (*(axis.name for axis in work.outer), *point.order):
        steps.append(Step(name, "S", trips[name]))
        if name == work.columns.name and k_block:
            block = -(-k_block // units[first])
            steps.append(Step(first, "R", -(-trips[first] // block)))
            trips[first] = block
    steps += [Step(name, "R", trips[name]) for name in (first, *others)]
    return steps, touched, parallel


# Accesses -------------------------------------------------------------------------------------------------------------


def _accesses(work: Product, point: ProductPoint) -> tuple[Access, ...]:
    """The two factors, the result, and what the epilogue reads, which moves when a result does.

    With blocks of k, sums are read back.
    """
    found = [_access(work.a.tensor.dtype, work.a.index), _access(work.b.tensor.dtype, work.b.index)]
    found.append(_access(work.output.dtype, work.index, output=True))
    if point.k_block(work):
        found.append(_access(work.output.dtype, work.index, again=True))
    for read in (node for node in walk(work.epilogue) if isinstance(node, Read)):
        if read.tensor.name != work.total.name:
            found.append(_access(read.tensor.dtype, read.indices[0], output=True))
    return tuple(found)


def _access(dtype: dtypes.DType, index: Expr, *, output: bool = False, again: bool = False) -> Access:
    """An operand by its linear address; one that is not affine (panels) has a dimension for each of its loops."""
    form = affine(index)
    size = dtypes.size_bytes(dtype)
    if form is None:
        names = dict.fromkeys(node.name for node in walk(index) if isinstance(node, Axis))
        return Access(tuple({name: 1} for name in names), size, output)
    return Strided(({axis.name: step for axis, step in form.terms.items()},), size, output, again)


__all__: Sequence[str] = ("ProductCost",)
