"""Tiles of rows for blocks: what the model prefers, and what it refuses; split reductions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import pytest

from tilewright.expr.core import Apply, Axis, Expr, Read, Tensor
from tilewright.layouts.blocked import Blocked
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.operator.block_rows import block_rows
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rewrites.split_reduction import split_reduction
from tilewright.operator.rules.gpu_rows import kernel_on_blocks, predicted, schedule_on_blocks
from tilewright.operator.rules.gpu_rows_time import Model, RowsTile
from tilewright.operator.rules.split import choose_split
from tilewright.operator.statements import Statements, inner_loops, outer_loops
from tilewright.tiles.kernel import Kernel, Statement, joined
from tilewright.tiles.legality import check
from tilewright.tiles.notation import print_tree
from tilewright.tiles.problem import problem_of

LAUNCH = 3000.0  # cycles


def gpu(name: str = "sm_90a") -> Gpu:
    machine = resolve(name)
    assert isinstance(machine, Gpu)
    return machine


def copied(rows: int, columns: int, swapped: bool = False, dtype: str = "f32") -> Statements:
    """A copy of a matrix, perhaps transposed."""
    i, j = Axis("i", rows), Axis("j", columns)
    source: Expr = j * rows + i if swapped else i * columns + j
    x, y = (Tensor(name, (rows * columns,), dtype) for name in "xy")
    return (Statement(y, (i, j), Read(x, (source,)), address=i * columns + j),)


def summed(rows: int, columns: int, along: int) -> Statements:
    """Sums along one dimension of a matrix."""
    i, j = Axis("i", rows), Axis("j", columns)
    outer, inner = (i, j) if along == 1 else (j, i)
    x, y = Tensor("x", (rows * columns,), "f32"), Tensor("y", (int(outer.extent),), "f32")  # type: ignore[arg-type]
    return (Statement(y, (outer,), Read(x, (i * columns + j,)), (inner,), "sum", outer),)


def tile_of(kernel: Kernel) -> RowsTile:
    """What the tree says of a block."""
    tree = block_rows(kernel)
    return RowsTile(tree.points, tree.threads, tree.warps, tree.unrolled, tuple(joined(kernel)))


def kernel_of(statements: Statements, machine: str = "sm_90a") -> Kernel:
    """The kernel of the best tile, which is legal."""
    kernel, _ = schedule_on_blocks(statements, gpu(machine), "y")
    check(kernel.tree, problem_of(kernel), imperfect=True)
    return kernel


def scheduled(statements: Statements, machine: str = "sm_90a") -> RowsTile:
    return tile_of(kernel_of(statements, machine))


def softmax(rows: int, columns: int, first: str = "") -> Statements:
    """Softmax along rows; with `first` another reduction of the row before."""
    i, j = Axis("i", rows), Axis("j", columns)
    x = Read(Tensor("x", (rows * columns,), "f32"), (i * columns + j,))

    def own(name: str) -> Read:
        return Read(Tensor(name, (), "f32"), ())

    power = Apply("exp", (Apply("sub", (x, own("largest")), "f32"),), "f32")
    values = (
        Statement(Tensor("largest", (), "f32"), (i,), x, (j,), "max"),
        Statement(Tensor("powers", (), "f32"), (i, j), power),
        Statement(Tensor("total", (), "f32"), (i,), own("powers"), (j,), "sum"),
        Statement(Tensor("y", (rows * columns,), "f32"), (i, j), own("powers") / own("total"), address=i * columns + j),
    )
    before = (Statement(Tensor("first", (rows,), "f32"), (i,), x, (j,), first, i),) if first else ()
    return (*before, *values)


HELD = RowsTile({"i": 2, "j": 128}, Blocked((1, 4), (1, 32), (2, 1), (1, 0)), 2)
HELD_GRID = f'@DRAM par i:4 with warps(2, 1), blocked("{HELD.threads}")'
CUT = RowsTile({"j": 128}, Blocked((4,), (32,), (1,), (0,)), joined=("total",))
CUT_GRID = f'@DRAM par i:7 with warps(1, 1), blocked("{CUT.threads}")'


@pytest.mark.parametrize(
    ("statements", "tile", "text"),
    [
        (
            softmax(7, 100), HELD,
            f"{HELD_GRID} {{ seq["
            "@REG par i:2, j:128 { op largest }, @REG par i:2, j:128 { op total }, "
            "@REG par i:2, j:128 { op y }] }",
        ),
        (
            softmax(7, 1000), CUT,
            f"{CUT_GRID} {{ seq["
            "@L1 for j:8 { seq[@REG par j:128 { op largest }, @REG par j:128 { op total }] }, "
            "@L1 for j:8 { @REG par j:128 { op y } }] }",
        ),
        (
            softmax(7, 100, "sum"), HELD,
            f"{HELD_GRID} {{ seq["
            "seq[@REG par i:2, j:128 { op first }, @REG par i:2, j:128 { op largest }], "
            "@REG par i:2, j:128 { op total }, @REG par i:2, j:128 { op y }] }",
        ),
        (
            softmax(7, 1000, "sum"), CUT,
            f"{CUT_GRID} {{ seq["
            "@L1 for j:8 { @REG par j:128 { op first } }, "
            "@L1 for j:8 { seq[@REG par j:128 { op largest }, @REG par j:128 { op total }] }, "
            "@L1 for j:8 { @REG par j:128 { op y } }] }",
        ),
        (
            summed(3, 5, 1), RowsTile(unrolled=("j",)),
            "@DRAM par i:3 with warps(1, 1) { @L1 unroll j:5 { @REG for once:1 { op y } } }",
        ),
    ],
    ids=["held", "cut", "another sum held", "another sum cut", "one element"],
)  # fmt: skip
def test_the_tree_is_blocks_around_passes(statements: Statements, tile: RowsTile, text: str) -> None:
    """Sums that do not need each other are one pass; where rows are cut, those of a softmax follow each other."""
    kernel = kernel_on_blocks(with_following(statements), tile)
    assert print_tree(kernel.tree) == text
    check(kernel.tree, problem_of(kernel), imperfect=True)
    assert tile_of(kernel) == tile


@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", ["i8", "f16", "f32", "f64"])
def test_threads_take_wide_accesses_of_neighbours(machine: str, dtype: str) -> None:
    schedule = scheduled(copied(4096, 4096, dtype=dtype), machine)
    assert schedule.threads is not None
    fast = list(schedule.points).index("j")
    size = {"i8": 1, "f16": 2, "f32": 4, "f64": 8}[dtype]
    assert schedule.threads.size_per_thread[fast] * size == 16
    assert schedule.threads.order[0] == fast
    assert prod(schedule.threads.threads_per_warp) == gpu(machine).warp_sizes[0]
    assert prod(schedule.threads.warps) == schedule.warps


def test_a_transposition_has_a_square_tile() -> None:
    tile = scheduled(copied(4096, 4096, swapped=True)).points
    assert min(tile["i"], tile["j"]) >= 32


def test_accesses_of_odd_rows_are_narrow() -> None:
    i, j = Axis("i", 1000), Axis("j", 1001)
    x, y = (Tensor(name, (1002 * 1001,), "f32") for name in "xy")
    schedule = scheduled((Statement(y, (i, j), Read(x, (i * 1001 + j + 1,)), address=i * 1001 + j),))
    assert schedule.threads is not None
    assert prod(schedule.threads.size_per_thread) == 1


def test_rows_stay_in_registers_as_long_as_they_fit() -> None:
    for columns, held in ((64, True), (4096, True), (32768, True), (1 << 18, False)):
        i, j = Axis("i", 2048), Axis("j", columns)
        row = Read(Tensor("x", (2048 * columns,), "f32"), (i * columns + j,))
        total, out = Tensor("y", (), "f32"), Tensor("z", (2048 * columns,), "f32")
        scaled = Apply("mul", (row, Read(total, ())), "f32")
        normed = (
            Statement(total, (i,), row, (j,), "sum"),
            Statement(out, (i, j), scaled, address=i * columns + j),
        )
        assert scheduled(normed).holds_rows(normed) == held, columns


def test_sums_follow_others_where_rows_do_not_stay_in_registers() -> None:
    for columns, followers in ((1000, ()), (32768, ()), (1 << 18, ("total",))):
        assert scheduled(softmax(2048, columns)).joined == followers, columns


def test_a_pass_that_computes_two_sums_has_its_time() -> None:
    """It reads a row once less, and computes more in every chunk."""
    statements = with_following(softmax(512, 1 << 18))
    model = Model(statements, gpu())
    tile = RowsTile({"j": 4096}, Blocked((4,), (32,), (8,), (0,)), 8)
    apart, together = model.time(tile), model.time(replace(tile, joined=("total",)))
    assert together.seconds < apart.seconds
    assert together.registers > apart.registers


def test_short_rows_share_a_warp() -> None:
    schedule = scheduled(summed(1 << 16, 32, 1))
    assert schedule.threads is not None
    rows = list(schedule.points).index("i")
    assert schedule.threads.threads_per_warp[rows] >= 4
    assert schedule.points["i"] >= 16


def test_columns_are_summed_by_lanes_side_by_side() -> None:
    schedule = scheduled(summed(4096, 65536, 0))
    assert schedule.threads is not None
    columns = list(schedule.points).index("j")
    assert schedule.threads.order[0] == columns
    assert schedule.threads.size_per_thread[columns] == 4
    assert schedule.points["j"] * 4 >= 128


def test_few_sums_are_split() -> None:
    whole = summed(1, 1 << 24, 1)
    found, decision = choose_split(whole, partial(predicted, machine=gpu()), LAUNCH, "y")
    assert found is not None
    assert decision is not None
    assert decision.runner_up
    (part, _), (inner,) = outer_loops(found.first), inner_loops(found.first)
    assert part.size * inner.size == 1 << 24
    assert predicted(found.first, gpu()) + predicted(found.second, gpu()) < predicted(whole, gpu()) / 4


def test_many_sums_and_rows_that_are_read_again_are_not() -> None:
    cycles = partial(predicted, machine=gpu())
    assert choose_split(summed(8192, 4096, 1), cycles, LAUNCH, "y")[0] is None
    assert choose_split(copied(8192, 4096), cycles, LAUNCH, "y") == (None, None)


def test_the_last_part_of_a_prime_number_of_terms_is_guarded() -> None:
    whole = summed(1, 1_000_003, 1)
    (part,) = split_reduction(whole, inner_loops(whole)[0], 64).first
    assert isinstance(part.body, Apply)
    assert part.body.function == "select"


def test_parts_have_a_name_of_their_own() -> None:
    whole = summed(1, 1 << 20, 1)
    (tensor,) = split_reduction(whole, inner_loops(whole)[0], 64).parts
    (other,) = split_reduction(whole, inner_loops(whole)[0], 64, {tensor.name}).parts
    assert other.name not in (tensor.name, whole[0].name)
