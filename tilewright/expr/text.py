"""The text form of computes and graphs: printing and parsing, exact both ways.

One statement, with sizes and dtypes beside it (`parse_compute(text, sizes, dtypes)`)::

    C[i, j] += A[i, k] * B[k, j]

The same, complete, as `print_compute` writes it::

    input A: f32[64, 32]
    input B: f32[32, 64]
    C: f32[i:64, j:64] += A[i, k] * B[k, j] over k:32

A graph adds `graph NAME`, `dim N in [LOW, HIGH] % DIVISOR`, `const W: f32[3, 3]` (its values are kept elsewhere), and
`output C`; every node is one line, `#` starts a comment. Operators, loosest first (all but `?:` group to the left)::

    c ? a : b      or      and      not      < <= > >= == != (they chain)      |  ^  &  << >>      + -
    * / // %      - ~      name[indices]  function(arguments)  dtype(cast)  (expression)  number

Ordered accumulations (`expr.ordered`) name the dimension that they give, after the reduction loops::

    S: f32[i:8, j:16] += x[i, k] over k:16 scanned j exclusive reverse
    P: i64[i:8, j:5] = x[i, k] over k:16 sorted j descending
    U: f32[i:20, f:7] += scatter(x[i, f], v[k, f], at[k]) over k:30 scattered i

A number takes its dtype from what it is combined with; `0.5_f16`, `inf_f32` say it. `true` and `false` are bool. Names
that are not ``letters.digits`` are written as JSON strings: ``"conv1/weight:0"[k, c]``.

A loop of 8 trips walks the rows of `x`, here the last one first, with a state that is `h0` at first; its states are
stacked into `rows`, in the order of the trips, and the last one is `last`::

    loop steps times 8
    slice x.t of x backwards
    state h of h0
    h.next: f32[i:4] = h[i] * 0.5 + x.t[i]
    carry h to h.next as last
    stack h.next as rows
    end
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import CompileError, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import (
    FUNCTIONS,
    Apply,
    Axis,
    Cast,
    Compute,
    Const,
    Dim,
    Expr,
    Extent,
    Read,
    Tensor,
    apply,
    scatter_body,
)
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Carried, Graph, Loop, Sliced, Stacked, loop_of
from tilewright.expr.infer import UNKNOWN, infer
from tilewright.expr.ordered import SCATTER, Ordered, PrefixScan, Scatter, Sort

_KEYWORDS = frozenset(
    ("graph", "dim", "input", "const", "output", "over", "in", "and", "or", "not", "true", "false", "inf", "nan")
)
_ACCUMULATE = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min="}
#: Binary operators: binding power and function. Comparisons bind at 5.
_BINARY = {
    "or": (2, "or"), "and": (3, "and"), "|": (6, "or"), "^": (7, "xor"), "&": (8, "and"), "<<": (9, "shl"),
    ">>": (9, "shr"), "+": (10, "add"), "-": (10, "sub"), "*": (11, "mul"), "/": (11, "div"), "//": (11, "floordiv"),
    "%": (11, "mod"),
}  # fmt: skip
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_COMPARISON, _NOT, _UNARY, _PRIMARY = 5, 4, 12, 13
_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_TOKEN = re.compile(
    rf"""(?P<blank>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)
    |(?P<number>(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|(?:inf|nan)(?![A-Za-z0-9.]|_(?!(?:{"|".join(dtypes.DTYPES)})\b)))
       (?:_(?:{"|".join(dtypes.DTYPES)})\b)?)
    |(?P<name>{_NAME})|(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<symbol>\+=|\*=|//|<<|>>|<=|>=|==|!=|[-+*/%<>=~&|^?:,()\[\]])""",
    re.VERBOSE,
)
_DEEPEST = 200  # levels of an expression; the compiler's own walks are recursive
_LONGEST_NUMBER = 40  # characters


# Printing


def print_compute(compute: Compute) -> str:
    """A compute with the declarations it needs; `parse_compute` of it gives the compute back."""
    tensors = (*compute.inputs(), compute.output)
    lines = _dim_lines(_dims(tensors, [compute]))
    lines += [f"input {_declaration(tensor)}" for tensor in compute.inputs()]
    return "\n".join([*lines, print_statement(compute)]) + "\n"


