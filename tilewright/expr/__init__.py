"""Tensor expressions and their graph: the language that every level of the compiler speaks."""

from tilewright.expr.core import (
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
    const,
    select,
)
from tilewright.expr.graph import Graph, GraphBuilder

__all__ = [
    "Apply", "Axis", "Cast", "Compute", "Const", "Dim", "Expr", "Extent", "Graph", "GraphBuilder",
    "Read", "Tensor", "apply", "const", "select",
]  # fmt: skip
