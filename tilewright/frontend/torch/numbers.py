"""Python numbers that a program takes out of tensors: they stay tensors of rank 0 while it is imported.

Importers whose argument may be a tensor or a number (annotated `Operand`) get the tensor. Arithmetic on such numbers,
which Python does in f64 and with integers of any size, is done in f64 and i64.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import Unsupported
from tilewright.expr.core import Expr, Tensor, const
from tilewright.expr.dtypes import INDEX, is_float
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import emit, map_elements, only
from tilewright.expr.ops.nodes import cast_node

_ARITHMETIC: dict[Any, Callable[..., Expr]] = {
    operator.add: lambda v, w: v + w,
    operator.sub: lambda v, w: v - w,
    operator.mul: lambda v, w: v * w,
    operator.truediv: lambda v, w: v.cast("f64") / w.cast("f64"),
    operator.neg: lambda v: -v,
}
"""Python's operators on numbers that are computed."""


@dataclass(frozen=True)
class Computed:
    """A number that is the only element of a tensor of rank 0, of type f64, i64 or bool."""

    tensor: Tensor


def taken(b: GraphBuilder, x: Tensor, name: str) -> Computed:
    """The number in a tensor of one element. A float is exact in f64, an integer in i64."""
    dtype = "bool" if x.dtype == "bool" else "f64" if is_float(x.dtype) else INDEX
    if x.rank:
        return Computed(emit(b, (), only(x).cast(dtype), name=name))
    return Computed(cast_node(b, x, dtype, name=name))


def is_arithmetic(node: Any) -> bool:
    """Whether a node is an operator of Python that numbers are computed with."""
    return node.target in _ARITHMETIC


def arithmetic(node: Any, args: list[Any]) -> Computed:
    """The result of one operator of Python on numbers, some of them computed."""
    numbers = [arg.tensor if isinstance(arg, Computed) else arg for arg in args]
    real = any(is_float(n.dtype) if isinstance(n, Tensor) else isinstance(n, float) for n in numbers)
    work = "f64" if real else INDEX
    tensors = [n for n in numbers if isinstance(n, Tensor)]

    def body(*elements: Expr) -> Expr:
        given = iter(elements)
        values = [next(given).cast(work) if isinstance(n, Tensor) else const(n, work) for n in numbers]
        return _ARITHMETIC[node.target](*values)

    return Computed(map_elements(tensors, body, name=node.name))


def resolve(bound: inspect.BoundArguments) -> None:
    """Put tensors in place of computed numbers where the importer takes them.

    Raises Unsupported where it needs the number itself while it runs.
    """
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        may_be_tensor = "Operand" in str(parameter.annotation)
        if isinstance(value, Computed) and may_be_tensor:
            bound.arguments[name] = value.tensor
        elif parameter.kind is parameter.VAR_POSITIONAL and may_be_tensor:
            bound.arguments[name] = tuple(each.tensor if isinstance(each, Computed) else each for each in value)
        elif _holds_computed(value):
            raise Unsupported(f"{name} is a number that is computed", help="a number known when compiling")


def _holds_computed(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_computed, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(_holds_computed, value))
    return isinstance(value, Computed)
