"""Building one kernel: a thin layer over xDSL's builder that knows index arithmetic, loops and tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache

from xdsl.builder import Builder
from xdsl.dialects import arith, builtin, scf
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tilewright.expr import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Expr
from tilewright.kernel import dialect as tile
from tilewright.kernel.integers import binary, index_constant
from tilewright.lower.whereabouts import Notes, Whereabouts

_ELEMENTS: dict[str, Attribute] = {
    "bool": builtin.i1,
    "i8": builtin.i8, "u8": builtin.i8, "i16": builtin.i16, "u16": builtin.i16,
    "i32": builtin.i32, "u32": builtin.i32, "i64": builtin.i64, "u64": builtin.i64,
    "f16": builtin.f16, "bf16": builtin.bf16, "f32": builtin.f32, "f64": builtin.f64,
}  # fmt: skip


def element_type(dtype: dtypes.DType) -> Attribute:
    """The type of a value in registers."""
    return _ELEMENTS[dtype]


def storage_type(dtype: dtypes.DType) -> Attribute:
    """The type of an element in memory: bool takes a byte."""
    return builtin.i8 if dtype == "bool" else _ELEMENTS[dtype]


_ACCESSES = (tile.LoadOp, tile.StoreOp, tile.GatherOp)


class KernelBuilder:
    """Inserts operations at the end of a block that moves into loops and branches.

    With `notes`, it notes where loads and stores stand.
    """

    def __init__(self, block: Block, notes: Notes | None = None) -> None:
        self._builder = Builder(InsertPoint.at_end(block))
        self._indices: list[dict[int, SSAValue]] = [{}]
        self._notes, self._here = notes, Whereabouts("", {}, {})

    def insert(self, op: Operation) -> SSAValue:
        self._builder.insert(op)
        if self._notes is not None and isinstance(op, _ACCESSES):
            self._notes.accesses[op] = self._here
        return op.results[0] if op.results else None  # type: ignore[return-value]

    def at(
        self, statement: str, places: Mapping[Axis, Expr], counters: Mapping[Axis, SSAValue],
        bounds: Mapping[int, SSAValue] | None = None, begins: Mapping[Axis, Expr] | None = None,
    ) -> AbstractContextManager[None]:  # fmt: skip
        """What is inserted meanwhile computes `statement`, at these places of its loops (`Whereabouts`)."""
        return self._noting(Whereabouts(statement, places, counters, bounds or {}, begins or {}))

    def beside(self, *, copies: bool = False) -> AbstractContextManager[None]:
        """What is inserted meanwhile is of no statement: it gives memory its first values, or `copies` within it."""
        return self._noting(Whereabouts("", {}, {}, copies=copies))

    @contextmanager
    def _noting(self, here: Whereabouts) -> Iterator[None]:
        outer, self._here = self._here, here
        yield
        self._here = outer

    def alloc(
        self, name: str, dtype: dtypes.DType, size: int, extents: Sequence[tuple[Axis, int]] = ()
    ) -> SSAValue:  # fmt: skip
        """Scratch memory for elements of the value `name`, so many along each of these loops where they are given."""
        view = self.insert(tile.AllocOp(view_type(dtype, size)))
        if self._notes is not None:
            self._notes.buffers[view] = name
            self._notes.extents[view] = tuple((axis.name, extent) for axis, extent in extents)
        return view

    def index(self, value: int) -> SSAValue:
        """An index constant, made once per block nest."""
        for scope in self._indices:
            if value in scope:
                return scope[value]
        made = self.insert(index_constant(value))
        self._indices[-1][value] = made
        return made

    def number(self, value: bool | float, dtype: dtypes.DType) -> SSAValue:
        type_ = element_type(dtype)
        if dtypes.is_float(dtype):
            assert isinstance(type_, builtin.AnyFloat)
            return self.insert(arith.ConstantOp(FloatAttr(float(value), type_)))
        width = 1 if dtype == "bool" else dtypes.bits(dtype)
        wrapped = int(value) & ((1 << width) - 1)
        signed = wrapped - (1 << width) if width > 1 and wrapped >> (width - 1) else wrapped
        assert isinstance(type_, builtin.IntegerType)
        return self.insert(arith.ConstantOp(IntegerAttr(signed, type_)))

    def math(self, kind: str, *operands: SSAValue) -> SSAValue:
        """The result of the operation of `math` of this class, imported with the first: products alone have none."""
        from xdsl.dialects import math

        return self.insert(getattr(math, kind)(*operands))

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.insert(binary(arith.AddiOp, a, b))

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.insert(binary(arith.MuliOp, a, b))

    def affine(self, form: Affine, values: Mapping[Axis, SSAValue]) -> SSAValue:
        """``constant + sum coefficient * value`` as an index; axes without a value are left out (tile dimensions)."""
        total: SSAValue | None = None
        for axis, coefficient in form.terms.items():
            if axis not in values:
                continue
            value = values[axis]
            term = value if coefficient == 1 else self.mul(value, self.index(coefficient))
            total = term if total is None else self.add(total, term)
        if total is None:
            return self.index(form.constant)
        return self.add(total, self.index(form.constant)) if form.constant else total

    def as_i64(self, index: SSAValue) -> SSAValue:
        return self.insert(arith.IndexCastOp(index, builtin.i64))

    def as_index(self, value: SSAValue) -> SSAValue:
        return self.insert(arith.IndexCastOp(value, builtin.IndexType()))

    def loop(
        self,
        low: SSAValue,
        high: SSAValue,
        body: Callable[[SSAValue, list[SSAValue]], Sequence[SSAValue]],
        carried: Sequence[SSAValue] = (),
        step: int = 1,
    ) -> list[SSAValue]:
        """``for index in [low, high) step``: `body(index, carried)` returns the next carried values.

        Gives the last ones.
        """
        step_value = self.index(step)
        block = Block(arg_types=[tile.INDEX, *(value.type for value in carried)])
        with self._inside(block):
            results = body(block.args[0], list(block.args[1:]))
            self.insert(scf.YieldOp(*results))
        op = scf.ForOp(low, high, step_value, list(carried), block)
        self._builder.insert(op)
        return list(op.results)

    def branch(
        self, condition: SSAValue, body: Callable[[], None], other: Callable[[], None] = lambda: None
    ) -> None:  # fmt: skip
        """Run `body` where a scalar i1 holds, and the `other` one elsewhere."""

        def nothing(run: Callable[[], None]) -> Sequence[SSAValue]:
            run()
            return ()

        self.either(condition, lambda: nothing(body), lambda: nothing(other))

    def either(
        self, condition: SSAValue, then: Callable[[], Sequence[SSAValue]], other: Callable[[], Sequence[SSAValue]]
    ) -> list[SSAValue]:
        """The values of one of two branches, chosen by a scalar i1."""
        blocks, types = [], []
        for body in (then, other):
            block = Block()
            with self._inside(block):
                results = body()
                types = [value.type for value in results]
                self.insert(scf.YieldOp(*results))
            blocks.append(block)
        op = scf.IfOp(condition, types, Region(blocks[0]), Region(blocks[1]))
        self._builder.insert(op)
        return list(op.results)

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        outer = self._builder
        self._builder = Builder(InsertPoint.at_end(block))
        self._indices.append({})
        yield
        self._indices.pop()
        self._builder = outer


@lru_cache(4096)
def view_type(dtype: dtypes.DType, size: int) -> MemRefType[Attribute]:
    return MemRefType(storage_type(dtype), [size])
