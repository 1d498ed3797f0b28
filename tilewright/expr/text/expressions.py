"""Parsing of expressions: precedence climbing, then numbers take the dtype of what they are combined with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.core import FUNCTIONS, Axis, Cast, Const, Expr, Read, Tensor, apply
from tilewright.expr.dtypes import DType
from tilewright.expr.infer import UNKNOWN
from tilewright.expr.text.grammar import ACCUMULATE, BINARY, COMPARISON, COMPARISONS, NOT, UNARY
from tilewright.expr.text.tokens import Cursor, Token

_DEEPEST = 200  # levels of an expression; passes of the compiler are recursive


@dataclass(frozen=True)
class Node:
    """A parsed expression before numbers have their dtype. `dtype` is None where only the context determines it."""

    kind: str  # number, axis, read, cast, or a function
    token: Token
    value: Any = None
    args: tuple[Node, ...] = ()
    dtype: DType | None = None
    real: bool = False  # an untyped number in it is not an integer
    depth: int = field(default=1)


class ExpressionParser(Cursor):
    """Parses expressions over the tensors that are known.

    `default_dtypes` are the element types of tensors that no line declares, by name or one for all. None where each
    tensor has to be declared.
    """

    def __init__(self, text: str, where: str, default_dtypes: Mapping[str, DType] | DType | None) -> None:
        super().__init__(text, where)
        self.default_dtypes = default_dtypes
        self.tensors: dict[str, Tensor] = {}
        self.nesting = 0

    def expression(self, power: int) -> Node:
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
            elif token.text in COMPARISONS and power <= COMPARISON:
                left = self.comparison(left)
            elif token.text in BINARY and power <= BINARY[token.text][0]:
                self.next()
                own, function = BINARY[token.text]
                left = self.node(function, token, left, self.expression(own + 1))
            else:
                break
        self.nesting -= 1
        return left

    def comparison(self, left: Node) -> Node:
        """``a <= b < c`` means ``a <= b and b < c``."""
        chain: Node | None = None
        while self.peek().text in COMPARISONS:
            token = self.next()
            right = self.expression(COMPARISON + 1)
            link = self.node(COMPARISONS[token.text], token, left, right)
            chain = link if chain is None else self.node("and", token, chain, link)
            left = right
        assert chain is not None, "called at a comparison"
        return chain

    def prefix(self) -> Node:
        token = self.peek()
        if token.kind == "number":
            return self.number(self.next(), "")
        if token.kind in ("symbol", "name"):
            if token.text == "-" and self.peek(1).kind == "number":
                self.next()
                return self.number(self.next(), "-")
            for symbol, function, power in (("-", "neg", UNARY), ("~", "not", UNARY), ("not", "not", NOT)):
                if self.accept(symbol):
                    return self.node(function, token, self.expression(power))
            if self.accept("("):
                inner = self.expression(0)
                self.expect(")")
                return inner
            if self.accept("true", "false"):
                return Node("number", token, token.text == "true", dtype="bool")
        token, name = self.identifier("a number, a loop, a tensor[…], a function(…) or '('")
        if token.kind == "name" and self.peek().text == "(":
            return self.call(token)
        if self.accept("["):
            return self.read(token, name)
        return Node("axis", token, name, dtype=dtypes.INDEX)

    def number(self, token: Token, sign: str) -> Node:
        digits, _, suffix = token.text.partition("_")
        integral = digits.isdigit()
        value = int(sign + digits) if integral else float(sign + digits)
        return Node("number", token, value, dtype=suffix or None, real=not integral)

    def call(self, token: Token) -> Node:
        name = token.text
        self.expect("(")
        args: list[Node] = []
        while not self.accept(")"):
            if args:
                self.expect(",")
            args.append(self.expression(0))
        if name in dtypes.DTYPES:
            if len(args) != 1:
                self.fail(token, f"a cast takes 1 operand, got {len(args)}")
            arg = args[0]
            if arg.kind == "number" and arg.dtype is None:
                return Node("number", arg.token, arg.value, dtype=name)
            return Node("cast", token, args=(arg,), dtype=name, depth=arg.depth + 1)
        if name in ACCUMULATE and len(args) == 1:
            if self.nesting != 1:
                self.fail(token, f"{name} of one operand is an accumulation", help="write it alone on the right side")
            arg = args[0]
            return Node("reduction", token, name, (arg,), arg.dtype, arg.real, arg.depth)
        if name not in FUNCTIONS:
            self.fail(token, f"no function is called {name}", help=f"one of {', '.join((*FUNCTIONS, *dtypes.DTYPES))}")
        if len(args) != FUNCTIONS[name].arity:
            self.fail(token, f"{name} takes {FUNCTIONS[name].arity} operands, got {len(args)}")
        return self.node(name, token, *args)

    def read(self, token: Token, name: str) -> Node:
        indices: list[Node] = []
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
            with self.at(token):
                tensor = Tensor(name, (UNKNOWN,) * len(indices), found)
        depth = 1 + max((index.depth for index in indices), default=0)
        return Node("read", token, tensor, tuple(indices), tensor.dtype, depth=depth)

    def node(self, function: str, token: Token, *args: Node) -> Node:
        rule = FUNCTIONS[function]
        for arg in args:
            if arg.kind == "reduction":
                self.fail(arg.token, f"{arg.value} is an accumulation here", help="write it alone on the right side")
        values = args[1:] if rule.result == "select" else args
        known = next((arg.dtype for arg in values if arg.dtype is not None), None)
        depth = 1 + max(arg.depth for arg in args)
        if depth > _DEEPEST:
            self.fail(token, f"this expression is more than {_DEEPEST} levels deep", help="split it into two tensors")
        return Node(
            function, token, args=args, dtype="bool" if rule.result == "bool" else known,
            real=rule.result != "bool" and any(arg.real for arg in values), depth=depth,
        )  # fmt: skip

    def build(self, node: Node, context: DType | None) -> Expr:
        """The expression of a parsed tree; `context` is the dtype that numbers take if nothing else determines it."""
        with self.at(node.token):
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
