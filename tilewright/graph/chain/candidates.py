"""What the solver chooses among: an order, the tensors that stay on chip, and the loops that are whole for that.

A tensor stays while a loop that does not index it runs if all its loops inside that loop have one trip. So the subsets
of tensors to keep and of loops to make whole need not be tried apart: `policies` gives the loops that each choice of
tensors needs. Any other loop that is whole is a tile like others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

from tilewright.dataclass import dataclass
from tilewright.graph.chain.halo import RECOMPUTE, Halo, keeping, kept_loop
from tilewright.graph.chain.loops import Access, Chain
from tilewright.graph.chain.movement import Moves, plan_moves
from tilewright.graph.chain.orders import Order


@dataclass(frozen=True)
class Candidate:
    """An order with a policy: tensors in `keep` stay on chip (none: EVICT), loops in `whole` have one trip.

    Steps of the loop `halo` keep the rows of the link that they share; those of none do where it is empty.
    """

    order: Order
    keep: frozenset[str]
    whole: frozenset[str]
    moves: Moves
    halo: str = ""

    @property
    def policy(self) -> str:
        """EVICT, or KEEP and the tensors whose blocks stay while other operators run."""
        policy = f"KEEP {', '.join(sorted(self.moves.stays))}" if self.moves.stays else "EVICT"
        return f"{policy}, halo along {self.halo}" if self.halo else policy


def candidates(
    chain: Chain, orders: Sequence[Order], *, double_buffer: bool = False, halo: Collection[Halo] = RECOMPUTE
) -> list[Candidate]:
    """Every order with every policy, those with the same formulas once. `halo`: what may happen to rows of a link."""
    found: dict[object, Candidate] = {}
    for order in orders:
        for keep, whole in policies(chain, order):
            loop = kept_loop(chain, order, whole) if "keep" in halo else ""
            for kept in (("",) if "recompute" in halo or not loop else ()) + ((loop,) if loop else ()):
                each = keeping(chain, kept) if kept else chain
                moves = plan_moves(each, order, keep=keep, ones=whole, double_buffer=double_buffer)
                found.setdefault((moves.key(), whole, kept), Candidate(order, keep, whole, moves, kept))
    return list(found.values())


def policies(chain: Chain, order: Order) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """What may be kept in an order, with the loops that must be whole for it; nothing at first."""
    choices: list[list[tuple[str, frozenset[str]]]] = []
    alive = list(order)
    for number, operator in enumerate(chain.operators):
        for access in operator.accesses:
            if access.tensor not in chain.links:
                needed = [(access.tensor, loops) for loops in _needed(access, alive)]
                choices.append([("", frozenset()), *needed])
        later = frozenset(loop for other in chain.operators[number + 1 :] for loop in other.loops)
        alive = [loop for loop in alive if loop in later]
    seen: set[tuple[frozenset[str], frozenset[str]]] = set()
    for choice in product(*choices):
        keep = frozenset(tensor for tensor, _ in choice if tensor)
        whole = chain.whole.union(*(loops for _, loops in choice))
        if (keep, whole) not in seen:
            seen.add((keep, whole))
            yield keep, whole


def _needed(access: Access, loops: Sequence[str]) -> Iterator[frozenset[str]]:
    """For each loop outside that does not index the tensor: those of its own loops that must be whole inside it."""
    inside: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    for loop in reversed(loops):
        if loop in access.loops:
            inside |= {loop}
        elif inside != last:
            yield inside
            last = inside
