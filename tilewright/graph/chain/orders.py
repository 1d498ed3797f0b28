"""Orders of a chain's block loops: which there are, which can run, which are the same (spec 1, sections 3.1 and 3.4).

An order lists block loops, outermost first. `nest_of` says how operators run in it: operators share loops until one
that the last of them does not have; a loop of later operators alone moves behind the earlier ones where no loop that
both have lies inside it (rule R2: the current block of the link is kept).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import permutations
from math import factorial

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.graph.chain.loops import Chain, NotAChain

Order = tuple[str, ...]

MOST_LOOPS = 8  #: of which orders are enumerated


@dataclass(frozen=True)
class BlockNest:
    """Block loops around operators: `children` are nests, or the numbers of operators."""

    loops: Order
    children: tuple[BlockNest | int, ...]

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """Every operator inside, in order."""
        return tuple(
            number for child in self.children for number in ((child,) if isinstance(child, int) else child.operators)
        )

    def walk(self) -> Iterator[BlockNest]:
        """This nest and those inside it, outer ones first."""
        yield self
        for child in self.children:
            if isinstance(child, BlockNest):
                yield from child.walk()

    def order(self) -> Order:
        """The block loops as an order: outer ones first, those of earlier operators first."""
        return tuple(dict.fromkeys(loop for nest in self.walk() for loop in nest.loops))

    def around(self, operators: Collection[int]) -> Order:
        """The loops that surround all of some operators."""
        wanted = set(operators)
        found: list[str] = []
        nest: BlockNest | None = self
        while nest is not None:
            found += nest.loops
            inner = (child for child in nest.children if isinstance(child, BlockNest))
            nest = next((child for child in inner if wanted <= set(child.operators)), None)
        return tuple(found) if wanted <= set(self.operators) else ()


def block_loops(chain: Chain) -> tuple[str, ...]:
    """The loops whose order is open: all but batches, which stay outermost, and windows, which stay innermost."""
    fixed = {*chain.batches, *chain.windows}
    return tuple(loop for loop in chain.extents if loop not in fixed)


def all_orders(chain: Chain) -> Iterator[Order]:
    """Every order of the block loops, batches in front."""
    for order in permutations(block_loops(chain)):
        yield (*chain.batches, *order)


def legal_orders(chain: Chain) -> tuple[tuple[Order, ...], tuple[tuple[Order, str], ...]]:
    """The orders that R1 allows, one of each kind of nest, and those it refuses with the reason.

    Raises NotAChain for more block loops than `MOST_LOOPS`: their orders are too many to look at.
    """
    if len(block_loops(chain)) > MOST_LOOPS:
        raise NotAChain(
            f"{len(block_loops(chain))} block loops have {factorial(len(block_loops(chain))):,} orders",
            where=" + ".join(operator.name for operator in chain.operators),
            help=f"cut it into chains of {MOST_LOOPS} loops or fewer",
        )
    legal: dict[Order, None] = {}
    refused: list[tuple[Order, str]] = []
    for order in all_orders(chain):
        reason = incomplete(chain, order)
        if reason:
            refused.append((order, reason))
        else:
            legal.setdefault(nest_of(chain, order).order())
    return tuple(legal), tuple(refused)


def incomplete(chain: Chain, order: Sequence[str], ones: Collection[str] = ()) -> str:
    """Rule R1: why a consumer would read an unfinished link in this order, or "".

    A reduction that only a producer has lies outside a loop that both have. Loops in `ones` have one trip.
    """
    place = {loop: number for number, loop in enumerate(order) if loop not in ones}
    for number, producer in enumerate(chain.operators[:-1]):
        later = frozenset(loop for operator in chain.operators[number + 1 :] for loop in operator.loops)
        for reduction in sorted(producer.reductions - later):
            for shared in sorted(producer.loops & later):
                if reduction in place and shared in place and place[reduction] < place[shared]:
                    return f"{reduction} of {producer.name} lies outside {shared}, which {_next(chain, number)} has too"
    return ""


def _next(chain: Chain, number: int) -> str:
    return chain.operators[number + 1].name


def nest_of(chain: Chain, order: Sequence[str], ones: Collection[str] = ()) -> BlockNest:
    """How the operators run in an order; loops in `ones` have one trip and are left out."""
    return _nest(chain, 0, len(chain.operators) - 1, [loop for loop in order if loop not in ones])


def _nest(chain: Chain, first: int, last: int, order: Sequence[str]) -> BlockNest:
    """Operators `first` to `last` and the loops of `order` that they have."""
    prefix: list[str] = []
    for number, loop in enumerate(order):
        users = [each for each in range(first, last + 1) if loop in chain.operators[each].loops]
        if not users:
            continue
        if users[-1] < last:
            return _split(chain, first, users[-1] + 1, last, prefix, order[number:])
        if users[0] > first and not _meet(chain, first, users[0], last, order[number + 1 :]):
            return _split(chain, first, users[0], last, prefix, order[number:])
        prefix.append(loop)
    return BlockNest(tuple(prefix), tuple(range(first, last + 1)))


def _split(chain: Chain, first: int, middle: int, last: int, prefix: Sequence[str], order: Sequence[str]) -> BlockNest:
    """Two nests in turn inside the loops of `prefix`; a nest without loops is no nest of its own."""
    children: list[BlockNest | int] = []
    for inner in (_nest(chain, first, middle - 1, order), _nest(chain, middle, last, order)):
        children += [inner] if inner.loops else inner.children
    return BlockNest(tuple(prefix), tuple(children))


def _meet(chain: Chain, first: int, middle: int, last: int, order: Sequence[str]) -> bool:
    """Whether a loop of `order` is one of operators before `middle` and of one from there on."""
    before = {loop for operator in chain.operators[first:middle] for loop in operator.loops}
    after = {loop for operator in chain.operators[middle : last + 1] for loop in operator.loops}
    return any(loop in before and loop in after for loop in order)


def reruns(chain: Chain, nest: BlockNest) -> tuple[Order, ...]:
    """Rule R2: for each operator the loops around it that are not its own, in each of whose steps it runs again."""
    return tuple(
        tuple(loop for loop in nest.around([number]) if loop not in operator.loops)
        for number, operator in enumerate(chain.operators)
    )


def check_order(chain: Chain, order: Sequence[str]) -> None:
    """Raise InvalidArgument unless an order names every block loop once."""
    expected = {*chain.batches, *block_loops(chain)}
    if sorted(order) != sorted(expected):
        raise InvalidArgument(
            f"the order is {', '.join(order) or 'empty'}",
            where="order",
            help=f"each of {', '.join(sorted(expected))} once",
        )
