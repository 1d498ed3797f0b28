"""Sums of products as matrix products: how the evaluator treats contractions and convolutions.

A factor's value is an array with one dimension per loop of the compute, of extent 1 where the factor does not depend
on the loop (`evaluate` makes them, as strided views where it can). Here is only the algebra on such arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tilewright.expr.core import Apply, Axis, Const, Expr, walk

Array = np.ndarray[Any, Any]


def factors(body: Expr) -> tuple[Expr, ...]:
    """The leaves of the tree of multiplications at the top of `body`; one leaf if it is not a product."""
    if isinstance(body, Apply) and body.function == "mul":
        return (*factors(body.args[0]), *factors(body.args[1]))
    return (body,)


def loop_sets(parts: Iterable[Expr], loops: Sequence[Axis]) -> list[frozenset[int]]:
    """For each factor, the positions of the loops it depends on."""
    position = {axis: number for number, axis in enumerate(loops)}
    return [frozenset(position[node] for node in walk(part) if isinstance(node, Axis)) for part in parts]


def is_contraction(parts: Sequence[Expr], sets: Sequence[frozenset[int]], loops: Sequence[Axis]) -> bool:
    """Whether matrix products help: two factors or more that vary, one of which leaves out a loop."""
    varying = [used for part, used in zip(parts, sets, strict=True) if not isinstance(part, Const)]
    everything = frozenset(range(len(loops)))
    return len(varying) >= 2 and any(used != everything for used in varying)


def order(
    sets: Sequence[frozenset[int]], extents: Sequence[int], spatial: int
) -> list[tuple[int, int, frozenset[int]]]:
    """Pairs to contract, smallest result first: (left, right, loops that stay). Results are appended to the factors."""
    alive = dict(enumerate(sets))
    output = frozenset(range(spatial))
    steps: list[tuple[int, int, frozenset[int]]] = []
    while len(alive) > 1:

        def kept(pair: tuple[int, int]) -> frozenset[int]:
            others = [used for number, used in alive.items() if number not in pair]
            return (alive[pair[0]] | alive[pair[1]]) & output.union(*others)

        best = min(combinations(alive, 2), key=lambda pair: prod(extents[loop] for loop in kept(pair)))
        stays = kept(best)
        steps.append((*best, stays))
        del alive[best[0]], alive[best[1]]
        alive[len(sets) + len(steps) - 1] = stays
    return steps


def block_extents(sets: Sequence[frozenset[int]], extents: Sequence[int], spatial: int, limit: int) -> tuple[int, ...]:
    """Extents of a block of the loops for which no factor, intermediate or result has more than `limit` elements."""
    everything = [*sets, *(stays for _, _, stays in order(sets, extents, spatial)), frozenset(range(spatial))]
    block = list(extents)
    while True:
        largest = max(everything, key=lambda used: prod(block[loop] for loop in used))
        if prod(block[loop] for loop in largest) <= limit:
            return tuple(block)
        widest = max(largest, key=lambda loop: (block[loop] > 1, loop < spatial, block[loop]))
        block[widest] = (block[widest] + 1) // 2


def contract_all(
    values: Sequence[Array], steps: Sequence[tuple[int, int, frozenset[int]]], block: Sequence[int], spatial: int
) -> Array:
    """The sum over the loops from `spatial` on of the product of `values`, of shape `block[:spatial]`.

    Integers are computed modulo 2**64, through float64 matrix products where these are exact; floats in float64.
    """
    reduced = range(spatial, len(block))
    integral = values[0].dtype.kind in "iub"
    wide: Any = np.float64
    if integral:
        bound = prod(block[spatial:])
        for value in values:
            bound *= max(abs(int(value.max())), abs(int(value.min())))
        wide = np.float64 if bound < 1 << 53 else np.int64
    pool: list[Array | None] = list(values)
    for left, right, stays in steps:
        a, b = pool[left], pool[right]
        assert a is not None, "a factor is contracted twice"
        assert b is not None, "a factor is contracted twice"
        pool[left] = pool[right] = None
        pool.append(_contract(a, b, stays, wide))
    result = pool[-1]
    assert result is not None
    # A loop no factor depends on repeats the same term; one that is left belongs to a single factor.
    repeats = prod(block[loop] for loop in reduced if all(value.shape[loop] == 1 for value in values))
    result = result.astype(wide, copy=False).sum(axis=tuple(reduced))
    result = np.broadcast_to(result, tuple(block[:spatial]))
    if integral:
        result = result.astype(np.int64)
    return result * repeats if repeats != 1 else result


def _contract(a: Array, b: Array, stays: frozenset[int], wide: Any) -> Array:
    """Multiply two factors and sum over the loops outside `stays`."""
    loops = range(a.ndim)
    for loop in loops:
        if loop not in stays and (a.shape[loop] == 1 or b.shape[loop] == 1):
            a, b = (x.sum(axis=loop, keepdims=True, dtype=wide) if x.shape[loop] > 1 else x for x in (a, b))
    both = [loop for loop in loops if a.shape[loop] > 1 and b.shape[loop] > 1]
    summed = [loop for loop in both if loop not in stays]
    if not summed:
        product: Array = a.astype(wide) * b.astype(wide)
        return product
    batch = [loop for loop in both if loop in stays]
    rows = [loop for loop in loops if a.shape[loop] > 1 and loop not in both]
    columns = [loop for loop in loops if b.shape[loop] > 1 and loop not in both]
    found = np.matmul(_matrices(a, batch, rows, summed, wide), _matrices(b, batch, summed, columns, wide))
    dims = [*batch, *rows, *columns]
    sizes = [max(a.shape[loop], b.shape[loop]) for loop in dims]
    back = sorted(range(len(dims)), key=dims.__getitem__)
    shape = [max(a.shape[loop], b.shape[loop]) if loop in dims else 1 for loop in loops]
    result: Array = found.reshape(sizes).transpose(back).reshape(shape)
    return result


def _matrices(x: Array, batch: list[int], rows: list[int], columns: list[int], wide: Any) -> Array:
    """`x` as a stack of matrices [batch, rows, columns], stored so that the copy runs along its shortest stride."""
    count, height, width = (prod(x.shape[loop] for loop in group) for group in (batch, rows, columns))
    rest = [loop for loop in range(x.ndim) if loop not in {*batch, *rows, *columns}]

    def stored(first: list[int], second: list[int]) -> Array:
        return np.ascontiguousarray(x.transpose([*rest, *batch, *first, *second]), dtype=wide)

    shortest = min((loop for loop in (*rows, *columns)), key=lambda loop: abs(x.strides[loop]) or 1 << 62, default=None)
    if shortest in rows:
        return stored(columns, rows).reshape(count, width, height).swapaxes(1, 2)
    return stored(rows, columns).reshape(count, height, width)
