"""Products of narrow factors for which a machine has no fast instruction: the factors are converted once, before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor, select, static_shape
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Graph
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.expr.rewrite import inline
from tilewright.graph.passes.offset_factors import Price
from tilewright.graph.passes.rewritten import Rewritten

#: The type that each narrow factor is converted to: the narrowest that has all of its values and a fast instruction.
WIDER: Mapping[DType, DType] = {"bf16": "f32", "f16": "f32", "u8": "i16", "i8": "i16"}
CONVERTED_CYCLES = 2.0  # of an element of a variable: it is converted, written and read with twice the bytes
BYTE_CYCLES = 0.2  # of a byte by which a constant becomes longer: 16 GB/s, between L3 and main memory of a Zen 3


@dataclass(frozen=True)
class WidenFactors:
    """Convert the factors of a product before it, where the product would convert them in every register tile.

    Before:  A[i, k] += f32(x[i, c]) * f32(W[k, c])              with x and W in bf16
    After:   x.f32[i, c] = f32(x[i, c])
             A[i, k] += x.f32[i, c] * W.f32[k, c]                with const W.f32 = f32(W)
    Bytes become i16, and their product is ``i32(x.i16[i, c]) * i32(W.i16[k, c])``.
    Legal where the factors are reads: the wider type has every value of the narrow one, so that no result changes.
    Done where `price` says that level 3 runs the wider product in fewer cycles, and what is saved is more than the
    conversion takes of elements that no other product has had converted: `CONVERTED_CYCLES` each. A constant is
    converted when the graph is compiled, and more bytes of it are read: `BYTE_CYCLES` each. Padding is converted with
    what it pads, and a map that nothing else reads gives the wider values itself. Needs offsets taken out of factors.
    """

    price: Price
    name: ClassVar[str] = "widen-factors"

    def apply(self, state: Rewritten) -> Rewritten:
        widening = _Widening(state.graph)
        decisions = []
        for node in state.graph.nodes:
            decision = widening.widen(node, self.price)
            decisions += [] if decision is None else [decision]
        if not decisions:
            return state
        return replace(state, graph=widening.finished(), decisions=(*state.decisions, *decisions))


class _Widening:
    """A graph while factors are converted. `wide` has the tensor in a wider type for each that was converted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: dict[str, Compute] = {}
        self.constants = dict(graph.constants)
        self.wide: dict[str, Tensor] = {}
        self.producers = {node.name: node for node in graph.nodes}
        self._taken = set(graph.tensors()) | set(graph.constants)

    def widen(self, node: Compute, price: Price) -> Decision | None:
        """Add the node, on wider factors where that pays; the decision, where it does."""
        self.nodes[node.name] = node
        factors = _narrow_factors(node)
        now = price(node) if factors else None
        then = price(_with_factors(node, {each.tensor.name: _wider(each.tensor) for each in factors})) if now else None
        if now is None or then is None:
            return None
        products = prod(static_shape(tuple(axis.extent for axis in node.loops)))
        new = {each.tensor.name: each.tensor for each in factors if each.tensor.name not in self.wide}
        conversion = sum(map(self._conversion_cycles, new.values()))
        wide_cycles, narrow_cycles = products * then[0] + conversion, products * now[0]
        if wide_cycles >= narrow_cycles:
            return None
        del self.nodes[node.name]
        wide = {each.tensor.name: self._converted(each.tensor) for each in factors}
        self.nodes[node.name] = _with_factors(node, wide)
        return Decision(
            f"conversion of the factors of {node.name}",
            " and ".join(f"{each.tensor.name} to {WIDER[each.dtype]}" for each in factors) + ", before the product",
            f"{wide_cycles:.0f} cycles at full rate with the conversion",
            "in the product, for each register tile",
            f"{narrow_cycles:.0f} cycles at full rate",
            cost=Cost(cycles=wide_cycles),
            runner_up_cost=Cost(cycles=narrow_cycles),
        )

    def _conversion_cycles(self, tensor: Tensor) -> float:
        """What a factor costs in its wider type that it did not cost before."""
        if tensor.name in self.constants:
            return BYTE_CYCLES * (_wider(tensor).size_bytes - tensor.size_bytes)
        return CONVERTED_CYCLES * tensor.size

    def finished(self) -> Graph:
        """The graph without what nothing reads any more; a map that is only read to be converted gives wider values."""
        graph = live(replace(self.graph, nodes=tuple(self.nodes.values()), constants=self.constants))
        readers, kept = graph.consumers(), {tensor.name for tensor in graph.outputs}
        nodes = {node.name: node for node in graph.nodes}
        for name, wide in self.wide.items():
            narrow = nodes.get(name)
            if narrow is None or narrow.accum is not None or name in kept:
                continue
            if [reader.name for reader in readers[name]] == [wide.name]:
                nodes[wide.name] = inline(nodes[wide.name], narrow)
                del nodes[name]
        return replace(graph, nodes=tuple(nodes.values()))

    def _converted(self, tensor: Tensor) -> Tensor:
        """The tensor in its wider type; constants have it, of others a node computes it."""
        if tensor.name in self.wide:
            return self.wide[tensor.name]
        wide = self.wide[tensor.name] = replace(
            _wider(tensor), name=claim(f"{tensor.name}.{WIDER[tensor.dtype]}", self._taken)
        )
        producer = self.producers.get(tensor.name)
        if tensor.name in self.constants:
            self.constants[wide.name] = self.constants[tensor.name].astype(dtypes.numpy_dtype(wide.dtype))
        elif producer is not None and producer.accum is None and _is_padding(producer.body):
            body = self._padded(producer.body, wide.dtype)
            self.nodes[wide.name] = replace(producer, output=wide, body=body)
        else:
            axes = tuple(Axis(f"i{dim}", extent) for dim, extent in enumerate(tensor.shape))
            self.nodes[wide.name] = Compute(wide, axes, tensor[axes].cast(wide.dtype), source=tensor.name)
        return wide

    def _padded(self, body: Expr, dtype: DType) -> Expr:
        """Padding in a wider type: what it pads is converted, and so are its constants."""
        if isinstance(body, Apply):
            return select(body.args[0], self._padded(body.args[1], dtype), self._padded(body.args[2], dtype))
        if isinstance(body, Const):
            return Const(body.value, dtype)
        assert isinstance(body, Read)
        return Read(self._converted(body.tensor), body.indices)


