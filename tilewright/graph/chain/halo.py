"""Rows of a link that neighbouring blocks share, kept on chip instead of computed again (spec 1, section 3.13).

Blocks of a second convolution need rows of the first one that the block before needed too, its halo. Where a loop along
the rows is the innermost one that both run in, the next step finds them in the block of the link: the first convolution
computes, and reads rows of its input for, what is new. Memory holds the block of the link as before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from tilewright.graph.chain.index import Index
from tilewright.graph.chain.loops import Access, Chain, Operator
from tilewright.graph.chain.orders import Order, nest_of

Halo = Literal["recompute", "keep"]  #: what happens to rows of a link that two blocks need
RECOMPUTE: tuple[Halo, ...] = ("recompute",)
ANY: tuple[Halo, ...] = ("recompute", "keep")


def kept_loop(chain: Chain, order: Order, whole: Collection[str]) -> str:
    """The loop whose steps may keep the halo of the link in an order, or "" where there is none."""
    if len(chain.operators) != 2:
        return ""
    shared = nest_of(chain, order, whole).around([0, 1])
    innermost = shared[-1] if shared else ""
    overlapping = (index for index in chain.operators[0].work if index.plain is None)
    return innermost if any(_advances(index, innermost) for index in overlapping) else ""


def keeping(chain: Chain, loop: str) -> Chain:
    """The chain whose first operator computes in each step of a loop what the step before did not."""
    first, *others = chain.operators
    work = tuple(_kept(index, loop) for index in first.work)
    kept = replace(first, accesses=tuple(_access(access, loop) for access in first.accesses), work=work)
    return replace(chain, operators=(kept, *others))


def keepers(chain: Chain) -> tuple[Operator, ...]:
    """The operators of which a chain keeps values from step to step."""
    return tuple(operator for operator in chain.operators if any(index.kept for index in operator.work))


def _access(access: Access, loop: str) -> Access:
    """The tensor at the rows that are computed: derived loops are variables of the indices of its dimensions."""
    return replace(access, dims=tuple(replace(index, terms=_terms(index, loop)) for index in access.dims))


def _kept(index: Index, loop: str) -> Index:
    return replace(index, terms=_terms(index, loop), kept=loop) if _advances(index, loop) else index


def _terms(index: Index, loop: str) -> tuple[tuple[str | Index, int], ...]:
    return tuple((v if isinstance(v, str) else _kept(v, loop), factor) for v, factor in index.terms)


def _advances(index: Index, loop: str) -> bool:
    """Whether steps of a loop move a window forward, or what is computed from one."""
    return index.plain is None and any(
        factor > 0 and (variable == loop if isinstance(variable, str) else _advances(variable, loop))
        for variable, factor in index.terms
    )
