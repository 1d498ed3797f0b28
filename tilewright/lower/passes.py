"""The passes of a nest at one outer point: reductions and maps over the inner loops.

A node writes a value per outer point or per outer and inner point. Values that a later pass needs again are kept in
scratch where they are costly, recomputed where they are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from xdsl.dialects import arith, math
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Cast, Const, Expr, Read, Tensor, identity, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute, transform
from tilewright.kernel import dialect as tile
from tilewright.lower.body import BodyEmitter, Provider, Value, combine, computed_in
from tilewright.lower.builder import KernelBuilder, view_type
from tilewright.lower.loops import Point, TileAxis
from tilewright.lower.moments import RunningMoments
from tilewright.operator.nest import Nest, NestNode, NestSchedule
from tilewright.operator.tree import row_buffers

#: Functions of floats that are not continuous.
JUMPS = frozenset({"floor", "ceil", "round", "trunc", "sign", "mod", "fmod"})


#: One step of a pass: (emitter at this point, what the inner loops are, carried values) -> carried values.
Step = Callable[[BodyEmitter, Mapping[Axis, Expr], list[SSAValue]], list[SSAValue]]


@dataclass(frozen=True)
class Reduction:
    """A reduction over the inner loops: the accumulator's first value, one step, and the value of the last one."""

    start: SSAValue
    step: Step
    finish: Callable[[SSAValue], Value]


class Scratch:
    """Row buffers for costly values that several passes read; `slots` rows have buffers of their own at once."""

    def __init__(self, builder: KernelBuilder, nest: Nest, schedule: NestSchedule, slots: int = 1) -> None:
        self.views: dict[str, SSAValue] = {}
        self.slots, self.slot = slots, TileAxis("row.slot", slots)
        self.inner = nest.inner
        vector_inside = any(axis.name == schedule.vector for axis in nest.inner)
        # A row buffer holds one value per inner point, times the outer tile where vectors run along an outer loop.
        outer_tile = 1 if vector_inside else max(1, schedule.vector_extent) * max(1, schedule.unroll_extent)
        self.outer_tile = outer_tile
        for name in row_buffers(nest):
            size = prod(axis.size for axis in nest.inner) * outer_tile
            size += 0 if outer_tile > 1 else schedule.vector_extent
            self.slot_extent = size
            (dtype,) = (computed_in(node.tensor.dtype) for node in nest.nodes if node.tensor.name == name)
            self.views[name] = builder.insert(tile.AllocOp(view_type(dtype, size * slots)))

    def index(self) -> Expr:
        """The linear address of an inner point in a row buffer (elements of the outer tile follow each other)."""
        total: Expr = Const(0, INDEX)
        for axis in self.inner:
            total = total * axis.size + axis
        total = total * self.outer_tile
        return total + self.slot * self.slot_extent if self.slots > 1 else total


