"""The contraction that a schedule is wanted for, and the element types of its operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError, nearest
from tilewright.expr.dtypes import SPELLINGS

ElementType = str
Sizes = tuple[int | None, ...]  # outermost first; None is a size known only at run time

_BITS = {
    "f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16,
    "f8E4M3FN": 8, "f8E5M2": 8, "f8E4M3FNUZ": 8, "f8E5M2FNUZ": 8,
    "i64": 64, "i32": 32, "i16": 16, "i8": 8, "u8": 8,
}  # fmt: skip
TYPES: tuple[ElementType, ...] = tuple(_BITS)
_SPELLINGS = {name.lower(): name for name in TYPES} | {each: name for each, name in SPELLINGS.items() if name in TYPES}


def bits(element: ElementType) -> int:
    """Storage bits of one element."""
    return _BITS[element]


def is_float(element: ElementType) -> bool:
    return element[0] in "fbt"


def element_type(name: str, where: str = "") -> ElementType:
    """The element type of that name, whatever the case; ``s8`` is ``i8``. Raises ScheduleError for other names.

    >>> element_type("F8e4m3fn"), element_type("s32")
    ('f8E4M3FN', 'i32')
    """
    found = _SPELLINGS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        close = nearest(str(name), TYPES)
        advice = f"did you mean {close[0]}?" if close else f"one of {', '.join(TYPES)}"
        raise ScheduleError(f"{name!r} is no element type", where=where, help=advice)
    return found


@dataclass(frozen=True, slots=True)
class MmaProblem:
    """``c[batch, m, n] += sum_k a[batch, m, k] * b[batch, k, n]`` over several loops each, outermost first.

    A size is a positive int, or None where it is known only at run time. `lhs_transposed`: the innermost index of the
    lhs is not the innermost k; `rhs_transposed`: the innermost index of the rhs is not the innermost n. `narrow_a`,
    `narrow_b`: the type an operand has before a producer that only widens it. `products` counts the contractions that
    share the lhs. `tf32_allowed`: f32 operands may be read with 10 bits of mantissa. `broadcasts` is False if an
    operand is indexed by every loop. `fused_producer`: an elementwise producer that cannot be computed again.
    """

    m: Sizes
    n: Sizes
    k: Sizes
    batch: Sizes = ()
    a: ElementType = "f16"
    b: ElementType = "f16"
    c: ElementType = "f32"
    lhs_transposed: bool = False
    rhs_transposed: bool = False
    operation: Literal["matmul", "convolution", "block-scaled"] = "matmul"
    narrow_a: ElementType | None = None
    narrow_b: ElementType | None = None
    products: int = 1
    tf32_allowed: bool = True
    broadcasts: bool = True
    fused_producer: bool = False

    def __post_init__(self) -> None:
        for field in ("m", "n", "k", "batch"):
            object.__setattr__(self, field, _checked_sizes(field, getattr(self, field)))
        for field in ("a", "b", "c"):
            object.__setattr__(self, field, element_type(getattr(self, field), field))
        for field, wide in (("narrow_a", self.a), ("narrow_b", self.b)):
            narrow = getattr(self, field)
            if narrow is not None:
                narrow = element_type(narrow, field)
                if bits(narrow) >= bits(wide):
                    raise ScheduleError(f"{narrow} is not narrower than {wide}", where=field)
                object.__setattr__(self, field, narrow)
        if self.operation not in ("matmul", "convolution", "block-scaled"):
            raise ScheduleError(f"{self.operation!r} is no operation", where="operation",
                                help="matmul, convolution or block-scaled")  # fmt: skip
        if isinstance(self.products, bool) or not isinstance(self.products, int) or self.products < 1:
            raise ScheduleError(f"{self.products!r} contractions share the lhs", where="products", help="1 or more")

    @property
    def static(self) -> bool:
        """Whether every size is known."""
        return None not in (*self.batch, *self.m, *self.n, *self.k)

    @property
    def types(self) -> str:
        return f"{self.a},{self.b}->{self.c}"

    @property
    def roles(self) -> str:
        """One letter per loop, in the order of every list of a configuration: batch, m, n, k."""
        return "b" * len(self.batch) + "m" * len(self.m) + "n" * len(self.n) + "k" * len(self.k)

    @property
    def loops(self) -> tuple[str, ...]:
        """Names of all loops: the letter of the role, numbered where a role has several."""
        sizes = (("b", self.batch), ("m", self.m), ("n", self.n), ("k", self.k))
        return tuple(
            letter if len(role) == 1 else f"{letter}{index}" for letter, role in sizes for index in range(len(role))
        )

    @property
    def extents(self) -> Sizes:
        """The sizes of all loops, in the order of `loops`."""
        return (*self.batch, *self.m, *self.n, *self.k)

    def innermost(self) -> MmaProblem:
        """The problem of the innermost m, n and k, with operands before widening: what vector distribution sees."""
        a, b = self.narrow_a or self.a, self.narrow_b or self.b
        if len(self.m) == len(self.n) == len(self.k) == 1 and not self.batch and a == self.a and b == self.b:
            return self
        return replace(self, m=self.m[-1:], n=self.n[-1:], k=self.k[-1:], batch=(), a=a, b=b,
                       narrow_a=None, narrow_b=None)  # fmt: skip

    def without_dynamic(self) -> MmaProblem:
        """The problem of the m, n and k whose sizes are known: what tile-and-fuse sees."""
        if None not in (*self.m, *self.n, *self.k):
            return self
        return replace(self, m=_static(self.m), n=_static(self.n), k=_static(self.k))

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={sizes_text(getattr(self, name))}" for name in ("m", "n", "k", "batch"))
        return f"{sizes} {self.types}"


def sizes_text(sizes: Sizes) -> str:
    """
    >>> sizes_text((4, None))
    '[4, ?]'
    """
    return "[" + ", ".join("?" if size is None else str(size) for size in sizes) + "]"


def _static(sizes: Sizes) -> Sizes:
    return tuple(size for size in sizes if size is not None)


def _checked_sizes(field: str, sizes: Sizes) -> Sizes:
    if not isinstance(sizes, tuple | list):
        raise ScheduleError(f"{sizes!r} is not a tuple of sizes", where=field, help=f"write {field}=(128,)")
    if not sizes and field != "batch":
        raise ScheduleError("has no loop", where=field, help="a contraction has one or more loops of m, of n and of k")
    for size in sizes:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ScheduleError(f"{size!r} is not a positive size", where=field,
                                help="a positive integer, or None for a size known only at run time")  # fmt: skip
    return tuple(sizes)
