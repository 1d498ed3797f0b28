"""Parsing of whole graphs, line by line, with loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import Compute, Dim, Extent, Tensor
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Carried, Graph, Loop, Sliced, Stacked, loop_of
from tilewright.expr.text.statements import StatementParser
from tilewright.expr.text.tokens import Token


def parse_compute(
    text: str,
    sizes: Mapping[str, Extent] | None = None,
    dtypes: Mapping[str, DType] | DType = "f32",
    *,
    where: str = "<text>",
) -> Compute:
    """One statement, after any `dim` and `input` lines.

    `sizes` are extents of loops; `dtypes` the element types of tensors without an `input` line, by name or one for
    all. Their shapes are inferred. Raises CompileError with line, column and the text at fault.
    """
    parser = GraphParser(text, where, dict(sizes or {}), dtypes)
    parser.parse()
    if len(parser.nodes) != 1 or parser.graph_only is not None:
        parser.fail(
            parser.graph_only or parser.last,
            "this is not one statement",
            help="write one, as C[i, j] += A[i, k] * B[k, j]",
        )
    return parser.nodes[0]


def parse_computes(
    text: str,
    sizes: Mapping[str, Extent] | None = None,
    dtypes: Mapping[str, DType] | DType = "f32",
    *,
    where: str = "<text>",
) -> tuple[Compute, ...]:
    """Statements in order, one a line or with ``;`` between them; see `parse_compute`.

    A later one may read what an earlier one writes. Raises CompileError where there is none, or another line.
    """
    parser = GraphParser(text.replace(";", "\n"), where, dict(sizes or {}), dtypes)
    parser.parse()
    if not parser.nodes or parser.graph_only is not None:
        parser.fail(
            parser.graph_only or parser.last,
            "these are not statements alone",
            help="write them as C[i, j] += A[i, k] * B[k, j]; D[i, j] = max(C[i, j], 0.0)",
        )
    return tuple(parser.nodes)


def parse_graph(
    text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, where: str = "<text>"
) -> Graph:
    """A graph; `constants` are the values of its `const` lines. Raises CompileError as `parse_compute` does."""
    parser = GraphParser(text, where, {}, None, dict(constants or {}))
    parser.parse()
    outputs = []
    for token, name in parser.outputs:
        if name not in parser.tensors:
            parser.fail(token, f"output {name} is not a tensor of this graph", help="write it in a node above")
        outputs.append(parser.tensors[name])
    if parser.open_loops:
        parser.fail(parser.open_loops[-1].token, "this loop has no end", help="write end behind it")
    values = {name: parser.constants[name] for name in parser.declared_constants}
    loops = tuple(parser.loops)
    return Graph(tuple(parser.inputs), tuple(outputs), tuple(parser.nodes), values, parser.name, loops)


@dataclass
class _OpenLoop:
    """A loop whose end is not read yet, and what the graph around it has so far."""

    token: Token
    name: str
    trips: int
    outer: tuple[list[Compute], list[Loop], list[str]]
    sliced: list[Sliced] = field(default_factory=list)
    states: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    stacked: list[Stacked] = field(default_factory=list)


class GraphParser(StatementParser):
    """Recursive descent over lines. `constants` are the values of `const` lines by name."""

    def __init__(
        self,
        text: str,
        where: str,
        sizes: Mapping[str, Extent],
        default_dtypes: Mapping[str, DType] | DType | None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        super().__init__(text, where, default_dtypes, sizes)
        self.constants = constants or {}
        self.name = "main"
        self.inputs: list[Tensor] = []
        self.declared_constants: list[str] = []
        self.outputs: list[tuple[Token, str]] = []
        self.graph_only: Token | None = None
        self.loops: list[Loop] = []
        self.open_loops: list[_OpenLoop] = []
        self.names_of_loops: set[str] = set()

    def parse(self) -> None:
        lines = {
            "graph": self.graph_line, "dim": self.dim_line, "input": self.tensor_line, "const": self.tensor_line,
            "output": self.output_line,
        }  # fmt: skip
        of_loops = {
            "loop": self.loop_line, "slice": self.slice_line, "state": self.state_line, "carry": self.carry_line,
            "stack": self.stack_line, "end": self.end_line,
        }  # fmt: skip
        while self.place < len(self.tokens):
            token = self.peek()
            if token.kind == "newline":
                self.next()
                continue
            if token.kind == "name" and token.text in lines:
                self.next()
                lines[token.text](token)
            elif token.kind == "name" and token.text in of_loops and self.peek(1).text not in (":", "["):
                self.next()
                of_loops[token.text](token)
            else:
                self.statement()
            if self.peek().kind != "newline":
                self.unexpected("the end of the line")

    def graph_line(self, keyword: Token) -> None:
        if self.nodes or self.inputs or self.dims or self.graph_only is not None:
            self.fail(keyword, "the graph line comes first")
        self.graph_only = keyword
        self.name = self.identifier("the name of the graph")[1]

    def dim_line(self, _: Token) -> None:
        token, name = self.identifier("the name of a dimension")
        if name in self.dims:
            self.fail(token, f"dimension {name} is declared twice")
        self.expect("in")
        self.expect("[")
        low = self.integer("the least value")[1]
        self.expect(",")
        high = self.integer("the greatest value")[1]
        self.expect("]")
        divisor = self.integer("a divisor")[1] if self.accept("%") else 1
        with self.at(token):
            self.dims[name] = Dim(name, low, high, divisor)

    def tensor_line(self, keyword: Token) -> None:
        token, name = self.identifier("a tensor's name")
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        shape: list[Extent] = []
        while not self.accept("]"):
            if shape:
                self.expect(",")
            shape.append(self.extent())
        tensor = Tensor(name, tuple(shape), dtype)
        if keyword.text == "input" and self.open_loops:
            self.fail(keyword, "an input inside of a loop", help="declare it above the loop")
        if keyword.text == "input" or not self.open_loops or self.tensors.get(name) != tensor:
            self.define(token, tensor)  # a constant of a loop may be one of the graph around it
        if keyword.text == "input":
            self.inputs.append(tensor)
            return
        self.graph_only = keyword
        array = self.constants.get(name)
        if array is None:
            self.fail(token, f"the values of {name} are not given", help=f"parse_graph(text, {{{name!r}: array}})")
        if array.shape != tensor.shape or array.dtype != dtypes.numpy_dtype(dtype):
            self.fail(token, f"{tensor} is given as {array.dtype}{list(array.shape)}")
        self.declared_constants.append(name)

    def output_line(self, keyword: Token) -> None:
        self.graph_only = keyword
        self.outputs.append(self.identifier("a tensor's name"))

    # Lines of loops

    def loop_line(self, keyword: Token) -> None:
        self.graph_only = keyword
        token, name = self.identifier("the name of a loop")
        if name in self.names_of_loops:
            self.fail(token, f"two loops are called {name}", help="give each loop a name of its own")
        self.names_of_loops.add(name)
        self.expect("times")
        trips = self.integer("how often it runs")[1]
        outer = (self.nodes, self.loops, self.declared_constants)
        self.open_loops.append(_OpenLoop(keyword, name, trips, outer))
        self.nodes, self.loops, self.declared_constants = [], [], []

    def opened(self, keyword: Token) -> _OpenLoop:
        if not self.open_loops:
            self.fail(keyword, f"{keyword.text} outside of a loop", help="write loop NAME times TRIPS above")
        return self.open_loops[-1]

    def known(self, wanted: str) -> tuple[Token, Tensor]:
        token, name = self.identifier(wanted)
        if name not in self.tensors:
            self.fail(token, f"tensor {name} is not known here", help="declare or write it above")
        return token, self.tensors[name]

    def backwards(self) -> bool:
        return self.accept("backwards") is not None

    def slice_line(self, keyword: Token) -> None:
        opened = self.opened(keyword)
        token, name = self.identifier("the name of a slice")
        self.expect("of")
        whole = self.known("the tensor whose rows it is")[1]
        if not whole.shape:
            self.fail(token, f"{whole} has no rows")
        part = Tensor(name, whole.shape[1:], whole.dtype)
        self.define(token, part)
        opened.sliced.append(Sliced(part, whole, self.backwards()))

    def state_line(self, keyword: Token) -> None:
        opened = self.opened(keyword)
        token, name = self.identifier("the name of a state")
        self.expect("of")
        initial = self.known("the tensor that it is at first")[1]
        state = Tensor(name, initial.shape, initial.dtype)
        self.define(token, state)
        opened.states[name] = (state, initial)

    def carry_line(self, keyword: Token) -> None:
        opened = self.opened(keyword)
        token, name = self.identifier("a state")
        if name not in opened.states:
            known = ", ".join(opened.states) or "none"
            self.fail(token, f"{name} is no state of this loop that is not carried yet", help=f"one of: {known}")
        state, initial = opened.states.pop(name)
        self.expect("to")
        following = self.known("the tensor that it is in the next trip")[1]
        self.expect("as")
        token, name = self.identifier("a name for what it is at last")
        final = Tensor(name, state.shape, state.dtype)
        self.define(token, final)
        opened.carried.append(Carried(state, initial, following, final))

    def stack_line(self, keyword: Token) -> None:
        opened = self.opened(keyword)
        part = self.known("a tensor of every trip")[1]
        self.expect("as")
        token, name = self.identifier("a name for all of them")
        whole = Tensor(name, (opened.trips, *part.shape), part.dtype)
        self.define(token, whole)
        opened.stacked.append(Stacked(part, whole, self.backwards()))

    def end_line(self, keyword: Token) -> None:
        opened = self.opened(keyword)
        if opened.states:
            self.fail(keyword, f"state {next(iter(opened.states))} is not carried", help="write carry STATE to …")
        constants = {name: self.constants[name] for name in self.declared_constants}
        with self.at(opened.token):
            found = loop_of(
                opened.name, opened.trips, self.nodes, self.loops, constants, opened.sliced, opened.carried,
                opened.stacked,
            )  # fmt: skip
        self.open_loops.pop()
        self.nodes, self.loops, self.declared_constants = opened.outer
        self.loops.append(found)
