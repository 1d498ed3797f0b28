"""Tiles ask for the next panel of b, or for the next rows of a: which products do, and that each line is asked for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compile import build
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.graph import Graph
from tilewright.expr.ops import linalg, shape
from tilewright.kernel import interpreter
from tilewright.kernel.dialect import MainOp, PrefetchOp
from tilewright.kernel.text import parse_module
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.tree import InvalidTree

LINE = 16  # floats
MACHINE = resolve_cpu("znver3")


def product(rows: int, depth: int, columns: int, across: bool = False) -> Graph:
    """A product with a constant; with `across` sums walk across lines."""
    b = GraphBuilder()
    weights = b.constant(np.ones((depth, columns), np.float32), "w")
    x = b.input("x", (depth, rows) if across else (rows, depth), "f32")
    return b.finish([linalg.matmul(shape.transpose(x, (1, 0)) if across else x, weights, name="y")])


def program(rows: int, depth: int, columns: int, across: bool = False) -> str:
    """The tile program of a product on vectors of AVX2."""
    return str(build(product(rows, depth, columns, across), MACHINE, 1, Options(cache=False)).program)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "asks"),
    [
        (49, 160, 960, True),
        (196, 64, 384, True),
        (784, 64, 384, False),  # a panel comes in a hundredth of the time of so many rows
        (49, 64, 96, False),  # L1 holds 24 KiB
        (4, 160, 960, False),  # one tile of rows
    ],
)
def test_products_of_few_rows_ask_for_panels(rows: int, depth: int, columns: int, asks: bool) -> None:
    assert ("tile.prefetch" in program(rows, depth, columns)) == asks


@pytest.mark.parametrize("depth", [160, 58])  # 58: two points are left over from steps of four
def test_each_line_of_the_next_panel_is_asked_for(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = 49, 960
    asked = set(_asked_for(rows, depth, columns, False, monkeypatch))
    missed = set(range(depth * columns // LINE)) - asked
    assert missed == set(range(min(asked)))  # the first panel, which nothing comes before
    assert len(missed) in {depth * width // LINE for width in (16, 24)}


def test_each_line_of_the_next_rows_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, depth, columns = 784, 128, 256
    asked = set(_asked_for(rows, depth, columns, True, monkeypatch))
    run = rows // LINE
    begin = min(asked)  # of the first run, what the second program reads
    assert 0 < begin <= run / 2
    assert {k * run + line for line in range(begin, run) for k in range(depth)} <= asked


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "across"),
    [(49, 160, 960, False), (17, 1023, 53, False), (53, 3072, 24, False), (66, 3080, 17, False), (112, 128, 256, True)],
)
def test_nothing_is_asked_for_behind_the_end_of_an_operand(
    rows: int, depth: int, columns: int, across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no memory is, processors take long to find it out: in each step of the last tiles."""
    behind: list[tuple[int, int]] = []

    def note(running: Any, op: PrefetchOp) -> None:
        first, count = running.scalar(op.offset), -(-op.bytes.value.data // 4)
        size = op.view.type.element_count()  # type: ignore[union-attr]
        if first < 0 or first + count > size:
            behind.append((first + count, size))

    monkeypatch.setitem(interpreter._HANDLERS, PrefetchOp, note)
    module = parse_module(program(rows, depth, columns, across))
    assert "tile.prefetch" in str(module)
    x, y = np.ones(rows * depth, np.float32), np.zeros(rows * columns, np.float32)
    main = next(op for op in module.walk() if isinstance(op, MainOp))
    interpreter.run_main(module, [x], [y], np.ones(main.constants_bytes.value.data // 4, np.float32).tobytes())
    assert not behind


@pytest.mark.parametrize(
    ("rows", "asks"),
    [
        (72, True),  # 4 rows in a tile: a set of L1 has 8 lines
        (77, False),  # 6 rows
    ],
)
def test_next_rows_that_share_a_set_with_a_tile_are_not_asked_for(rows: int, asks: bool) -> None:
    tree = json.dumps(make_plan(product(rows, 3072, 768), MACHINE, 1).trees()["y"])
    assert '"prefetch_lines"' in tree
    assert ('"prefetch_rows"' in tree) == asks


@pytest.mark.parametrize("hint", ["prefetch_lines", "prefetch_rows"])
@pytest.mark.parametrize("bytes_", [1, 3, 48, 10**9])
def test_lines_that_no_cache_has_are_refused(hint: str, bytes_: int) -> None:
    graph = product(784, 128, 256, across=True)
    tree = make_plan(graph, MACHINE, 1).trees()["y"]
    edited = json.dumps(tree).replace('["prefetch_rows", 64]', f'["{hint}", {bytes_}]')
    assert f'["{hint}", {bytes_}]' in edited
    with pytest.raises(InvalidTree, match=f"{hint} has lines of {bytes_} bytes") as error:
        make_plan(graph, MACHINE, 1, Options(trees={"y": json.loads(edited)}))
    assert "16, 32, 64, 128, 256" in str(error.value)


def test_rows_that_nothing_asks_for_are_refused() -> None:
    """A program alone has no next one."""
    graph = product(49, 160, 960)
    tree = json.dumps(make_plan(graph, MACHINE, 1).trees()["y"])
    edited = tree.replace('["prefetch_lines", 64]', '["prefetch_lines", 64], ["prefetch_rows", 64]')
    assert edited != tree
    with pytest.raises(InvalidTree, match="programs of y have no next rows that tiles could ask for"):
        make_plan(graph, MACHINE, 1, Options(trees={"y": json.loads(edited)}))


def _asked_for(
    rows: int, depth: int, columns: int, across: bool, monkeypatch: pytest.MonkeyPatch
) -> Counter[int]:  # fmt: skip
    """How often each line of an operand is asked for while a product runs, which gives the right result."""
    asked: Counter[int] = Counter()

    def note(running: Any, op: PrefetchOp) -> None:
        first, count = running.scalar(op.offset), op.bytes.value.data // 4
        asked.update(range(first // LINE, (first + count) // LINE))

    monkeypatch.setitem(interpreter._HANDLERS, PrefetchOp, note)
    module = parse_module(program(rows, depth, columns, across))
    x = np.arange(rows * depth, dtype=np.float32) % 7
    y = np.zeros(rows * columns, np.float32)
    interpreter.run_main(module, [x], [y], np.ones(depth * columns, np.float32).tobytes())  # in panels too
    sums = x.reshape(depth, rows).sum(0) if across else x.reshape(rows, depth).sum(1)
    np.testing.assert_array_equal(y.reshape(rows, columns)[:, 0], sums)
    return asked
