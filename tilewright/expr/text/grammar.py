"""Keywords, operators and how tightly they bind: what printing and parsing share."""

from __future__ import annotations

KEYWORDS = frozenset(
    ("graph", "dim", "input", "const", "output", "over", "in", "and", "or", "not", "true", "false", "inf", "nan")
)
ACCUMULATE = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min="}
#: Binary operators: binding power and function. Comparisons bind at 5.
BINARY = {
    "or": (2, "or"), "and": (3, "and"), "|": (6, "or"), "^": (7, "xor"), "&": (8, "and"), "<<": (9, "shl"),
    ">>": (9, "shr"), "+": (10, "add"), "-": (10, "sub"), "*": (11, "mul"), "/": (11, "div"), "//": (11, "floordiv"),
    "%": (11, "mod"),
}  # fmt: skip
COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
COMPARISON, NOT, UNARY, PRIMARY = 5, 4, 12, 13
NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
