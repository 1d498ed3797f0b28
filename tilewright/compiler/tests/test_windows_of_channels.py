"""Windows on images with channels innermost: a step has a row of the window, programs have blocks of channels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright.compiler.rows as rows_module
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Kernel
from tilewright.errors import CompileError
from tilewright.expr import GraphBuilder
from tilewright.expr.core import Axis, Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import conv, elementwise, pool, reduce
from tilewright.machine import resolve_cpu
from tilewright.machine.description import Cpu
from tilewright.operator.rules import cpu_rows, cpu_window_reuse
from tilewright.operator.statements import Statements
from tilewright.options import Options
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.parts import program_of, register_tiles
from tilewright.tiles.tree import to_json

MACHINE = resolve_cpu("znver3")  # L1 of 32 KiB, L2 of 512 KiB, registers of 8 lanes of f32
PER_TILE = 16  # points of the channels in a register tile there
UNFUSED = Options(cache=False, fuse="never")


def windows(
    channels: int, size: int, kernel: int = 3, stride: int = 1, dilation: int = 1, op: str = "depthwise"
) -> Graph:  # fmt: skip
    """Windows on what a convolution of 1 x 1 leaves, and one that reads the result."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    first = b.constant(rng.standard_normal((channels, 3, 1, 1)).astype("f4"), "first")
    image = elementwise.relu(conv.conv(b.input("x", (1, 3, size, size), "f32"), first))
    pads = kernel // 2 * dilation
    y: Tensor
    if op == "depthwise":
        weights = b.constant(rng.standard_normal((channels, 1, kernel, kernel)).astype("f4"), "w")
        y = conv.conv(
            image, weights, strides=stride, pads=pads, dilations=dilation, groups=channels, name="windows"
        )  # fmt: skip
        y = elementwise.binary(y, elementwise.unary(y, "sigmoid"), "mul")
    else:
        y = pool.max_pool(image, [kernel, kernel], strides=stride, pads=pads, name="windows")
    return b.finish([conv.conv(y, b.constant(rng.standard_normal((5, channels, 1, 1)).astype("f4"), "last"))])


def planned(graph: Graph, name: str = "windows", threads: int = 1) -> Kernel:
    """The kernel that computes the windows."""
    plan = make_plan(graph, MACHINE, threads, options=UNFUSED)
    return next(each for each in plan.kernels if any(s.name == name for s in each.scheduled.statements))


def grid(channels: int, size: int, kernel: int = 3, stride: int = 1, threads: int = 1) -> list[int]:
    return [*program_of(planned(windows(channels, size, kernel, stride), threads=threads).scheduled.tree).grid.values()]


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "expected"),
    [
        (288, 14, 3, 1, []),  # 27 elements of each channel fill L1 with 303 channels
        (384, 14, 3, 1, [6]),  # with 3 rows of 16 points and the weights L1 keeps 89 channels: 4 register tiles
        (960, 7, 3, 1, [8]),  # and with 3 of 9 it keeps 142: 8
        (672, 14, 5, 1, [11]),  # and with 5 of 18 it keeps 44, but blocks have 4 lines of each point
        (96, 14, 5, 1, []),
        (480, 28, 5, 1, [8]),
        (672, 14, 5, 2, [11]),
        (336, 56, 3, 1, []),  # 4.5 MB, from L3
    ],
)
def test_channels_are_in_blocks_where_l1_does_not_hold_windows(
    channels: int, size: int, kernel: int, stride: int, expected: list[int]
) -> None:
    assert grid(channels, size, kernel, stride) == expected


def test_pools_are_computed_on_while_l2_gives_their_windows() -> None:
    assert not program_of(planned(windows(512, 14, op="pool")).scheduled.tree).grid


def test_blocks_are_said() -> None:
    plan = make_plan(windows(384, 14), MACHINE, 1, options=UNFUSED)
    chosen = next(each.chosen for each in plan.decisions if each.subject.startswith("vector of windows"))
    assert "all 3 of" in chosen
    assert "in 6 blocks whose windows L1 keeps" in chosen


def test_threads_have_rows_and_blocks_of_channels() -> None:
    rows, blocks = grid(384, 14, threads=2)
    assert rows > 1
    assert blocks == 6


