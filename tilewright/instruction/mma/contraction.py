"""Recognises a contraction in the indices of a product: which loops are batch, m, n and k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.errors import ScheduleError
from tilewright.instruction.mma.problem import ElementType, MmaProblem
from tilewright.instruction.mma.reasons import Reason

_ROLE_OF = {  # whether a loop is in lhs, rhs, out
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}


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
