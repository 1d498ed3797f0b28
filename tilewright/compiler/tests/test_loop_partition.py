"""Loops cut where a choice changes: results, that parts load nothing in vain, and that there are not too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import rows
from tests.random_graphs import random_array
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan as planned
from tilewright.expr import GraphBuilder
from tilewright.expr.core import Axis, Compute, Const, Expr, Tensor, select, walk
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import elementwise, norm, reduce, shape
from tilewright.expr.ops.nodes import emit
from tilewright.expr.rewrite import substitute
from tilewright.expr.text import parse_graph
from tilewright.kernel import interpreter
from tilewright.kernel.text import parse_module
from tilewright.layouts.packed import packed
from tilewright.machine import host
from tilewright.operator import loop_partition
from tilewright.operator.flatten import storage_loops
from tilewright.operator.loop_partition import MOST_PARTS
from tilewright.options import Options

UNCACHED = Options(cache=False)
Build = Callable[[GraphBuilder], Tensor]


def concat(axis: int, *extents: int) -> Build:
    def build(b: GraphBuilder) -> Tensor:
        parts = []
        for number, extent in enumerate(extents):
            dims = [13, 17, 29]
            dims[axis] = extent
            parts.append(b.input(f"x{number}", tuple(dims), "f32"))
        return shape.concat(parts, axis=axis, name="y")

    return build


def of(size: tuple[int, ...], build: Callable[[Tensor], Tensor]) -> Build:
    return lambda b: build(b.input("x", size, "f32"))


def pad(mode: str) -> Build:
    return of((17, 31, 43), lambda x: shape.pad(x, (0, 2, 7), (0, 3, 5), mode=mode, value=2.0, name="y"))


def causal(x: Tensor) -> Tensor:
    i, j = Axis("i", 67), Axis("j", 67)
    return emit(x.builder, (i, j), select(j <= i, x[(i, j)], Const(-1.0, "f32")), name="y")


def chosen(x: Tensor) -> Tensor:
    i, j = Axis("i", 67), Axis("j", 97)
    return emit(x.builder, (i, j), select(i >= 41, x[(j, i - 41)], x[(j, i)]), name="y")


def shifted(x: Tensor) -> Tensor:
    """Reads far outside where its condition fails, in both loops at once: nothing to cut."""
    i, j = Axis("i", 67), Axis("j", 67)
    here = (i + j) < 67
    return emit(x.builder, (i, j), select(here, x[(i + j,)], Const(3.0, "f32")), name="y")


def heads(b: GraphBuilder) -> Tensor:
    """Scores of the boxes of three images, channels last, as a detector lists them."""
    images = [(2, 9, 11), (3, 7, 10), (1, 1, 1)]  # boxes per place, height, width
    parts = []
    for number, (boxes, height, width) in enumerate(images):
        x = b.input(f"x{number}", (1, boxes * 5, height, width), "f32")
        parts.append(shape.reshape(shape.transpose(x, (0, 2, 3, 1)), (1, boxes * height * width, 5)))
    return elementwise.unary(shape.concat(parts, axis=1), "sigmoid")


DECIDED = {
    "detector heads": (heads, 3),
    **{f"concat of {len(e)} along {axis}": (concat(axis, *e), len(e))
       for axis, e in rows(range(3), ((11, 37), (1, 19, 23), (7, 19, 1) * 5), strength=1)},
    "pad constant": (pad("constant"), 5),
    "pad edge": (pad("edge"), None),
    "pad reflect": (pad("reflect"), None),
    "pad symmetric": (pad("symmetric"), None),
    "pad wrap": (pad("wrap"), None),
    "roll": (of((17, 31, 43), lambda x: shape.roll(x, (3, -5), (1, 2), name="y")), 4),
    "tile": (of((31, 67), lambda x: shape.slice_(shape.tile(x, (1, 3)), (0, 5), (31, 190))), 3),
    "concat of reshaped and transposed": (
        lambda b: shape.concat([shape.reshape(shape.transpose(b.input(f"x{n}", (3, 5, n + 9, 11), "f32"),
                                   (2, 3, 0, 1)), (-(-(n + 9) * 33), 5)) for n in range(3)], axis=0), 3),
    "flip of a pad": (of((67, 67), lambda x: shape.flip(shape.pad(x, (3, 0), (0, 3)), (0, 1))), 3),
    "slice backwards of a concat": (
        lambda b: shape.slice_(concat(2, 300, 301)(b), (0, 16, 600), (13, 9, 301), (1, -2, -2)), 2),
    "where with a condition on a loop": (of((97, 67), chosen), 2),
}  # fmt: skip
OPEN = {
    "causal mask": of((67, 67), causal),
    "a diagonal": of((67,), shifted),
    "concat that is summed": lambda b: reduce.reduce_sum(concat(2, 3, 301, 4)(b), axes=(2,)),
    "concat of 40": concat(1, *range(1, 41)),
    "small": concat(2, 3, 5),
}


def built(build: Build) -> Graph:
    b = GraphBuilder("test")
    return b.finish([build(b)])


@pytest.fixture
def empty_loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of which a load with a mask takes none, as the interpreter runs a program."""
    found: list[int] = []
    original = interpreter._Program.read

    def read(self: Any, op: Any, view: Any, places: Any, active: Any) -> Any:
        nothing = active is not None and np.size(places) and not np.any(active)
        found.extend([np.size(places)] if nothing else [])
        return original(self, op, view, places, active)

    monkeypatch.setattr(interpreter._Program, "read", read)
    return found


