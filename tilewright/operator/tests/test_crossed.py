"""The order in which squares of a transposing map are walked."""

import pytest

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import shape
from tilewright.tiles.parts import program_of
from tilewright.tiles.tree import TileTree


def transposed(batch: int, rows: int, columns: int, dtype: str = "f32", threads: int = 1) -> TileTree:
    """The tree of y[n, j, i] = x[n, i, j] with loops i0 over n, i1 over j and i2 over i."""
    b = GraphBuilder()
    x = b.input("x", (batch, rows, columns), dtype)
    plan = make_plan(b.finish([shape.transpose(x, (0, 2, 1), name="y")]), resolve_target("znver5"), threads)
    (kernel,) = plan.kernels
    return kernel.scheduled.tree


def loops(batch: int, rows: int, columns: int, dtype: str = "f32") -> dict[str, int]:
    """The loops of one program, outermost first."""
    return program_of(transposed(batch, rows, columns, dtype)).tiles


def interleaved(count: int, machine: str) -> str:
    """The decision on a register tile of y[i*count + n] = x[n*58 + i]."""
    b = GraphBuilder()
    x = b.input("x", (count, 58), "f32")
    joined = shape.reshape(shape.transpose(x, (1, 0)), (58 * count,), name="y")
    plan = make_plan(b.finish([joined]), resolve_target(machine), 1)
    (kernel,) = plan.kernels
    return next(each.chosen for each in plan.decisions if each.subject == f"vector of {kernel.name}")


@pytest.mark.parametrize(
    ("count", "machine", "expected"),
    [
        (2, "x86-64-v3", "32 points of i0.0, 2 points of i0.1 beside it"),
        (4, "x86-64-v4", "32 points of i0.0, 4 points of i0.1 beside it"),
        (3, "x86-64-v3", "32 points of i0.0"),
    ],
)
def test_rows_that_are_written_between_each_other_share_a_tile(count: int, machine: str, expected: str) -> None:
    assert interleaved(count, machine) == expected


def follows_reads(batch: int, rows: int, columns: int, dtype: str = "f32") -> bool:
    """Whether the loop along the lines that are read is the inner one."""
    return list(loops(batch, rows, columns, dtype))[-1] == "i1"


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (64, 1024, True),  # read 4096 bytes apart: one set; written 256 bytes apart: 16 sets of 64
        (1024, 64, False),
        (1024, 1024, False),  # one set on both sides
        (80, 1040, False),  # all sets on both sides: 4160 and 320 bytes
        (1040, 1024, True),
    ],
)
def test_squares_follow_the_side_whose_lines_share_few_sets(rows: int, columns: int, expected: bool) -> None:
    assert follows_reads(1, rows, columns) == expected


def test_loops_are_in_the_order_of_the_read_inside_the_batch() -> None:
    assert list(loops(3, 64, 1024).items()) == [("i0", 3), ("i2", 4), ("i1", 64)]
    assert list(loops(3, 1024, 64).items()) == [("i0", 3), ("i1", 4), ("i2", 64)]


def test_bytes_count_and_not_elements() -> None:
    assert follows_reads(1, 64, 512, "f64")
    assert not follows_reads(1, 64, 65, "f64")


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "expected"),
    [
        (1040, 1024, 2, {"i2": 22}),  # squares follow reads; 65 of them are at most 32 programs of three
        (1024, 1040, 2, {"i1": 22}),
        (112, 1040, 2, {"i1": 4}),  # 3.5 times the points of a program
        (112, 1040, 3, {"i1": 3}),
        (97, 31, 2, {}),
    ],
)
def test_threads_share_the_outer_loop_of_squares_evenly(
    rows: int, columns: int, threads: int, expected: dict[str, int]
) -> None:
    assert program_of(transposed(1, rows, columns, threads=threads)).grid == expected
