"""Random valid programs: what compiled code, rewrites and text are compared with the evaluator on.

A seeded generator, and hypothesis strategies that draw its seed and limits. Floating programs are smooth:
no comparison, rounding or cast to integer makes a small error large, and values keep a magnitude near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import prod
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import bounds
from tilewright.expr.core import Axis, Compute, Const, Expr, Tensor, apply, select, static_shape
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Graph

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EXTENTS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33)
DTYPES: tuple[DType, ...] = ("f32", "f64", "f16", "bf16", "i8", "u8", "i16", "i32", "i64", "u32", "bool")
_ELEMENTS = 1 << 14  # of one tensor


def computes(*, points: int = 1 << 14, **options: Any) -> SearchStrategy[Compute]:
    """Hypothesis strategy for `random_compute`; shrinks towards fewer points."""
    from hypothesis import strategies

    return strategies.builds(
        lambda limit, seed: random_compute(seed, points=limit, **options),
        _sizes(points),
        strategies.integers(0, 1 << 32),
    )


def graphs(*, nodes: int = 8, points: int = 1 << 14, **options: Any) -> SearchStrategy[Graph]:
    """Hypothesis strategy for `random_graph`; shrinks towards fewer nodes and points."""
    from hypothesis import strategies

    return strategies.builds(
        lambda count, limit, seed: random_graph(seed, nodes=count, points=limit, **options),
        strategies.integers(1, nodes), _sizes(points), strategies.integers(0, 1 << 32),
    )  # fmt: skip


def _sizes(points: int) -> SearchStrategy[int]:
    from hypothesis import strategies

    return strategies.sampled_from([size for size in (4, 32, 256, 2048) if size < points] + [points])


def random_compute(
    rng: Random | int, *, dtypes: Sequence[DType] = DTYPES, points: int = 1 << 14, name: str = "out"
) -> Compute:
    """One compute of at most `points` iterations, on tensors of its own."""
    return _Program(_rng(rng), dtypes, points).compute(name)


def random_graph(
    rng: Random | int, *, nodes: int = 8, dtypes: Sequence[DType] = DTYPES, points: int = 1 << 14
) -> Graph:
    """A graph of 1 to `nodes` computes that read each other, inputs and constants; what nobody reads is an output."""
    rng = _rng(rng)
    program = _Program(rng, dtypes, points)
    made: list[Compute] = []
    for number in range(rng.randint(1, nodes)):
        node = program.compute(f"n{number}")
        made.append(node)
        program.written.append(node.output)
    read = {tensor.name for node in made for tensor in node.inputs()}
    outputs = [node.output for node in made if node.name not in read or rng.random() < 0.1]
    constants = [tensor for tensor in program.fresh if rng.random() < 0.3]
    values = {tensor.name: random_array(tensor, rng.getrandbits(32)) for tensor in constants}
    inputs = tuple(tensor for tensor in program.fresh if tensor.name not in values)
    return Graph(inputs, tuple(outputs), tuple(made), values, "random")


def random_inputs(program: Graph | Compute, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Values for every input of a graph, or for every tensor that a compute reads."""
    tensors = program.inputs if isinstance(program, Graph) else program.inputs()
    return {tensor.name: random_array(tensor, seed + number) for number, tensor in enumerate(tensors)}


