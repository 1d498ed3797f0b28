"""Integer products whose factors carry an offset: products of bytes as an instruction takes them, and a correction.

An instruction that multiplies bytes takes them with or without a sign, and knows no zero points. Wrapping arithmetic
lets offsets out of a sum without changing a bit of it, so that any two factors that are bytes apart from an offset
become the ones it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, select, static_shape, walk
from tilewright.expr.dtypes import DType
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.infer import stays_inside
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.expr.rewrite import inline, substitute
from tilewright.graph.passes.inline_maps import reads_own_points
from tilewright.graph.passes.rewritten import Rewritten

Array = np.ndarray[Any, Any]

Price = Callable[[Compute], tuple[float, int] | None]
"""Cycles per multiply-add with which level 3 would run a product, and bytes it moves to do so; None if it would not."""

BYTES: tuple[DType, ...] = ("u8", "i8")
ZERO = Const(0, "i32")
EXTREMA = ("max", "min")
SIGN = 128  # between a byte read without a sign and with one


@dataclass(frozen=True)
class OffsetFactors:
    """Take offsets out of the factors of a sum, and store factors with or without a sign, as a fast instruction wants.

    Before:  A[i, k] += (i32(x[i, c]) - z) * i32(W[k, c])              with x and W in i8
    After:   x.u8[i, c] = u8(x[i, c]) + 128
             A.dot[i, k] += i32(x.u8[i, c]) * i32(W[k, c])
             A[i, k] = A.dot[i, k] + S.folded[k]         with const S.folded[k] = -(z + 128) * sum_c W[k, c]
    In general ``sum (a - p) * (b - q) = sum a*b - p * sum b - q * sum a + K*p*q``; sums over variables are nodes.
    Legal where the sum is in i32 (it wraps, so every result is the same), each factor is a byte less an offset that no
    reduction loop indexes, read along affine indices, and padding by a constant is with a value the byte holds.
    Constants are taken by their values. Done where `price` says that level 3 runs the product in fewer cycles, or in as
    many and on narrower factors. What else reads such a tensor decodes it. Needs maps inlined and channels split.
    Afterwards the correction is in the map that follows the product, if one does point by point.
    """

    price: Price
    name: ClassVar[str] = "offset-factors"

    def apply(self, state: Rewritten) -> Rewritten:
        rewriting = _Rewriting(state.graph)
        decisions = [found for node in state.graph.nodes if (found := _fit(rewriting, node, self.price)) is not None]
        if not decisions:
            return state
        return replace(state, graph=rewriting.finished(), decisions=(*state.decisions, *decisions))


@dataclass(frozen=True)
class _Factor:
    """``i32(read) - offset``, where `read` is to be stored as `dtype`."""

    read: Read
    offset: Expr
    dtype: DType


@dataclass(frozen=True)
class _Choice:
    """A product of two bytes, which with its correction has the value of a node."""

    factors: tuple[_Factor, _Factor]
    cycles: float
    bytes: int  # that are moved around the product: packed, stored with another sign, summed for the correction
    sums: int  # of variables


def _fit(rewriting: _Rewriting, node: Compute, price: Price) -> Decision | None:
    """Rewrite a node as the best product of bytes, if that is faster than what it is."""
    body = node.body
    if node.accum != "sum" or body.dtype != "i32" or not isinstance(body, Apply) or body.function != "mul":
        return None
    if not all(isinstance(axis.extent, int) and axis.extent > 0 for axis in node.loops):
        return None
    first, second = (_factor(rewriting, arg, node) for arg in body.args)
    if first is None or second is None or rewriting.are_constants(first.read, second.read):
        return None
    choices = []
    for types in product(BYTES, BYTES):
        a, b = _as_byte(rewriting, first, types[0], node), _as_byte(rewriting, second, types[1], node)
        choice = None if a is None or b is None else _priced(rewriting, node, a, b, price)
        if choice is not None:
            choices.append(choice)
    best = min(choices, key=lambda choice: (choice.cycles, choice.bytes), default=None)
    now = price(node)
    if best is None or (now is not None and (now[0], _bits(body.args)) <= (best.cycles, _bits(best.factors))):
        return None
    reads = rewriting.multiply(node, *best.factors)
    return _decision(node, best, reads, None if now is None else now[0])


def _factor(rewriting: _Rewriting, expr: Expr, node: Compute) -> _Factor | None:
    """A factor as a byte less an offset, or as a constant; None where it is neither, or the sum changes the offset."""
    inner = expr.arg if isinstance(expr, Cast) else expr
    if isinstance(inner, Read) and inner.tensor.name in rewriting.constants:
        if not dtypes.is_integer(inner.dtype) or dtypes.bits(inner.dtype) > dtypes.bits("i32"):
            return None
        found: tuple[Expr, Expr] | None = (inner, ZERO)
    else:
        found = rewriting.byte_of(expr)
    if found is None:
        return None
    read, offset = found
    if not isinstance(read, Read) or any(affine(index) is None for index in read.indices):
        return None
    if any(loop in node.reduce for loop in walk(offset)):
        return None
    return _Factor(read, rewriting.folded(offset), read.dtype)


def _as_byte(rewriting: _Rewriting, factor: _Factor, dtype: DType, node: Compute) -> _Factor | None:
    """A factor stored as `dtype`: a constant by its values, a variable moved by `SIGN`."""
    if factor.read.tensor.name in rewriting.constants:
        offset = rewriting.offset_in(factor.read, dtype, node)
        return None if offset is None else _Factor(factor.read, rewriting.plus(factor.offset, offset), dtype)
    if factor.dtype == dtype:
        return factor
    return _Factor(factor.read, rewriting.plus(factor.offset, Const(_move(dtype), "i32")), dtype)


def _priced(rewriting: _Rewriting, node: Compute, a: _Factor, b: _Factor, price: Price) -> _Choice | None:
    """A product of two bytes with its price, before there is one."""
    reads = []
    for each in (a, b):
        tensor = replace(each.read.tensor, dtype=each.dtype)
        if tensor != each.read.tensor and tensor.name not in rewriting.constants:
            tensor = replace(tensor, name=f"{tensor.name}.{each.dtype}")  # it may be the other factor too
        reads.append(Read(tensor, each.read.indices).cast("i32"))
    output = replace(node.output, name=f"{node.name}.{a.dtype}x{b.dtype}")
    found = price(Compute(output, node.axes, reads[0] * reads[1], node.reduce, "sum"))
    if found is None:
        return None
    cycles, moved_bytes = found
    variables = [each for each in (a, b) if each.read.tensor.name not in rewriting.constants]
    moved_bytes += sum(2 * each.read.tensor.size for each in variables if each.dtype != each.read.dtype)
    summed = [two for one, two in ((a, b), (b, a)) if one.offset != ZERO and two in variables]
    moved_bytes += sum(prod(static_shape(tuple(axis.extent for axis in _loops(each.read)))) for each in summed)
    return _Choice((a, b), cycles, moved_bytes, len(summed))


def _decision(node: Compute, best: _Choice, reads: Sequence[Read], cycles: float | None) -> Decision:
    """What became of a product, and why."""
    chosen = " and ".join(f"{read.dtype} {read.tensor.name}" for read in reads)
    if any(factor.offset != ZERO for factor in best.factors):
        sums = {0: "constants", 1: "one sum over a variable", 2: "two sums over variables"}[best.sums]
        chosen += f", corrected by {sums}"
    products = prod(static_shape(tuple(axis.extent for axis in node.loops)))
    per_product = "cycles per multiply-add"
    found = Decision(
        f"factors of {node.name}", chosen, f"{best.cycles:.2g} {per_product}", "as they are",
        "no instruction multiplies them", cost=Cost(cycles=best.cycles * products),
    )  # fmt: skip
    if cycles is None:
        return found
    cost = Cost(cycles=cycles * products)
    return replace(found, runner_up_reason=f"{cycles:.2g} {per_product}", runner_up_cost=cost)


class _Rewriting:
    """The nodes of a graph while products change; what nothing reads in the end is dropped."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = {node.name: node for node in graph.nodes}
        self.constants = dict(graph.constants)
        self.outputs = {tensor.name for tensor in graph.outputs}
        self.corrected: list[str] = []
        self.decoded: dict[str, tuple[str, Expr]] = {}  # tensor -> the one that holds its bytes, and its value from it
        self._bytes: dict[str, tuple[Expr, Expr] | None] = {}
        self._moved: dict[str, Tensor] = {}
        self._stored: dict[tuple[Read, DType], tuple[Array, Expr] | None] = {}
        self._taken = set(graph.tensors()) | set(graph.constants)

    # Factors ----------------------------------------------------------------------------------------------------

    def byte_of(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """(byte, offset) with ``expr == i32(byte) - offset``, or None; `expr` is in i32."""
        if isinstance(expr, Cast) and expr.arg.dtype in BYTES:
            return expr.arg, ZERO
        if isinstance(expr, Read):
            producer = self.nodes.get(expr.tensor.name)
            found = None if producer is None or producer.accum is not None else self._byte_of_map(producer)
            if producer is None or found is None:
                return None
            loops: dict[Axis, Expr] = dict(zip(producer.axes, expr.indices, strict=True))
            return substitute(found[0], loops), substitute(found[1], loops)
        if not isinstance(expr, Apply):
            return None
        if expr.function == "select":
            return self._padded_byte(expr)
        if expr.function not in ("add", "sub"):
            return None
        left, right = (arg if _reads(arg) else self.folded(arg) for arg in expr.args)
        if expr.function == "add" and _loops(right) and not _loops(left):
            left, right = right, left
        found = self.byte_of(left)
        if found is None:
            return None
        return found[0], self.plus(found[1], right) if expr.function == "sub" else self.minus(found[1], right)

    def _byte_of_map(self, node: Compute) -> tuple[Expr, Expr] | None:
        """The byte of a map in i32, as a read of a tensor that has it, and its offset, over the loops of the map."""
        if node.name not in self._bytes:
            found = self.byte_of(node.body)
            if found is not None and not (isinstance(found[0], Read) and _is_affine(found[0])):
                byte, offset = found
                output = replace(node.output, name=claim(f"{node.name}.{byte.dtype}", self._taken), dtype=byte.dtype)
                self.nodes[output.name] = Compute(output, node.axes, byte, source=node.source)
                found = output[node.axes], offset
                self.decoded[node.name] = output.name, self.minus(output[node.axes].cast("i32"), offset)
            self._bytes[node.name] = found
        return self._bytes[node.name]

    def _padded_byte(self, expr: Apply) -> tuple[Expr, Expr] | None:
        """The byte of a choice between two values with one offset; one may be a constant that is a byte too."""
        condition, *values = expr.args
        found = [self.byte_of(value) for value in values]
        known = next((each for each in found if each is not None), None)
        if known is None or not all(stays_inside(read) for read in _reads(known[1])):  # no condition guards the offset
            return None
        bytes_: list[Expr] = []
        for value, each in zip(values, found, strict=True):
            byte = each[0] if each is not None and each[1] == known[1] else _byte(self.plus(value, known[1]), known[0])
            if byte is None or byte.dtype != known[0].dtype:
                return None
            bytes_.append(byte)
        return select(condition, *bytes_), known[1]

    def are_constants(self, *reads: Read) -> bool:
        return all(read.tensor.name in self.constants for read in reads)

    def offset_in(self, read: Read, dtype: DType, node: Compute) -> Expr | None:
        """The offset with which `dtype` holds the constant of a factor; None where its values are too far apart."""
        if (read, dtype) not in self._stored:
            self._stored[read, dtype] = self._offsets(read, dtype, node)
        found = self._stored[read, dtype]
        return None if found is None else found[1]

    def _offsets(self, read: Read, dtype: DType, node: Compute) -> tuple[Array, Expr] | None:
        """A constant plus an offset for each slice along loops of the output, in `dtype`; that offset."""
        values = self.constants[read.tensor.name].astype(np.int32).astype(np.int64)
        kept = [dim for dim, index in enumerate(read.indices) if index in node.axes]
        others = tuple(dim for dim in range(values.ndim) if dim not in kept)
        low, high = values.min(axis=others, keepdims=True), values.max(axis=others, keepdims=True)
        limits = np.iinfo(dtypes.numpy_dtype(dtype))
        if (high - low > limits.max - limits.min).any():
            return None
        offsets = np.where((low >= limits.min) & (high <= limits.max), 0, limits.min - low)
        array = (values + offsets).astype(limits.dtype)
        loops = tuple(axis for axis in (read.indices[dim] for dim in kept) if isinstance(axis, Axis))
        flat = offsets.reshape(tuple(values.shape[dim] for dim in kept)).astype(np.int32)
        return array, self._constant(f"{read.tensor.name}.offset", flat, loops)

    # Products ---------------------------------------------------------------------------------------------------

    def multiply(self, node: Compute, a: _Factor, b: _Factor) -> tuple[Read, Read]:
        """Let a product multiply two bytes, and correct it; gives their reads."""
        reads = self._stored_read(a), self._stored_read(b)
        repeats = Const(_wrapped(prod(static_shape(tuple(axis.extent for axis in node.reduce)))), "i32")
        correction: Expr = ZERO
        if a.offset != ZERO:
            inner = self.minus(self.times(b.offset, repeats), self._sum(reads[1], node))
            correction = self.times(a.offset, inner)
        if b.offset != ZERO:
            correction = self.minus(correction, self.times(b.offset, self._sum(reads[0], node)))
        body = reads[0].cast("i32") * reads[1].cast("i32")
        if correction == ZERO:
            self.nodes[node.name] = replace(node, body=body)
            return reads
        output = replace(node.output, name=claim(f"{node.name}.dot", self._taken))
        self.nodes[output.name] = replace(node, output=output, body=body)
        total = self.plus(output[node.axes], correction)
        self.nodes[node.name] = Compute(node.output, node.axes, total, source=node.source)
        self.corrected.append(node.name)
        return reads

    def _stored_read(self, factor: _Factor) -> Read:
        """The read of a factor from where its bytes are stored."""
        tensor, indices = factor.read.tensor, factor.read.indices
        if tensor.name not in self.constants:
            return factor.read if factor.dtype == tensor.dtype else Read(self._moved_tensor(tensor), indices)
        found = self._stored[factor.read, factor.dtype]
        assert found is not None, "a constant is stored in a type that holds it"
        if factor.dtype == tensor.dtype and np.array_equal(found[0], self.constants[tensor.name]):
            return factor.read
        stored = Tensor(claim(f"{tensor.name}.{factor.dtype}", self._taken), tensor.shape, factor.dtype)
        self.constants[stored.name] = found[0]
        return Read(stored, indices)

    def _sum(self, read: Read, node: Compute) -> Expr:
        """The sum of one factor over all reduction loops of a product."""
        used = _loops(read)
        axes, reduce = (tuple(axis for axis in loops if axis in used) for loops in (node.axes, node.reduce))
        repeats = prod(static_shape(tuple(axis.extent for axis in node.reduce if axis not in used)))
        total: Expr = read.cast("i32")
        if reduce:
            extents = tuple(axis.extent for axis in axes)
            output = Tensor(f"{node.name}.sum_{read.tensor.name}", extents, "i32")
            summed = Compute(output, axes, total, reduce, "sum", source=node.source)
            if read.tensor.name in self.constants:
                total = self._constant(output.name, evaluate_compute(summed, self.constants), axes)
            else:
                output = replace(output, name=claim(output.name, self._taken))
                self.nodes[output.name] = replace(summed, output=output)
                total = output[axes]
        return self.times(total, Const(_wrapped(repeats), "i32"))

    def _moved_tensor(self, tensor: Tensor) -> Tensor:
        """A tensor of bytes with the other sign: its values moved by `SIGN`, which keeps their order.

        Movement, padding and extrema before it move with it. A map writes moved values, and its other readers move them
        back; what else there is, and an output, is copied.
        """
        if tensor.name in self._moved:
            return self._moved[tensor.name]
        dtype: DType = "u8" if tensor.dtype == "i8" else "i8"
        moved = replace(tensor, name=claim(f"{tensor.name}.{dtype}", self._taken), dtype=dtype)
        self._moved[tensor.name] = moved
        producer = self.nodes.get(tensor.name)
        kept = tensor.name in self.outputs
        movement = producer is not None and _is_movement(producer.body)
        if producer is not None and producer.accum is None and movement:
            self.nodes[moved.name] = replace(producer, output=moved, body=self._moved_byte(producer.body))
        elif producer is not None and not kept and (producer.accum is None or (producer.accum in EXTREMA and movement)):
            body = self._moved_byte(producer.body) if movement else _move_sign(producer.body)
            self.nodes[moved.name] = replace(producer, output=moved, body=body)
            self.decoded[tensor.name] = moved.name, _move_sign(moved[producer.axes])
        else:
            axes = tuple(Axis(f"i{dim}", extent) for dim, extent in enumerate(tensor.shape))
            self.nodes[moved.name] = Compute(moved, axes, _move_sign(tensor[axes]), source=tensor.name)
        return moved

    def _moved_byte(self, body: Expr) -> Expr:
        if isinstance(body, Apply):
            return select(body.args[0], self._moved_byte(body.args[1]), self._moved_byte(body.args[2]))
        if isinstance(body, Const):
            dtype: DType = "u8" if body.dtype == "i8" else "i8"
            return Const(int(body.value) + _move(dtype), dtype)
        assert isinstance(body, Read)
        if body.tensor.name in self.constants:
            return _move_sign(body)
        return Read(self._moved_tensor(body.tensor), body.indices)

    # Offsets ----------------------------------------------------------------------------------------------------

    def plus(self, a: Expr, b: Expr) -> Expr:
        return b if a == ZERO else a if b == ZERO else self.folded(a + b)

    def minus(self, a: Expr, b: Expr) -> Expr:
        return a if b == ZERO else self.folded(a - b)

    def times(self, a: Expr, b: Expr) -> Expr:
        one = Const(1, "i32")
        return ZERO if ZERO in (a, b) else b if a == one else a if b == one else self.folded(a * b)

    def folded(self, expr: Expr) -> Expr:
        """What an expression takes from constants alone, ahead of time."""
        reads = _reads(expr)
        if not all(read.tensor.name in self.constants and stays_inside(read) for read in reads):
            return expr
        axes = tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Axis)))
        output = Tensor("folded", tuple(axis.extent for axis in axes), expr.dtype)
        if axes and output.size > max((read.tensor.size for read in reads), default=0):
            return expr
        name = f"{reads[0].tensor.name.removesuffix('.folded')}.folded" if reads else ""
        return self._constant(name, evaluate_compute(Compute(output, axes, expr), self.constants), axes)

    def _constant(self, name: str, array: Array, axes: tuple[Axis, ...]) -> Expr:
        """An i32 constant over `axes`: a literal where all its values are equal."""
        if (array == array.flat[0]).all():
            return Const(int(array.flat[0]), "i32")
        tensor = Tensor(claim(name, self._taken), array.shape, "i32")
        self.constants[tensor.name] = array
        return tensor[axes]

    # The graph --------------------------------------------------------------------------------------------------

    def finished(self) -> Graph:
        """The graph with what products read now, corrections in the maps behind them, and other readers decoding."""
        alive = {node.name for node in self._graph().nodes}

        def holds(name: str) -> bool:
            return name in alive or (name in self.decoded and holds(self.decoded[name][0]))

        decoding = [name for name, (held, _) in self.decoded.items() if holds(held)]
        for name in decoding:
            node, body = self.nodes[name], self.decoded[name][1]
            self.nodes[name] = Compute(node.output, node.axes, body, source=node.source)
        graph = self._graph()
        self.nodes = {node.name: node for node in graph.nodes}
        users = {name: [node.name for node in found] for name, found in graph.consumers().items()}
        for name in self.corrected:
            readers = users.get(name, [])
            if len(readers) == 1 and name not in self.outputs and self._follows(self.nodes[name], readers[0]):
                self._inline(name, readers[0], users)
        for name in decoding:
            for reader in list(users.get(name, [])):
                if self.nodes[reader].accum is None and not _is_movement(self.nodes[reader].body):
                    self._inline(name, reader, users)
        return self._graph()

    def _follows(self, node: Compute, reader: str) -> bool:
        return self.nodes[reader].accum is None and reads_own_points(self.nodes[reader], node.output)

    def _inline(self, name: str, reader: str, users: dict[str, list[str]]) -> None:
        node = self.nodes[name]
        self.nodes[reader] = inline(self.nodes[reader], node)
        users[name].remove(reader)
        for tensor in node.inputs():
            known = users.setdefault(tensor.name, [])
            known.extend([reader] if reader not in known else [])
            if not users[name] and name not in self.outputs:
                known.remove(name)

    def _graph(self) -> Graph:
        """The nodes that outputs depend on, producers first."""
        ordered: dict[str, Compute] = {}
        waiting = [node.name for node in reversed(self.nodes.values())]
        while waiting:
            name = waiting[-1]
            missing = [t.name for t in self.nodes[name].inputs() if t.name in self.nodes and t.name not in ordered]
            if name not in ordered and missing:
                waiting.extend(missing)
            else:
                ordered[waiting.pop()] = self.nodes[name]
        return live(replace(self.graph, nodes=tuple(ordered.values()), constants=self.constants))