def checked(graph: Graph, threads: int = 1) -> Any:
    """The module, after the compiled code and the tile program were held against the evaluator."""
    inputs = [random_array(tensor, number) for number, tensor in enumerate(graph.inputs)]
    (expected,) = evaluate(graph, inputs)
    module = compile_graph(graph, threads=threads, options=UNCACHED)
    np.testing.assert_allclose(module(*inputs), expected, rtol=1e-5, atol=1e-4)
    result = np.zeros(expected.size, np.float32)
    interpreter.run_main(
        parse_module(module.artifact.program), [x.ravel() for x in inputs], [result], module.artifact.constants
    )
    np.testing.assert_allclose(result.reshape(expected.shape), expected, rtol=1e-5, atol=1e-4)
    return module


@pytest.mark.parametrize("name", DECIDED)
def test_each_part_takes_one_branch(name: str, empty_loads: list[int]) -> None:
    build, parts = DECIDED[name]
    module = checked(built(build))
    kernels = module.manifest.launches
    assert parts is None or len(kernels) == parts
    assert len(kernels) <= MOST_PARTS
    assert not any(word in module.artifact.program for word in ("mask", "gather"))
    assert not empty_loads
    assert "conditions on these loops change there" in module.explain(all=True)


@pytest.mark.parametrize("name", OPEN)
def test_loads_that_take_nothing_form_no_address_outside(name: str) -> None:
    module = checked(built(OPEN[name]))
    assert len(module.manifest.launches) <= MOST_PARTS


def normalised(b: GraphBuilder) -> Tensor:
    """Rows over merged dimensions of a tensor that is stored with the first of them innermost."""
    x = b.input("x", (2, 9, 7, 17), "f32")
    return norm.layer_norm(shape.reshape(shape.transpose(x, (0, 3, 1, 2)), (2, 17 * 63)), axis=1)


def test_sums_over_merged_dimensions_gather_nothing() -> None:
    module = checked(built(normalised))
    assert "gather" not in module.artifact.program


def test_the_number_of_parts_is_limited() -> None:
    small, large = (compile_graph(built(concat(1, *[3] * count)), threads=1, options=UNCACHED) for count in (40, 80))
    assert len(small.manifest.launches) == len(large.manifest.launches) == MOST_PARTS
    assert len(large.artifact.code) < 3 * len(small.artifact.code)
    assert "16 parts of one kernel" in large.explain(all=True)


