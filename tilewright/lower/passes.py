"""The passes of a nest at one outer point: reductions and maps over the inner loops.

A node writes a value per outer point or per outer and inner point. Values that a later pass needs again are kept in
scratch where they are costly, recomputed where they are cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from math import prod

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Cast, Const, Expr, Read, Tensor, identity, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute, transform
from tilewright.kernel import dialect as tile
from tilewright.lower.body import FUNCTIONS, BodyEmitter, Provider, Value, combine, computed_in, providing
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Block, Point, TileAxis
from tilewright.lower.row_tree import Pass, RowTree
from tilewright.lower.running import Lanes, Running, farthest
from tilewright.tiles.kernel import AFTER, BEFORE, Follows, Statement
from tilewright.tiles.tree import InvalidTree

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


@dataclass(frozen=True)
class Onward:
    """Reductions that go on from block to block of the inner loops, each from the value at its address.

    `follows` is the rule of sums elsewhere that follow one of them; `view` has, at `address`, what these are to be
    multiplied by for every row.
    """

    follows: Follows
    view: SSAValue
    address: Expr


class Scratch:
    """The row buffers that a tree stages: costly values that several passes read."""

    def __init__(self, builder: KernelBuilder, tree: RowTree) -> None:
        self.views: dict[str, SSAValue] = {}
        self.slots, self.slot = tree.slots, TileAxis("row.slot", tree.slots)
        self.inner = tree.inner
        # A row buffer holds one value per inner point, times the outer tile where vectors run along an outer loop.
        self.outer_tile = prod(points for _, points in tree.tile.points)
        self.slot_extent = prod(axis.size for axis in tree.inner) * self.outer_tile
        if self.outer_tile == 1:
            self.slot_extent += max(each.step_points for each in tree.passes)  # the last step may hold fewer points
        for name in tree.buffers:
            dtype = computed_in(tree.statements[name].tensor.dtype)
            self.views[name] = builder.alloc(name, dtype, self.slot_extent * self.slots)

    def index(self) -> Expr:
        """The linear address of an inner point in a row buffer (elements of the outer tile follow each other)."""
        total: Expr = Const(0, INDEX)
        for axis in self.inner:
            total = total * axis.size + axis
        total = total * self.outer_tile
        return total + self.slot * self.slot_extent if self.slots > 1 else total


class Passes:
    """All passes of a nest at one outer tile, over all of the inner loops or a block of them (`blocks`)."""

    def __init__(
        self, builder: KernelBuilder, tree: RowTree, memory: Mapping[str, SSAValue], scratch: Scratch, point: Point,
        blocks: Mapping[Axis, Block] | None = None, onward: Onward | None = None,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.tree = tree
        self.memory = memory
        self.scratch = scratch
        self.point = point
        self.blocks, self.onward = blocks or {}, onward
        self.filled = frozenset(tree.filled)
        self.kept: dict[str, Value] = {}  # values per outer point
        self.before: dict[str, Value] = {}  # of reductions that go on, as the blocks before left them
        self.stored: set[str] = set()  # names whose row buffer, or place, is filled
        self.pending: set[str] = set()  # names whose row buffer, or place, the current pass fills

    def run(self) -> None:
        for each in self.tree.passes:
            self.run_pass(each)

    def begin(self) -> None:
        """Store what the reductions that go on from block to block begin with."""
        for statement in self.tree.statements.values():
            if statement.accum is not None:
                dtype = computed_in(statement.tensor.dtype)
                sums = statement.follows is not None
                start = 0.0 if sums else farthest(str(statement.accum), statement.tensor.dtype)
                self._store(statement, Value(self.builder.number(start, dtype), dtype), begins=True)

    def run_pass(self, each: Pass) -> None:
        """One child of the scope of passes: a walk over the inner loops, or a value of this outer point."""
        with self.at(each.statement.name):
            self._run_pass(each)

    def at(
        self, statement: str, where: Mapping[Axis, Expr] | None = None, counters: Mapping[Axis, SSAValue] | None = None
    ) -> AbstractContextManager[None]:
        """What is inserted meanwhile computes a statement at this outer point, and at these places of inner loops."""
        inner, loops = where or {}, {**self.point.counters, **(counters or {})}
        outer = {axis: substitute(place, inner) for axis, place in self.point.replaced.items()}
        return self.builder.at(statement, {**inner, **outer}, loops)

    def _run_pass(self, each: Pass) -> None:
        statement = each.statement
        name = statement.name
        if name in self.tree.covering:
            self._map(each)
            return
        if not each.loops:
            self._prefetch(each, self._outer_emitter(), {})
        if statement.accum is None:
            self.kept[name] = self._outer_emitter().emit(self._here(statement.body))
        elif not each.followers:
            total = self.reduce(each)
            self.kept[name] = total if self.onward is None else self._gone_on(statement, total, self.onward)
        else:
            self._run_on(each)
        for done in (statement, *each.followers):
            if done.address is not None:
                self._store(done, self.kept[done.name], each.streams)

    def _store(self, statement: Statement, value: Value, streams: bool = False, begins: bool = False) -> None:
        """Store a value of this outer point, or what it `begins` with."""
        assert statement.address is not None, "it has a place"
        place = self.memory[statement.name], self._here(statement.address)
        with self.at("" if begins else statement.name):
            self._outer_emitter().store(value, *place, statement.tensor.dtype, streams)

    def _gone_on(self, statement: Statement, total: Value, onward: Onward) -> Value:
        """A reduction over the blocks before and this one, whose value is `total`; what it moves sums elsewhere by."""
        assert statement.address is not None, "it has a place"
        assert isinstance(statement.accum, str), "extremes, and sums that follow them"
        read = Read(replace(statement.tensor, shape=(1,)), (self._here(statement.address),))
        before, follows = self._outer_emitter().emit(read), statement.follows
        if follows is not None:
            moved = FUNCTIONS["mul"](self.builder, [before, self._factor(follows)])
            return FUNCTIONS["add"](self.builder, [moved, total])
        self.before[statement.name] = before
        after = combine(statement.accum, self.builder, before, total, nnan=statement.ignores_nan)
        self.kept[statement.name] = after
        if onward.follows.reduction == statement.name:
            factor = self._factor(onward.follows)
            self._outer_emitter().store(factor, onward.view, self._here(onward.address), factor.dtype)
        return after

    def _factor(self, follows: Follows) -> Value:
        """What sums so far are multiplied by, since the value that they follow has changed."""
        assert follows.factor is not None, "it follows a value"
        known = {BEFORE: self.before[follows.reduction], AFTER: self.kept[follows.reduction]}
        emitter = self._outer_emitter()
        emitter.provided = providing(known)
        return emitter.emit(follows.factor)

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

    def _map(self, each: Pass) -> None:
        divisors = self.invariant_divisors(each)
        if not divisors:
            self.sweep(each, self.storing(each), [])
            return
        safe = self.reciprocals(divisors)
        fast = multiply_by_reciprocals(each, divisors)
        self.builder.branch(safe, lambda: _ignore(self.sweep(each, self.storing(fast), [], certain=False)))
        unsafe = self.builder.insert(arith.XOrIOp(safe, self.builder.number(True, "bool")))
        self.builder.branch(unsafe, lambda: _ignore(self.sweep(each, self.storing(each), [], certain=False)))

    def storing(self, each: Pass) -> Step:
        """The step of a pass that computes a stored value and writes it."""
        statement, view = each.statement, self.memory[each.statement.name]
        address = statement.address
        assert address is not None

        def body(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(statement.body), where))
            place = substitute(self._here(address), where)
            emitter.store(value, view, place, statement.tensor.dtype, each.streams)
            return []

        return body

    def invariant_divisors(self, each: Pass) -> list[str]:
        """Names of per-row scalars that every element of a float row is divided by, where the last place may differ."""
        return divisors_of(each.statement.body, self.kept) if each.vector is not None else []

    def reciprocals(self, divisors: Sequence[str]) -> SSAValue:
        """Compute the reciprocals, and whether all are far from overflow and underflow, so that they may be used."""
        safe: SSAValue | None = None
        for name in divisors:
            value = self.kept[name]
            one = self.builder.number(1.0, value.dtype)
            self.kept[reciprocal_of(name)] = Value(self.builder.insert(arith.DivfOp(one, value.ssa)), value.dtype)
            magnitude = self.builder.math("AbsFOp", value.ssa)
            for predicate, limit in (("ge", 2.0**-60), ("le", 2.0**60)):
                bound = self.builder.number(limit, value.dtype)
                holds = self.builder.insert(tile.CompareOp(predicate, magnitude, bound))
                safe = holds if safe is None else self.builder.insert(arith.AndIOp(safe, holds))
        assert safe is not None
        return safe

    def reduce(self, each: Pass) -> Value:
        """The sum (product, extreme) over the inner loops, in a pass of its own."""
        reduction = self.reduction(each)
        (total,) = self.sweep(each, reduction.step, [reduction.start])
        return reduction.finish(total)

    def _run_on(self, each: Pass) -> None:
        """A reduction and the sums that follow it in one pass; a ragged last step is a part of its own, of one lane."""
        ((axis,), (lanes,)) = each.loops, self._step_extents(each)
        whole, ragged = axis.size // lanes * lanes, axis.size % lanes
        running = Running(self.builder, each.statement, each.followers, self._lanes(lanes), whole)
        one = self._one_lane(_rounded(ragged, each.tile.lanes), ragged)
        tail = Running(self.builder, each.statement, each.followers, one, ragged)
        start, last = running.start(), tail.start() if ragged else []

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            value = emitter.emit(substitute(self._here(each.statement.body), where))
            element, split = Value(emitter.full(value), value.dtype), len(start)
            if emitter.extents == (lanes,) and not emitter.bounds:
                return [*running.step(element, None, carried[:split]), *carried[split:]]
            return [*carried[:split], *tail.step(element, self._inside(emitter), carried[split:])]

        carried = self.sweep(each, step, [*start, *last])
        part = running.finish(carried[: len(start)])
        if ragged:
            part = running.merged(part, whole, tail.finish(carried[len(start) :]), ragged)
        for done, value in zip((each.statement, *each.followers), running.values(part, axis.size), strict=True):
            self.kept[done.name] = value

    def _lanes(self, count: int) -> Lanes:
        """The lanes of a vector along an inner loop, each with one element in a step."""
        fold, unfold = self._over_lanes(count)
        return Lanes((count,), count, 1, lambda value, _: value, lambda value: value, fold, unfold)

    def _one_lane(self, count: int, elements: int) -> Lanes:
        """One lane that takes all elements of a vector in a step, some of the `count` that it has."""
        fold, unfold = self._over_lanes(count)
        return Lanes((), 1, elements, fold, unfold, lambda value, _: value, lambda value: value)

    def _over_lanes(self, count: int) -> tuple[Callable[[SSAValue, str], SSAValue], Callable[[SSAValue], SSAValue]]:
        """What reduces the lanes of a vector to a number, and what repeats a number."""
        builder = self.builder

        def reduced(value: SSAValue, accum: str) -> SSAValue:
            return builder.insert(tile.ReshapeOp(builder.insert(tile.ReduceOp(accum, value, 0, False)), ()))

        return reduced, lambda value: builder.insert(tile.BroadcastOp(value, (count,)))

    def reduction(self, each: Pass) -> Reduction:
        """How to reduce a statement over the inner loops, for a pass that may do other work besides."""
        statement, vectors = each.statement, each.vector is not None
        assert isinstance(statement.accum, str)
        accum, dtype = statement.accum, computed_in(statement.tensor.dtype)
        extents = self._step_extents(each)
        first = self.builder.number(identity(accum, dtype).value, dtype)
        start = self.builder.insert(tile.BroadcastOp(first, extents)) if extents else first

        def step(emitter: BodyEmitter, where: Mapping[Axis, Expr], carried: list[SSAValue]) -> list[SSAValue]:
            body = substitute(self._here(statement.body), where)
            if not vectors and accum == "sum":
                return [emitter.added(body, Value(carried[0], dtype)).ssa]
            value = emitter.emit(body)
            if vectors and (emitter.extents != extents or emitter.bounds):
                return [self._fold_ragged(emitter, value, carried[0], statement, extents)]
            full = Value(emitter.full(value) if extents else value.ssa, value.dtype)
            return [combine(accum, self.builder, Value(carried[0], dtype), full, nnan=statement.ignores_nan).ssa]

        def finish(total: SSAValue) -> Value:
            if vectors:
                unsigned = dtypes.is_unsigned(dtype)
                dim, nnan = len(extents) - 1, statement.ignores_nan
                total = self.builder.insert(tile.ReduceOp(accum, total, dim, unsigned, nnan))
                total = self.builder.insert(tile.ReshapeOp(total, ()))
            return Value(total, dtype)

        return Reduction(start, step, finish)

    def _fold_ragged(
        self, emitter: BodyEmitter, value: Value, total: SSAValue, statement: Statement, extents: tuple[int, ...]
    ) -> SSAValue:
        """Reduce a ragged tile to one number and combine it into a one-element position of the total."""
        assert isinstance(statement.accum, str)
        accum, dtype, nnan = statement.accum, computed_in(statement.tensor.dtype), statement.ignores_nan
        full = emitter.full(value)
        dim = len(emitter.extents) - 1
        inside = self._inside(emitter)
        if inside is not None:
            neutral = self.builder.number(identity(accum, dtype).value, dtype)
            full = self.builder.insert(
                tile.SelectOp(inside, full, self.builder.insert(tile.BroadcastOp(neutral, emitter.extents)))
            )
        one = self.builder.insert(tile.ReduceOp(accum, full, dim, dtypes.is_unsigned(dtype), nnan))
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
        return combine(accum, self.builder, Value(total, dtype), Value(spread, dtype), nnan=nnan).ssa

    def _inside(self, emitter: BodyEmitter) -> SSAValue | None:
        """Which points of a step exist along its vector; None where all do."""
        dim = len(emitter.extents) - 1
        if dim not in emitter.bounds:
            return None
        numbers = self.builder.insert(tile.IotaOp(emitter.extents, dim))
        bound = self.builder.insert(tile.BroadcastOp(self.builder.as_i64(emitter.bounds[dim]), emitter.extents))
        return self.builder.insert(tile.CompareOp("lt", numbers, bound))

    def _step_extents(self, each: Pass) -> tuple[int, ...]:
        """The tile of one step of a pass: the outer tile, or a vector along an inner loop."""
        if each.vector is None:
            return self.point.extents
        points = each.step_points
        return (points,) if each.vector.size >= points else (_rounded(each.vector.size, each.tile.lanes),)

    def sweep(self, each: Pass, body: Step, initial: list[SSAValue], certain: bool = True) -> list[SSAValue]:
        """Run `body(emitter, replaced inner loops, carried)` over all inner points; returns what was carried last.

        `certain` says that the pass is not inside a branch, so that later passes find the row buffers it fills.
        """
        self.pending = set()
        carried = self._sweep_axis(each, list(each.loops), {}, {}, body, initial)
        if certain:
            self.stored |= self.pending
        return carried

    def _sweep_axis(
        self,
        each: Pass,
        axes: list[Axis],
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        body: Step,
        carried: list[SSAValue],
    ) -> list[SSAValue]:
        if not axes:
            return self._points(each, where, counters, body, carried)
        axis, *rest = axes
        if axis == each.vector:
            assert not rest, "the vector's loop is innermost"
            return self._sweep_vector(each, axis, where, counters, body, carried)
        counter = TileAxis(f"{axis.name}.t", axis.extent)

        def inside(index: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            return self._sweep_axis(each, rest, {**where, axis: counter}, {**counters, counter: index}, body, values)

        block = self.blocks.get(axis)
        end = self.builder.index(axis.size) if block is None else block.steps(self.builder, 1)
        return self.builder.loop(self.builder.index(0), end, inside, carried)

    def _points(
        self, each: Pass, where: dict[Axis, Expr], counters: dict[Axis, SSAValue], body: Step, carried: list[SSAValue]
    ) -> list[SSAValue]:  # fmt: skip
        """One step at every point of the unrolled inner loops, which are numbers there; blocks cut none of them."""
        assert not self.blocks.keys() & set(each.unrolled), "a block has fewer points at the end of a loop"
        dims = {axis: position for position, axis in enumerate(self.point.dims)}
        for points in product(*(range(axis.size) for axis in each.unrolled)):
            numbers = {axis: Const(point, INDEX) for axis, point in zip(each.unrolled, points, strict=True)}
            place = {**where, **numbers}
            carried = self._step(each, body, place, counters, dims, self.point.extents, self.point.bounds, carried)
        return carried

    def _sweep_vector(
        self,
        each: Pass,
        axis: Axis,
        where: dict[Axis, Expr],
        counters: dict[Axis, SSAValue],
        body: Step,
        carried: list[SSAValue],
    ) -> list[SSAValue]:
        size, block = each.step_points, self.blocks.get(axis)
        full, ragged = divmod(axis.size if block is None else block.loop.extent, size)
        steps = self.builder.index(full) if block is None else block.steps(self.builder, size)
        counter, inside = TileAxis(f"{axis.name}.t", max(full, 1)), TileAxis(f"{axis.name}.i", size)
        first = full * size if block is None else block.rest(size)

        def step(index: SSAValue, values: list[SSAValue]) -> list[SSAValue]:
            place = {**where, axis: counter * size + inside}
            return self._step(each, body, place, {**counters, counter: index}, {inside: 0}, (size,), {}, values)

        def rest() -> list[SSAValue]:
            rounded = _rounded(ragged, each.tile.lanes)
            last = TileAxis(f"{axis.name}.i", rounded)
            bounds = {0: self.builder.index(ragged)} if rounded != ragged else {}
            place = {**where, axis: last + first if first else last}
            return self._step(each, body, place, counters, {last: 0}, (rounded,), bounds, carried)

        if full:
            carried = self.builder.loop(self.builder.index(0), steps, step, carried)
        if ragged and block is None:
            carried = rest()
        elif ragged:
            assert block is not None, "it was asked for"
            carried = self.builder.either(block.has_rest(self.builder), rest, lambda: carried)
        return carried

    def _step(
        self,
        each: Pass,
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
        if each.loops:
            self._prefetch(each, emitter, where)
        with self.at(each.statement.name, where, counters):
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
        names = (*self.tree.statements, *self.kept)
        emitter.provided = {name: self._provider(name, emitter, where) for name in names}
        return emitter

    def _prefetch(self, each: Pass, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> None:
        """Ask for what the hints of a pass want ahead of this step: of a read across lines, along each of them."""
        for hint in each.asked:
            tensor, distance, elements = str(hint.arguments[0]), int(hint.arguments[1]), int(hint.arguments[2])
            read, step = self._read_ahead(tensor, elements, each)
            form = affine(substitute(self._here(read.indices[0]), where))
            assert form is not None
            size = elements * dtypes.size_bytes(read.dtype)
            for line in range(1 if step == 1 else each.tile.along(each.tile.vector)):
                at = Affine(form.constant + line * step + distance, form.terms)
                place = self.builder.affine(at, emitter.loops)
                self.builder.insert(tile.PrefetchOp(self.memory[tensor], place, size))

    def _read_ahead(self, name: str, elements: int, each: Pass) -> tuple[Read, int]:
        """The first read of a tensor along the vector, else across lines, with its step from point to point of it.

        Lines are so far from each other that what is asked for on one is not on the next.
        """
        across: tuple[Read, int] | None = None
        for statement in self.tree.statements.values():
            for read in walk(statement.body):
                if isinstance(read, Read) and read.indices and read.tensor.name == name:
                    form = affine(read.indices[0])
                    terms = {} if form is None else {axis.name: step for axis, step in form.terms.items()}
                    step = terms.get(each.tile.vector, 0)
                    if step == 1:
                        return read, 1
                    if abs(step) >= elements and across is None:
                        across = read, step
        if across is None:
            fact = f"prefetch asks for {name}, which no read takes along {each.tile.vector or 'a vector'}"
            raise InvalidTree(fact, where=f"tile tree, pass of {each.statement.name}", help="leave the hint out")
        return across

    def _provider(self, name: str, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> Provider:
        return lambda read: self._provide(name, emitter, where)

    def _provide(self, name: str, emitter: BodyEmitter, where: Mapping[Axis, Expr]) -> Value:
        """A value of this nest inside a pass: kept, read back from its row buffer, or computed here."""
        if name in self.kept:
            return self.kept[name]
        statement = self.tree.statements[name]
        if name in self.scratch.views:
            buffer, dtype = self.scratch.views[name], computed_in(statement.tensor.dtype)
            index = self._with_outer_tile(substitute(self.scratch.index(), where))
        elif name in self.filled:
            buffer, dtype = self.memory[name], statement.tensor.dtype
            assert statement.address is not None, "a place is filled that the statement has"
            index = substitute(self._here(statement.address), where)
        else:
            return emitter.emit(substitute(self._here(statement.body), where))
        if name in self.stored:
            flat = Tensor(f"{name}.row", (1,), dtype)
            return replace_views(emitter, {flat.name: buffer}).emit(Read(flat, (index,)))
        with self.at(name, where, emitter.loops):
            value = emitter.emit(substitute(self._here(statement.body), where))
            emitter.store(Value(emitter.full(value), value.dtype), buffer, index, dtype)
        self.pending.add(name)
        return value

    def _with_outer_tile(self, index: Expr) -> Expr:
        """Place the points of the outer tile next to each other in a row buffer."""
        for position, axis in enumerate(self.point.dims):
            index = index + axis * prod(self.point.extents[position + 1 :])
        return index


def _rounded(size: int, lanes: int) -> int:
    return -(-size // lanes) * lanes


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


def multiply_by_reciprocals(each: Pass, divisors: Sequence[str]) -> Pass:
    """The pass with divisions by these values turned into products with their reciprocals."""

    def rule(expr: Expr) -> Expr | None:
        if isinstance(expr, Apply) and expr.function == "div" and isinstance(expr.args[1], Read):
            name = expr.args[1].tensor.name
            if name in divisors:
                inverse = Read(Tensor(reciprocal_of(name), (), expr.dtype), ())
                return Apply("mul", (expr.args[0], inverse), expr.dtype)
        return None

    return replace(each, statement=replace(each.statement, body=transform(each.statement.body, rule)))
