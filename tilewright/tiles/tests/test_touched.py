"""Counts from accesses that stand in for a program: what a memory holds, and in which order steps come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tilewright.expr.text import parse_graph
from tilewright.tiles.brute import walk
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.touch import PADDING, Touch
from tilewright.tiles.touched import Touched, WrongStep
from tilewright.tiles.traffic import Moved
from tilewright.tiles.tree import TileTree

M, N, K = 4, 6, 5
PRODUCT = Problem.of(
    parse_graph(f"""
        input A: f32[{M}, {K}]
        input B: f32[{K}, {N}]
        C: f32[m:{M}, n:{N}] += A[m, k] * B[k, n] over k:{K}
        output C""").nodes
)
LEVELS = Resources(tuple(Level(name, multicast=False) for name in ("DRAM", "L1", "REG")))
TREE = parse_tree("@DRAM for m:2, n:3 { @L1 for k:5 { @REG for m:2, n:2 { op C } } }")


def access(
    program: int, op: str, tensor: str, writes: bool, position: Mapping[str, int], elements: Collection[int],
    ready: Collection[int] = (), padding: Collection[int] = (),
) -> Touch:  # fmt: skip
    """One run of an access, whose time `timed` says."""
    numbers = np.array(sorted(elements))
    at = {loop: np.array([place]) for loop, place in position.items()}
    runs, first, beyond = np.zeros_like(numbers), np.isin(numbers, list(ready)), np.isin(numbers, list(padding))
    return Touch(program, op, tensor, writes, np.zeros(1, np.int64), at, runs, numbers, first, beyond)


def timed(touches: Iterable[Touch]) -> list[Touch]:
    return [replace(touch, times=np.array([time])) for time, touch in enumerate(touches)]


def touches(order: Sequence[str] = ("m", "n"), program: str = "") -> Iterator[Touch]:
    """The accesses of a program in tiles of 2 x 2, whose loops have this order; a loop may be that of programs."""
    loops = {"m": range(0, M, 2), "n": range(0, N, 2)}
    for tile in product(*(loops[name] for name in order)):
        at = dict(zip(order, tile, strict=True))
        number = at[program] // 2 if program else 0
        rows, columns = range(at["m"], at["m"] + 2), range(at["n"], at["n"] + 2)
        for k in range(K):
            here = {**at, "k": k}
            yield access(number, "C", "A", False, here, frozenset(m * K + k for m in rows))
            yield access(number, "C", "B", False, here, frozenset(k * N + n for n in columns))
        yield access(number, "C", "C", True, at, frozenset(m * N + n for m in rows for n in columns))


def counted(tree: TileTree, seen: Iterable[Touch], problem: Problem = PRODUCT) -> dict[str, dict[str, Moved]]:
    """The same for any number of accesses that are given together."""
    accesses, found = timed(seen), []
    for together in (1, 7, len(accesses)):
        touched = Touched(tree, problem, LEVELS)
        for number in range(0, len(accesses), together):
            touched.touch(accesses[number : number + together])
        traffic = touched.traffic()
        found.append({level: traffic.at(level) for level in ("DRAM", "L1")})
    assert found[0] == found[1] == found[2]
    return found[0]


def walked(tree: TileTree, problem: Problem = PRODUCT) -> dict[str, dict[str, Moved]]:
    traffic = walk(tree, problem, resources=LEVELS)
    return {level: traffic.at(level) for level in ("DRAM", "L1")}


def test_a_program_that_takes_the_steps_of_its_tree_moves_what_it_says() -> None:
    found = counted(TREE, touches())
    assert found == walked(TREE)
    assert found["DRAM"]["A"] == Moved(M * K, M * K, 0)
    assert found["DRAM"]["B"] == Moved(2 * K * N, 2 * K * N, 0)
    assert found["DRAM"]["C"] == Moved(0, 0, M * N)


def test_another_order_of_loops_moves_something_else() -> None:
    found = counted(TREE, touches(("n", "m")))
    assert found != walked(TREE)
    assert found["DRAM"]["A"] == Moved(3 * M * K, 3 * M * K, 0)
    assert found["DRAM"]["B"] == Moved(K * N, K * N, 0)


def test_an_element_too_many_is_counted() -> None:
    found = counted(TREE, (_with(touch, 99) if touch.tensor == "A" else touch for touch in touches()))
    assert found["DRAM"]["A"].loads > M * K
    assert found["DRAM"]["B"] == walked(TREE)["DRAM"]["B"]


def _with(touch: Touch, element: int, padding: bool = False) -> Touch:
    """The access with one more element."""
    more = {"runs": 0, "elements": element, "ready": False, "padding": padding}
    return replace(touch, **{name: np.append(getattr(touch, name), value) for name, value in more.items()})


def test_programs_hold_their_own_slices() -> None:
    tree = parse_tree("@DRAM par m:2 { @DRAM for n:3 { @L1 for k:5 { @REG for m:2, n:2 { op C } } } }")
    found = counted(tree, touches(program="m"))
    assert found == walked(tree)
    assert found["DRAM"]["B"] == Moved(2 * K * N, 2 * K * N, 0)


def test_two_programs_in_one_step_of_the_grid_are_refused() -> None:
    tree = parse_tree("@DRAM par m:2 { @DRAM for n:3 { @L1 for k:5 { @REG for m:2, n:2 { op C } } } }")
    with pytest.raises(WrongStep, match="programs 0 and 1 run step"):
        counted(tree, touches(program="n"))


def test_padding_is_counted_apart() -> None:
    def padded() -> Iterator[Touch]:
        for touch in touches():
            yield _with(touch, 1000 + int(touch.position["k"][0]), True) if touch.tensor == "B" else touch

    found = counted(TREE, padded())
    assert found["DRAM"]["B"] == walked(TREE)["DRAM"]["B"]
    assert found["DRAM"]["B" + PADDING] == Moved(K, K, 0)


def test_sums_in_memory_are_read_again_but_not_when_they_begin() -> None:
    """k outside of the tiles: sums are read and written at each step of k, where the first one finds zeros."""
    tree = parse_tree("@DRAM for k:5, m:2 { @L1 for n:3 { @REG for m:2, n:2 { op C } } }")

    def summed() -> Iterator[Touch]:
        for k, m, n in product(range(K), range(0, M, 2), range(0, N, 2)):
            at = {"k": k, "m": m, "n": n}
            yield access(0, "C", "A", False, at, frozenset(row * K + k for row in (m, m + 1)))
            yield access(0, "C", "B", False, at, frozenset(k * N + column for column in (n, n + 1)))
            sums = frozenset(row * N + column for row in (m, m + 1) for column in (n, n + 1))
            yield access(0, "C", "C", False, at, sums, ready=frozenset() if k else sums)
            yield access(0, "C", "C", True, at, sums)

    found = counted(tree, summed())
    assert found == walked(tree)
    assert found["DRAM"]["C"] == Moved(4 * M * N, 4 * M * N, 5 * M * N)


CHAIN = Problem.of(
    parse_graph("""
        input X: f32[6]
        Y: f32[i:6] = X[i] + 1.0
        Z: f32[i:6] = Y[i] * X[i]
        output Z""").nodes
)


@pytest.mark.parametrize("kind", ["seq", "shar", "pipe"])
def test_what_the_next_child_does_not_need_is_dropped(kind: str) -> None:
    """Z reads X again, which stays; with `pipe`, Y works a step ahead, and counts as if it did not."""
    tree = parse_tree(f"@DRAM for i:3 {{ {kind}[ @L1 for i:2 {{ op Y }}, @L1 for i:2 {{ op Z }} ] }}")

    def stage(op: str, step: int) -> Iterator[Touch]:
        for i in (2 * step, 2 * step + 1):
            for tensor in ("X", "Y") if op == "Z" else ("X",):
                yield access(0, op, tensor, False, {"i": i}, frozenset({i}))
            yield access(0, op, op, True, {"i": i}, frozenset({i}))

    turns = [(op, step - late) for step in range(4) for op, late in (("Y", 0), ("Z", kind == "pipe"))]
    seen = (touch for op, step in turns if 0 <= step < 3 for touch in stage(op, step))
    assert counted(tree, seen, CHAIN) == walked(tree, CHAIN)
