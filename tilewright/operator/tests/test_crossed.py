"""The order in which squares of a transposing map are walked."""

import pytest

from tilewright.compiler.compile import resolve_target
from tilewright.compiler.plan import make_plan
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import shape
from tilewright.operator.nest import NestSchedule
from tilewright.operator.tree import kernel_of
from tilewright.tiles.notation import print_tree


def scheduled(batch: int, rows: int, columns: int, dtype: str = "f32") -> tuple[NestSchedule, str]:
    """The schedule of y[n, j, i] = x[n, i, j], and its tile tree."""
    b = GraphBuilder()
    x = b.input("x", (batch, rows, columns), dtype)
    plan = make_plan(b.finish([shape.transpose(x, (0, 2, 1), name="y")]), resolve_target("znver5"), 1)
    (kernel,) = plan.kernels
    assert isinstance(kernel.schedule, NestSchedule)
    return kernel.schedule, print_tree(kernel_of(kernel.work, kernel.schedule).tree)


@pytest.mark.parametrize(
    ("rows", "columns", "follows_reads"),
    [
        (64, 1024, True),  # read 4096 bytes apart: one set; written 256 bytes apart: 16 sets of 64
        (1024, 64, False),
        (1024, 1024, False),  # one set on both sides
        (80, 1040, False),  # all sets on both sides: 4160 and 320 bytes
        (1040, 1024, True),
    ],
)
def test_squares_follow_the_side_whose_lines_share_few_sets(rows: int, columns: int, follows_reads: bool) -> None:
    assert bool(scheduled(1, rows, columns)[0].order) == follows_reads


def test_loops_are_in_the_order_of_the_read_inside_the_batch() -> None:
    assert scheduled(3, 64, 1024)[1].startswith("@L2 for i0:3, i2:4, i1:64 ")
    assert scheduled(3, 1024, 64)[1].startswith("@L2 for i0:3, i1:4, i2:64 ")


def test_bytes_count_and_not_elements() -> None:
    assert scheduled(1, 64, 512, "f64")[0].order
    assert not scheduled(1, 64, 65, "f64")[0].order
