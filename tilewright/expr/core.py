"""The values of the expression level: scalar expressions, tensors, computes.

A scalar expression is a tree of `Axis`, `Const`, `Read`, `Apply` and `Cast`. Index expressions are scalar
expressions of dtype i64. Everything is immutable and compares by content, so that any value can be a key.
Source of the abstraction: thesis section 1.1.1; operators are listed in `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from math import copysign, prod
from types import EllipsisType
from typing import Any, Final, overload

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.dtypes import DType, DTypeLike
from tilewright.expr.operators import TensorOperators
from tilewright.expr.ordered import SCATTER, Ordered, PrefixScan, Scatter, Sort


@dataclass(frozen=True, slots=True)
class Dim:
    """A named extent known only at run time: `low <= value <= high`, a multiple of `divisor`."""

    name: str
    low: int = 1
    high: int = 1 << 31
    divisor: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.divisor < 1:
            raise InvalidExpression(
                f"dimension {self.name}: range [{self.low}, {self.high}], divisor {self.divisor}",
                help="0 <= low <= high and divisor >= 1",
            )

    def __str__(self) -> str:
        return self.name


Extent = int | Dim


@dataclass(frozen=True, slots=True)
class Function:
    """One scalar function: how many arguments, what it returns, and its NumPy meaning.

    `result` is "same" (dtype of the first argument, all arguments equal), "bool" (arguments equal), or
    "select" (bool, then two of one dtype). `kinds` are the dtypes it accepts: "f" (float), "i" (integer), "b" (bool).
    """

    arity: int
    result: str
    kinds: str
    numpy: Callable[..., Any]
    symbol: str = ""  # infix or prefix notation in the text form
    affine: bool = field(default=False)


def _div(a: Any, b: Any) -> Any:
    """Division: true for floats; for integers truncating towards zero, and 0 where the divisor is 0."""
    if np.asarray(a).dtype.kind in "iu":
        safe = np.where(b == 0, 1, b)
        quotient = np.floor_divide(a, safe)
        quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
        return np.where(b == 0, 0, quotient).astype(np.asarray(a).dtype)
    return np.divide(a, b)


def _pow(a: Any, b: Any) -> Any:
    """Power; integers wrap, and a negative exponent truncates towards zero (0 where the base is 0)."""
    if np.asarray(a).dtype.kind not in "iu":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0))
    return np.where(b < 0, inverse, np.power(a, np.where(b < 0, 0, b))).astype(np.asarray(a).dtype)


def _erf(x: Any) -> Any:
    from tilewright.expr.special import erf

    return erf(x)


def _normal_cdf(x: Any) -> Any:
    from tilewright.expr.special import normal_cdf

    return normal_cdf(x)


def _normal_cdf_tanh(x: Any) -> Any:
    from tilewright.expr.special import normal_cdf_tanh

    return normal_cdf_tanh(x)


def _exp_nonpositive(x: Any) -> Any:
    from tilewright.expr.special import exp_nonpositive

    return exp_nonpositive(x)


def _sigmoid(x: Any) -> Any:
    from tilewright.expr.special import sigmoid

    return sigmoid(x)


FUNCTIONS: dict[str, Function] = {
    "add": Function(2, "same", "fi", np.add, "+"),
    "sub": Function(2, "same", "fi", np.subtract, "-"),
    "mul": Function(2, "same", "fi", np.multiply, "*"),
    "div": Function(2, "same", "fi", _div, "/"),
    "floordiv": Function(2, "same", "i", np.floor_divide, "//"),  # rounds towards minus infinity
    "mod": Function(2, "same", "fi", np.mod, "%"),  # has the sign of the divisor
    "fmod": Function(2, "same", "fi", np.fmod),  # has the sign of the dividend
    "neg": Function(1, "same", "fi", np.negative, "-"),
    "abs": Function(1, "same", "fi", np.abs),
    "sign": Function(1, "same", "fi", np.sign),
    "min": Function(2, "same", "fib", np.minimum),  # NaN if either argument is NaN
    "max": Function(2, "same", "fib", np.maximum),  # NaN if either argument is NaN
    "pow": Function(2, "same", "fi", _pow),
    "exp": Function(1, "same", "f", np.exp),
    "exp_nonpositive": Function(1, "same", "f", _exp_nonpositive),  # of x <= 0; may be 0 where exp is no normal number
    "exp2": Function(1, "same", "f", np.exp2),
    "expm1": Function(1, "same", "f", np.expm1),  # exp(x) - 1, without cancellation near 0
    "log": Function(1, "same", "f", np.log),
    "log1p": Function(1, "same", "f", np.log1p),  # log(1 + x), without loss near 0
    "sqrt": Function(1, "same", "f", np.sqrt),
    "tanh": Function(1, "same", "f", np.tanh),
    "erf": Function(1, "same", "f", _erf),
    "sigmoid": Function(1, "same", "f", _sigmoid),
    "normal_cdf": Function(1, "same", "f", _normal_cdf),  # (1 + erf(x / sqrt 2)) / 2
    "normal_cdf_tanh": Function(1, "same", "f", _normal_cdf_tanh),  # its approximation by tanh
    "sin": Function(1, "same", "f", np.sin),
    "cos": Function(1, "same", "f", np.cos),
    "tan": Function(1, "same", "f", np.tan),
    "asin": Function(1, "same", "f", np.arcsin),
    "acos": Function(1, "same", "f", np.arccos),
    "atan": Function(1, "same", "f", np.arctan),
    "sinh": Function(1, "same", "f", np.sinh),
    "cosh": Function(1, "same", "f", np.cosh),
    "asinh": Function(1, "same", "f", np.arcsinh),
    "acosh": Function(1, "same", "f", np.arccosh),
    "atanh": Function(1, "same", "f", np.arctanh),
    "floor": Function(1, "same", "f", np.floor),
    "ceil": Function(1, "same", "f", np.ceil),
    "round": Function(1, "same", "f", np.round),  # halves to even
    "trunc": Function(1, "same", "f", np.trunc),
    "isnan": Function(1, "bool", "f", np.isnan),
    "isinf": Function(1, "bool", "f", np.isinf),
    "eq": Function(2, "bool", "fib", np.equal, "=="),
    "ne": Function(2, "bool", "fib", np.not_equal, "!="),
    "lt": Function(2, "bool", "fi", np.less, "<"),
    "le": Function(2, "bool", "fi", np.less_equal, "<="),
    "gt": Function(2, "bool", "fi", np.greater, ">"),
    "ge": Function(2, "bool", "fi", np.greater_equal, ">="),
    "and": Function(2, "same", "ib", np.bitwise_and, "&"),  # logical on bool, bitwise on integers
    "or": Function(2, "same", "ib", np.bitwise_or, "|"),
    "xor": Function(2, "same", "ib", np.bitwise_xor, "^"),
    "not": Function(1, "same", "ib", np.invert, "~"),
    "shl": Function(2, "same", "i", np.left_shift, "<<"),
    "shr": Function(2, "same", "i", np.right_shift, ">>"),
    "select": Function(3, "select", "fib", np.where),  # select(c, a, b): c ? a : b; reads in a and b are guarded by c
}


#: Functions that cost more than reading their result back from a nearby cache.
COSTLY = frozenset(
    {
        "exp",
        "exp_nonpositive",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "erf",
        "sigmoid",
        "pow",
        "sin",
        "cos",
        "tan",
        "sqrt",
        "div",
    }
    | {"normal_cdf", "normal_cdf_tanh"}
)

JOINED = "+"  # between the names of operators that became one

#: Functions whose result is a number of the type of its arguments already: nothing is rounded.
EXACT = frozenset(
    {"neg", "abs", "sign", "min", "max", "fmod", "floor", "ceil", "round", "trunc", "select"}
    | {name for name, function in FUNCTIONS.items() if function.result == "bool"}
)


class Expr:
    """A scalar expression. Operators build `Apply`; Python numbers become constants of the other side's dtype."""

    __slots__ = ()
    dtype: DType

    def __add__(self, other: Operand) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return _binary("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return _binary("mod", self, other)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __lt__(self, other: Operand) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _binary("ge", self, other)

    def __and__(self, other: Operand) -> Expr:
        return _binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return _binary("or", self, other)

    def __invert__(self) -> Expr:
        return apply("not", self)

    def eq(self, other: Operand) -> Expr:
        """Element equality; `==` compares the expressions themselves."""
        return _binary("eq", self, other)

    def ne(self, other: Operand) -> Expr:
        return _binary("ne", self, other)

    def cast(self, dtype: DTypeLike) -> Expr:
        dtype = dtypes.named(dtype)
        return self if self.dtype == dtype else Cast(self, dtype)

    def children(self) -> tuple[Expr, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=True)
class Axis(Expr):
    """A loop variable with range [0, extent); its name is local to one `Compute`."""

    name: str
    extent: Extent
    dtype: DType = field(default=dtypes.INDEX, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.extent, int) and self.extent < 0:
            raise InvalidExpression(f"axis {self.name} has extent {self.extent}", help="an extent of 0 or more")

    def __repr__(self) -> str:
        return f"{self.name}:{self.extent}"

    @property
    def size(self) -> int:
        """The extent; only for static ones."""
        extent = self.extent
        return extent if type(extent) is int else static_shape((extent,))[0]


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal. `value` is a Python bool, int or float that `dtype` can hold."""

    value: bool | int | float
    dtype: DType

    def __post_init__(self) -> None:
        kind = type(self.value)
        if dtypes.is_float(self.dtype) and kind is not float:
            object.__setattr__(self, "value", float(self.value))
        elif self.dtype == "bool" and kind is not bool:
            object.__setattr__(self, "value", bool(self.value))
        elif dtypes.is_integer(self.dtype):
            if kind is float and not float(self.value).is_integer():
                raise InvalidExpression(f"{self.value} is not an {self.dtype}", help="cast the other operand")
            if kind is not int:
                object.__setattr__(self, "value", int(self.value))
            low, high = dtypes.limits(self.dtype)
            if not low <= self.value <= high:
                raise InvalidExpression(f"{self.value} does not fit {self.dtype}", help=f"a value in [{low}, {high}]")

    # NaN must equal NaN and -0.0 must differ from 0.0, as contents do.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        a, b = self.value, other.value
        if a == 0 == b:
            return copysign(1, a) == copysign(1, b)
        return a == b or (a != a and b != b)

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))


def _as_extent(extent: Any) -> Any:
    """An extent as an `int` where it is an integer of another library, itself otherwise."""
    return int(extent) if isinstance(extent, np.integer) else extent


@dataclass(frozen=True, slots=True)
class Tensor(TensorOperators):
    """A logical tensor: a name that is unique in its graph, a shape, an element type. It has no storage order.

    Tensors of a `GraphBuilder` have the operators of NumPy (`TensorOperators`); ``==`` compares name, shape and type.
    """

    name: str
    shape: tuple[Extent, ...]
    dtype: DType

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidExpression(f"a tensor is called {self.name!r}", help="a name of one character or more")
        if isinstance(self.shape, str) or not isinstance(self.shape, Iterable):
            raise InvalidExpression(f"tensor {self.name} has shape {self.shape!r}", help="a tuple of extents")
        object.__setattr__(self, "shape", tuple(map(_as_extent, self.shape)))
        for extent in self.shape:
            if type(extent) is not Dim and (type(extent) is not int or extent < 0):
                raise InvalidExpression(
                    f"tensor {self.name} has shape {self.shape}", help="extents that are integers of 0 or more"
                )
        if not isinstance(self.dtype, str) or self.dtype not in dtypes.DTYPES:
            object.__setattr__(self, "dtype", dtypes.named(self.dtype, where=f"tensor {self.name}"))

    @overload
    def __getitem__(self, indices: Expr | tuple[Expr, ...]) -> Read: ...

    @overload
    def __getitem__(self, indices: Part | tuple[Part, ...]) -> Tensor: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, indices: tuple[Operand, ...]) -> Read: ...

    def __getitem__(self, indices: Any) -> Read | Tensor:
        """One element where an index is an expression or the tensor a scalar, else the part that NumPy would give.

        >>> x = Tensor("x", (4, 3), "f32")
        >>> x[Axis("i", 4), 0]
        Read(tensor=Tensor(name='x', shape=(4, 3), dtype='f32'), indices=(i:4, Const(value=0, dtype='i64')))
        """
        items = indices if isinstance(indices, tuple) else (indices,)
        if not items or any(isinstance(item, Expr) for item in items):
            return Read(self, tuple(as_expr(item, dtypes.INDEX) for item in items))
        return self.part(items)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements; only for static shapes."""
        return prod(static_shape(self.shape))

    @property
    def size_bytes(self) -> int:
        return self.size * dtypes.size_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def static_shape(shape: tuple[Extent, ...]) -> tuple[int, ...]:
    """`shape` as integers; raises InvalidExpression where an extent is a named `Dim`."""
    for extent in shape:
        if isinstance(extent, Dim):
            raise InvalidExpression(
                f"extent {extent.name} is not known at compile time",
                help=f"give a size: --shape {extent.name}=…",
            )
    return tuple(int(extent) for extent in shape)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Read(Expr):
    """One element of a tensor: one i64 index expression per dimension."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if len(self.indices) != self.tensor.rank:
            raise ExtentMismatch(
                f"{self.tensor} is read with {len(self.indices)} indices", help=f"give {self.tensor.rank}"
            )
        for index in self.indices:
            if not dtypes.is_integer(index.dtype):
                raise InvalidExpression(
                    f"{self.tensor.name} is indexed by a value of dtype {index.dtype}", help="cast it to i64"
                )
        if any(index.dtype != dtypes.INDEX for index in self.indices):
            object.__setattr__(self, "indices", tuple(index.cast(dtypes.INDEX) for index in self.indices))

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.tensor.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.indices


UNKNOWN: Final = ...  # stays itself where an expression is copied or pickled


@dataclass(frozen=True, slots=True)
class Apply(Expr):
    """A scalar function of `FUNCTIONS` applied to its arguments. Build it with `apply`, which checks dtypes.

    `form` is no part of the value: `affine` keeps there what it found, since the same indices are asked about again.
    """

    function: str
    args: tuple[Expr, ...]
    dtype: DType
    form: Any = field(default=UNKNOWN, init=False, repr=False, compare=False)

    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion: float to integer truncates towards zero, integers wrap, to bool is `!= 0`, floats round to even."""

    arg: Expr
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


Operand = Expr | int | float | bool
Part = int | slice | EllipsisType | None  # an index that takes a part of a tensor


def as_expr(value: Operand, dtype: DType) -> Expr:
    if isinstance(value, Expr):
        return value
    if not isinstance(value, int | float | np.number | np.bool_):
        help = "an expression or a number; x[i, j] is one element of a tensor x"
        raise InvalidExpression(f"an operand is a {type(value).__name__}: {value}", help=help)
    return Const(value, dtype)


def _kind(dtype: DType) -> str:
    return "b" if dtype == "bool" else "f" if dtypes.is_float(dtype) else "i"


def apply(function: str, *operands: Operand) -> Expr:
    """Apply a function of `FUNCTIONS`; Python numbers take the dtype of the first expression among the operands."""
    rule = FUNCTIONS.get(function)
    if rule is None:
        raise InvalidExpression(f"unknown function {function!r}", help=f"one of {', '.join(FUNCTIONS)}")
    if len(operands) != rule.arity:
        raise InvalidExpression(f"{function} takes {rule.arity} operands, got {len(operands)}")
    values = operands[1:] if rule.result == "select" else operands
    dtype = next((value.dtype for value in values if isinstance(value, Expr)), None)
    if dtype is None:
        dtype = "f32" if any(isinstance(value, float) for value in values) else dtypes.INDEX
    args = tuple(as_expr(value, dtype) for value in values)
    if any(arg.dtype != dtype for arg in args):
        raise InvalidExpression(
            f"{function} of {' and '.join(arg.dtype for arg in args)}", help="cast the operands to one dtype"
        )
    if _kind(dtype) not in rule.kinds:
        raise InvalidExpression(f"{function} is not defined for {dtype}")
    if rule.result == "select":
        condition = as_expr(operands[0], "bool")
        if condition.dtype != "bool":
            raise InvalidExpression(f"select on a condition of dtype {condition.dtype}", help="compare it first")
        return Apply(function, (condition, *args), dtype)
    return Apply(function, args, "bool" if rule.result == "bool" else dtype)


def _binary(function: str, left: Operand, right: Operand) -> Expr:
    return apply(function, left, right)


def select(condition: Operand, yes: Operand, no: Operand) -> Expr:
    """`condition ? yes : no`. Reads inside a branch happen only where the branch is taken."""
    return apply("select", condition, yes, no)


def const(value: bool | float, dtype: DTypeLike) -> Const:
    return Const(value, dtypes.named(dtype))


#: Accumulations and their identities, as functions of the dtype.
ACCUMULATIONS: dict[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def identity(accum: str, dtype: DType) -> Const:
    """The value that leaves `accum` unchanged."""
    if accum in ("sum", "prod"):
        return Const(0 if accum == "sum" else 1, dtype)
    if dtypes.is_float(dtype):
        return Const(float("-inf") if accum == "max" else float("inf"), dtype)
    if dtype == "bool":
        return Const(accum == "min", dtype)
    limits = np.iinfo(dtypes.numpy_dtype(dtype))
    return Const(int(limits.min if accum == "max" else limits.max), dtype)


@dataclass(frozen=True, slots=True)
class Compute:
    """One tensor expression: ``output[axes] = accum over reduce of body``.

    `axes` are the spatial loops, one per output dimension, in order. `reduce` are the reduction loops; `accum` is
    None exactly when there are none. Loop kinds follow from the axes: whatever the body uses and `axes` does not
    list is a reduction (spec 1, section 1.2). An `Ordered` accumulation gives a whole dimension of the output (see
    `expr.ordered`). `source` says which operator of the model it came from; before its name, and `JOINED` to it, are
    the names of maps that were inlined and read several computed tensors. Equality ignores it.
    """

    output: Tensor
    axes: tuple[Axis, ...]
    body: Expr
    reduce: tuple[Axis, ...] = ()
    accum: str | Ordered | None = None
    source: str = field(default="", compare=False)
    _reads: tuple[Read, ...] = field(init=False, repr=False, compare=False)
    _inputs: tuple[Tensor, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = self.output.name
        if len(self.axes) != self.output.rank:
            raise ExtentMismatch(
                f"{self.output} is written with {len(self.axes)} axes", help=f"give {self.output.rank}"
            )
        for axis, extent in zip(self.axes, self.output.shape, strict=True):
            if axis.extent != extent:
                raise ExtentMismatch(f"{name}: axis {axis.name} of extent {axis.extent} writes a dimension of {extent}")
        loops = (*self.axes, *self.reduce)
        names = [axis.name for axis in loops]
        if len(set(names)) != len(names):
            raise InvalidExpression(f"{name}: two loops have one name in {', '.join(names)}")
        if (self.accum is None) != (not self.reduce):
            raise InvalidExpression(
                f"{name}: accumulation {self.accum} with reduction loops [{', '.join(a.name for a in self.reduce)}]",
                help="give an accumulation exactly when there are reduction loops",
            )
        if isinstance(self.accum, str) and self.accum not in ACCUMULATIONS:
            raise InvalidExpression(f"{name}: unknown accumulation {self.accum!r}", help="sum, prod, max or min")
        if isinstance(self.accum, Ordered):
            _check_ordered(self, self.accum)
        if self.body.dtype != self.output.dtype and not isinstance(self.accum, Sort):
            raise InvalidExpression(
                f"{name}: a body of dtype {self.body.dtype} for an output of {self.output.dtype}",
                help="cast the body",
            )
        used, reads = set(), []
        for node in walk(self.body):
            if isinstance(node, Axis):
                used.add(node)
            elif isinstance(node, Read):
                reads.append(node)
        object.__setattr__(self, "_reads", tuple(reads))
        object.__setattr__(self, "_inputs", tuple(dict.fromkeys(read.tensor for read in reads)))
        free = used - set(loops)
        if free:
            raise InvalidExpression(
                f"{name}: the body uses {', '.join(sorted(repr(a) for a in free))}, which is not a loop of it"
            )

    @property
    def ordered(self) -> Ordered | None:
        """The accumulation, if it is an ordered one."""
        return self.accum if isinstance(self.accum, Ordered) else None

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def loops(self) -> tuple[Axis, ...]:
        return (*self.axes, *self.reduce)

    @property
    def body_loops(self) -> tuple[Axis, ...]:
        """The loops at whose points the body is evaluated (of a scatter: what it writes)."""
        if self.ordered is None:
            return self.loops
        dims = self.ordered.dims if isinstance(self.ordered, Scatter) else (self.ordered.dim,)
        return (*(axis for dim, axis in enumerate(self.axes) if dim not in dims), *self.reduce)

    def reads(self) -> tuple[Read, ...]:
        """Every read in the body, indices included, in order of appearance."""
        return self._reads

    def inputs(self) -> tuple[Tensor, ...]:
        """The distinct tensors read, in order of first appearance."""
        return self._inputs


def scatter_body(initial: Expr, value: Expr, places: Sequence[Expr]) -> Expr:
    """The body of a scatter: see `expr.ordered`."""
    return Apply(SCATTER, (initial, value, *(place.cast(dtypes.INDEX) for place in places)), initial.dtype)


def _check_ordered(node: Compute, accum: Ordered) -> None:
    """Raise InvalidExpression where loops, body and result do not fit an ordered accumulation."""
    dims = accum.dims if isinstance(accum, Scatter) else (accum.dim,)
    if not dims or len(set(dims)) != len(dims) or not all(0 <= dim < node.output.rank for dim in dims):
        raise InvalidExpression(
            f"{node.name}: {accum} along dimensions {list(dims)} of {node.output}",
            help=f"different dimensions in [0, {node.output.rank})",
        )
    own = {node.axes[dim] for dim in dims}
    parts: tuple[Expr, ...] = (node.body,)
    if isinstance(accum, Scatter):
        body = node.body
        if not isinstance(body, Apply) or body.function != SCATTER or len(body.args) != 2 + len(dims):
            raise InvalidExpression(
                f"{node.name}: the body of a scatter into {len(dims)} dimensions", help="see expr.ordered"
            )
        if body.args[0].dtype != body.args[1].dtype or any(place.dtype != dtypes.INDEX for place in body.args[2:]):
            raise InvalidExpression(f"{node.name}: a scatter of {body.args[1].dtype} into {body.args[0].dtype}")
        if set(node.reduce) & set(walk(body.args[0])):
            raise InvalidExpression(f"{node.name}: the initial values depend on the order of updates")
        parts = body.args[1:]
    elif len(node.reduce) != 1:
        raise InvalidExpression(f"{node.name}: {accum} over {len(node.reduce)} loops", help="one reduction loop")
    if any(own & set(walk(part)) for part in parts):
        raise InvalidExpression(f"{node.name}: the body uses a loop that {accum} gives the result along")
    if not isinstance(accum, Sort) and accum.combine not in (
        *ACCUMULATIONS,
        *([""] if isinstance(accum, Scatter) else []),
    ):
        raise InvalidExpression(f"{node.name}: unknown accumulation {accum.combine!r}", help="sum, prod, max or min")
    if isinstance(accum, PrefixScan) and node.reduce[0].extent != node.axes[accum.dim].extent:
        raise ExtentMismatch(
            f"{node.name}: a scan over {node.reduce[0].extent} elements gives {node.axes[accum.dim].extent}"
        )
    if isinstance(accum, Sort):
        if node.output.dtype != dtypes.INDEX:
            raise InvalidExpression(f"{node.name}: positions of dtype {node.output.dtype}", help="i64")
        result, source = node.axes[accum.dim].extent, node.reduce[0].extent
        if result != source and not (isinstance(result, int) and isinstance(source, int) and result < source):
            raise ExtentMismatch(f"{node.name}: {result} of {source} sorted elements", help=f"at most {source}")


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of an expression, parents before children, left to right."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        children = node.children()
        if children:
            stack.extend(reversed(children))
