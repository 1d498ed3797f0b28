"""One call of an ATen operator as its importer sees it: builder, name, the dtype and shape that torch promises."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.errors import Unsupported
from tilewright.expr.core import Expr, Tensor, const, static_shape
from tilewright.expr.dtypes import DType, wide
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.elementwise import fill, map_elements
from tilewright.expr.ops.nodes import cast_node
from tilewright.frontend.torch.element_types import dtype_of

#: A Python number of the program.
Number = bool | int | float


@dataclass(frozen=True)
class Call:
    """`node` is the FX node; its "val" holds what torch computed about the results."""

    b: GraphBuilder
    node: Any
    name: str

    def promised(self, position: int = 0) -> Any:
        """The result at `position` without elements, as torch computed it."""
        value = self.node.meta["val"]
        return value[position] if isinstance(value, (tuple, list)) else value

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result; that of its parts where it is complex."""
        return dtype_of(self.promised().dtype.to_real())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the (first) result."""
        return tuple(self.promised().shape)

    def hint(self, position: int) -> str:
        return f"{self.name}.{position}"

    def part(self, label: str) -> Call:
        """The call for one part of a complex result."""
        return replace(self, name=f"{self.name}.{label}")

    def wants(self, position: int) -> bool:
        """Does anything use the result at `position`?"""
        return any(user.target is operator.getitem and user.args[1] == position for user in self.node.users)

    def common_dtype(self) -> DType:
        """The dtype that the first two arguments are converted to before they are compared."""
        import torch

        left, right = (getattr(arg, "meta", {}).get("val", arg) for arg in self.node.args[:2])
        return dtype_of(torch.result_type(left, right))

    # Building

    def pointwise(
        self, operands: Sequence[Tensor | Number], body: Callable[..., Expr], *, compute: DType | None = None
    ) -> Tensor:
        """``body(elements)``, broadcast, computed in `compute` (default: the dtype of the result).

        f16 and bf16 are computed in f32 and rounded once, as torch does.
        """
        work = wide(compute or self.dtype)
        result = self.dtype

        def rounded(*elements: Expr) -> Expr:
            given = iter(elements)
            values = [next(given).cast(work) if isinstance(o, Tensor) else const(o, work) for o in operands]
            return body(*values).cast(result)

        tensors = [operand for operand in operands if isinstance(operand, Tensor)]
        if not tensors:
            tensors = [fill(self.b, (), 0, work, name=f"{self.name}.scalar")]
            return map_elements(tensors, lambda _: rounded(), name=self.name)
        return map_elements(tensors, rounded, name=self.name)

    def widened(self, x: Tensor, build: Callable[[Tensor, str], Tensor]) -> Tensor:
        """``build(x, name)`` on floats, in f32 for f16 and bf16, in the dtype of the result."""
        work = wide(self.dtype)
        result = build(cast_node(self.b, x, work, name=f"{self.name}.in"), self.name)
        return cast_node(self.b, result, self.dtype, name=self.name)

    def cast(self, x: Tensor, dtype: DType | None = None) -> Tensor:
        """`x` in `dtype`, by default that of the result."""
        return cast_node(self.b, x, dtype or self.dtype, name=f"{self.name}.in")


def shape_of(x: Tensor) -> tuple[int, ...]:
    return static_shape(x.shape)


def normal_dims(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Dimensions counted from the front; None and an empty list mean all. A scalar has none, whatever is asked."""
    if rank == 0:
        return []
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [d % rank for d in ([dims] if isinstance(dims, int) else dims)]


def refuse(condition: bool, reason: str, help: str = "") -> None:
    """Raise Unsupported with `reason` if `condition` holds."""
    if condition:
        raise Unsupported(reason, help=help)