@pytest.mark.parametrize(
    ("tiles", "most", "least", "expected"),
    [
        (24, 4, 4, 6),
        (30, 3, 2, 15),
        (20, 8, 4, 5),  # not 7, 7 and 6
        (3, 2, 1, 2),
        (9, 4, 2, 5),
        (9, 4, 4, 1),
        (9, 3, 4, 1),
        (9, 1, 2, 1),
    ],
)
def test_blocks_have_a_power_of_two_tiles(tiles: int, most: int, least: int, expected: int) -> None:
    assert cpu_window_reuse._even_blocks(tiles, most, least) == expected


def row_of_window(graph: Graph) -> list[int]:
    """The points of inner loops in a step of the windows."""
    kernel = planned(graph)
    statement = next(each for each in kernel.scheduled.statements if each.reduce)
    tile = next(tile for leaf, tile in register_tiles(kernel.scheduled.tree) if leaf.op == statement.name)
    return [tile.along(axis.name) for axis in statement.reduce]


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "op", "expected"),
    [
        (3, 1, 1, "depthwise", [1, 3]),
        (5, 2, 1, "depthwise", [1, 5]),
        (3, 1, 2, "depthwise", [1, 3]),
        (3, 1, 4, "depthwise", [1, 1]),  # four neighbours share no point of a row
        (9, 1, 1, "depthwise", [1, 1]),  # too many
        (3, 1, 1, "pool", [3, 1]),  # neighbours are rows, each of which is one loop with its channels
        (3, 2, 1, "pool", [1, 1]),  # vectors behind each other
    ],
)
def test_a_step_has_a_row_of_the_window_where_neighbours_share_points(
    kernel: int, stride: int, dilation: int, op: str, expected: list[int]
) -> None:
    assert row_of_window(windows(33, 20, kernel, stride, dilation, op)) == expected


def blocks_of_a_small_cache(
    statements: Statements, vector: Axis, tiled: Mapping[str, int], machine: Cpu
) -> dict[str, int]:  # fmt: skip
    """Blocks for a small L1 and a slow L2."""
    step = {axis: tiled[axis.name] for axis in statements[0].axes if axis != vector and axis.name in tiled}
    l1_bytes = 100 * cpu_window_reuse._window_bytes(statements, vector, step)
    l1, *others = machine.caches
    slow = [replace(cache, bytes_per_cycle=1.0) for cache in others]
    return BLOCKS(statements, vector, tiled, replace(machine, caches=(replace(l1, bytes=l1_bytes), *slow)))


