"""Recognises a contraction, in a tensor expression or in the indices of a product: which loops are batch, m, n, k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.errors import ScheduleError
from tilewright.expr.core import Apply, Axis, Cast, Compute, Expr, Read
from tilewright.instruction.canonical import keeps_value
from tilewright.instruction.mma.problem import ElementType, MmaProblem
from tilewright.instruction.mma.reasons import Reason

_ROLE_OF = {  # whether a loop is in lhs, rhs, out
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}


def contraction_of(compute: Compute) -> MmaProblem | Reason:
    """The problem that a node is: the sum of a product of two plain reads, which may be widened on the way.

    The operands have the element types that are read, the result that of the output. `Reason.NOT_A_CONTRACTION` for any
    other node. Raises ScheduleError for an element type that no matrix instruction could have.
    """
    body = _narrow(compute.body)
    if compute.accum != "sum" or not isinstance(body, Apply) or body.function != "mul":
        return Reason.NOT_A_CONTRACTION
    reads = [_narrow(factor) for factor in body.args]
    lhs, rhs = (_loops(read) for read in reads)
    if lhs is None or rhs is None:
        return Reason.NOT_A_CONTRACTION
    sizes = {axis.name: axis.extent if isinstance(axis.extent, int) else None for axis in compute.loops}
    out = [axis.name for axis in compute.axes]
    return contraction(lhs, rhs, out, sizes, a=reads[0].dtype, b=reads[1].dtype, c=compute.output.dtype)


def contraction(
    lhs: Sequence[str],
    rhs: Sequence[str],
    out: Sequence[str],
    sizes: Mapping[str, int | None],
    *,
    a: ElementType = "f16",
    b: ElementType = "f16",
    c: ElementType = "f32",
) -> MmaProblem | Reason:
    """The problem of ``out[...] += lhs[...] * rhs[...]``; the loops are those of `sizes`, outermost first.

    A loop in lhs, rhs and out is batch; in lhs and out m; in rhs and out n; in lhs and rhs only k. Where that leaves
    a loop over, a role empty, or an operand uses a loop twice, the answer is `Reason.NOT_A_CONTRACTION`. Raises
    ScheduleError for an index that is no loop.

    >>> print(contraction(["i", "r"], ["r", "j"], ["i", "j"], {"i": 64, "j": 32, "r": 16}))
    m=[64] n=[32] k=[16] batch=[] f16,f16->f32
    """
    operands = {"lhs": lhs, "rhs": rhs, "out": out}
    for name, indices in operands.items():
        for index in indices:
            if index not in sizes:
                raise ScheduleError(f"{index!r} is no loop", where=name, help=f"the loops are {', '.join(sizes)}")
        if len(set(indices)) != len(indices):
            return Reason.NOT_A_CONTRACTION
    roles: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k": []}
    for loop in sizes:
        role = _ROLE_OF.get((loop in lhs, loop in rhs, loop in out))
        if role is None:
            return Reason.NOT_A_CONTRACTION
        roles[role].append(loop)
    if not (roles["m"] and roles["n"] and roles["k"]):
        return Reason.NOT_A_CONTRACTION
    m, n, k, batch = (tuple(sizes[loop] for loop in roles[role]) for role in ("m", "n", "k", "batch"))
    return MmaProblem(m, n, k, batch, a, b, c, lhs_transposed=lhs[-1] != roles["k"][-1],
                      rhs_transposed=rhs[-1] != roles["n"][-1])  # fmt: skip


def _narrow(value: Expr) -> Expr:
    """The value before casts that keep it."""
    while isinstance(value, Cast) and keeps_value(value.arg.dtype, value.dtype):
        value = value.arg
    return value


def _loops(value: Expr) -> list[str] | None:
    """The loops that index a read, if it is one and nothing else does."""
    if not isinstance(value, Read):
        return None
    names = [index.name for index in value.indices if isinstance(index, Axis)]
    return names if len(names) == len(value.indices) else None