def print_graph(graph: Graph) -> str:
    """A graph without the values of its constants; `parse_graph` of it with these values gives the graph back."""
    lines = [f"graph {_name(graph.name)}", *_dim_lines(_dims(graph.tensors().values(), _all_nodes(graph)))]
    lines += [f"input {_declaration(tensor)}" for tensor in graph.inputs]
    lines += _constant_lines(graph)
    lines += _step_lines(graph)
    lines += [f"output {_name(tensor.name)}" for tensor in graph.outputs]
    return "\n".join(lines) + "\n"


def _all_nodes(graph: Graph) -> list[Compute]:
    return [*graph.nodes, *(node for loop in graph.loops for node in _all_nodes(loop.body))]


def _constant_lines(graph: Graph) -> list[str]:
    tensors = [Tensor(name, array.shape, dtypes.from_numpy(array.dtype)) for name, array in graph.constants.items()]
    return [f"const {_declaration(tensor)}" for tensor in tensors]


def _step_lines(graph: Graph) -> list[str]:
    lines: list[str] = []
    for step in graph.steps():
        lines += [print_statement(step)] if isinstance(step, Compute) else _loop_lines(step)
    return lines


def _loop_lines(loop: Loop) -> list[str]:
    back = {False: "", True: " backwards"}
    return [
        f"loop {_name(loop.name)} times {loop.trips}",
        *(f"slice {_name(e.part.name)} of {_name(e.whole.name)}{back[e.backwards]}" for e in loop.sliced),
        *(f"state {_name(e.state.name)} of {_name(e.initial.name)}" for e in loop.carried),
        *_constant_lines(loop.body),
        *_step_lines(loop.body),
        *(f"carry {_name(e.state.name)} to {_name(e.following.name)} as {_name(e.final.name)}" for e in loop.carried),
        *(f"stack {_name(e.part.name)} as {_name(e.whole.name)}{back[e.backwards]}" for e in loop.stacked),
        "end",
    ]


def print_statement(compute: Compute) -> str:
    """One line: ``C: f32[i:64, j:64] += A[i, k] * B[k, j] over k:32``."""
    target = f"{_name(compute.name)}: {compute.output.dtype}[{', '.join(map(_axis, compute.axes))}]"
    over = f" over {', '.join(map(_axis, compute.reduce))}" if compute.reduce else ""
    accum, body = compute.accum, compute.body
    if isinstance(accum, Sort):
        words = f" sorted {_name(compute.axes[accum.dim].name)}{' descending' if accum.descending else ''}"
        return f"{target} = {print_expr(body)}{over}{words}"
    if isinstance(accum, Scatter):
        assert isinstance(body, Apply), "a scatter's body is its three parts"
        parts = [*(print_expr(arg, body.dtype) for arg in body.args[:2])]
        parts += [print_expr(place, dtypes.INDEX) for place in body.args[2:]]
        along = ", ".join(_name(compute.axes[dim].name) for dim in accum.dims)
        return f"{target} {_sign(accum.combine)} {SCATTER}({', '.join(parts)}){over} scattered {along}"
    words = ""
    if isinstance(accum, PrefixScan):
        words = f" scanned {_name(compute.axes[accum.dim].name)}"
        words += " exclusive" * accum.exclusive + " reverse" * accum.reverse
        accum = accum.combine
    return f"{target} {_sign(accum)} {print_expr(body, compute.output.dtype)}{over}{words}"


def _sign(accum: str | None) -> str:
    return _ACCUMULATE[accum] if accum else "="


def print_expr(expr: Expr, context: DType | None = None) -> str:
    """An expression; numbers show their dtype where neither their surroundings nor `context` tell it."""
    return _print(expr, context, 0)


