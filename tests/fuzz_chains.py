"""Random small chains: the solver against an exhaustive search over every order, policy and integer tile.

    python -m tests.fuzz_chains --chains 500 --seed 0

Most are chains of two products, for which the search is written here from the rules of the specification alone: orders
that read no unfinished link, tensors that are kept, the memory of what survives. Some are chains of three products or
two convolutions, for which it walks over `chain_dm`. The bound of the closed form is checked on the way.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import chain as joined
from itertools import combinations, permutations, product
from math import inf

import numpy as np

from tilewright.graph.chain.candidates import candidates
from tilewright.graph.chain.closed_form import TwoProducts
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.movement import chain_dm
from tilewright.graph.chain.orders import all_orders, incomplete, legal_orders
from tilewright.graph.chain.solve import solve_level
from tilewright.graph.chain.tests.chains import gemm_chain, three_products, two_convolutions
from tilewright.graph.chain.tilings import Memory

TENSORS = {"A": "mk", "B": "kl", "D": "ln", "E": "mn", "C": "ml"}


def subsets(items: str) -> Iterator[frozenset[str]]:
    """Every subset."""
    return map(frozenset, joined.from_iterable(combinations(items, size) for size in range(len(items) + 1)))


def exhaustive(extents: dict[str, int], capacity: int, smallest: dict[str, int]) -> float:
    """The least volume of two products over all orders, kept tensors and tiles; infinite where nothing fits."""
    loops = "mnkl"
    grids = np.meshgrid(*[np.arange(min(smallest[v], extents[v]), extents[v] + 1) for v in loops], indexing="ij")
    tile = dict(zip(loops, grids, strict=True))
    trips = {v: -(-extents[v] // tile[v]) for v in loops}
    block = {name: tile[a] * tile[b] for name, (a, b) in TENSORS.items()}
    best = inf
    for ones in subsets(loops):
        here = np.logical_and.reduce([(trips[v] == 1) == (v in ones) for v in loops])
        if not here.any():
            continue
        for repeats, first, second in formulas(ones):
            used = np.maximum(sum(block[name] for name in first), sum(block[name] for name in second))
            fits = here & (used <= capacity)
            if fits.any():
                volume = 0
                for name, outer in zip("ABDE", repeats, strict=True):
                    size = extents[TENSORS[name][0]] * extents[TENSORS[name][1]]
                    for loop in outer:
                        size = size * trips[loop]
                    volume = volume + size
                best = min(best, int(np.broadcast_to(volume, fits.shape)[fits].min()))
    return best


def formulas(ones: frozenset[str]) -> set[tuple[tuple[frozenset[str], ...], frozenset[str], frozenset[str]]]:
    """What every order and policy means where the loops in `ones` have one trip.

    That is the loops that repeat A, B, D and E, and the tensors in memory while each of the two products runs.
    """
    found = set()
    for order in permutations("mnkl"):
        live = [v for v in order if v not in ones]
        if "k" in live and any(live.index("k") < live.index(v) for v in "ml" if v in live):
            continue  # the second product would read an unfinished C
        last = max((live.index(v) for v in "ml" if v in live), default=-1)
        common = live[: last + 1]  # loops that both products run inside
        for keep in subsets("ABDE"):
            repeats, first, second = [], {"A", "B", "C"}, {"C", "D", "E"}
            for name in "ABDE":
                inside = order if name in "AB" else [v for v in order if v != "k"]
                reuse, outer = True, set()
                for v in reversed(inside):
                    if v in ones and name in keep:
                        continue
                    if v in TENSORS[name]:
                        reuse = False
                    elif not reuse:
                        outer |= {v} - ones
                    elif v in common:
                        (second if name in "AB" else first).add(name)
                repeats.append(frozenset(outer))
            found.add((tuple(repeats), frozenset(first), frozenset(second)))
    return found


def walked(chain: Chain, capacity: int) -> float:
    """The same by `chain_dm` for any chain."""
    tensors = "".join(sorted({access.tensor[0] for _, access in chain.io}))
    names = sorted({access.tensor for _, access in chain.io})
    orders = [order for order in all_orders(chain) if not incomplete(chain, order)]
    loops = [loop for loop in chain.extents if loop not in chain.windows]
    best = inf
    for sizes in product(*(range(1, chain.extents[loop] + 1) for loop in loops)):
        tile = dict(zip(loops, sizes, strict=True))
        if chain_dm(chain, orders[0], tile, memory="thesis").memory > capacity:
            continue  # no order holds less
        for order in orders:
            for keep in subsets("".join(map(str, range(len(names))))):
                found = chain_dm(chain, order, tile, keep={names[int(number)] for number in keep})
                if found.memory <= capacity:
                    best = min(best, found.dv)
    assert tensors, "a chain reads something"
    return best


def solved(chain: Chain, capacity: int, smallest: dict[str, int] | None = None) -> float:
    """The least volume that the solver finds."""
    memory = Memory(capacity, smallest=smallest)
    found = solve_level(candidates(chain, legal_orders(chain)[0]), memory, best=1)
    return found[0][1].volume if found else inf


def check_two_products(seed: int) -> str:
    """One random chain: the solver finds the optimum, and what it says fits. Returns what was tried."""
    roll = random.Random(seed)
    extents = {loop: roll.randint(2, 8) for loop in "mnkl"}
    smallest = {loop: roll.choice((1, 1, 2, 3)) for loop in "mnkl"}
    capacity = roll.randint(3, 120)
    expected = exhaustive(extents, capacity, smallest)
    chain = gemm_chain(extents["m"], extents["n"], extents["k"], extents["l"])
    found = solved(chain, capacity, smallest)
    assert found == expected, f"seed {seed}: {extents}, {smallest}, {capacity}: {found} instead of {expected}"
    large = {loop: roll.randint(16, 4096) for loop in "mnkl"}
    form = TwoProducts(large["m"], large["n"], large["k"], large["l"], roll.randint(64, 2**22), roll.choice((1, 8, 16)))
    if form.alpha <= form.tile <= min(form.M, form.L):
        assert form.moved(*form.clamped()) / form.volume <= form.bound() * (1 + 1e-12), f"seed {seed}: {form}"
    return "nothing fits" if expected == inf else "equal"


def check_other(seed: int) -> str:
    """One chain of three products, or of two convolutions."""
    roll = random.Random(seed)
    if roll.random() < 0.5:
        chain = chain_of(three_products(*(roll.randint(2, 3) for _ in range(5))))
    else:
        kernels = roll.choice((1, 3)), roll.choice((1, 3))
        sizes = 2, roll.randint(3, 4), 2, 2
        chain = chain_of(two_convolutions(*sizes, (1, roll.choice((1, 2))), kernels))
    capacity = roll.randint(6, 90)
    expected, found = walked(chain, capacity), solved(chain, capacity)
    assert found == expected, f"seed {seed}: {chain.extents}, {capacity}: {found} instead of {expected}"
    return "nothing fits" if expected == inf else "equal"


def main() -> None:
    """Check random chains and say how many of which kind there were."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for number in range(options.chains):
        seed = options.seed * 1_000_000 + number
        other = number % 25 == 24
        kind = "three products or convolutions" if other else "two products"
        verdict = f"{kind}, {(check_other if other else check_two_products)(seed)}"
        counts[verdict] = counts.get(verdict, 0) + 1
    for verdict, count in sorted(counts.items()):
        print(f"{count:5}  {verdict}")


if __name__ == "__main__":
    main()