def _narrow_factors(node: Compute) -> list[Read]:
    """The factors of a product that would be converted in it; none where a body is another one."""
    body = node.body
    if node.accum != "sum" or not isinstance(body, Apply) or body.function != "mul":
        return []
    found = []
    for factor in body.args:
        inner = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(inner, Read) or any(affine(index) is None for index in inner.indices):
            return []
        if inner.dtype in WIDER and dtypes.size_bytes(inner.dtype) < dtypes.size_bytes(body.dtype):
            found.append(inner)
    return found


def _with_factors(node: Compute, tensors: Mapping[str, Tensor]) -> Compute:
    """The product of the same elements of other tensors."""
    assert isinstance(node.body, Apply)
    return replace(node, body=Apply("mul", tuple(_factors(node.body, tensors)), node.body.dtype))


def _factors(body: Apply, tensors: Mapping[str, Tensor]) -> Iterator[Expr]:
    for factor in body.args:
        read = factor.arg if isinstance(factor, Cast) else factor
        assert isinstance(read, Read)
        yield Read(tensors.get(read.tensor.name, read.tensor), read.indices).cast(body.dtype)


def _wider(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=WIDER[tensor.dtype])


def _is_padding(body: Expr) -> bool:
    """Whether a body chooses between an element of a tensor and a constant."""
    if not (isinstance(body, Apply) and body.function == "select"):
        return False
    return all(isinstance(value, Read | Const) for value in body.args[1:])