def _move(dtype: DType) -> int:
    """What is added to a byte of the other sign to store it as `dtype`."""
    return SIGN if dtype == "u8" else -SIGN


def _move_sign(expr: Expr) -> Expr:
    """A byte of one sign as a byte of the other, in arithmetic that wraps."""
    dtype: DType = "u8" if expr.dtype == "i8" else "i8"
    return expr.cast(dtype) + _move(dtype)


def _bits(factors: Iterable[Expr | _Factor]) -> int:
    """Bits in which factors are stored, conversions looked through."""
    return sum(dtypes.bits(each.arg.dtype if isinstance(each, Cast) else each.dtype) for each in factors)


def _byte(expr: Expr, like: Expr) -> Expr | None:
    """An i32 expression as the byte that has its value, in the type of `like`; None where none is known."""
    if isinstance(expr, Cast) and expr.arg.dtype == like.dtype:
        return expr.arg
    limits = np.iinfo(dtypes.numpy_dtype(like.dtype))
    if isinstance(expr, Const) and limits.min <= int(expr.value) <= limits.max:
        return Const(expr.value, like.dtype)
    return None


def _is_movement(body: Expr) -> bool:
    """Whether a body is an element of a tensor, a constant, or a choice of such."""
    if isinstance(body, Apply) and body.function == "select":
        return all(_is_movement(value) for value in body.args[1:])
    return isinstance(body, Read | Const)


def _is_affine(read: Read) -> bool:
    return all(affine(index) is not None for index in read.indices)


def _reads(expr: Expr) -> list[Read]:
    return [node for node in walk(expr) if isinstance(node, Read)]


def _loops(expr: Expr) -> set[Axis]:
    return {node for node in walk(expr) if isinstance(node, Axis)}


def _wrapped(value: int) -> int:
    """A number as i32 holds it."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
