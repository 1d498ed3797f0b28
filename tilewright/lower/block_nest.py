"""Row reductions and maps on blocks: a tile per block, sums over its inner dimensions, every row read once if it fits.

The grid of the tree has the outer loops; inside it each sibling is a pass. Tiles at REG are the tile of a block, and
loops at L1 are walked by chunks of inner loops. Values of a row keep the rank of the tile, with extent 1 along inner
loops, so that they meet its elements by repetition. Where a tile holds whole rows, all passes share what they load and
compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, StringAttr, i64
from xdsl.ir import SSAValue

from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, Tensor, identity
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute, transform
from tilewright.kernel import dialect as tile
from tilewright.lower.blocks import point_of_block
from tilewright.lower.body import FUNCTIONS, BodyEmitter, Provider, Value, combine, computed_in
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.loops import TileAxis, grid_of
from tilewright.lower.passes import divisors_of, reciprocal_of
from tilewright.lower.running import Lanes, Running
from tilewright.operator.block_rows import BlockRows, block_rows
from tilewright.operator.passes import follows
from tilewright.tiles.kernel import Kernel, Statement

#: Beyond 2 to the first, a divisor is multiplied by 2 to the second, or its reciprocal.
_RANGES = {"f32": (100, 64), "f64": (900, 512)}

Step = Callable[[BodyEmitter, Mapping[Axis, Expr], list[SSAValue]], list[SSAValue]]


def lower_block_nest(name: str, kernel: Kernel, views: Sequence[tuple[Tensor, int]]) -> tile.FuncOp:
    """The kernel on blocks. `views` are its arguments: tensors with the size of their storage in elements."""
    tree = block_rows(kernel)
    types = [view_type(tensor.dtype, size) for tensor, size in views]
    func = tile.FuncOp(name, types, grid_of(tree.grid))
    func.attributes["warps"] = DenseArrayBase.from_list(i64, [tree.warps, 1])
    if tree.threads is not None:
        func.attributes["layout"] = StringAttr(str(tree.threads.to_linear(tuple(tree.points.values()))))
    builder = KernelBuilder(func.body.block)
    memory = {tensor.name: argument for (tensor, _), argument in zip(views, func.body.block.args, strict=True)}
    _BlockNest(builder, tree, memory).run(tree.passes)
    builder.insert(tile.ReturnOp())
    return func


def _combining(node: Statement) -> str:
    assert isinstance(node.accum, str), "ordered accumulations are kernels of their own"
    return node.accum


def scale_of(name: str) -> str:
    """What a dividend is multiplied by before the reciprocal of a divisor."""
    return f"scale of {name}"


class _BlockNest:
    """All passes of a nest on the tile of one block."""

    def __init__(self, builder: KernelBuilder, tree: BlockRows, memory: Mapping[str, SSAValue]) -> None:
        self.builder, self.tree, self.memory = builder, tree, memory
        points = tree.points
        inner = {axis for name, axis in tree.axes.items() if name not in tree.order}
        self.nodes = {statement.name: statement for statement in tree.statements}
        self.covering = {name for name, each in self.nodes.items() if not inner.isdisjoint(each.axes)}
        self.chunks, self.unrolled = tree.chunks, tree.unrolled
        self.point = point_of_block(builder, tree.grid)
        dims = [tree.axes[name] for name in points if name not in tree.order]
        self.inside = {axis: TileAxis(f"{axis.name}.i", points[axis.name]) for axis in dims}
        self.first = len(self.point.dims)  # of the dimensions along inner loops
        self.extents = (*self.point.extents, *(axis.size for axis in self.inside.values()))
        self.shares = [] if tree.threads is None else tree.threads.shares(tuple(points.values()))[self.first :]
        self.summed = (*self.point.extents, *(threads for _, threads, _ in self.shares))  # what trips hand on
        self.kept: dict[str, Value] = {}  # values per row
        self.held: BodyEmitter | None = None  # what all passes share
        if not self.chunks:
            self.held = self._emitter({}, self._bounds({}), self._whole())

    def run(self, passes: Sequence[Sequence[str]]) -> None:
        """Emit all passes."""
        for names in passes:
            nodes = [self.nodes[name] for name in names]
            if nodes[0].accum is None:
                self._value(*nodes)
            elif len(nodes) > 1 and follows(nodes[1], nodes[0]):
                self._run_on(*nodes)
            else:
                self._reduce(nodes)

    # Passes

    def _value(self, node: Statement) -> None:
        """A stored value of every element, or a value per row."""
        if node.tensor.name not in self.covering:
            self._keep(node, self._of_row().emit(self._here(node.body)))
            return

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(self._body(node)), where))
            assert node.address is not None
            place = substitute(self._here(node.address), where)
            emitter.store(value, self.memory[node.tensor.name], place, node.tensor.dtype)
            return carried

        self._sweep(step, [])

    def _reduce(self, nodes: Sequence[Statement]) -> None:
        """Sums that do not need each other, in one pass: element by element of a chunk, then over the tile."""
        sums = [(node, _combining(node), computed_in(node.tensor.dtype)) for node in nodes]

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            found = []
            for number, (node, accum, dtype) in enumerate(sums):
                value = emitter.emit(substitute(self._here(self._body(node)), where))
                value = self._existing(emitter, Value(emitter.full(value), value.dtype), accum, dtype)
                if carried:
                    value = Value(self._folded(value.ssa, accum, dtypes.is_unsigned(dtype)), dtype)
                    value = combine(accum, self.builder, value, Value(carried[number], dtype))
                found.append(value.ssa)
            return found

        first = []
        for _, accum, dtype in sums:
            if self.held is None:
                start = self.builder.number(identity(accum, dtype).value, dtype)
                first.append(self.builder.insert(tile.BroadcastOp(start, self.summed)) if self.summed else start)
        for (node, accum, dtype), total in zip(sums, self._sweep(step, first), strict=True):
            if len(self.extents) > self.first:
                total = self._combined(total, accum, dtypes.is_unsigned(dtype))
            self._keep(node, Value(total, dtype))

    def _run_on(self, reduction: Statement, *followers: Statement) -> None:
        """A reduction and sums that follow its value, in one pass."""
        inner = prod(self.tree.axes[name].size for name in self.tree.axes if name not in self.tree.order)
        ragged = any(self.tree.axes[axis.name].size % inside.size for axis, inside in self.inside.items())
        running = Running(self.builder, reduction, followers, self._lanes(), inner, ragged)

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(self._body(reduction)), where))
            value = Value(emitter.full(value), value.dtype)
            return running.step(value, self._inside(emitter), carried)

        part = running.finish(self._sweep(step, running.start()))
        for node, value in zip((reduction, *followers), running.values(part, inner), strict=True):
            self._keep(node, value)

    def _lanes(self) -> Lanes:
        """How the elements of a tile are reduced, to one number per thread and to one per row."""
        inside = len(self.extents) > self.first
        return Lanes(
            self.summed,
            prod(threads for _, threads, _ in self.shares),
            prod(rounds * size for rounds, _, size in self.shares),
            fold=lambda value, accum: self._folded(value, accum, False),
            unfold=self._unfolded,
            combine=lambda value, accum: self._combined(value, accum, False) if inside else value,
            spread=lambda value: self.builder.insert(tile.BroadcastOp(value, self.summed)) if inside else value,
        )

    def _folded(self, value: SSAValue, accum: str, unsigned: bool) -> SSAValue:
        """The sums over what each thread has of the inner dimensions: an element per thread is left of them."""
        builder, shape = self.builder, self.extents
        for dim, (rounds, threads, size) in enumerate(self.shares, self.first):
            if rounds * size == 1:
                continue
            value = builder.insert(tile.ReshapeOp(value, (*shape[:dim], rounds, threads, size, *shape[dim + 1 :])))
            value = builder.insert(tile.ReduceOp(accum, value, dim + 2, unsigned))
            value = builder.insert(tile.ReduceOp(accum, value, dim, unsigned))
            shape = (*shape[:dim], threads, *shape[dim + 1 :])
            value = builder.insert(tile.ReshapeOp(value, shape))
        return value

    def _unfolded(self, ssa: SSAValue) -> SSAValue:
        """Every element of a tile has what `_folded` left for its thread."""
        builder, shape = self.builder, self.summed
        for dim, (rounds, threads, size) in enumerate(self.shares, self.first):
            if rounds * size == 1:
                continue
            outside, inside = shape[:dim], shape[dim + 1 :]
            ssa = builder.insert(tile.ReshapeOp(ssa, (*outside, 1, threads, 1, *inside)))
            ssa = builder.insert(tile.BroadcastOp(ssa, (*outside, rounds, threads, size, *inside)))
            shape = (*outside, rounds * threads * size, *inside)
            ssa = builder.insert(tile.ReshapeOp(ssa, shape))
        return ssa

    def _combined(self, total: SSAValue, accum: str, unsigned: bool) -> SSAValue:
        """The sums over the inner dimensions of a tile, all of them as one."""
        shape = tile.shape(total)
        builder, rows = self.builder, shape[: self.first]
        inner = len(shape) - self.first
        if inner > 1:
            total = builder.insert(tile.ReshapeOp(total, (*rows, prod(shape[self.first :]))))
        total = builder.insert(tile.ReduceOp(accum, total, self.first, unsigned))
        return total if inner == 1 else builder.insert(tile.ReshapeOp(total, (*rows, *[1] * inner)))

    def _existing(self, emitter: BodyEmitter, value: Value, accum: str, dtype: dtypes.DType) -> Value:
        """A tile with the neutral element where an inner loop has ended."""
        builder, inside = self.builder, self._inside(emitter)
        if inside is None:
            return value
        neutral = builder.insert(tile.BroadcastOp(builder.number(identity(accum, dtype).value, dtype), self.extents))
        return Value(builder.insert(tile.SelectOp(inside, value.ssa, neutral)), value.dtype)

    def _inside(self, emitter: BodyEmitter) -> SSAValue | None:
        """Which elements of a tile exist along inner loops; None where all do."""
        builder, inside = self.builder, None
        for dim in sorted(dim for dim in emitter.bounds if dim >= self.first):
            shape = tuple(extent if d == dim else 1 for d, extent in enumerate(self.extents))
            bound = builder.insert(tile.BroadcastOp(builder.as_i64(emitter.bounds[dim]), shape))
            below = builder.insert(tile.CompareOp("lt", builder.insert(tile.IotaOp(shape, dim)), bound))
            below = emitter.full(Value(below, "bool"))
            inside = below if inside is None else builder.insert(arith.AndIOp(inside, below))
        return inside

    def _body(self, node: Statement) -> Expr:
        """What a node computes of an element, with products in the place of quotients by values of its row.

        ``x / y`` is ``(x * s) * (1 / (y * s))``, with a power of two s that keeps the reciprocal in range: 1, but for
        the largest and smallest y. Left out where y is neither.
        """
        divisors = [name for name in divisors_of(node.body, self.kept) if reciprocal_of(name) in self.kept]

        def rule(expr: Expr) -> Expr | None:
            if isinstance(expr, Apply) and expr.function == "div" and isinstance(expr.args[1], Read):
                name = expr.args[1].tensor.name
                if name in divisors:
                    dividend = transform(expr.args[0], rule)
                    for factor in filter(self.kept.__contains__, (scale_of(name), reciprocal_of(name))):
                        dividend = Apply("mul", (dividend, Read(Tensor(factor, (), expr.dtype), ())), expr.dtype)
                    return dividend
            return None

        return transform(node.body, rule) if divisors else node.body

    def _keep(self, node: Statement, value: Value) -> None:
        """Keep a value of the row, and its reciprocal where elements are divided by it; store it if it is stored."""
        name = node.tensor.name
        self.kept[name] = value
        elements = [each for each in self.nodes.values() if each.accum is not None or each.tensor.name in self.covering]
        if value.dtype in _RANGES and any(divisors_of(each.body, (name,)) for each in elements):
            self._invert(name)
        if node.address is not None:
            self._of_row().store(value, self.memory[name], self._here(node.address), node.tensor.dtype)

    def _invert(self, name: str) -> None:
        value, builder = self.kept[name], self.builder
        limit, power = _RANGES[value.dtype]

        def number(exponent: float) -> Value:
            made = builder.number(2.0**exponent, value.dtype)
            return Value(builder.insert(tile.BroadcastOp(made, value.shape)) if value.shape else made, value.dtype)

        if getattr(self.nodes[name].follows, "least", None) == 1:  # and no larger than the number of elements
            self.kept[reciprocal_of(name)] = FUNCTIONS["div"](builder, [number(0), value])
            return
        magnitude, scale = FUNCTIONS["abs"](builder, [value]), number(0)
        for predicate, bound, exponent in (("gt", limit, -power), ("lt", -limit, power)):
            far = builder.insert(tile.CompareOp(predicate, magnitude.ssa, number(bound).ssa))
            scale = Value(builder.insert(tile.SelectOp(far, number(exponent).ssa, scale.ssa)), value.dtype)
        scaled = FUNCTIONS["mul"](builder, [value, scale])
        self.kept[scale_of(name)] = scale
        self.kept[reciprocal_of(name)] = FUNCTIONS["div"](builder, [number(0), scaled])

    # Where

    def _here(self, expr: Expr) -> Expr:
        return substitute(expr, self.point.replaced)

    def _of_row(self) -> BodyEmitter:
        """Evaluates a value per row."""
        extents = tuple(extent if dim < self.first else 1 for dim, extent in enumerate(self.extents))
        dims = {axis: position for position, axis in enumerate(self.point.dims)}
        provided = {name: self._keeper(name) for name in self.kept}
        counters, bounds = self.point.counters, self.point.bounds
        return BodyEmitter(self.builder, self.memory, counters, dims, extents, bounds, provided)

    def _keeper(self, name: str) -> Provider:
        return lambda _: self.kept[name]

    def _sweep(self, step: Step, carried: list[SSAValue]) -> list[SSAValue]:
        """Run a step over all chunks of the inner loops; what was carried last."""
        if self.held is not None:
            return step(self.held, self._whole(), carried)
        return self._walk([*self.chunks], self._whole(), {}, step, carried)

    def _whole(self) -> dict[Axis, Expr]:
        """The inner loops that lie in the tile whole."""
        return {axis: inside for axis, inside in self.inside.items() if axis.name not in self.chunks}

    def _walk(
        self, names: Sequence[str], where: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue],
        step: Step, carried: list[SSAValue],
    ) -> list[SSAValue]:  # fmt: skip
        """The step in the loops over chunks of these inner loops, from a place that outer ones have reached."""
        if not names:
            return step(self._emitter(counters, self._bounds(counters), where), where, carried)
        name, *rest = names
        axis, count = self.tree.axes[name], self.chunks[name]
        if name in self.unrolled:
            assert axis not in self.inside, "a loop that is written out has one point in a tile"
            for number in range(count):
                carried = self._walk(rest, {**where, axis: Const(number, INDEX)}, counters, step, carried)
            return carried
        counter = TileAxis(f"{name}.t", count)
        place: Expr = counter * self.inside[axis].size + self.inside[axis] if axis in self.inside else counter

        def trip(index: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            return self._walk(rest, {**where, axis: place}, {**counters, counter: index}, step, values)

        return self.builder.loop(self.builder.index(0), self.builder.index(count), trip, carried)

    def _bounds(self, counters: Mapping[Axis, SSAValue]) -> dict[int, SSAValue]:
        """How many points exist along the dimensions of the tile, where some do not."""
        builder, found = self.builder, dict(self.point.bounds)
        numbers = {counter.name: value for counter, value in counters.items()}
        for dim, axis in enumerate(self.inside, self.first):
            extent, size = axis.size, self.inside[axis].size
            if extent % size:
                bound = builder.index(extent)
                number = numbers.get(f"{axis.name}.t")
                if number is not None:
                    bound = builder.insert(arith.SubiOp(bound, builder.mul(number, builder.index(size))))
                found[dim] = bound
        return found

    def _emitter(
        self, counters: Mapping[Axis, SSAValue], bounds: Mapping[int, SSAValue], place: Mapping[Axis, Expr]
    ) -> BodyEmitter:
        """Evaluates elements of the tile: knows the values of rows, computes all others of the nest."""
        dims = {axis: position for position, axis in enumerate((*self.point.dims, *self.inside.values()))}
        loops = {**self.point.counters, **counters}
        emitter = BodyEmitter(self.builder, self.memory, loops, dims, self.extents, bounds)

        def provide(name: str) -> Provider:
            def value(read: Read) -> Value:
                if name in self.kept:
                    return self.kept[name]
                assert self.nodes[name].accum is None, f"{name} is read before it is summed"
                return emitter.emit(substitute(self._here(self._body(self.nodes[name])), place))

            return value

        scalars = [spelled(name) for name in self.nodes for spelled in (scale_of, reciprocal_of)]
        emitter.provided = {name: provide(name) for name in (*self.nodes, *scalars)}
        return emitter