def _print(expr: Expr, context: DType | None, level: int) -> str:
    if isinstance(expr, Const):
        if isinstance(expr.value, bool):
            return "true" if expr.value else "false"
        return repr(expr.value) + ("" if context == expr.dtype else f"_{expr.dtype}")
    if isinstance(expr, Axis):
        return _name(expr.name)
    if isinstance(expr, Read):
        return f"{_name(expr.tensor.name)}[{', '.join(_print(index, dtypes.INDEX, 0) for index in expr.indices)}]"
    if isinstance(expr, Cast):
        return f"{expr.dtype}({_print(expr.arg, None, 0)})"
    assert isinstance(expr, Apply), f"unknown expression {expr!r}"
    text, own = _print_apply(expr, context)
    return f"({text})" if own < level else text


def _print_apply(expr: Apply, context: DType | None) -> tuple[str, int]:
    """The text of a function applied to arguments, and how tightly it binds."""
    function, args = expr.function, expr.args
    values = args[1:] if function == "select" else args
    dtype = values[0].dtype
    expected = dtype if any(map(_typed, values)) or (context == dtype and expr.dtype == dtype) else None
    # Where nothing tells the dtype of numbers, the first one does.
    contexts = [expected or (dtype if number else None) for number in range(len(values))]
    if function == "select":
        condition = _print(args[0], "bool", 2)
        yes, no = _print(args[1], contexts[0], 0), _print(args[2], contexts[1], 1)
        return f"{condition} ? {yes} : {no}", 1
    symbol = FUNCTIONS[function].symbol
    if symbol and len(args) == 1:
        if function == "not" and dtype == "bool":
            return f"not {_print(args[0], contexts[0], _NOT)}", _NOT
        operand = _print(args[0], contexts[0], _UNARY)
        return f"{symbol}({operand})" if operand[0] in "0123456789in" and isinstance(args[0], Const) else (
            f"{symbol}{operand}"
        ), _UNARY
    if symbol:
        if function in ("and", "or") and dtype == "bool":
            symbol = function
        power = _COMPARISON if symbol in _COMPARISONS else _BINARY[symbol][0]
        left = _print(args[0], contexts[0], power + (symbol in _COMPARISONS))
        return f"{left} {symbol} {_print(args[1], contexts[1], power + 1)}", power
    printed = ", ".join(_print(arg, hint, 0) for arg, hint in zip(args, contexts, strict=True))
    return f"{function}({printed})", _PRIMARY


def _typed(expr: Expr) -> bool:
    """Whether the text of `expr` tells its dtype without suffixes on its numbers."""
    if isinstance(expr, Const):
        return isinstance(expr.value, bool)
    if isinstance(expr, Apply):
        rule = FUNCTIONS[expr.function].result
        return rule == "bool" or any(map(_typed, expr.args[1:] if rule == "select" else expr.args))
    return True


def _name(name: str) -> str:
    plain = re.fullmatch(_NAME, name) and name not in _KEYWORDS and not name.startswith(("inf_", "nan_"))
    return name if plain else json.dumps(name)


def _axis(axis: Axis) -> str:
    return f"{_name(axis.name)}:{_extent(axis.extent)}"


def _extent(extent: Extent) -> str:
    return _name(extent.name) if isinstance(extent, Dim) else str(extent)


def _declaration(tensor: Tensor) -> str:
    return f"{_name(tensor.name)}: {tensor.dtype}[{', '.join(map(_extent, tensor.shape))}]"


def _dims(tensors: Any, computes: Sequence[Compute]) -> dict[str, Dim]:
    extents: list[Extent] = [extent for tensor in tensors for extent in tensor.shape]
    for compute in computes:
        extents += [axis.extent for axis in compute.loops]
    dims: dict[str, Dim] = {}
    for extent in extents:
        if isinstance(extent, Dim) and dims.setdefault(extent.name, extent) != extent:
            raise InvalidExpression(
                f"two dimensions are called {extent.name}, with different ranges", help="use two names"
            )
    return dims


def _dim_lines(dims: Mapping[str, Dim]) -> list[str]:
    return [f"dim {_name(dim.name)} in [{dim.low}, {dim.high}] % {dim.divisor}" for dim in dims.values()]


# Parsing


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
    parser = _Parser(text, where, dict(sizes or {}), dtypes)
    parser.parse()
    if len(parser.nodes) != 1 or parser.graph_only is not None:
        parser.fail(
            parser.graph_only or parser.last,
            "this is not one statement",
            help="write one, as C[i, j] += A[i, k] * B[k, j]",
        )
    return parser.nodes[0]


