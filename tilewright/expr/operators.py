"""The operators of tensors: NumPy's, each a node that is added to the graph builder of its operands.

`TensorOperators` is the base of `expr.core.Tensor`. The operators are built from `expr.ops`, which is imported when the
first one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import numpy as np

from tilewright.errors import ExtentMismatch, InvalidArgument, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.dtypes import DType, DTypeLike

if TYPE_CHECKING:
    from tilewright.expr.core import Expr, Extent, Part, Tensor
    from tilewright.expr.graph import GraphBuilder

#: What stands on the other side of an operator: NumPy numbers count as numbers, arrays become constants of the graph.
Side = Any

_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "eq", "ne": "ne", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip


class TensorOperators:
    """What a tensor of a graph builder can be asked for.

    Shapes broadcast by NumPy's rule. A number takes the dtype of the tensor; two tensors have one dtype: no operator
    converts (`cast` does). ``==`` compares the tensors themselves; `eq` and `ne` compare elements.

    The builder is in a slot of this class and not in a field of the dataclass that derives from it, so that equality,
    hash, copies and pickles of a tensor do not see it. The reference is weak: a graph does not keep its builder.
    """

    __slots__ = ("_builder",)
    __array_ufunc__ = None  # arrays of NumPy leave operators with a tensor to the tensor
    __contains__ = None

    _builder: ref[GraphBuilder]
    name: str
    shape: tuple[Extent, ...]
    dtype: DType

    def bind(self, builder: GraphBuilder) -> Tensor:
        """This tensor as one of `builder`."""
        object.__setattr__(self, "_builder", ref(builder))
        return self  # type: ignore[return-value]

    @property
    def builder(self) -> GraphBuilder:
        """The graph builder that this is a tensor of; raises InvalidArgument where there is none (any more)."""
        reference = getattr(self, "_builder", None)
        if reference is None:
            help = "tensors that a GraphBuilder returns: b.input(…), b.constant(…)"
            raise InvalidArgument(f"{self} is a tensor of no graph builder", help=help)
        builder: GraphBuilder | None = reference()
        if builder is None:
            help = "keep the GraphBuilder until its graph is finished"
            raise InvalidArgument(f"the graph builder of {self} does not exist any more", help=help)
        return builder

    # Arithmetic

    def __add__(self, other: Side) -> Tensor:
        return _binary("add", self, other)

    def __radd__(self, other: Side) -> Tensor:
        return _binary("add", other, self)

    def __sub__(self, other: Side) -> Tensor:
        return _binary("sub", self, other)

    def __rsub__(self, other: Side) -> Tensor:
        return _binary("sub", other, self)

    def __mul__(self, other: Side) -> Tensor:
        return _binary("mul", self, other)

    def __rmul__(self, other: Side) -> Tensor:
        return _binary("mul", other, self)

    def __truediv__(self, other: Side) -> Tensor:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Side) -> Tensor:
        return _binary("div", other, self)

    def __floordiv__(self, other: Side) -> Tensor:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: Side) -> Tensor:
        return _binary("floordiv", other, self)

    def __mod__(self, other: Side) -> Tensor:
        return _binary("mod", self, other)

    def __rmod__(self, other: Side) -> Tensor:
        return _binary("mod", other, self)

    def __pow__(self, other: Side) -> Tensor:
        return _binary("pow", self, other)

    def __rpow__(self, other: Side) -> Tensor:
        return _binary("pow", other, self)

    def __neg__(self) -> Tensor:
        return _unary("neg", self)

    def __abs__(self) -> Tensor:
        return _unary("abs", self)

    def __matmul__(self, other: Side) -> Tensor:
        return _product(self, other)

    def __rmatmul__(self, other: Side) -> Tensor:
        return _product(other, self)

    # Comparisons and bits

    def __lt__(self, other: Side) -> Tensor:
        return _binary("lt", self, other)

    def __le__(self, other: Side) -> Tensor:
        return _binary("le", self, other)

    def __gt__(self, other: Side) -> Tensor:
        return _binary("gt", self, other)

    def __ge__(self, other: Side) -> Tensor:
        return _binary("ge", self, other)

    def eq(self, other: Side) -> Tensor:
        """Equality of elements, a tensor of bool; ``==`` compares the tensors themselves."""
        return _compared("eq", self, other)

    def ne(self, other: Side) -> Tensor:
        """Inequality of elements, a tensor of bool."""
        return _compared("ne", self, other)

    def __and__(self, other: Side) -> Tensor:
        return _binary("and", self, other)

    def __rand__(self, other: Side) -> Tensor:
        return _binary("and", other, self)

    def __or__(self, other: Side) -> Tensor:
        return _binary("or", self, other)

    def __ror__(self, other: Side) -> Tensor:
        return _binary("or", other, self)

    def __xor__(self, other: Side) -> Tensor:
        return _binary("xor", self, other)

    def __rxor__(self, other: Side) -> Tensor:
        return _binary("xor", other, self)

    def __lshift__(self, other: Side) -> Tensor:
        return _binary("shl", self, other)

    def __rlshift__(self, other: Side) -> Tensor:
        return _binary("shl", other, self)

    def __rshift__(self, other: Side) -> Tensor:
        return _binary("shr", self, other)

    def __rrshift__(self, other: Side) -> Tensor:
        return _binary("shr", other, self)

    def __invert__(self) -> Tensor:
        return _unary("not", self)

    # Shapes

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The tensor with its dimensions in reverse order."""
        return self.transpose()

    def transpose(self, *perm: int | Sequence[int]) -> Tensor:
        """Output dimension d is dimension ``perm[d]``; without `perm` the order is reversed."""
        from tilewright.expr.ops import shape

        return shape.transpose(_tensor(self), _listed(perm) if perm else None)

    def reshape(self, *extents: int | Sequence[int]) -> Tensor:
        """The same elements in row-major order; an extent of -1 follows from the others."""
        from tilewright.expr.ops import shape

        return shape.reshape(_tensor(self), _listed(extents))

    def part(self, indices: Sequence[Part]) -> Tensor:
        """``self[indices]`` by NumPy's basic indexing: integers, slices, None and one Ellipsis."""
        from tilewright.expr.ops.part import part

        return part(_tensor(self), indices)

    def __iter__(self) -> Iterator[Tensor]:
        """The parts ``self[0]``, ``self[1]``, …"""
        rows = range(len(self))
        return (self.part((row,)) for row in rows)

    def __len__(self) -> int:
        from tilewright.expr.core import static_shape

        if not self.shape:
            raise ExtentMismatch(f"{self} has no dimensions to count or go through", help="a tensor of rank 1 or more")
        return static_shape(self.shape)[0]

    # Reductions and conversions

    def sum(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Sum over the dimensions `axis`, by default over all."""
        return _reduced("reduce_sum", self, axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Mean over the dimensions `axis`, by default over all; integers divide towards zero."""
        return _reduced("reduce_mean", self, axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Largest element over the dimensions `axis`, by default over all."""
        return _reduced("reduce_max", self, axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Smallest element over the dimensions `axis`, by default over all."""
        return _reduced("reduce_min", self, axis, keepdims)

    def prod(self, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Tensor:
        """Product over the dimensions `axis`, by default over all."""
        return _reduced("reduce_prod", self, axis, keepdims)

    def cast(self, dtype: DTypeLike) -> Tensor:
        """The elements converted, by the rules of `expr.core.Cast`; the tensor itself where it has this dtype."""
        from tilewright.expr.ops import elementwise

        tensor = _tensor(self)
        return tensor if dtypes.named(dtype) == self.dtype else elementwise.cast(tensor, dtype)

    # What only values can answer

    def __bool__(self) -> bool:
        help = "elementwise.where(condition, x, y) chooses by elements; `is None` asks whether there is a tensor"
        raise InvalidExpression(f"{self} has no truth value: its elements are computed later", help=help)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        help = "compile the graph and call the module"
        raise InvalidExpression(f"{self} has no elements before its graph runs", help=help)


def _tensor(x: TensorOperators) -> Tensor:
    return x  # type: ignore[return-value]  # `Tensor` is the class that derives from this one


def _listed(numbers: Sequence[Any]) -> Sequence[int]:
    """The numbers of ``f(1, 2)`` and of ``f((1, 2))``."""
    return numbers[0] if len(numbers) == 1 and isinstance(numbers[0], tuple | list) else numbers


def _reduced(builder: str, x: TensorOperators, axis: int | Sequence[int] | None, keepdims: bool) -> Tensor:
    from tilewright.expr.ops import reduce

    axes = [axis] if isinstance(axis, int | np.integer) else axis
    build: Callable[..., Tensor] = getattr(reduce, builder)
    return build(_tensor(x), axes, keepdims=keepdims)


def _unary(function: str, x: TensorOperators) -> Tensor:
    from tilewright.expr.ops import elementwise

    return elementwise.unary(_tensor(x), function)


def _binary(function: str, left: Side, right: Side) -> Tensor:
    """The node of an operator on two sides, at least one of which is a tensor; NotImplemented for other types."""
    from tilewright.expr.core import Tensor, apply
    from tilewright.expr.ops import elementwise

    where = f"{_shown(left)} {_SYMBOLS[function]} {_shown(right)}"
    left, right = _sides(left, right, where)
    if left is NotImplemented:
        return NotImplemented  # type: ignore[no-any-return]
    tensors = [side for side in (left, right) if isinstance(side, Tensor)]
    _check_dtypes(function, left, right, where)

    def body(*elements: Expr) -> Expr:
        given = iter(elements)
        values = [next(given) if isinstance(side, Tensor) else side for side in (left, right)]
        return apply(function, *values)

    try:
        if function == "pow" and len(tensors) == 1 and tensors[0] is left:
            return elementwise.power_constant(left, right)
        return elementwise.map_elements(tensors, body, name=function)
    except (InvalidExpression, InvalidArgument) as error:
        raise type(error)(error.message, where=where, help=error.help) from error


def _compared(function: str, left: TensorOperators, right: Side) -> Tensor:
    found = _binary(function, left, right)
    if found is NotImplemented:
        fact = f"{_shown(left)} is compared with a {type(right).__name__}"
        raise InvalidArgument(fact, where=function, help="a tensor, a number or an array")
    return found


def _product(left: Side, right: Side) -> Tensor:
    from tilewright.expr.core import Tensor
    from tilewright.expr.ops import linalg

    where = f"{_shown(left)} @ {_shown(right)}"
    left, right = _sides(left, right, where)
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return NotImplemented  # type: ignore[no-any-return]
    if dtypes.is_float(left.dtype) or dtypes.is_float(right.dtype):  # products of integers are sums in i32
        _check_dtypes("mul", left, right, where)
    try:
        return linalg.matmul(left, right)
    except (InvalidExpression, InvalidArgument) as error:
        raise type(error)(error.message, where=where, help=error.help) from error


def _sides(left: Side, right: Side, where: str) -> tuple[Side, Side]:
    """Both sides with arrays as constants and numbers as Python's; NotImplemented for what is none of these."""
    tensor = left if isinstance(left, TensorOperators) else right
    sides = []
    for side in (left, right):
        if isinstance(side, np.ndarray) and side.ndim:
            side = _constant(side, tensor, where)
        elif isinstance(side, np.ndarray | np.generic) and side.dtype.kind in "biuf":
            side = side.item()
        elif not isinstance(side, TensorOperators | bool | int | float):
            return NotImplemented, NotImplemented
        sides.append(side)
    return sides[0], sides[1]


def _constant(array: np.ndarray[Any, Any], beside: TensorOperators, where: str) -> Tensor:
    dtype = dtypes.from_numpy(array.dtype)
    if dtype != beside.dtype:
        fact = f"an array of {array.dtype} beside elements of {beside}"
        help = f"convert it: array.astype({dtypes.numpy_dtype(beside.dtype).name!r})"
        raise InvalidExpression(fact, where=where, help=help)
    return beside.builder.constant(array)


def _check_dtypes(function: str, left: Side, right: Side, where: str) -> None:
    """Raise InvalidExpression where an operator would have to convert, or does not mean what it means in NumPy."""
    from tilewright.expr.core import FUNCTIONS

    tensor, other = (left, right) if isinstance(left, TensorOperators) else (right, left)
    if isinstance(other, TensorOperators) and tensor.dtype != other.dtype:
        fact = f"elements of {left} and {right} have two dtypes"
        help = f"convert one: {left.name}.cast({right.dtype!r}), or {right.name}.cast({left.dtype!r})"
        raise InvalidExpression(fact, where=where, help=help)
    kind = "f" if dtypes.is_float(tensor.dtype) else "b" if tensor.dtype == "bool" else "i"
    kinds = FUNCTIONS[function].kinds if function != "div" else "f"
    if kind not in kinds:
        words = " and ".join({"f": "floats", "i": "integers", "b": "bool"}[each] for each in kinds)
        target = "f32" if "f" in kinds and kind != "b" else "i32"
        fact = f"{_SYMBOLS[function]} of {tensor}: it is for {words}"
        raise InvalidExpression(fact, where=where, help=f"convert it: {tensor.name}.cast({target!r})")
    if isinstance(other, float) and kind != "f":
        help = f"convert it: {tensor.name}.cast('f32')"
        raise InvalidExpression(f"{other} beside elements of {tensor}", where=where, help=help)


def _shown(side: Side) -> str:
    if isinstance(side, TensorOperators):
        return side.name
    return repr(side) if isinstance(side, bool | int | float) else type(side).__name__
