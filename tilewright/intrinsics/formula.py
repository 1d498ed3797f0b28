"""Index formulas of records as text: integers, names, ``+ - * // %`` and parentheses, evaluated on whole arrays."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidIntrinsic

_LONGEST = 400  # characters
_CHARACTERS = re.compile(r"[\w \-+*/%()]*", re.ASCII)
_LARGEST = 1 << 31  # of a number; sums and products of a record's indices then stay far inside i64
_HELP = "integers, names, + - * // % and parentheses; divisors are positive numbers"
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.FloorDiv: np.floor_divide, ast.Mod: np.remainder,
}  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """A checked formula; `names` are its free names."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Its value where every name is an integer or an array of integers; arrays broadcast."""
        return _value(self.tree, values)

    def is_affine(self, variables: frozenset[str]) -> bool:
        """Whether it is a sum of terms with at most one of `variables` each, not divided."""
        return _degree(self.tree, variables) <= 1


@cache
def formula(text: str) -> Formula:
    """Parse a formula; raises InvalidIntrinsic, which shows it."""
    if len(text) > _LONGEST or not _CHARACTERS.fullmatch(text):
        raise InvalidIntrinsic(f"not a formula of at most {_LONGEST} characters: {text[:60]!r}", help=_HELP)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidIntrinsic(f"not a formula: {text!r}", help=_HELP) from None
    names: set[str] = set()
    _check(tree, text, names)
    return Formula(text, tree, frozenset(names))


def _check(node: ast.expr, text: str, names: set[str]) -> None:
    if isinstance(node, ast.Name):
        names.add(node.id)
        return
    if isinstance(node, ast.Constant) and type(node.value) is int and int(node.value) < _LARGEST:
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(node.operand, text, names)
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        _check(node.left, text, names)
        _check(node.right, text, names)
        divides = isinstance(node.op, ast.FloorDiv | ast.Mod)
        if not divides or (isinstance(node.right, ast.Constant) and node.right.value != 0):
            return
    raise InvalidIntrinsic(f"{ast.unparse(node)!r} has no place in a formula: {text!r}", help=_HELP)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.UnaryOp):
        return np.negative(_value(node.operand, values))
    assert isinstance(node, ast.BinOp), "formulas are checked when they are parsed"
    with np.errstate(over="ignore"):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))


def _degree(node: ast.expr, variables: frozenset[str]) -> int:
    """The degree in `variables`; 2 for anything that is not a polynomial."""
    if isinstance(node, ast.Name):
        return int(node.id in variables)
    if isinstance(node, ast.UnaryOp):
        return _degree(node.operand, variables)
    if isinstance(node, ast.BinOp):
        left, right = _degree(node.left, variables), _degree(node.right, variables)
        if isinstance(node.op, ast.Mult):
            return left + right
        if isinstance(node.op, ast.Add | ast.Sub):
            return max(left, right)
        return 2 if left else 0
    return 0