def random_array(tensor: Tensor, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal floats, integers in [-100, 100] or [0, 100], fair coins."""
    generator = np.random.default_rng(seed)
    shape, dtype = static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)
    if dtypes.is_float(tensor.dtype):
        return np.asarray(generator.standard_normal(shape)).astype(dtype)
    if tensor.dtype == "bool":
        return np.asarray(generator.integers(0, 2, shape)).astype(dtype)
    low = 0 if dtypes.is_unsigned(tensor.dtype) else -100
    return np.asarray(generator.integers(low, 101, shape)).astype(dtype)


def _rng(rng: Random | int) -> Random:
    return Random(rng) if isinstance(rng, int) else rng


@dataclass
class _Program:
    """Grows computes; `written` are tensors that earlier nodes wrote, `fresh` those nobody writes."""

    rng: Random
    dtypes: Sequence[DType]
    points: int
    written: list[Tensor] = field(default_factory=list)
    fresh: list[Tensor] = field(default_factory=list)

    def compute(self, name: str) -> Compute:
        rng = self.rng
        dtype = rng.choice(self.dtypes)
        spatial = self.loops("ijhw", rng.randint(0, 4), self.points)
        points = prod(static_shape(tuple(axis.extent for axis in spatial)))
        reduced = self.loops("krs", rng.choice((0, 0, 1, 1, 2, 3)), self.points // points)
        loops = [*spatial, *reduced]
        output = Tensor(name, tuple(axis.extent for axis in spatial), dtype)
        if not reduced:
            return Compute(output, tuple(spatial), self.value(dtype, loops, rng.randint(1, 3)))
        accum = rng.choice(("max", "min") if dtype == "bool" else ("sum", "sum", "sum", "max", "min", "prod"))
        if accum == "sum" and rng.random() < 0.6:
            body = self.contraction(dtype, loops)
        else:
            body = self.value(dtype, loops, rng.randint(0, 2))
        if dtypes.is_float(dtype) and accum == "prod":
            body = apply("tanh", body) * 0.125 + 1.0
        return Compute(output, tuple(spatial), body, tuple(reduced), accum)

    def loops(self, names: str, count: int, points: int) -> list[Axis]:
        found: list[Axis] = []
        for name in names[:count]:
            extent = self.rng.choice([extent for extent in EXTENTS if extent <= max(1, points)])
            points //= extent
            found.append(Axis(name, extent))
        return found

    def contraction(self, dtype: DType, loops: list[Axis]) -> Expr:
        """A product of reads, from a narrower type where there is one: ``f32(A[...]) * f32(B[...])``."""
        narrow = {"f32": ["f16", "bf16"], "f64": ["f32"], "i32": ["i8", "u8"]}.get(dtype, [])
        source = self.rng.choice([dtype, *(n for n in narrow if n in self.dtypes)])
        body = self.read(source, loops).cast(dtype)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            some = [axis for axis in loops if self.rng.random() < 0.7]
            body = body * self.read(source, some).cast(dtype)
        return body

    def value(self, dtype: DType, loops: list[Axis], depth: int) -> Expr:
        """A scalar expression of `dtype` over some of the loops."""
        if depth <= 0:
            return self.leaf(dtype, loops)
        if dtype == "bool":
            return self.logic(loops, depth)
        if dtypes.is_float(dtype):
            return self.smooth(dtype, loops, depth)
        return self.integer(dtype, loops, depth)

    def leaf(self, dtype: DType, loops: list[Axis]) -> Expr:
        if self.rng.random() < 0.1:
            return Const(self.rng.choice((0, 1, 2, 3)), dtype)
        return self.read(dtype, loops)

    def smooth(self, dtype: DType, loops: list[Axis], depth: int) -> Expr:
        rng = self.rng
        x = self.value(dtype, loops, depth - 1)
        kind = rng.randrange(10)
        if kind == 0:
            return apply(rng.choice(("tanh", "sigmoid", "erf", "sin", "cos", "atan")), x)
        if kind == 1:
            return apply("exp", apply("min", x, 2.0))
        if kind == 2:
            return apply(rng.choice(("sqrt", "log")), apply("abs", x) + 1.0)
        if kind == 3:
            return select(x >= 0.0, x, x * rng.choice((0.0, 0.125)))
        if kind == 4:
            sources = [d for d in self.dtypes if dtypes.bits(d) <= 16 or (dtype == "f64" and d == "f32")]
            if sources:
                return self.value(rng.choice(sources), loops, depth - 1).cast(dtype) * 0.0625
        y = self.value(dtype, loops, rng.randint(0, depth - 1))
        if kind == 5:
            return x / (apply("abs", y) + 1.0)
        if kind == 6 and loops:
            axis = rng.choice(loops)
            return select(apply("mod", axis, 2).eq(0), x, y)
        return apply(rng.choice(("add", "sub", "mul", "max", "min")), x, y)

    def integer(self, dtype: DType, loops: list[Axis], depth: int) -> Expr:
        rng = self.rng
        x = self.value(dtype, loops, depth - 1)
        kind = rng.randrange(8)
        if kind == 0:
            return apply(rng.choice(("floordiv", "mod", "div")), x, rng.choice((1, 2, 3, 7, 16)))
        if kind == 1:
            return apply(rng.choice(("shl", "shr")), x, rng.choice((0, 1, 3)))
        if kind == 2:
            sources = [d for d in self.dtypes if not dtypes.is_float(d)]
            return self.value(rng.choice(sources), loops, depth - 1).cast(dtype)
        if kind == 3 and loops:
            return rng.choice(loops).cast(dtype) + x
        y = self.value(dtype, loops, rng.randint(0, depth - 1))
        if kind == 4:
            return select(apply(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), x, y), x, y)
        return apply(rng.choice(("add", "sub", "mul", "max", "min", "and", "or", "xor")), x, y)

    def logic(self, loops: list[Axis], depth: int) -> Expr:
        rng = self.rng
        integers = [d for d in self.dtypes if dtypes.is_integer(d)]
        if integers and rng.random() < 0.5:
            dtype = rng.choice(integers)
            x, y = self.value(dtype, loops, depth - 1), self.value(dtype, loops, 0)
            return apply(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), x, y)
        if rng.random() < 0.2:
            return ~self.value("bool", loops, depth - 1)
        x, y = self.value("bool", loops, depth - 1), self.value("bool", loops, 0)
        return apply(rng.choice(("and", "or", "xor", "eq")), x, y)

    def read(self, dtype: DType, loops: list[Axis]) -> Expr:
        """A read of an earlier tensor or of a new one; in bounds, or guarded."""
        earlier = [tensor for tensor in (*self.written, *self.fresh) if tensor.dtype == dtype]
        if earlier and self.rng.random() < 0.5:
            return self.read_known(self.rng.choice(earlier), loops)
        order = self.rng.sample(loops, len(loops)) if self.rng.random() < 0.3 else list(loops)
        indices: list[Expr] = []
        shape: list[int] = []
        guard: Expr | None = None
        while order:
            index, used = self.index(order)
            order = order[used:]
            low, high = (int(bound) for bound in bounds(index))
            extent = high - low + 1 + self.rng.choice((0, 0, 0, 2))
            if self.rng.random() < 0.15:
                # Zero padding: the tensor is shorter than the range, the rest is guarded.
                extent = max(1, extent - 2)
                index = index - (low + 1)
                inside = (index >= 0) & (index < extent)
                guard = inside if guard is None else guard & inside
            elif low:
                index = index - low
            if prod(shape) * extent > _ELEMENTS:
                continue
            indices.append(index)
            shape.append(extent)
        read = Tensor(f"x{len(self.fresh)}", tuple(shape), dtype)
        self.fresh.append(read)
        value: Expr = read[tuple(indices)]
        return value if guard is None else select(guard, value, Const(0, dtype))

    def index(self, order: list[Axis]) -> tuple[Expr, int]:
        """An index over the first one or two of some loops, and how many of them it takes."""
        rng = self.rng
        first = order[0]
        kind = rng.randrange(12)
        if len(order) > 1 and kind <= 4:
            second = order[1]
            assert isinstance(second.extent, int), "random programs have static extents"
            if kind <= 1:
                return first * rng.choice((1, 1, 2, 3)) + second * rng.choice((1, 1, 2)), 2
            flat = first * second.extent + second
            if kind == 2:
                return flat, 2
            return (flat // rng.choice((2, 3, 4)) if kind == 3 else flat % rng.choice((2, 5, 8))), 2
        if kind == 5:
            return -first, 1
        if kind == 6:
            return rng.choice((first // 2, first % 3, first * 2 + 1)), 1
        if kind == 7:
            return apply("min", first + 1, Const(max(0, int(bounds(first)[1])), "i64")), 1
        return first, 1

    def read_known(self, tensor: Tensor, loops: list[Axis]) -> Expr:
        """A read of a tensor whose shape is given: each index is made to fit, by its nature or by a guard."""
        rng = self.rng
        indices: list[Expr] = []
        guard: Expr | None = None
        for extent in static_shape(tensor.shape):
            fitting = [axis for axis in loops if axis.extent == extent]
            if fitting and rng.random() < 0.9:
                indices.append(rng.choice(fitting))
                continue
            if not loops or rng.random() < 0.2:
                indices.append(Const(rng.randrange(extent), "i64"))
                continue
            axis = rng.choice(loops)
            last = int(bounds(axis)[1])
            if last < extent:
                indices.append(axis + rng.randint(0, extent - 1 - last))
            elif rng.random() < 0.5:
                indices.append(axis % extent)
            else:
                inside = axis < extent
                guard = inside if guard is None else guard & inside
                indices.append(axis)
        value: Expr = tensor[tuple(indices)]
        return value if guard is None else select(guard, value, Const(0, tensor.dtype))