def parse_graph(
    text: str, constants: Mapping[str, np.ndarray[Any, Any]] | None = None, *, where: str = "<text>"
) -> Graph:
    """A graph; `constants` are the values of its `const` lines. Raises CompileError as `parse_compute` does."""
    parser = _Parser(text, where, {}, None, dict(constants or {}))
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


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class _Node:
    """A parsed expression before numbers have their dtype. `dtype` is None where only the context tells it."""

    kind: str  # number, axis, read, cast, or a function
    token: _Token
    value: Any = None
    args: tuple[_Node, ...] = ()
    dtype: DType | None = None
    real: bool = False  # an untyped number in it is not an integer
    depth: int = field(default=1)


@dataclass
class _OpenLoop:
    """A loop whose end is not read yet, and what the graph around it has so far."""

    token: _Token
    name: str
    trips: int
    outer: tuple[list[Compute], list[Loop], list[str]]
    sliced: list[Sliced] = field(default_factory=list)
    states: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    stacked: list[Stacked] = field(default_factory=list)


class _Parser:
    """Recursive descent over lines, precedence climbing inside expressions."""

    def __init__(
        self,
        text: str,
        where: str,
        sizes: dict[str, Extent],
        default_dtypes: Mapping[str, DType] | DType | None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self.text, self.where = text, where
        self.sizes = sizes
        self.default_dtypes = default_dtypes
        self.constants = constants or {}
        self.name = "main"
        self.dims: dict[str, Dim] = {}
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[Tensor] = []
        self.declared_constants: list[str] = []
        self.nodes: list[Compute] = []
        self.outputs: list[tuple[_Token, str]] = []
        self.graph_only: _Token | None = None
        self.tokens = self._lex()
        self.place = 0
        self.nesting = 0
        self.loops: list[Loop] = []
        self.open_loops: list[_OpenLoop] = []
        self.names_of_loops: set[str] = set()

    # Tokens

    def _lex(self) -> list[_Token]:
        tokens: list[_Token] = []
        place = 0
        while place < len(self.text):
            match = _TOKEN.match(self.text, place)
            if match is None:
                self.fail(_Token("symbol", self.text[place], place), "this character starts nothing")
            kind = match.lastgroup
            assert kind is not None, "every branch of the token pattern is named"
            if kind == "number" and len(match.group()) > _LONGEST_NUMBER:
                self.fail(_Token(kind, match.group(), place), "this number is too long")
            if kind != "blank":
                tokens.append(_Token(kind, match.group(), place))
            place = match.end()
        return [*tokens, _Token("newline", "", len(self.text))]

    def fail(
        self, token: _Token, message: str, *, help: str = "", kind: type[CompileError] = InvalidExpression
    ) -> NoReturn:
        line = self.text.count("\n", 0, token.start) + 1
        begin = self.text.rfind("\n", 0, token.start) + 1
        end = self.text.find("\n", begin)
        shown = self.text[begin : end if end >= 0 else len(self.text)].rstrip("\r")
        column = token.start - begin + 1
        gutter = " " * len(str(line))
        raise kind(
            f"{message}\n  {line} | {shown}\n  {gutter} | {' ' * (column - 1)}{'^' * max(1, len(token.text.strip()))}",
            where=f"{self.where}:{line}:{column}",
            help=help,
        )

    @property
    def last(self) -> _Token:
        return self.tokens[-1]

    def peek(self, ahead: int = 0) -> _Token:
        return self.tokens[min(self.place + ahead, len(self.tokens) - 1)]

    def next(self) -> _Token:
        token = self.peek()
        self.place += 1
        return token

    def accept(self, *texts: str) -> _Token | None:
        token = self.peek()
        if token.kind in ("symbol", "name") and token.text in texts:
            return self.next()
        return None

    def expect(self, *texts: str) -> _Token:
        token = self.accept(*texts)
        if token is None:
            self.unexpected(" or ".join(repr(text) for text in texts))
        return token

    def unexpected(self, wanted: str) -> NoReturn:
        token = self.peek()
        found = repr(token.text) if token.text.strip() else "the end of the line"
        self.fail(token, f"found {found}, expected {wanted}", help=f"write {wanted} here")

    def identifier(self, wanted: str) -> tuple[_Token, str]:
        token = self.peek()
        if token.kind == "string":
            try:
                name = json.loads(token.text)
            except ValueError:
                self.fail(token, "this string has an invalid escape", help='JSON strings: \\" \\\\ \\n \\u0041')
            self.next()
            return token, str(name)
        if token.kind != "name" or token.text in _KEYWORDS:
            self.unexpected(wanted)
        return self.next(), token.text

    def integer(self, wanted: str) -> tuple[_Token, int]:
        token = self.peek()
        if token.kind != "number" or not token.text.isdigit() or int(token.text) > 1 << 62:
            self.unexpected(f"{wanted}, an integer of at most 2**62")
        return self.next(), int(token.text)

    # Lines

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

    def graph_line(self, keyword: _Token) -> None:
        if self.nodes or self.inputs or self.dims or self.graph_only is not None:
            self.fail(keyword, "the graph line comes first")
        self.graph_only = keyword
        self.name = self.identifier("the name of the graph")[1]

    def dim_line(self, _: _Token) -> None:
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
        with _At(self, token):
            self.dims[name] = Dim(name, low, high, divisor)

    def tensor_line(self, keyword: _Token) -> None:
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

    def output_line(self, keyword: _Token) -> None:
        self.graph_only = keyword
        self.outputs.append(self.identifier("a tensor's name"))

    # Lines of loops

    def loop_line(self, keyword: _Token) -> None:
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

    def opened(self, keyword: _Token) -> _OpenLoop:
        if not self.open_loops:
            self.fail(keyword, f"{keyword.text} outside of a loop", help="write loop NAME times TRIPS above")
        return self.open_loops[-1]

    def known(self, wanted: str) -> tuple[_Token, Tensor]:
        token, name = self.identifier(wanted)
        if name not in self.tensors:
            self.fail(token, f"tensor {name} is not known here", help="declare or write it above")
        return token, self.tensors[name]

    def backwards(self) -> bool:
        return self.accept("backwards") is not None

    def slice_line(self, keyword: _Token) -> None:
        opened = self.opened(keyword)
        token, name = self.identifier("the name of a slice")
        self.expect("of")
        whole = self.known("the tensor whose rows it is")[1]
        if not whole.shape:
            self.fail(token, f"{whole} has no rows")
        part = Tensor(name, whole.shape[1:], whole.dtype)
        self.define(token, part)
        opened.sliced.append(Sliced(part, whole, self.backwards()))

    def state_line(self, keyword: _Token) -> None:
        opened = self.opened(keyword)
        token, name = self.identifier("the name of a state")
        self.expect("of")
        initial = self.known("the tensor that it is at first")[1]
        state = Tensor(name, initial.shape, initial.dtype)
        self.define(token, state)
        opened.states[name] = (state, initial)

    def carry_line(self, keyword: _Token) -> None:
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

    def stack_line(self, keyword: _Token) -> None:
        opened = self.opened(keyword)
        part = self.known("a tensor of every trip")[1]
        self.expect("as")
        token, name = self.identifier("a name for all of them")
        whole = Tensor(name, (opened.trips, *part.shape), part.dtype)
        self.define(token, whole)
        opened.stacked.append(Stacked(part, whole, self.backwards()))

    def end_line(self, keyword: _Token) -> None:
        opened = self.opened(keyword)
        if opened.states:
            self.fail(keyword, f"state {next(iter(opened.states))} is not carried", help="write carry STATE to …")
        constants = {name: self.constants[name] for name in self.declared_constants}
        with _At(self, opened.token):
            found = loop_of(
                opened.name, opened.trips, self.nodes, self.loops, constants, opened.sliced, opened.carried,
                opened.stacked,
            )  # fmt: skip
        self.open_loops.pop()
        self.nodes, self.loops, self.declared_constants = opened.outer
        self.loops.append(found)

    def define(self, token: _Token, tensor: Tensor) -> None:
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

    # Statements

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
        with _At(self, token):
            compute = infer(name, axes, body, accum=accum, sizes=sizes, over=over)
        self.define(token, compute.output)
        self.nodes.append(compute)

    def loop_names(self, sizes: dict[str, Extent]) -> list[str]:
        found = [self.loop(sizes)]
        while self.accept(","):
            found.append(self.loop(sizes))
        return found

    def scatter_parts(self) -> list[_Node]:
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
            self.fail(token, f"{token.text} after {_sign(combine)}", help="+= … scanned, = … sorted")
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
        for accum, sign in _ACCUMULATE.items():
            if sign in ("+=", "*=") and self.accept(sign):
                return accum
            if self.peek().text == accum and self.peek(1).text == "=":
                self.place += 2
                return accum
        if not self.accept("="):
            self.unexpected("one of = += *= max= min=")
        return None

    def reduction(self, accum: str | None, tree: _Node) -> tuple[str | None, _Node]:
        """``= sum(…)``, ``= max(…)`` of one argument: another way to write an accumulation."""
        if tree.kind == "reduction":
            if accum is not None:
                self.fail(tree.token, "two accumulations", help=f"write = {tree.value}(…)")
            return tree.value, tree.args[0]
        return accum, tree

    # Expressions

    def expression(self, power: int) -> _Node:
        self.nesting += 1
        if self.nesting > _DEEPEST:
            self.fail(self.peek(), f"this expression is nested more than {_DEEPEST} levels deep")
        left = self.prefix()
        while True:
            token = self.peek()
            if token.kind not in ("symbol", "name"):
                break
            if token.text == "?" and power <= 1:
                self.next()
                yes = self.expression(0)
                self.expect(":")
                left = self.node("select", token, left, yes, self.expression(1))
            elif token.text in _COMPARISONS and power <= _COMPARISON:
                left = self.comparison(left)
            elif token.text in _BINARY and power <= _BINARY[token.text][0]:
                self.next()
                own, function = _BINARY[token.text]
                left = self.node(function, token, left, self.expression(own + 1))
            else:
                break
        self.nesting -= 1
        return left

    def comparison(self, left: _Node) -> _Node:
        """``a <= b < c`` means ``a <= b and b < c``."""
        chain: _Node | None = None
        while self.peek().text in _COMPARISONS:
            token = self.next()
            right = self.expression(_COMPARISON + 1)
            link = self.node(_COMPARISONS[token.text], token, left, right)
            chain = link if chain is None else self.node("and", token, chain, link)
            left = right
        assert chain is not None, "called at a comparison"
        return chain

    def prefix(self) -> _Node:
        token = self.peek()
        if token.kind == "number":
            return self.number(self.next(), "")
        if token.kind in ("symbol", "name"):
            if token.text == "-" and self.peek(1).kind == "number":
                self.next()
                return self.number(self.next(), "-")
            for symbol, function, power in (("-", "neg", _UNARY), ("~", "not", _UNARY), ("not", "not", _NOT)):
                if self.accept(symbol):
                    return self.node(function, token, self.expression(power))
            if self.accept("("):
                inner = self.expression(0)
                self.expect(")")
                return inner
            if self.accept("true", "false"):
                return _Node("number", token, token.text == "true", dtype="bool")
        token, name = self.identifier("a number, a loop, a tensor[…], a function(…) or '('")
        if token.kind == "name" and self.peek().text == "(":
            return self.call(token)
        if self.accept("["):
            return self.read(token, name)
        return _Node("axis", token, name, dtype=dtypes.INDEX)

    def number(self, token: _Token, sign: str) -> _Node:
        digits, _, suffix = token.text.partition("_")
        integral = digits.isdigit()
        value = int(sign + digits) if integral else float(sign + digits)
        return _Node("number", token, value, dtype=suffix or None, real=not integral)

    def call(self, token: _Token) -> _Node:
        name = token.text
        self.expect("(")
        args: list[_Node] = []
        while not self.accept(")"):
            if args:
                self.expect(",")
            args.append(self.expression(0))
        if name in dtypes.DTYPES:
            if len(args) != 1:
                self.fail(token, f"a cast takes 1 operand, got {len(args)}")
            arg = args[0]
            if arg.kind == "number" and arg.dtype is None:
                return _Node("number", arg.token, arg.value, dtype=name)
            return _Node("cast", token, args=(arg,), dtype=name, depth=arg.depth + 1)
        if name in _ACCUMULATE and len(args) == 1:
            if self.nesting != 1:
                self.fail(token, f"{name} of one operand is an accumulation", help="write it alone on the right side")
            arg = args[0]
            return _Node("reduction", token, name, (arg,), arg.dtype, arg.real, arg.depth)
        if name not in FUNCTIONS:
            self.fail(token, f"no function is called {name}", help=f"one of {', '.join((*FUNCTIONS, *dtypes.DTYPES))}")
        if len(args) != FUNCTIONS[name].arity:
            self.fail(token, f"{name} takes {FUNCTIONS[name].arity} operands, got {len(args)}")
        return self.node(name, token, *args)

    def read(self, token: _Token, name: str) -> _Node:
        indices: list[_Node] = []
        while not self.accept("]"):
            if indices:
                self.expect(",")
            indices.append(self.expression(0))
        tensor = self.tensors.get(name)
        if tensor is None:
            found = self.default_dtypes.get(name) if isinstance(self.default_dtypes, Mapping) else self.default_dtypes
            if found is None:
                known = ", ".join(self.tensors) or "none"
                self.fail(token, f"tensor {name} is not known here", help=f"declare it above (known: {known})")
            with _At(self, token):
                tensor = Tensor(name, (UNKNOWN,) * len(indices), found)
        depth = 1 + max((index.depth for index in indices), default=0)
        return _Node("read", token, tensor, tuple(indices), tensor.dtype, depth=depth)

    def node(self, function: str, token: _Token, *args: _Node) -> _Node:
        rule = FUNCTIONS[function]
        for arg in args:
            if arg.kind == "reduction":
                self.fail(arg.token, f"{arg.value} is an accumulation here", help="write it alone on the right side")
        values = args[1:] if rule.result == "select" else args
        known = next((arg.dtype for arg in values if arg.dtype is not None), None)
        depth = 1 + max(arg.depth for arg in args)
        if depth > _DEEPEST:
            self.fail(token, f"this expression is more than {_DEEPEST} levels deep", help="split it into two tensors")
        return _Node(
            function, token, args=args, dtype="bool" if rule.result == "bool" else known,
            real=rule.result != "bool" and any(arg.real for arg in values), depth=depth,
        )  # fmt: skip

    def build(self, node: _Node, context: DType | None) -> Expr:
        """The expression of a parsed tree; `context` is the dtype that numbers take if nothing else tells it."""
        with _At(self, node.token):
            if node.kind == "number":
                return Const(node.value, node.dtype or context or ("f32" if node.real else dtypes.INDEX))
            if node.kind == "axis":
                return Axis(node.value, UNKNOWN)
            if node.kind == "read":
                return Read(node.value, tuple(self.build(arg, dtypes.INDEX) for arg in node.args))
            if node.kind == "cast":
                assert node.dtype is not None, "a cast has a dtype"
                return Cast(self.build(node.args[0], None), node.dtype)
            select = node.kind == "select"
            values = node.args[1:] if select else node.args
            dtype = next((arg.dtype for arg in values if arg.dtype is not None), None)
            if dtype is None:
                same = FUNCTIONS[node.kind].result != "bool"
                real = any(arg.real for arg in values)
                dtype = (context if same else None) or ("f32" if real else dtypes.INDEX)
            built = [self.build(arg, dtype) for arg in values]
            if select:
                built.insert(0, self.build(node.args[0], "bool"))
            return apply(node.kind, *built)


class _At:
    """Gives an error that is raised inside, and names no place yet, the place of a token."""

    def __init__(self, parser: _Parser, token: _Token) -> None:
        self.parser, self.token = parser, token

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, CompileError) and not error.where:
            self.parser.fail(self.token, error.message, help=error.help, kind=type(error))
