"""Products to one kernel of blocks: a tile of the result per block, a loop over k tiles around `tile.dot`.

The rows of a tile are points of the m loops, a k tile has points of the k loops: windows, strides and any order of
storage are strides of a load, not copies. Where a tile sticks out of a loop, loads give zeros and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TypeAlias

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, i64
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Expr, Tensor
from tilewright.intrinsics.registry import standard
from tilewright.kernel import dialect as tile
from tilewright.kernel.records import is_of_four_warps
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.loops import Point, TileAxis, grid_of
from tilewright.lower.output_tile import OutputTile
from tilewright.operator.block_tree import block_tree
from tilewright.operator.box_dims import box_dims
from tilewright.operator.rules.gpu_product import dimension_of
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Operand, Product

_Bounded: TypeAlias = "tuple[Axis, SSAValue | None]"  # a dimension, and how many of its points exist, if some do not


def lower_blocks(name: str, kernel: Kernel, views: Sequence[tuple[Tensor, int]]) -> tile.FuncOp:
    """The kernel of a product with its epilogue, a block for every tile of the result."""
    tree = block_tree(kernel)
    grid = tree.grid
    func = tile.FuncOp(name, [view_type(tensor.dtype, size) for tensor, size in views], grid_of(grid))
    func.attributes["warps"] = DenseArrayBase.from_list(i64, tree.warps)
    func.attributes["stages"] = IntegerAttr(tree.stages, 64)
    for name, count in (("splits", tree.splits), ("cluster", tree.cluster)):
        if count > 1:
            func.attributes[name] = IntegerAttr(count, 64)
    builder = KernelBuilder(func.body.block)
    memory = {tensor.name: argument for (tensor, _), argument in zip(views, func.body.block.args, strict=True)}
    point = point_of_block(builder, grid)
    product = BlockTile(builder, tree.work, tree.points, tree.k_tiles, memory, point)
    product.finish(product.sums())
    builder.insert(tile.ReturnOp())
    return func


def point_of_block(builder: KernelBuilder, grid: Sequence[SpatialLoop], uneven: Axis | None = None) -> Point:
    """Where the tile of this block stands; ragged loops have bounds, which may exceed the tile.

    Tiles along the loop `uneven` take longer and longer: they come in turns (`_in_turns`).
    """
    replaced: dict[Axis, Expr] = {}
    counters: dict[Axis, SSAValue] = {}
    dims: list[Axis] = []
    bounds: dict[int, SSAValue] = {}
    distributed = 0
    for loop in grid:
        counter, inside = TileAxis(f"{loop.axis.name}.t", loop.programs), TileAxis(f"{loop.axis.name}.i", loop.quantum)
        counters[counter] = builder.index(0)
        if loop.programs > 1:
            counters[counter] = builder.insert(tile.ProgramIdOp(distributed))
            if loop.axis == uneven:
                counters[counter] = _in_turns(builder, counters[counter], loop.programs)
            distributed += 1
        if loop.quantum == 1:
            replaced[loop.axis] = counter
            continue
        replaced[loop.axis] = counter * loop.quantum + inside
        if loop.rest:
            start = builder.mul(counters[counter], builder.index(loop.quantum))
            bounds[len(dims)] = builder.insert(arith.SubiOp(builder.index(loop.extent), start))
        dims.append(inside)
    return Point(replaced, counters, tuple(dims), bounds)


def _in_turns(builder: KernelBuilder, number: SSAValue, programs: int) -> SSAValue:
    """Program `number` of some as tiles 0, 1, … half, last, last but one, …

    Programs that one multiprocessor runs are as far apart as there are multiprocessors. Where that and the number of
    programs have a factor in common, it would run short tiles only, or long ones; like this it runs both.
    """
    half = -(-programs // 2)
    behind = builder.insert(arith.SubiOp(builder.index(programs - 1 + half), number))
    first = builder.insert(tile.CompareOp("lt", number, builder.index(half)))
    return builder.insert(tile.SelectOp(first, number, behind))


@dataclass(frozen=True)
class _Slice:
    """One k tile: the depth loops in terms of counters and dimensions of the tile, and the values of all counters."""

    where: Mapping[Axis, Expr]
    counters: Mapping[Axis, SSAValue]
    deep: Sequence[_Bounded]


class BlockTile(OutputTile):
    """The tile of one block: products over the k tiles, epilogue, store."""

    def __init__(
        self, builder: KernelBuilder, work: Product, points: Mapping[str, int], k_tiles: Mapping[str, int],
        memory: Mapping[str, SSAValue], point: Point,
    ) -> None:  # fmt: skip
        """`points` are those of a tile along each loop, `k_tiles` says in how many each depth loop is cut, in order."""
        super().__init__(builder, work, memory, point)
        axes = {axis.name: axis for axis in work.depth}
        self.k_tiles = [(axes[name], points.get(name, 1), max(1, count)) for name, count in k_tiles.items()]

    def sums(self, a: SSAValue | None = None) -> SSAValue:
        """The sums over all k tiles; `a` is the factor of the only one, where it is known."""
        builder = self.builder
        if a is not None:
            return self.add(builder.index(0), self.zero(), a)
        tiles = prod(count for _, _, count in self.k_tiles)
        (total,) = builder.loop(
            builder.index(0), builder.index(tiles), lambda index, sums: [self.add(index, sums[0])], [self.zero()]
        )
        return total

    def add(self, index: SSAValue, total: SSAValue, a: SSAValue | None = None) -> SSAValue:
        """The sums with the products of k tile number `index`; `a` is its first factor, where that is known."""
        work, at = self.work, self._slice(index)
        a = self._factor_a(at) if a is None else a
        assert self.n_dim is not None, "the n loop is tiled"
        columns = [self._dim(self.n_dim)]
        b = self._load(work.b, [*at.deep, *columns], (self._depth, self.n_extent), at.where, at.counters)
        unsigned = "".join(
            label for label, operand in (("a", work.a), ("b", work.b)) if dtypes.is_unsigned(operand.tensor.dtype)
        )
        mapping = work.mapping
        return self.builder.insert(tile.DotOp(mapping.intrinsic, a, b, total, unsigned, mapping.precision))

    def factor_a(self, index: SSAValue) -> SSAValue:
        """The first factor of k tile number `index`, as a matrix."""
        return self._factor_a(self._slice(index))

    def _factor_a(self, at: _Slice) -> SSAValue:
        work = self.work
        rows = [self._dim(position) for position in range(len(self.point.dims)) if position != self.n_dim]
        if work.a.guard is None and _is_of_four_warps(work.mapping.intrinsic):
            rows = self._in_image(rows, at.where, at.counters)
        return self._load(work.a, [*rows, *at.deep], (self.rows, self._depth), at.where, at.counters)

    @property
    def _depth(self) -> int:
        return prod(size for _, size, _ in self.k_tiles)

    def _slice(self, index: SSAValue) -> _Slice:
        where: dict[Axis, Expr] = {}
        counters, deep = dict(self.point.counters), list[_Bounded]()
        for axis, size, number in self._places(index):
            counter, inside = TileAxis(f"{axis.name}.t", axis.extent), TileAxis(f"{axis.name}.i", size)
            counters[counter] = number
            where[axis] = counter * size + inside if size > 1 else counter
            if size > 1:
                deep.append((inside, self._left(int(axis.extent), size, number)))  # type: ignore[arg-type]
        return _Slice(where, counters, deep)

    def _places(self, index: SSAValue) -> list[tuple[Axis, int, SSAValue]]:
        """Every k loop, the points of it in a slice, and the number of slice `index` along it; the last is fastest."""
        builder, left = self.builder, index
        found: list[tuple[Axis, int, SSAValue]] = []
        outer = next((axis for axis, _, count in self.k_tiles if count > 1), None)
        for axis, size, count in reversed(self.k_tiles):
            number = builder.index(0)
            if axis == outer:
                number = left
            elif count > 1:
                number = builder.insert(arith.RemUIOp(left, builder.index(count)))
                left = builder.insert(arith.DivUIOp(left, builder.index(count)))
            found.insert(0, (axis, size, number))
        return found

    def _dim(self, position: int) -> _Bounded:
        """A dimension of the tile, and how many of its points exist, if some do not."""
        return self.point.dims[position], self.point.bounds.get(position)

    def _left(self, extent: int, size: int, number: SSAValue) -> SSAValue | None:
        """Points of a loop from slice `number` on, if the last slice is ragged."""
        if extent % size == 0:
            return None
        return self.builder.insert(
            arith.SubiOp(self.builder.index(extent), self.builder.mul(number, self.builder.index(size)))
        )

    def _in_image(
        self, rows: Sequence[_Bounded], where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue]
    ) -> list[_Bounded]:
        """The rows of a tile of a with bounds that are those of memory: what a window has beyond the result's.

        Nothing of such rows is stored, and a box of a tensor has its coordinates and extents whatever is stored.
        """
        builder, form, whole = self.builder, self.address(self.work.a.index, where), affine(self.work.a.index)
        assert whole is not None, "an operand of a product"
        strides = [whole.coefficient(axis) for axis in self.work.rows]
        found: list[_Bounded] = []
        for axis, bound in rows:
            for loop, size, count in self.k_tiles:
                counter, step = where[loop], whole.coefficient(loop)
                if bound is None or size > 1 or count == 1 or dimension_of(step, strides) != form.coefficient(axis):
                    continue
                assert isinstance(counter, Axis), "a slice is at one point of the loop"
                ratio = step // form.coefficient(axis)
                moved = builder.mul(counters[counter], builder.index(ratio))
                reached = builder.insert(arith.AddiOp(bound, builder.index((count - 1) * ratio)))
                bound = builder.insert(arith.SubiOp(reached, moved))
            found.append((axis, bound))
        return found

    def _load(
        self, operand: Operand, dims: Sequence[_Bounded], shape: tuple[int, int],
        where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue],
    ) -> SSAValue:  # fmt: skip
        """The part of an operand that one product reads, as a matrix."""
        if operand.guard is not None:
            return self._load_box(operand, dims, shape, where, counters)
        builder = self.builder
        form = self.address(operand.index, where)
        extents = [int(axis.extent) for axis, _ in dims]  # type: ignore[arg-type]
        bounds: list[SSAValue] = []
        if any(bound is not None for _, bound in dims):
            known = zip(extents, dims, strict=True)
            bounds = [builder.index(extent) if bound is None else bound for extent, (_, bound) in known]
        view, strides = self.memory[operand.tensor.name], [form.coefficient(axis) for axis, _ in dims]
        loaded = builder.insert(tile.LoadOp(view, builder.affine(form, counters), extents, strides, bounds))
        return loaded if tuple(extents) == shape else builder.insert(tile.ReshapeOp(loaded, shape))

    def _load_box(
        self, operand: Operand, dims: Sequence[_Bounded], shape: tuple[int, int],
        where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue],
    ) -> SSAValue:  # fmt: skip
        """The same of an operand that is read outside of its shape, where it is 0."""
        found = box_dims(operand)
        assert found is not None, "the rule has seen them"
        tiled = [axis for axis, _ in dims]
        places = [self.address(dim.place.expression(), where) for dim in found]
        walked = [[position for position, axis in enumerate(tiled) if place.coefficient(axis)] for place in places]
        seen = sorted(position for positions in walked for position in positions)
        assert seen == list(range(len(tiled))), "the rule takes one loop of a tile for a dimension"
        order = sorted(range(len(found)), key=lambda number: walked[number] or [-1])  # as rows and columns of the tile
        found, places = [found[number] for number in order], [places[number] for number in order]
        inside = [tiled[walked[number][0]] if walked[number] else None for number in order]
        first = [self.builder.affine(place, counters) for place in places]
        extents, strides = [dim.extent for dim in found], [dim.stride for dim in found]
        sides = [1 if axis is None else int(axis.extent) for axis in inside]  # type: ignore[arg-type]
        loaded = self.builder.insert(tile.LoadBoxOp(self.memory[operand.tensor.name], first, extents, strides, sides))
        return self.builder.insert(tile.ReshapeOp(loaded, shape))


def _is_of_four_warps(intrinsic: str) -> bool:
    """Whether four warps compute a product, of boxes that a copy engine brings where it can."""
    known = standard()
    return intrinsic in known and is_of_four_warps(known.find(intrinsic))
