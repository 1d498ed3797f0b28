"""Which loops of a tensor expression an outer-product intrinsic executes.

A sum of products of two reads maps to ``Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]``: loops that index only Src1 and
the output go to i1, loops that index only Src2 and the output to i2 (the vector), reduction loops to r1, loops that
index all three stay outside. Nothing depends on the name of an operator.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.decision import Refusal
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read
from tilewright.instruction.multiply import Multiply
from tilewright.instruction.registry import RECORDS


@dataclass(frozen=True)
class OuterProduct:
    """``(i1 | i2 | r1)`` with the loops that stay outside; `a` is broadcast, `b` is the vector operand."""

    compute: Compute
    intrinsic: Multiply
    outer: tuple[Axis, ...]
    m_loops: tuple[Axis, ...]
    n_loop: Axis
    k_loops: tuple[Axis, ...]
    a: Read
    b: Read

    def __str__(self) -> str:
        def names(axes: tuple[Axis, ...]) -> str:
            return " ".join(axis.name for axis in axes)

        return f"({names(self.m_loops)} | {self.n_loop.name} | {names(self.k_loops)}) on {self.intrinsic.name}"


def product_factors(compute: Compute) -> tuple[Read, Read] | None:
    """The two reads whose product a compute sums, casts to the accumulator's type looked through.

    None for other bodies.
    """
    if compute.accum != "sum":
        return None
    body = compute.body
    if not (isinstance(body, Apply) and body.function == "mul"):
        return None
    factors = []
    for factor in body.args:
        inner = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(inner, Read) or not all(_is_affine(index) for index in inner.indices):
            return None
        factors.append(inner)
    return factors[0], factors[1]


def _is_affine(index: Expr) -> bool:
    return affine(index) is not None


def loops_of(read: Read) -> set[Axis]:
    """Loops with a non-zero coefficient in some index of an affine read."""
    found: set[Axis] = set()
    for index in read.indices:
        form = affine(index)
        if form is not None:
            found.update(form.terms)
    return found


def find_mapping(
    compute: Compute, features: Collection[str], constants: Collection[str]
) -> tuple[OuterProduct | None, list[Refusal]]:
    """The mapping used for a compute, and what was refused on the way.

    The vector operand is the one whose loops include the output's last dimension; a constant operand wins a tie, since
    it can be packed ahead of time.
    """
    factors = product_factors(compute)
    if factors is None:
        return None, [Refusal("outer product", "the body is a sum of products of two affine reads")]
    refused: list[Refusal] = []
    best: tuple[tuple[int, ...], OuterProduct] | None = None
    for a, b in (factors, factors[::-1]):
        mapping = _mapping(compute, a, b, features, refused)
        if mapping is None:
            continue
        extent = int(mapping.n_loop.extent)  # type: ignore[arg-type]
        rank = (
            extent >= 8,  # a full vector
            b.tensor.name in constants and a.tensor.name not in constants,
            mapping.n_loop == compute.axes[-1],
            extent,
        )
        if best is None or rank > best[0]:
            best = (rank, mapping)
    return (None if best is None else best[1]), refused


def _mapping(
    compute: Compute, a: Read, b: Read, features: Collection[str], refused: list[Refusal]
) -> OuterProduct | None:
    in_a, in_b = loops_of(a), loops_of(b)
    reduce = tuple(axis for axis in compute.reduce if axis.extent != 1)
    if any(axis not in in_a and axis not in in_b for axis in compute.reduce if axis.extent != 1):
        refused.append(Refusal(f"b = {b.tensor.name}", "every reduction loop indexes an operand"))
        return None
    live = [axis for axis in compute.axes if axis.extent != 1]
    m_loops = tuple(axis for axis in live if axis not in in_b)
    n_loops = tuple(axis for axis in live if axis in in_b and axis not in in_a)
    outer = tuple(axis for axis in live if axis in in_a and axis in in_b)
    if not n_loops:
        refused.append(Refusal(f"b = {b.tensor.name}", "no loop indexes b and the output only, so no vector"))
        return None
    vector = n_loops[-1]
    outer = tuple(axis for axis in live if axis in outer or (axis in n_loops and axis != vector))
    dtypes = (a.tensor.dtype, b.tensor.dtype)
    for record in RECORDS:
        if dtypes not in record.inputs or record.accumulator != compute.output.dtype:
            continue
        missing = [feature for feature in record.features if feature not in features]
        if missing:
            refused.append(Refusal(record.name, "the machine has its features", f"lacks {', '.join(missing)}"))
            continue
        if record.group > 1 and not _group_loops(reduce, a, b):
            refused.append(Refusal(record.name, "a reduction loop indexes b and walks neighbours of a"))
            continue
        return OuterProduct(compute, record, outer, m_loops, vector, reduce, a, b)
    refused.append(Refusal(f"{dtypes[0]} x {dtypes[1]} -> {compute.output.dtype}", "some record has these dtypes"))
    return None


def _group_loops(reduce: tuple[Axis, ...], a: Read, b: Read) -> list[Axis]:
    """Reduction loops that index b, and one dimension of a, alone there, with coefficient 1."""
    forms = [affine(index) for index in a.indices]
    walked = [axis for axis in reduce if any(form is not None and form.terms == {axis: 1} for form in forms)]
    return [axis for axis in walked if axis in loops_of(b)]
