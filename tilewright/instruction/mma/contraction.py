"""The problem of the MMA deduction that a compute is: which loops are batch, m, n, k, and how operands are stored."""

from __future__ import annotations

from tilewright.expr.core import Axis, Compute
from tilewright.instruction.canonical import canonicalise
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.products import product_factors

_ROLES = {  # of a loop, by whether it indexes lhs, rhs and the result
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}


def contraction_of(compute: Compute) -> MmaProblem | Reason:
    """The problem that a node is: the sum of a product of two reads by loops, which may be widened on the way.

    The operands have the element types that are read, the result that of the output. `Reason.NOT_A_CONTRACTION` where a
    read has another index than a loop, or a loop twice, where a loop has no role, or where no loop has the role of m, n
    or k. Raises ScheduleError for an element type that no matrix instruction could have.
    """
    canonical = canonicalise(compute)
    factors = product_factors(canonical.core)
    if factors is None or len(canonical.nodes) > 1:
        return Reason.NOT_A_CONTRACTION
    roles: dict[str, list[Axis]] = {"batch": [], "m": [], "n": [], "k": []}
    indexed = [set(read.indices) for read in factors]
    for loop in compute.loops:
        role = _ROLES.get((loop in indexed[0], loop in indexed[1], loop in compute.axes))
        if role is None:
            return Reason.NOT_A_CONTRACTION
        roles[role].append(loop)
    by_loops = all(set(read.indices) <= set(compute.loops) and len(set(read.indices)) == read.tensor.rank
                   for read in factors)  # fmt: skip
    if not by_loops or not (roles["m"] and roles["n"] and roles["k"]):
        return Reason.NOT_A_CONTRACTION
    m, n, k, batch = (
        tuple(axis.extent if isinstance(axis.extent, int) else None for axis in roles[role])
        for role in ("m", "n", "k", "batch")
    )
    lhs, rhs = factors
    types = lhs.dtype, rhs.dtype, compute.output.dtype
    return MmaProblem(m, n, k, batch, *types, lhs_transposed=lhs.indices[-1] != roles["k"][-1],
                      rhs_transposed=rhs.indices[-1] != roles["n"][-1])  # fmt: skip
