"""Parsing of statements: a tensor, how it accumulates, and its expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Dim, Extent, Tensor, scatter_body
from tilewright.expr.dtypes import DType
from tilewright.expr.infer import infer
from tilewright.expr.ordered import SCATTER, Ordered, PrefixScan, Scatter, Sort
from tilewright.expr.text.expressions import ExpressionParser, Node
from tilewright.expr.text.grammar import ACCUMULATE
from tilewright.expr.text.printing import sign
from tilewright.expr.text.tokens import Token


class StatementParser(ExpressionParser):
    """Parses statements. `sizes` are extents of loops by name; a statement may add its own."""

    def __init__(
        self,
        text: str,
        where: str,
        default_dtypes: Mapping[str, DType] | DType | None,
        sizes: Mapping[str, Extent],
    ) -> None:
        super().__init__(text, where, default_dtypes)
        self.sizes = dict(sizes)
        self.dims: dict[str, Dim] = {}
        self.nodes: list[Compute] = []

    def statement(self) -> None:
        token, name = self.identifier("a tensor, or graph, dim, input, const, output")
        dtype = self.dtype() if self.accept(":") else None
        sizes = dict(self.sizes)
        self.expect("[")
        axes: list[str] = []
        while not self.accept("]"):
            if axes:
                self.expect(",")
            axes.append(self.loop(sizes))
        combine = self.assignment()
        body_token = self.peek()
        if dtype is None and isinstance(self.default_dtypes, Mapping):
            dtype = self.default_dtypes.get(name)
        parts = self.scatter_parts() if body_token.text == SCATTER and self.peek(1).text == "(" else None
        tree = self.expression(0) if parts is None else parts[0]
        combine, tree = self.reduction(combine, tree)
        over: list[str] | None = None
        if self.accept("over"):
            over = self.loop_names(sizes)
        accum = self.ordered(combine, axes)
        if isinstance(accum, Scatter) != (parts is not None):
            self.fail(body_token, "scatter(initial, value, place…) goes with scattered", help="… over k:8 scattered i")
        if parts is not None:
            first = self.build(parts[0], dtype)
            places = [self.build(part, dtypes.INDEX) for part in parts[2:]]
            body = scatter_body(first, self.build(parts[1], first.dtype), places)
        else:
            body = self.build(tree, None if isinstance(accum, Sort) else dtype)
        result = dtypes.INDEX if isinstance(accum, Sort) else body.dtype
        if dtype is not None and result != dtype:
            self.fail(body_token, f"this is {result}, and {name} is {dtype}", help=f"write {dtype}(…)")
        with self.at(token):
            compute = infer(name, axes, body, accum=accum, sizes=sizes, over=over)
        self.define(token, compute.output)
        self.nodes.append(compute)

    def loop_names(self, sizes: dict[str, Extent]) -> list[str]:
        found = [self.loop(sizes)]
        while self.accept(","):
            found.append(self.loop(sizes))
        return found

    def scatter_parts(self) -> list[Node]:
        """The parts of ``scatter(initial, value, place…)``."""
        token = self.next()
        self.expect("(")
        parts = [self.expression(0)]
        while self.accept(","):
            parts.append(self.expression(0))
        self.expect(")")
        if len(parts) < 3:
            self.fail(token, f"scatter of {len(parts)} parts", help="scatter(initial, value, place…)")
        return parts

    def ordered(self, combine: str | None, axes: Sequence[str]) -> str | Ordered | None:
        """The words of an ordered accumulation after its loops, if there are any."""
        token = self.accept("scanned", "sorted", "scattered")
        if token is None:
            return combine
        place, names = self.peek(), self.loop_names({})
        if any(name not in axes for name in names) or (len(names) != 1 and token.text != "scattered"):
            self.fail(place, f"{', '.join(names)} is no dimension of the result", help=f"one of {', '.join(axes)}")
        dims = tuple(axes.index(name) for name in names)
        if token.text == "scattered":
            return Scatter(dims, combine or "")
        if (combine is None) != (token.text == "sorted"):
            self.fail(token, f"{token.text} after {sign(combine)}", help="+= … scanned, = … sorted")
        if token.text == "sorted":
            return Sort(dims[0], bool(self.accept("descending")))
        return PrefixScan(dims[0], combine or "", bool(self.accept("exclusive")), bool(self.accept("reverse")))

    def loop(self, sizes: dict[str, Extent]) -> str:
        token, name = self.identifier("the name of a loop")
        if self.peek().text in "+-*/%" and self.peek().kind == "symbol":
            self.fail(self.peek(), "an output is indexed by loops alone", help="move the arithmetic to the right side")
        if self.accept(":"):
            extent = self.extent()
            if sizes.setdefault(name, extent) != extent:
                self.fail(token, f"{name} has {extent} values here and {sizes[name]} before")
        return name

    def assignment(self) -> str | None:
        for accum, symbol in ACCUMULATE.items():
            if symbol in ("+=", "*=") and self.accept(symbol):
                return accum
            if self.peek().text == accum and self.peek(1).text == "=":
                self.place += 2
                return accum
        if not self.accept("="):
            self.unexpected("one of = += *= max= min=")
        return None

    def reduction(self, accum: str | None, tree: Node) -> tuple[str | None, Node]:
        """``= sum(…)``, ``= max(…)`` of one argument: another way to write an accumulation."""
        if tree.kind == "reduction":
            if accum is not None:
                self.fail(tree.token, "two accumulations", help=f"write = {tree.value}(…)")
            return tree.value, tree.args[0]
        return accum, tree

    # Declarations

    def define(self, token: Token, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            self.fail(token, f"tensor {tensor.name} is defined twice", help="write each tensor once")
        self.tensors[tensor.name] = tensor

    def dtype(self) -> DType:
        token = self.peek()
        if token.kind != "name" or token.text not in dtypes.DTYPES:
            self.unexpected(f"a dtype: {', '.join(dtypes.DTYPES)}")
        return self.next().text

    def extent(self) -> Extent:
        token = self.peek()
        if token.kind in ("name", "string"):
            token, name = self.identifier("an extent")
            if name not in self.dims:
                self.fail(token, f"no dimension is called {name}", help=f"declare it above: dim {name} in [1, 4096]")
            return self.dims[name]
        return self.integer("an extent")[1]
