"""A literal block execution of an order: nested loops over blocks, and a memory of one block per tensor and operator.

It knows nothing of the formulas: blocks are ranges of iterations, and what a block reaches comes from a function that
the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product

from tilewright.dataclass import dataclass

Ranges = Mapping[str, tuple[int, int]]
Reach = Callable[[Ranges], tuple[tuple[int, int], ...]]  #: the box of a tensor that a block of loops reaches


@dataclass(frozen=True)
class Op:
    """An operator: its loops, and for each tensor that moves off chip the loops that index it and what it reaches."""

    loops: frozenset[str]
    tensors: Mapping[str, tuple[frozenset[str], Reach]]


def transfers(
    ops: Sequence[Op], order: Sequence[str], tile: Mapping[str, int], extents: Mapping[str, int],
    stays: Collection[str] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Elements that each tensor moves.

    Every loop that a later operator or the operator itself has surrounds it. With `stays`, a change of operator drops
    every block but those of tensors in it; without, every operator has a memory of its own.
    """
    memory: dict[str, object] = {}
    moved: dict[str, int] = {}
    current: list[int] = []

    def execute(number: int, at: dict[str, tuple[int, int]]) -> None:
        if stays is not None and current != [number]:
            for name in [name for name in memory if name not in stays]:
                del memory[name]
        current[:] = [number]
        for name, (loops, reach) in ops[number].tensors.items():
            block = tuple(sorted((loop, at[loop]) for loop in loops))
            if memory.get(name) != block:
                memory[name] = block
                size = 1
                for begin, end in reach({**{loop: (0, extents[loop]) for loop in extents}, **at}):
                    size *= end - begin
                moved[name] = moved.get(name, 0) + size

    def run(first: int, loops: list[str], at: dict[str, tuple[int, int]]) -> None:
        """Operators from `first` on, inside the ranges `at`; `loops` are those still to be opened."""
        later = [frozenset[str]().union(*(op.loops for op in ops[number:])) for number in range(len(ops))]
        last = len(ops) - 1
        if first == last or not loops:
            rest = [loop for loop in loops if loop in later[first]]
            for number in range(first, last + 1):
                for ranges in product(*(steps(loop) for loop in rest)):
                    execute(number, {**at, **dict(zip(rest, ranges, strict=True))})
            return
        loop = loops[0]
        if loop in later[last] or all(loop not in later[number] for number in range(first, last + 1)):
            for step in steps(loop):
                run(first, loops[1:], {**at, loop: step})
            return
        inner = [each for each in loops if each in later[first]]  # private to an earlier operator: it runs to its end
        for ranges in product(*(steps(each) for each in inner)):
            execute(first, {**at, **dict(zip(inner, ranges, strict=True))})
        run(first + 1, [each for each in loops if each in later[first + 1]], at)

    def steps(loop: str) -> list[tuple[int, int]]:
        return [(b, min(b + tile[loop], extents[loop])) for b in range(0, extents[loop], tile[loop])]

    run(0, list(order), {})
    return moved


def rows(begin: int, end: int, stride: int, kernel: int, pad: int, extent: int) -> tuple[int, int]:
    """Rows that a window reads for results in [begin, end), without padding; by walking over all of them."""
    touched = [h * stride + r - pad for h in range(begin, end) for r in range(kernel)]
    inside = [row for row in touched if 0 <= row < extent]
    return (min(inside), max(inside) + 1) if inside else (0, 0)