BLOCKS: Callable[..., dict[str, int]] = cpu_window_reuse.near_blocks


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["depthwise", "pool"])
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "stride", "dilation"),
    [
        (1, 7, 3, 1, 1),
        (7, 17, 3, 1, 1),
        (191, 7, 3, 1, 1),
        (191, 1, 3, 1, 1),
        (191, 7, 5, 1, 1),
        (191, 17, 5, 2, 1),
        (191, 17, 3, 2, 1),
        (191, 17, 3, 1, 2),
        (192, 2, 3, 1, 1),
        (128, 11, 3, 1, 4),
    ],
)
def test_windows_agree(
    channels: int, size: int, kernel: int, stride: int, dilation: int, op: str, threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found: list[dict[str, int]] = []

    def blocks(*arguments: Any) -> dict[str, int]:
        found.append(blocks_of_a_small_cache(*arguments))
        return found[-1]

    monkeypatch.setattr(cpu_rows, "near_blocks", blocks)
    graph = windows(channels, size, kernel, stride, dilation, op)
    x = np.random.default_rng(1).standard_normal((1, 3, size, size)).astype("f4")
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    y = compile_graph(graph, threads=threads, options=UNFUSED)(x)
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    if channels == 191 and size > 1 and op == "depthwise":
        assert any(found), "channels are in blocks"


@pytest.mark.parametrize("fuse", ["always", "never"])
def test_windows_in_a_chain_agree(fuse: str) -> None:
    """Of a chain that is one kernel, blocks of the chain surround the windows: these have no programs."""
    graph = windows(331, 9)
    x = np.random.default_rng(1).standard_normal((1, 3, 9, 9)).astype("f4")
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    options = Options(cache=False, fuse=fuse)
    trees = [print_tree(each.scheduled.tree) for each in make_plan(graph, MACHINE, 1, options).kernels]
    (tree,) = (each for each in trees if "op windows" in each)
    assert (tree.count("fma_") > 1) == (fuse == "always")
    y = compile_graph(graph, threads=1, options=options)(x)
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()


# Trees ----------------------------------------------------------------------------------------------------------------

LOOPS = r"@L1 for (\w+):3 \{ @REG unroll (\w+):3, "


def edited(other: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The windows with other loops, and as they are."""
    scheduled, trees = rows_module.schedule_statements, []

    def changed(*arguments: Any) -> Any:
        kernel, decision = scheduled(*arguments)
        text = print_tree(kernel.tree)
        trees.append((text, re.sub(LOOPS, other, text)))
        return replace(kernel, tree=parse_tree(trees[-1][1])), decision

    graph = windows(33, 9)
    usual = compile_graph(graph, threads=1, options=UNFUSED)
    with monkeypatch.context() as patch:
        patch.setattr(rows_module, "schedule_statements", changed)
        module = compile_graph(graph, threads=1, options=UNFUSED)
    assert any(before != after for before, after in trees)
    return module, usual


@pytest.mark.parametrize("other", [r"@L1 for \1:3, \2:3 { @REG unroll ", r"@L1 for \2:3 { @REG unroll \1:3, "])
def test_other_loops_of_a_window_may_be_in_a_step(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, usual = edited(other, monkeypatch)
    x = np.random.default_rng(1).standard_normal((1, 3, 9, 9)).astype("f4")
    np.testing.assert_allclose(module(x), usual(x), rtol=1e-4, atol=1e-5)
    assert module.artifact.program != usual.artifact.program


@pytest.mark.parametrize(
    ("other", "message", "help"),
    [
        (r"@L1 for \1:3 { @REG unroll \2:2, ", "L1 coverage", "make "),
        (r"@L1 for \1:3 { @REG unroll \2:4, ", "a step has ", "all points of an inner loop"),
        (r"@L1 for \1:3 { @REG unroll \2:3, \1:1, ", "loops at L1 are ", "no loop at L1"),
    ],
)
def test_a_part_of_a_window_in_a_step_is_refused(
    other: str, message: str, help: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with pytest.raises(CompileError, match=message) as caught:
        edited(other, monkeypatch)
    assert caught.value.where
    assert help in caught.value.help


def test_points_of_a_long_sum_are_not_all_written_out() -> None:
    """A step of a sum over 65 rows would have 65 times 8 vectors."""
    b = GraphBuilder()
    graph = b.finish([reduce.reduce_sum(b.input("x", (65, 64), "f32"), [0], name="sum")])
    (kernel,) = make_plan(graph, MACHINE, 1, options=UNFUSED).kernels
    text = "@L2 for i1:1 { @REG unroll r0:65, i1:8 { par i1:8 { op sum } } }"
    trees = {kernel.name: to_json(parse_tree(text))}
    with pytest.raises(CompileError, match="a step has") as caught:
        compile_graph(graph, MACHINE.name, threads=1, options=replace(UNFUSED, trees=trees))
    assert "at most 64 points" in caught.value.help


# Multiply-adds --------------------------------------------------------------------------------------------------------


def program(graph: Graph) -> str:
    return compile_graph(graph, threads=1, options=UNFUSED).artifact.program


def test_products_are_added_by_multiply_adds() -> None:
    text = program(windows(33, 9)).partition("@windows")[2].partition("tile.func")[0]
    assert "fma" in text
    assert "arith.mulf" not in text.partition("scf.yield")[0], "no product is rounded before it is added"


@pytest.mark.skipif("fma" not in resolve_cpu("host").features, reason="this machine has no multiply-adds")
def test_a_product_is_rounded_once() -> None:
    """(1 + e)^2 - (1 + 2e) is e^2, which a product that is rounded loses."""
    b, e = GraphBuilder(), 2.0**-13
    x = b.input("x", (2, 64), "f32")
    y = reduce.reduce_sum(elementwise.binary(x, b.input("z", (2, 64), "f32"), "mul"), [0], name="y")
    given = np.array([[-(1 + 2 * e)] * 64, [1 + e] * 64], "f4")
    other = np.array([[1.0] * 64, [1 + e] * 64], "f4")
    found = compile_graph(b.finish([y]), threads=1, options=UNFUSED)(given, other)
    np.testing.assert_array_equal(found, np.full((1, 64), e * e, "f4"))


def test_products_of_whole_numbers_agree() -> None:
    b = GraphBuilder()
    x = b.input("x", (5, 40), "i32")
    graph = b.finish([reduce.reduce_sum(elementwise.binary(x, x, "mul"), [0], name="y")])
    given = np.arange(200, dtype="i4").reshape(5, 40)
    np.testing.assert_array_equal(
        compile_graph(graph, threads=1, options=UNFUSED)(given), (given * given).sum(0, keepdims=True)
    )