def test_many_branches_are_cut_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []

    def counted(expr: Expr, *more: Any) -> Expr:
        visited.append(sum(1 for _ in walk(expr)))
        return substitute(expr, *more)

    monkeypatch.setattr(loop_partition, "substitute", counted)
    totals = []
    for count in (60, 240):
        visited.clear()
        planned(built(concat(1, *[3] * count)), host(), 1, UNCACHED)
        totals.append(sum(visited))
    assert totals[1] < 8 * totals[0], "four times the branches; each cut alone would visit 16 times the nodes"


def test_parts_are_dealt_to_threads() -> None:
    graph = built(lambda b: shape.concat([b.input(f"x{n}", (3, 50_001), "f32") for n in range(3)], axis=0))
    checked(replace(graph), 2)


@pytest.mark.parametrize(
    "statement",
    [
        'y: f32[a:12, "a.0":160] = x[a, "a.0" // 4, "a.0" % 4] + x["a.0" % 12, a, a % 4]',
        'y: f32[a:12, b:40, "a_b":480] = x[a, b, 0] + z["a_b"]',
        'y: f32[a:12, b:40, "a_b":480] += x[a, b, k] * z["a_b" + k * 480] over k:4',
    ],
)
def test_loops_made_from_others_get_names_that_no_loop_has(statement: str) -> None:
    """A digit of `a` was called `a.0` beside a loop `a.0`, `a` and `b` together `a_b` beside a loop `a_b`."""
    checked(parse_graph(f"input x: f32[12, 40, 4]\ninput z: f32[1920]\n{statement}\noutput y\n"))


def test_digits_in_storage_get_names_that_no_loop_has() -> None:
    i, other, x = Axis("i", 8), Axis("i.0", 4), Tensor("x", (8, 4), "f32")
    node = Compute(Tensor("y", (8, 4), "f32"), (i, other), x[i, other])
    _, loops, _ = storage_loops(node, packed((8, 4), ((0, 2), (1, 4), (0, 4))))
    assert [loop.name for loop in loops] == ["i.0.1", "i.0", "i.1"]


@pytest.mark.parametrize("name", ["a.t", "a.i", "row.slot"])
def test_loops_of_the_tile_program_are_no_loops_of_the_graph(name: str) -> None:
    """The tiles of `a` are counted by `a.t`: with a sum over a loop `a.t` of that extent, one column was all."""
    statement = f'y: f32[a:37] += x[a, "{name}"] * z[a] over "{name}":37'
    checked(parse_graph(f"input x: f32[37, 37]\ninput z: f32[37]\n{statement}\noutput y\n"))


PHASES = """graph g
input x: f32[33, 33, 64]
const w: f32[64, 64]
p: f32[i:33, j:33, k:64] += x[i, j, c] * w[k, c] over c:64
z: f32[k:64, i:64, j:64] = (i + 1) % 2 < 1 ? p[(i + 1) // 2, (j + 1) // 2, k] : p[i // 2, (j + 1) // 2, k] * 2.0
output z
"""


def test_phases_behind_an_offset_are_written_as_they_are_stored_and_transposed() -> None:
    graph = parse_graph(PHASES, {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)})
    x = np.random.default_rng(1).standard_normal((33, 33, 64)).astype(np.float32)
    module = compile_graph(graph, threads=1, options=UNCACHED)
    np.testing.assert_allclose(module(x), evaluate(graph, [x])[0], rtol=1e-4, atol=1e-4)
    names = [launch.name for launch in module.manifest.launches]
    assert names[-1] == "z.unpacked"
    assert [name for name in names if name.startswith("z.part")] == ["z.part0", "z.part1", "z.part2", "z.part3"]


def test_a_quotient_with_an_offset_is_cut_where_it_carries() -> None:
    text = "graph g\ninput x: f32[9, 40]\ny: f32[i:32, j:40] = x[(i + 3) // 4, j]\noutput y\n"
    graph = parse_graph(text)
    x = np.arange(360, dtype=np.float32).reshape(9, 40)
    module = compile_graph(graph, threads=1, options=UNCACHED)
    np.testing.assert_array_equal(module(x), evaluate(graph, [x])[0])
    assert len(module.manifest.launches) == 2
