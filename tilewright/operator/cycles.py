"""Cycles of CPU kernels when all data are near: what the vector units, loads and stores of one core take.

The cost by which the rules choose register tiles, and with the bytes of a kernel its predicted time
(`runtime.roofline`). Rates are those of the machine description; nothing here depends on a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import log2, prod

from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import COSTLY, Apply, Axis, Cast, Const, Expr, Read, walk
from tilewright.expr.dtypes import INDEX, is_float
from tilewright.intrinsics.registry import catalogue
from tilewright.machine.description import Cpu
from tilewright.machine.roofline import OVERLAP
from tilewright.operator.depth_bounds import steps_left
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.row_lines import crowded, line_cycles
from tilewright.operator.statements import is_multiply_add, places
from tilewright.tiles.kernel import Kernel, Statement, joined
from tilewright.tiles.parts import RegisterTile, register_tiles
from tilewright.tiles.product import Product

FMA_LATENCY_CYCLES = 4  # x86 since Skylake and Zen 3, Neoverse N1 and later
LOST_CYCLES = 0.25  # of a step whose multiply-adds take as long as the latency. Measured on a Zen 3: from 0 to 1
LOST_WITHIN = 2  # cycles of difference from the latency, up to which some are lost: Zen 3, where 9 and 10 sums lose 4 %
# Vector instructions of functions in f32, counted in loops with code of `codegen/math`: on AVX-512, and on AVX2, with
# constants that are read again (normal_cdf: as many more as its whole loop has). Others take one.
INSTRUCTIONS = {
    "exp": (14, 30), "exp_nonpositive": (11, 16), "sigmoid": (15, 21), "tanh": (20, 31), "normal_cdf": (24, 45),
    "erf": (24, 38), "log": (20, 50), "div": (8, 8), "sqrt": (10, 10),
}  # fmt: skip
EXTREMES = ("max", "min")
EXTREME_INSTRUCTIONS = 3  # of floats where NaN wins: extreme, comparison, selection; one instruction with a constant
MEAN_INSTRUCTIONS = 2  # of a running mean: what deviates from it, times the share of an element, is added
COSTLY_INSTRUCTIONS = 30  # of costly functions that were not counted, an order of magnitude
ARITHMETIC_PER_CYCLE = 2  # vector instructions, where a machine file says nothing else
ISSUE_WIDTH = 4  # vector instructions per cycle: Zen 5 issues four, Golden Cove three
Ports = tuple[float, float, float]  # multiply-adds, loads and stores of a core in a cycle
Extra = tuple[float, float, float]  # instructions beside those of a product in its own type: of a row, a vector, a sum
NOTHING_EXTRA: Extra = (0.0, 0.0, 0.0)
# Factors that are widened where they are read: an element goes to a register and from there to all lanes; halves are
# shifted, or converted, too. Products of whole numbers are added by an instruction of their own. Counted in the code
# for AVX2.
WIDENED: dict[dtypes.DType, tuple[float, float]] = {"bf16": (3.0, 1.0), "f16": (3.0, 1.0)}
WIDENED_INTEGERS = 2.0, 1.0
ADDED = 1.0
ELEMENT_CYCLES = 0.3  # of an element that is not beside its neighbour, in squares transposed in registers: Zen 5


def product_cycles(work: Product, point: ProductPoint, machine: Cpu) -> float:
    """Cycles of a product with the register tile of a point, of all threads together."""
    return tiled_cycles(work, point.rows, -(-point.tile(work)[work.columns.name] // work.lanes), machine)


def tiled_cycles(work: Product, rows: Sequence[int], vectors: int, machine: Cpu) -> float:
    """Cycles of a product with a register tile of `rows` along each m loop by `vectors`, ragged tiles included.

    Steps that add zeros to a whole tile are left out. Convolutions of 2 to 64 channels on 7 to 56 pixels were 1.00 to
    1.07 times as fast without them (Zen 1), so that loops with bounds count as others do.
    """
    tile = {axis.name: points for axis, points in zip(work.rows, rows, strict=True)}
    k = prod(axis.size for axis in work.depth) / work.group * steps_left(work, tile)
    sizes = tuple(axis.size for axis in work.rows)
    ports = 1 / multiply_cycles(work, machine), machine.loads_per_cycle, machine.stores_per_cycle
    columns = -(-work.columns.size // work.lanes)
    lines = line_cycles(work, rows, vectors, machine) / prod(rows)
    tiles = _tiles_cycles(sizes, tuple(rows), columns, vectors, k, ports, extra_instructions(work), lines)
    return tiles * prod(axis.size for axis in work.outer)


def multiply_cycles(work: Product, machine: Cpu) -> float:
    """Cycles between two multiplications of a whole vector by the instruction of a product.

    What widens its factors is not in them (`extra_instructions`).
    """
    name, known = work.mapping.intrinsic, catalogue(machine.architecture)
    if name not in known or extra_instructions(work) != NOTHING_EXTRA:
        return machine.cycles_of(name)
    return machine.cycles_of(name, known.find(name).cost.issue_cycles)


def extra_instructions(work: Product) -> Extra:
    """What a product of narrow factors without an instruction for them takes beside one in the type of its sums."""
    wide = dtypes.size_bytes(work.total.dtype)
    if work.group > 1 or dtypes.size_bytes(work.a.tensor.dtype) >= wide:
        return NOTHING_EXTRA
    row, _ = WIDENED.get(work.a.tensor.dtype, WIDENED_INTEGERS)
    _, vector = WIDENED.get(work.b.tensor.dtype, WIDENED_INTEGERS)
    return row, vector, 0.0 if is_float(work.total.dtype) else ADDED


@lru_cache(maxsize=1 << 16)
def _tiles_cycles(
    sizes: tuple[int, ...],
    rows: tuple[int, ...],
    columns: int,
    vectors: int,
    k: float,
    ports: Ports,
    extra: Extra,
    lines: float,
) -> float:
    """Cycles of all tiles of rows of these sizes, by columns in vectors; layers of a network ask for the same ones.

    In each step the lines of a row take `lines` cycles beside the rest.
    """
    pieces = [_pieces(size, tile) for size, tile in zip(sizes, rows, strict=True)]
    total = 0.0
    for column_count, width in _pieces(columns, vectors):
        for combination in product(*pieces):
            count = prod((c for c, _ in combination), start=column_count)
            height = prod(size for _, size in combination)
            if count:
                total += count * (_tile_cycles(height, width, k, ports, extra) + k * height * lines)
    return total


def epilogue_cycles(work: Product, machine: Cpu) -> float:
    """Cycles of what is computed from the sums of a product before they are stored, of all threads together."""
    rows = prod(axis.size for axis in (*work.outer, *work.rows))
    arithmetic, loads = body_counts(work.epilogue, machine, work.columns, work.lanes)
    return rows * -(-work.columns.size // work.lanes) * slowest_port(arithmetic, loads, 0.0, machine)


def cycles_from_memory(work: Product, rows: Sequence[int], vectors: int, machine: Cpu) -> float:
    """Cycles of a product with such register tiles, where the first tiles of a panel of b wait until L2 has it.

    Tiles of many rows have the next panel on its way before they need it (`lower.prefetch`), those of few rows do not.
    The first tiles take their share of `tiled_cycles`, and bytes of b move at the rate of the level that holds all of
    b. Both hide behind each other in part: the taller the tiles, the larger their share. Nothing is hidden where rows
    of a tile take more than a third of the ways of one set of L1 (`row_lines`): lines that arrive early are evicted
    before use.
    """
    cycles = tiled_cycles(work, rows, vectors, machine)
    if prod(axis.size for axis in work.rows) >= machine.vector_registers:
        return cycles
    moved = arriving_cycles(work, machine)
    if not moved:
        return cycles
    if crowded(work.a, work.rows, rows, machine.caches[0]):
        return cycles + moved
    share = cycles / prod(-(-axis.size // size) for axis, size in zip(work.rows, rows, strict=True))
    arriving: float = (share**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)
    return cycles - share + arriving


def arriving_cycles(work: Product, machine: Cpu) -> float:
    """Cycles in which all of b comes from the level that holds it; 0 where L2, or the only cache, does."""
    used = {axis for axis in walk(work.b.index) if isinstance(axis, Axis)}
    loops = (*work.outer, work.columns, *work.depth)
    b_bytes = prod(axis.size for axis in loops if axis in used) * dtypes.size_bytes(work.b.tensor.dtype)
    near = machine.caches[:2][-1]
    return b_bytes / machine.rate_beyond_l2(b_bytes) if b_bytes > near.bytes else 0.0


def _pieces(extent: int, size: int) -> list[tuple[int, int]]:
    """How many full tiles, and the ragged one: (count, size)."""
    full, rest = divmod(extent, size)
    return [(full, size), (1, rest)] if rest else [(full, size)]


def _tile_cycles(rows: int, vectors: int, k: float, ports: Ports, extra: Extra) -> float:
    fma_units, loads_per_cycle, stores_per_cycle = ports
    fma = rows * vectors / fma_units
    loads = (rows + vectors) / loads_per_cycle
    step = max(_issue_cycles(fma), loads)
    if extra != NOTHING_EXTRA:
        per_row, per_vector, per_sum = extra
        instructions = rows * (1 + per_row) + vectors * (1 + per_vector) + rows * vectors * (1 + per_sum)
        step = max(step, instructions / ISSUE_WIDTH)
    # Twelve steps' worth of entering, leaving and storing; a small charge for loads breaks ties towards reuse.
    return k * (step + 0.02 * loads) + 2 * rows * vectors / stores_per_cycle + 12


def _issue_cycles(fma: float) -> float:
    """Cycles of one step along k, whose multiply-adds keep the units busy for `fma` cycles and follow those of the step
    before.

    Where both times are nearly equal, some cycles are lost: a sum that is ready may find both units busy.
    """
    lost = LOST_CYCLES * max(0.0, 1.0 - abs(fma - FMA_LATENCY_CYCLES) / LOST_WITHIN)
    return max(fma, FMA_LATENCY_CYCLES) + lost


# Nests ----------------------------------------------------------------------------------------------------------------


def nest_cycles(kernel: Kernel, machine: Cpu) -> float:
    """Cycles of element-wise work and reductions, of all threads together."""
    tiles = {leaf.op: tile for leaf, tile in register_tiles(kernel.tree)}
    usual = next(
        (tile for tile in tiles.values() if tile.vector), RegisterTile()
    )  # of what is computed where it is read
    following = joined(kernel)
    return sum(
        _statement_cycles(each, tiles.get(each.name, usual), machine, each.name in following)
        for each in kernel.statements
    )


def _statement_cycles(statement: Statement, tile: RegisterTile, machine: Cpu, follows: bool) -> float:
    loops = (*statement.axes, *statement.reduce)
    vector = next((axis for axis in loops if axis.name == tile.vector), None)
    extent = tile.along(tile.vector)
    lanes = 1 if vector is None else min(tile.lanes, extent)
    unrolled = {axis: tile.along(axis.name) for axis in loops if axis != vector and tile.along(axis.name) > 1}
    arithmetic, loads = body_counts(statement.body, machine, vector, lanes, unrolled)
    if follows:
        arithmetic, loads = following_instructions(statement, machine), 0.0
    arithmetic += accumulation_instructions(statement, vector)
    stores = 0.0 if statement.address is None else _access_cycles(statement.address, vector, lanes)
    points = prod(axis.size for axis in loops if axis != vector)
    vectors = 1 if vector is None else -(-vector.size // extent) * extent / lanes
    cycles = points * vectors * slowest_port(arithmetic, loads, stores, machine)
    if statement.accum is None or vector not in statement.reduce:
        return cycles
    return cycles + prod(axis.size for axis in statement.axes) * 2 * FMA_LATENCY_CYCLES * log2(lanes)  # lanes combined


def accumulation_instructions(statement: Statement, vector: Axis | None) -> float:
    """Arithmetic instructions beside its body that take one vector of a reduction into what it has so far.

    A product is added by the instruction that multiplies, unless vectors run along the sum.
    """
    if statement.accum is None:
        return 0
    if statement.accum == "sum" and vector not in statement.reduce:
        return 0 if is_multiply_add(statement.body, statement.tensor.dtype) else 1
    keeps_nan = statement.accum in EXTREMES and is_float(statement.tensor.dtype) and not statement.ignores_nan
    return EXTREME_INSTRUCTIONS if keeps_nan else 1


def following_instructions(statement: Statement, machine: Cpu) -> float:
    """Arithmetic instructions for one vector of a sum that follows another reduction in its pass, elements being known.

    Every lane takes one element in a step: the sum so far moves to another running value for each.
    """
    rule = statement.follows
    assert rule is not None
    parts = [rule.term, *([] if rule.factor is None else [rule.factor])]
    arithmetic = sum(body_counts(part, machine, None, 1)[0] for part in parts)
    return arithmetic + (0 if rule.factor is None else 1) + (0 if rule.offset is None else MEAN_INSTRUCTIONS)


def body_counts(
    body: Expr, machine: Cpu, vector: Axis | None, lanes: int, unrolled: Mapping[Axis, int] | None = None
) -> tuple[float, float]:
    """Arithmetic instructions and loads for one vector of a body.

    Points of the loops that are `unrolled` in a step load what they share once.
    """
    arithmetic = loads = 0.0
    for each in walk(body):
        if isinstance(each, Read) and each.indices:
            loads += _access_cycles(each.indices[0], vector, lanes) * _distinct(each.indices[0], unrolled or {})
        elif isinstance(each, Cast) or (isinstance(each, Apply) and each.dtype != INDEX):
            arithmetic += _instructions(each, machine)
    return arithmetic, loads


def _distinct(index: Expr, unrolled: Mapping[Axis, int]) -> float:
    """The share of the points of a step that an address differs at."""
    form = affine(index)
    if form is None:
        return 1.0
    distinct = places((form.coefficient(axis), points) for axis, points in unrolled.items())
    return len(distinct) / prod(unrolled.values())


def arithmetic_per_cycle(machine: Cpu) -> float:
    """Vector instructions of a usual mix."""
    return machine.arithmetic_per_cycle or ARITHMETIC_PER_CYCLE


def slowest_port(arithmetic: float, loads: float, stores: float, machine: Cpu) -> float:
    """Cycles for so many vector instructions: of the units, of the ports to memory, or to issue them all."""
    computed = arithmetic / arithmetic_per_cycle(machine)
    ports = loads / machine.loads_per_cycle, stores / machine.stores_per_cycle
    return max(computed, *ports, (arithmetic + loads + stores) / ISSUE_WIDTH)


def _instructions(node: Cast | Apply, machine: Cpu) -> float:
    if isinstance(node, Cast):
        return 1
    if node.function in EXTREMES and is_float(node.dtype) and not any(isinstance(each, Const) for each in node.args):
        return EXTREME_INSTRUCTIONS
    if node.function not in INSTRUCTIONS:
        return COSTLY_INSTRUCTIONS if node.function in COSTLY else 1
    with_masks, without = INSTRUCTIONS[node.function]
    return with_masks if machine.vector_bits >= 512 else without


def _access_cycles(index: Expr, vector: Axis | None, lanes: int) -> float:
    """Accesses of a port for one vector: one where elements are neighbours or all the same, else each for itself."""
    if vector is None:
        return 1.0
    form = affine(index)
    if form is None:
        return 1.0  # its other loops are looked up, the vector's runs are not
    return 1.0 if form.coefficient(vector) in (0, 1) else 2 * ELEMENT_CYCLES * lanes