class Passes:
    """All passes of a nest at one outer tile."""

    def __init__(
        self,
        builder: KernelBuilder,
        nest: Nest,
        schedule: NestSchedule,
        memory: Mapping[str, SSAValue],
        scratch: Scratch,
        point: Point,
    ) -> None:
        self.builder = builder
        self.nest = nest
        self.schedule = schedule
        self.memory = memory
        self.scratch = scratch
        self.point = point
        self.nodes = {node.tensor.name: node for node in nest.nodes}
        self.kept: dict[str, Value] = {}  # values per outer point
        self.stored: set[str] = set()  # names whose row buffer is filled
        self.passes = 0  # begun so far
        self.alternative = False  # the last pass begun was in a branch
        self.pending: set[str] = set()  # names whose row buffer the current pass fills
        self.vector_inside = any(axis.name == schedule.vector for axis in nest.inner)
        self.covering = {node.tensor.name for node in nest.nodes if nest.covers_inner(node)}

    def run(self) -> None:
        if not self.nest.inner:
            self._prefetch(self._outer_emitter(), {}, 0)
        for node in self.nest.nodes:
            self.run_node(node)

    def run_node(self, node: NestNode) -> None:
        """One node: a pass, or a value of this outer point."""
        name = node.tensor.name
        if name in self.covering:
            if node.index is not None:
                self._map(node)
            return
        if node.accum is not None:
            if self.schedule.moments is not None and name in self.schedule.moments:
                self._moments()
            else:
                self.kept[name] = self.reduce(node)
        else:
            self.kept[name] = self._outer_emitter().emit(self._here(node.body))
        if node.index is not None:
            view, streams = self.memory[name], name in self.schedule.nontemporal
            self._outer_emitter().store(self.kept[name], view, self._here(node.index), node.tensor.dtype, streams)

    # Outer values -----------------------------------------------------------------------------------------------

    def _here(self, expr: Expr) -> Expr:
        return substitute(expr, self.point.replaced)

    def _outer_emitter(self) -> BodyEmitter:
        provided = {name: (lambda read, name=name: self.kept[name]) for name in self.kept}
        dims = {axis: position for position, axis in enumerate(self.point.dims)}
        return BodyEmitter(
            self.builder, self.memory, self.point.counters, dims, self.point.extents, self.point.bounds, provided, True
        )

    # Passes over the inner loops ----------------------------------------------------------------------------------

    def _map(self, node: NestNode) -> None:
        divisors = self.invariant_divisors(node.body) if self.nest.inner else []
        if not divisors:
            self.sweep(self.storing(node), [])
            return
        safe = self.reciprocals(divisors)
        fast = multiply_by_reciprocals(node, divisors)
        self.builder.branch(safe, lambda: _ignore(self.sweep(self.storing(fast), [], certain=False)))
        unsafe = self.builder.insert(arith.XOrIOp(safe, self.builder.number(True, "bool")))
        self.builder.branch(unsafe, lambda: _ignore(self.sweep(self.storing(node), [], certain=False)))

    def storing(self, node: NestNode) -> Step:
        """The step of a pass that computes a stored value and writes it."""
        name, index = node.tensor.name, node.index
        assert index is not None

        def body(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(node.body), where))
            place = substitute(self._here(index), where)
            emitter.store(value, self.memory[name], place, node.tensor.dtype, name in self.schedule.nontemporal)
            return []

        return body

    def invariant_divisors(self, body: Expr) -> list[str]:
        """Names of per-row scalars that every element of a float row is divided by, where the last place may differ."""
        return divisors_of(body, self.kept) if self.vector_inside else []

    def reciprocals(self, divisors: Sequence[str]) -> SSAValue:
        """Compute the reciprocals, and whether all are far from overflow and underflow, so that they may be used."""
        safe: SSAValue | None = None
        for name in divisors:
            value = self.kept[name]
            one = self.builder.number(1.0, value.dtype)
            self.kept[reciprocal_of(name)] = Value(self.builder.insert(arith.DivfOp(one, value.ssa)), value.dtype)
            magnitude = self.builder.insert(math.AbsFOp(value.ssa))
            for predicate, limit in (("ge", 2.0**-60), ("le", 2.0**60)):
                bound = self.builder.number(limit, value.dtype)
                holds = self.builder.insert(tile.CompareOp(predicate, magnitude, bound))
                safe = holds if safe is None else self.builder.insert(arith.AndIOp(safe, holds))
        assert safe is not None
        return safe

    def reduce(self, node: NestNode) -> Value:
        """The sum (product, extreme) over the inner loops, in a pass of its own."""
        reduction = self.reduction(node)
        (total,) = self.sweep(reduction.step, [reduction.start])
        return reduction.finish(total)

    def _moments(self) -> None:
        """Both of the schedule's moments in one pass, at the first of them."""
        assert self.schedule.moments is not None
        total, squares = (self.nodes[name] for name in self.schedule.moments)
        if total.tensor.name in self.kept:
            return
        (axis,), (lanes,) = self.nest.inner, self._sweep_extents()
        running = RunningMoments(self.builder, total.tensor.dtype, axis.size, lanes)

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(total.body), where))
            return running.step(emitter, emitter.full(value), carried)

        for node, found in zip((total, squares), running.finish(self.sweep(step, running.start())), strict=True):
            self.kept[node.tensor.name] = Value(found, node.tensor.dtype)

    def reduction(self, node: NestNode) -> Reduction:
        """How to reduce a node over the inner loops, for a pass that may do other work besides."""
        assert node.accum is not None
        accum, dtype = node.accum, computed_in(node.tensor.dtype)
        extents = self._sweep_extents()
        first = self.builder.number(identity(accum, dtype).value, dtype)
        start = self.builder.insert(tile.BroadcastOp(first, extents)) if extents else first

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(node.body), where))
            if self.vector_inside and (emitter.extents != extents or emitter.bounds):
                return [self._fold_ragged(emitter, value, carried[0], accum, dtype, extents)]
            full = Value(emitter.full(value) if extents else value.ssa, value.dtype)
            return [combine(accum, self.builder, Value(carried[0], dtype), full).ssa]

        def finish(total: SSAValue) -> Value:
            if self.vector_inside and extents:
                unsigned = dtypes.is_unsigned(dtype)
                total = self.builder.insert(tile.ReduceOp(accum, total, len(extents) - 1, unsigned))
                total = self.builder.insert(tile.ReshapeOp(total, ()))
            return Value(total, dtype)

        return Reduction(start, step, finish)

    def _fold_ragged(
        self, emitter: BodyEmitter, value: Value, total: SSAValue, accum: str, dtype: str, extents: tuple[int, ...]
    ) -> SSAValue:
        """Reduce a ragged tile to one number and combine it into a one-element position of the total."""
        full = emitter.full(value)
        dim = len(emitter.extents) - 1
        if dim in emitter.bounds:
            numbers = self.builder.insert(tile.IotaOp(emitter.extents, dim))
            bound = self.builder.insert(tile.BroadcastOp(self.builder.as_i64(emitter.bounds[dim]), emitter.extents))
            inside = self.builder.insert(tile.CompareOp("lt", numbers, bound))
            neutral = self.builder.number(identity(accum, dtype).value, dtype)
            full = self.builder.insert(
                tile.SelectOp(inside, full, self.builder.insert(tile.BroadcastOp(neutral, emitter.extents)))
            )
        one = self.builder.insert(tile.ReduceOp(accum, full, dim, dtypes.is_unsigned(dtype)))
        scalar = self.builder.insert(tile.ReshapeOp(one, ()))
        neutral = self.builder.number(identity(accum, dtype).value, dtype)
        numbers = self.builder.insert(tile.IotaOp(extents, len(extents) - 1))
        zeros = self.builder.insert(tile.BroadcastOp(self.builder.number(0, INDEX), extents))
        first = self.builder.insert(tile.CompareOp("eq", numbers, zeros))
        spread = self.builder.insert(
            tile.SelectOp(
                first,
                self.builder.insert(tile.BroadcastOp(scalar, extents)),
                self.builder.insert(tile.BroadcastOp(neutral, extents)),
            )
        )
        return combine(accum, self.builder, Value(total, dtype), Value(spread, dtype)).ssa

    def _sweep_extents(self) -> tuple[int, ...]:
        """The tile of one step of a pass: the outer tile, or a vector along an inner loop."""
        if not self.vector_inside:
            return self.point.extents
        (axis,) = (axis for axis in self.nest.inner if axis.name == self.schedule.vector)
        size = min(self.schedule.vector_extent, axis.size)
        return (self.schedule.vector_extent,) if size >= self.schedule.vector_extent else (self._rounded(size),)

    def _rounded(self, size: int) -> int:
        lanes = self.schedule.lanes
        return -(-size // lanes) * lanes

    def sweep(self, body: Step, initial: list[SSAValue], certain: bool = True) -> list[SSAValue]:
        """Run `body(emitter, replaced inner loops, carried)` over all inner points; returns what was carried last.

        `certain` says that the pass is not inside a branch, so that later passes find the row buffers it fills.
        """
        self.pending = set()
        self.passes += 1 if certain or not self.alternative else 0  # two versions of a pass count once
        self.alternative = not certain
        carried = self._sweep_axis(list(self.nest.inner), {}, {}, body, initial)
        if certain:
            self.stored |= self.pending
        return carried

    def _sweep_axis(
        self,
        axes: list[Axis],
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        body: Step,
        carried: list[SSAValue],
    ) -> list[SSAValue]:
        if not axes:
            dims = {axis: position for position, axis in enumerate(self.point.dims)}
            return self._step(body, where, counters, dims, self.point.extents, self.point.bounds, carried)
        axis, *rest = axes
        if axis.name == self.schedule.vector:
            rest = [*rest]
            if rest:  # the vector loop runs innermost
                return self._sweep_axis([*rest, axis], where, counters, body, carried)
            return self._sweep_vector(axis, where, counters, body, carried)
        counter = TileAxis(f"{axis.name}.t", axis.extent)

        def inside(index: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            return self._sweep_axis(rest, {**where, axis: counter}, {**counters, counter: index}, body, values)

        return self.builder.loop(self.builder.index(0), self.builder.index(axis.size), inside, carried)

    def _sweep_vector(
        self,
        axis: Axis,
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        body: Step,
        carried: list[SSAValue],
    ) -> list[SSAValue]:
        extent, size = axis.size, self.schedule.vector_extent
        full, ragged = divmod(extent, size)
        counter, inside = TileAxis(f"{axis.name}.t", max(full, 1)), TileAxis(f"{axis.name}.i", size)

        def step(index: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            place = {**where, axis: counter * size + inside}
            return self._step(body, place, {**counters, counter: index}, {inside: 0}, (size,), {}, values)

        if full:
            carried = self.builder.loop(self.builder.index(0), self.builder.index(full), step, carried)
        if ragged:
            rounded = self._rounded(ragged)
            last = TileAxis(f"{axis.name}.i", rounded)
            bounds = {0: self.builder.index(ragged)} if rounded != ragged else {}
            place = {**where, axis: last + full * size if full else last}
            carried = self._step(body, place, counters, {last: 0}, (rounded,), bounds, carried)
        return carried

    def _step(
        self,
        body: Step,
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        dims: dict[Axis, int],
        extents: tuple[int, ...],
        bounds: dict[int, SSAValue],
        carried: list[SSAValue],
    ) -> list[SSAValue]:
        """One step of a pass: an emitter that knows the kept values, the row buffers, and how to recompute the rest."""
        emitter = self.emitter_at(where, counters, dims, extents, bounds)
        self._prefetch(emitter, where, self.passes - 1)
        return body(emitter, where, carried)

    def emitter_at(
        self,
        where: Mapping[Axis, Expr],
        counters: Mapping[Axis, SSAValue],
        dims: Mapping[Axis, int],
        extents: tuple[int, ...],
        bounds: Mapping[int, SSAValue],
    ) -> BodyEmitter:
        """An emitter for one step of a pass: it knows the kept values and the row buffers, and computes the rest."""
        loops = {**self.point.counters, **counters}
        views = {**self.memory, **self.scratch.views}
        emitter = BodyEmitter(self.builder, views, loops, dims, extents, bounds, branches=True)
        emitter.provided = {name: self._provider(name, emitter, where) for name in (*self.nodes, *self.kept)}
        return emitter

    def _prefetch(self, emitter: BodyEmitter, where: Mapping[Axis, Expr], pass_number: int) -> None:
        """Ask for what the schedule wants ahead of this step of a pass."""
        for ahead in self.schedule.prefetch:
            if ahead.pass_number == pass_number:
                read = self._streamed(ahead.tensor)
                form = affine(substitute(self._here(read.indices[0]), where))
                assert form is not None
                place = self.builder.affine(Affine(form.constant + ahead.distance, form.terms), emitter.loops)
                size = ahead.elements * dtypes.size_bytes(read.dtype)
                self.builder.insert(tile.PrefetchOp(self.memory[ahead.tensor], place, size))

    def _streamed(self, name: str) -> Read:
        """The first read of a tensor along the vector, for which the schedule prefetches it."""
        for node in self.nest.nodes:
            for read in walk(node.body):
                if isinstance(read, Read) and read.tensor.name == name:
                    form = affine(read.indices[0])
                    if form is not None and (self.schedule.vector, 1) in ((a.name, c) for a, c in form.terms.items()):
                        return read
        raise AssertionError(f"no read of {name} walks along {self.schedule.vector}")

    def _provider(self, name: str, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> Provider:
        return lambda read: self._provide(name, emitter, where)

    def _provide(self, name: str, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> Value:
        """A value of this nest inside a pass: kept, read back from its row buffer, or computed here."""
        if name in self.kept:
            return self.kept[name]
        node = self.nodes[name]
        buffer = self.scratch.views.get(name)
        if buffer is None:
            return emitter.emit(substitute(self._here(node.body), where))
        index = substitute(self.scratch.index(), where)
        if not self.vector_inside:
            index = self._with_outer_tile(index, emitter)
        dtype = computed_in(node.tensor.dtype)
        if name in self.stored:
            flat = Tensor(f"{name}.row", (1,), dtype)
            return replace_views(emitter, {flat.name: buffer}).emit(Read(flat, (index,)))
        value = emitter.emit(substitute(self._here(node.body), where))
        emitter.store(Value(emitter.full(value), value.dtype), buffer, index, dtype)
        self.pending.add(name)
        return value

    def _with_outer_tile(self, index: Expr, emitter: BodyEmitter) -> Expr:
        """Place the points of the outer tile next to each other in a row buffer."""
        for axis in sorted(emitter.dims, key=emitter.dims.__getitem__):
            inner = prod(emitter.extents[emitter.dims[axis] + 1 :])
            index = index + axis * inner
        return index


def replace_views(emitter: BodyEmitter, views: Mapping[str, SSAValue]) -> BodyEmitter:
    """The same point of the nest, reading other memory."""
    return replace(emitter, views=views, provided={}, _known={})


def _ignore(carried: list[SSAValue]) -> None:
    assert not carried


def divisors_of(body: Expr, scalars: Collection[str]) -> list[str]:
    """Names of scalars that a float is divided by where the last place of the quotient may differ."""
    below = [child for node in walk(body) if _jumps(node) for child in node.children()]
    exact = {name for child in below for name in _divisors(child, scalars)}
    return sorted(_divisors(body, scalars) - exact)


def _divisors(body: Expr, scalars: Collection[str]) -> set[str]:
    return {
        node.args[1].tensor.name
        for node in walk(body)
        if isinstance(node, Apply)
        and node.function == "div"
        and dtypes.is_float(node.dtype)
        and isinstance(node.args[1], Read)
        and node.args[1].tensor.name in scalars
    }


def _jumps(expr: Expr) -> bool:
    """Whether a value may change by much where a float that it is computed from changes in its last place."""
    if isinstance(expr, Cast):
        return not dtypes.is_float(expr.dtype)
    return isinstance(expr, Apply) and (expr.dtype == "bool" or expr.function in JUMPS)


def reciprocal_of(name: str) -> str:
    return f"1/{name}"


def multiply_by_reciprocals(node: NestNode, divisors: Sequence[str]) -> NestNode:
    """The node with divisions by these values turned into products with their reciprocals."""

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Apply) and expr.function == "div" and isinstance(expr.args[1], Read):
            name = expr.args[1].tensor.name
            if name in divisors:
                inverse = Read(Tensor(reciprocal_of(name), (), expr.dtype), ())
                return Apply("mul", (expr.args[0], inverse), expr.dtype)
        return None

    return replace(node, body=transform(node.body, rule))
