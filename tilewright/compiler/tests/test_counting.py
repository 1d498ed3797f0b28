"""Counts of compiled kernels from the addresses of their tile programs, beside what their trees say."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright.tiles.equal_steps
from tests.graph_texts import CHAIN, MAP, NORM, SOFTMAX, WINDOW
from tests.random_chains import counted as chain_counts
from tests.random_chains import random_case
from tilewright.compiler import counting, tracing
from tilewright.compiler.count_reasons import GAPS, GUARDED, IN_REGISTERS, LAST_BLOCK, SUMS_IN_SCRATCH
from tilewright.compiler.counting import KernelCount, NotCounted, count, count_plan
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.errors import InvalidArgument
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import reduce
from tilewright.expr.text import parse_graph
from tilewright.machine import host
from tilewright.machine.description import Cpu
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.traffic import Moved
from tilewright.tiles.tree import TileTree, kernels, to_json

Array = np.ndarray[Any, Any]

V3, V4 = resolve_cpu("x86-64-v3"), resolve_cpu("x86-64-v4")
#: Caches that hold nothing: sums are cut into blocks, rows are streamed and run in pipelines.
SMALL = replace(
    V3,
    caches=tuple(replace(each, bytes=size) for each, size in zip(V3.caches, (1 << 11, 1 << 12, 1 << 10), strict=False)),
)

PRODUCT = """
    input X: f32[14, 20]
    input W: f32[20, 35]
    Y: f32[i:14, j:35] += X[i, k] * W[k, j] over k:20
    output Y"""
TILES = """
    input X: f32[30, 11]
    input W: f32[11, 48]
    Y: f32[i:30, j:48] += X[i, k] * W[k, j] over k:11
    output Y"""
EPILOGUE = """
    input X: f32[14, 20]
    input W: f32[20, 35]
    input b: f32[35]
    Y: f32[i:14, j:35] += X[i, k] * W[k, j] over k:20
    Z: f32[i:14, j:35] = max(Y[i, j] + b[j], 0.0)
    output Z"""
TRANSPOSED = """
    input X: f32[7, 30]
    input W: f32[19, 30]
    Y: f32[i:7, j:19] += X[i, k] * W[j, k] over k:30
    output Y"""
BYTES = """
    input X: i8[7, 30]
    input W: i8[30, 19]
    Y: i32[i:7, j:19] += i32(X[i, k]) * i32(W[k, j]) over k:30
    output Y"""
CONVOLUTION = """
    input X: f32[1, 3, 7, 8]
    input W: f32[10, 3, 3, 3]
    Y: f32[n:1, f:10, h:5, w:6] += X[n, c, h + r, w + s] * W[f, c, r, s] over c:3, r:3, s:3
    output Y"""
DEEP = """
    input X: f32[29, 2100]
    input W: f32[2100, 20]
    Y: f32[i:29, j:20] += X[i, k] * W[k, j] over k:2100
    Z: f32[i:29, j:20] = max(Y[i, j], 1.0)
    output Z"""
ATTENTION = """
    input Q: f32[2, 13, 6]
    input K: f32[2, 6, {l}]
    input V: f32[2, {l}, 7]
    C: f32[b:2, m:13, l:{l}] += Q[b, m, k] * K[b, k, l] over k:6
    S: f32[b:2, m:13, l:{l}] = {score}
    M: f32[b:2, m:13] max= S[b, m, l] over l:{l}
    X: f32[b:2, m:13, l:{l}] = exp(S[b, m, l] - M[b, m])
    T: f32[b:2, m:13] += X[b, m, l] over l:{l}
    P: f32[b:2, m:13, l:{l}] = X[b, m, l] / T[b, m]
    E: f32[b:2, m:13, n:7] += P[b, m, l] * V[b, l, n] over l:{l}
    output E"""
PADDED = """
    input A: f32[9, 11]
    Y: f32[i:11, j:13] = select((1 <= i) & (i <= 9) & (1 <= j) & (j <= 11), A[i - 1, j - 1], 0.0)
    output Y"""


INVERTED = """
    input X: f32[5, {size}, {size}]
    input W: f32[17, 5]
    input D: f32[17, 3, 3]
    input U: f32[9, 17]
    C: f32[k:17, i:{size}, j:{size}] += X[c, i, j] * W[k, c] over c:5
    R: f32[k:17, i:{size}, j:{size}] = max(C[k, i, j], 0.0)
    B: f32[k:17, i:{around}, j:{around}] = {inside} ? R[k, i - 1, j - 1] : 0.0
    S: f32[k:17, i:{size}, j:{size}] += B[k, i + r, j + s] * D[k, r, s] over r:3, s:3
    Y: f32[f:9, i:{size}, j:{size}] += S[k, i, j] * U[f, k] over k:17
    output Y"""


def inverted(size: int) -> str:
    """A product of an image, a depthwise convolution of 3 x 3, and a product."""
    inside = f"i - 1 >= 0 and i - 1 < {size} and j - 1 >= 0 and j - 1 < {size}"
    return INVERTED.format(size=size, around=size + 2, inside=inside)


def planned(text: str, machine: Cpu, threads: int = 1, fuse: str = "always", **options: Any) -> Plan:
    return make_plan(parse_graph(text), machine, threads, Options(cache=False, fuse=fuse, **options))


def inputs_of(graph: Graph) -> list[Array]:
    generator = np.random.default_rng(0)
    kinds = {"f32": np.float32, "i8": np.int8}
    return [generator.integers(-3, 4, tuple(map(int, t.shape))).astype(kinds[t.dtype]) for t in graph.inputs]


def counted(text: str, machine: Cpu, threads: int = 1, **options: Any) -> list[KernelCount]:
    """The counts of all kernels, of which the results are those of the evaluator."""
    graph = parse_graph(text)
    given = inputs_of(graph)
    results, counts = count_plan(planned(text, machine, threads, **options), machine, given)
    for found, wanted in zip(results, evaluate(graph, given, precise=True, wide=True), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    return counts


def reasons(counts: list[KernelCount]) -> dict[str, set[str]]:
    """By kernel, why something differs."""
    return {each.kernel: {row.why for rows in each.levels.values() for row in rows if row.why} for each in counts}


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
@pytest.mark.parametrize(
    "text",
    [PRODUCT, TRANSPOSED, CONVOLUTION, MAP, WINDOW],
    ids=["product", "transposed", "convolution", "map", "window"],
)
def test_kernels_move_what_their_trees_say(text: str, machine: Cpu, threads: int) -> None:
    """Packed and unpacked operands, and kernels that pack and unpack."""
    counts = counted(text, machine, threads)
    assert all(not why for why in reasons(counts).values()), reasons(counts)
    assert all(each.equal for each in counts)


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("machine", [V3, V4, SMALL], ids=["v3", "v4", "small"])
@pytest.mark.parametrize("text", [SOFTMAX, NORM], ids=["softmax", "norm"])
def test_rows_keep_only_their_numbers_in_registers(text: str, machine: Cpu, threads: int) -> None:
    """Passes in turn, and pipelines of rows; what a row has one of is never in memory."""
    counts = counted(text, machine, threads)
    assert all(each.equal for each in counts)
    (only,) = counts
    assert {row.tensor for rows in only.levels.values() for row in rows if row.why} <= {"M", "T", "S", "V", "R"}


@pytest.mark.covering(1)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
@pytest.mark.parametrize(
    "text", [EPILOGUE, CHAIN, ATTENTION.format(l=19, score="C[b, m, l] * 0.5")], ids=["epilogue", "chain", "attention"]
)
def test_sums_that_an_epilogue_reads_stay_in_registers(text: str, machine: Cpu, threads: int) -> None:
    counts = counted(text, machine, threads)
    assert all(each.equal for each in counts)
    assert set().union(*reasons(counts).values()) == {IN_REGISTERS}
    if text == CHAIN:
        (only,) = (each for each in counts if "+" in each.kernel)
        link = next(row for row in only.levels["L2"] if row.tensor == "F")
        assert (link.counted.loads, link.counted.stores) == (2 * 21 * 37, 2 * 21 * 37)
        assert not any(row.tensor == "F" for row in only.levels["DRAM"])


RUNS_HERE = set(V3.features) <= set(host().features)


@pytest.mark.skipif(not RUNS_HERE, reason="machine code for x86-64-v3")
@pytest.mark.parametrize(
    "text",
    [
        CONVOLUTION,
        BYTES,
        PADDED,
        SOFTMAX,
        CHAIN,
        ATTENTION.format(l=150, score="l <= m + 2 ? C[b, m, l] : -inf"),
        inverted(5),
    ],
    ids=["convolution", "bytes", "padded", "softmax", "chain", "causal", "windows"],
)
def test_machine_code_touches_what_the_interpreter_does(text: str) -> None:
    """Offsets, bounds, masks and gathers as the processor has them, in several programs."""
    graph = parse_graph(text)
    given, plan = inputs_of(graph), planned(text, SMALL if text == SOFTMAX else V3, 2)
    results, counts = count_plan(plan, V3, given)
    found, counted_there = count_plan(plan, V3, given, "cpu")
    assert counted_there == counts
    for each, wanted in zip(found, results, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not RUNS_HERE, reason="machine code for x86-64-v3")
def test_a_trace_that_is_too_small_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(CHAIN)
    given, plan = inputs_of(graph), planned(CHAIN, V3)
    wanted = count_plan(plan, V3, given, "cpu")[1]
    monkeypatch.setattr(tracing, "FIRST_WORDS", 100)
    assert count_plan(plan, V3, given, "cpu")[1] == wanted


def test_code_that_this_machine_does_not_execute_is_refused() -> None:
    other = resolve_cpu("aarch64" if host().architecture == "x86_64" else "x86-64-v3")
    with pytest.raises(NotCounted, match=r"this machine (lacks|is no)") as caught:
        count_plan(planned(PRODUCT, other), other, inputs_of(parse_graph(PRODUCT)), "cpu")
    assert caught.value.help == "count in the interpreter"


def test_padding_of_packed_panels_is_counted_apart() -> None:
    counts = counted(CONVOLUTION, V3)
    rows = [row for each in counts for row in each.levels["REG"] if row.padding.fills]
    assert [row.tensor.startswith("relayout") for row in rows] == [True]
    assert rows[0].model == rows[0].counted


def edited(text: str, name: str, old: str, new: str) -> dict[str, Any]:
    """The tree of a kernel as it is planned, with one text in the place of another one."""
    (tree,) = (each.scheduled.tree for each in planned(text, V3).kernels if each.name == name)
    assert old in print_tree(tree)
    return {name: to_json(parse_tree(print_tree(tree).replace(old, new), kernels(tree)))}


def moved(counts: list[KernelCount], kernel: str, level: str, tensor: str) -> Moved:
    (found,) = (each for each in counts if each.kernel == kernel)
    assert found.equal, found
    return next(row.counted for row in found.levels[level] if row.tensor == tensor)


def test_an_epilogue_in_a_loop_reads_whole_tiles() -> None:
    """Of 37 columns the last 3 of 40 are padding."""
    whole, looped = "@REG unroll m:2, l:5 { par l:8 { op F } }", "@L1 for m:2, l:5 { @REG par l:8 { op F } }"
    counts = counted(CHAIN, V3, trees=edited(CHAIN, "C+F+E", whole, looped))
    assert moved(counts, "C+F+E", "L1", "C") == Moved(2 * 21 * 37, 0, 2 * 21 * 37)
    (row,) = (row for each in counts for row in each.levels["REG"] if each.kernel == "C+F+E" and row.tensor == "C")
    assert row.padding == Moved(0, 2 * 21 * 3, 0)


def test_sums_of_blocks_wait_in_the_result() -> None:
    """A tree with blocks of l, and nothing behind the second product."""
    case = random_case(random.Random(9), V3)
    assert "stage E in L2" in print_tree(case.tree)
    counts = chain_counts(case, V3, 9)
    batch, rows, columns = map(int, case.graph.outputs[0].shape)
    assert moved(counts, case.kernel, "L3", "E") == Moved(0, 0, batch * rows * columns)


MASKED = ATTENTION.format(l=150, score="l <= m + 2 ? C[b, m, l] * 0.5 : -inf")


def test_tiles_that_a_mask_hides_do_not_run() -> None:
    """Rows see 15 of 150 columns at most: one step of the passes over these."""
    (kernel,) = planned(MASKED, V3).kernels
    steps = re.search(r'with seen\("l", (\d+)\)', print_tree(kernel.scheduled.tree))
    assert steps is not None
    assert 15 <= int(steps[1]) < 150
    assert moved(counted(MASKED, V3), kernel.name, "DRAM", "K").loads == 2 * 6 * int(steps[1])
    whole = edited(MASKED, kernel.name, f" with {steps[0].removeprefix('with ')}", "")
    assert moved(counted(MASKED, V3, trees=whole), kernel.name, "DRAM", "K").loads == 2 * 6 * 150


# Windows --------------------------------------------------------------------------------------------------------------


def in_rows(text: str, kernel: str, keep: str = "") -> dict[str, Any]:
    """The tree of a kernel with windows in blocks of one row."""
    (tree,) = (each.scheduled.tree for each in planned(text, V3).kernels if each.name == kernel)
    block = print_tree(tree).replace("i:5", "i:3").replace(" i.1:5,", "").replace(", i.1:5", "")
    return {kernel: to_json(parse_tree(f"@L3 for i.1:5{keep} {{ {block} }}", kernels(tree)))}


ROWS = 2 + 3 * 3 + 2  # that windows of 3 rows touch in an image of 5
READ = ROWS * (5 + 2) * 17  # in tiles of 4 columns and of 1


@pytest.mark.parametrize(("keep", "rows"), [(" keep R", 5), ("", ROWS)])
def test_rows_that_blocks_keep_are_computed_once(keep: str, rows: int) -> None:
    """They are copied to the beginning of their buffer, which moves nothing."""
    text, name = inverted(5), "C+R+S+Y"
    counts = counted(text, V3, trees=in_rows(text, name, keep))
    assert moved(counts, name, "L2", "R") == Moved(READ, 0, rows * 5 * 17)


def test_sums_that_a_block_computes_again_are_the_values_that_they_were() -> None:
    """A block begins with the row that the block before ended with: one register tile of sums, which L1 still holds."""
    case = random_case(random.Random(1374), V3, small=True, windows=True)
    assert "@L3 for i.1:3 {" in print_tree(case.tree, indented=True)  # rows 0 to 1, 1 to 3 and 3 to 5
    counts = chain_counts(case, V3, 1374)
    (kernel,) = (each for each in counts if each.kernel == case.kernel)
    (sums,) = (row for row in kernel.levels["L1"] if row.tensor == "c0")
    assert sums.model == sums.counted == Moved(6 * 8, 0, 6 * 8)


def test_sums_of_whole_tiles_and_of_the_rest_are_different_values() -> None:
    """Of 13 rows the last one is a tile by itself, in a smaller buffer."""
    case = random_case(random.Random(90), V3, small=True, windows=True)
    assert "@L2 for b:2, i:5, k:1 {" in print_tree(case.tree, indented=True)
    assert "@L1 for b:1, i:3 {" in print_tree(case.tree, indented=True)
    assert moved(chain_counts(case, V3, 90), case.kernel, "L1", "c0.acc") == Moved(2 * 13 * 3, 0, 2 * 13 * 3)


def test_the_border_of_a_buffer_is_padding() -> None:
    text = inverted(5)
    counts = counted(text, V3)
    (row,) = (row for each in counts for row in each.levels["L1"] if row.tensor == "R")
    assert row.why == ""
    border = 5 * 3 * (6 + 3) * 17 - READ
    assert (row.counted, row.padding) == (Moved(READ, READ, 5 * 5 * 17), Moved(border, border, 0))


def test_a_kernel_too_many_of_whose_steps_differ_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text, name = inverted(5), "C+R+S+Y"
    monkeypatch.setattr(tilewright.tiles.equal_steps, "MOST_VISITS", 1000)
    for each in counted(text, V3, trees=in_rows(text, name, " keep R")):
        why = "too many of its steps differ: more than 1,000 visits"
        assert each.refused.startswith(why) == bool(each.refused) == (each.kernel == name)
        assert not (each.refused and each.equal)


# Known differences ----------------------------------------------------------------------------------------------------


def test_the_last_block_of_k_goes_on_from_registers() -> None:
    assert LAST_BLOCK in reasons(counted(DEEP, V3))["Y+Z"]


def test_sums_of_a_result_wait_in_scratch_memory() -> None:
    counts = counted(CHAIN, SMALL, threads=2, fuse="never")
    assert reasons(counts)["E"] == {SUMS_IN_SCRATCH}
    (last,) = (each for each in counts if each.kernel == "E")
    assert {row.tensor for rows in last.levels.values() for row in rows if row.why} == {"E"}


def test_reads_under_a_condition() -> None:
    found = reasons(counted(PADDED, V3))
    assert set().union(*found.values()) <= {GUARDED, GAPS}


APART = """
    input A: f32[12, 40]
    Y: f32[i:12, j:10] = A[i, j] + A[i, j + 25]
    output Y"""
RESULT_AND_MORE = """
    input X: f32[14, 20]
    input W: f32[20, 35]
    Y: f32[i:14, j:35] += X[i, k] * W[k, j] over k:20
    Z: f32[i:14] += Y[i, j] over j:35
    output Y
    output Z"""


def test_two_reads_leave_a_gap() -> None:
    """Of 40 columns 20 are read; the model has the 35 from the first to the last one."""
    (only,) = counted(APART, V3)
    (row,) = (row for row in only.levels["DRAM"] if row.tensor == "A")
    assert (row.why, row.model.loads, row.counted.loads) == (GAPS, 12 * 35, 12 * 20)


def test_a_result_that_is_read_again_comes_from_memory_or_registers() -> None:
    for each in counted(RESULT_AND_MORE, V3):
        assert each.equal


@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
def test_ordered_kernels_are_not_counted(machine: Cpu) -> None:
    b = GraphBuilder("scan")
    graph = b.finish([reduce.cum_sum(b.input("x", (5, 20), "f32"), axis=1)])
    (only,) = count_plan(make_plan(graph, machine, 1, Options(cache=False)), machine, inputs_of(graph))[1]
    assert not only.equal
    assert "scans" in only.refused


# Programs that are not their tree's -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "before", "after", "tensors"),
    [
        (TILES, "@L2 for j:3, i:5", "@L2 for i:5, j:3", {"X", "W"}),  # another order of tiles
        (CHAIN, "@DRAM par b:2", "@DRAM for b:2", set()),  # which moves the same
        (CHAIN, "seq[@L2 for l:1", "shar[@L2 for l:1", set()),  # no child reads what another one has read
    ],
)
def test_a_program_of_another_tree_is_found(
    text: str, before: str, after: str, tensors: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is held against a tree that it was not made from."""
    for name in ("Touched", "movement"):
        made = getattr(counting, name)

        def of_another(tree: TileTree, *others: Any, made: Any = made, **named: Any) -> Any:
            printed = print_tree(tree)
            assert before in printed, printed
            return made(parse_tree(printed.replace(before, after), kernels(tree)), *others, **named)

        monkeypatch.setattr(counting, name, of_another)
    (only,) = counted(text, V3, threads=2 if text == CHAIN else 1)
    differing = {row.tensor for rows in only.levels.values() for row in rows if row.why not in ("", IN_REGISTERS)}
    assert differing == tensors


@pytest.mark.parametrize(
    ("inputs", "on", "message"),
    [
        (3, "interpreter", "inputs are a int"),
        ([np.ones((9, 11), np.float32)], "interpreter", "1 inputs for 2"),
        ([np.ones((11, 9), np.float32), np.ones((11, 5), np.float32)], "interpreter", r"a is float32\[11, 9\]"),
        ([np.ones((9, 11)), np.ones((11, 5), np.float32)], "cpu", r"a is float64\[9, 11\]"),
        ([[1.0], np.ones((11, 5), np.float32)], "interpreter", "a is a list"),
        ([np.ones((9, 11), np.float32), np.ones((11, 5), np.float32)], "gpu", "counts cannot be on 'gpu'"),
    ],
)  # fmt: skip
def test_what_is_given_is_checked(inputs: Any, on: Any, message: str) -> None:
    lines = ["graph g", "input a: f32[9, 11]", "input b: f32[11, 5]"]
    graph = parse_graph("\n".join([*lines, "c: f32[m:9, n:5] += a[m, k] * b[k, n] over k:11", "output c"]))
    with pytest.raises(InvalidArgument, match=message) as caught:
        count_plan(make_plan(graph, host(), 1, Options(cache=False)), host(), inputs, on)
    assert caught.value.help


def test_a_machine_that_is_no_cpu_is_refused() -> None:
    with pytest.raises(NotCounted, match="programs for sm_90a are not counted") as caught:
        count(parse_graph(PRODUCT), [], machine="sm_90a")
    assert caught.value.help


def test_a_model_is_counted_as_it_is_compiled() -> None:
    graph = parse_graph(PRODUCT)
    (only,) = count(graph, inputs_of(graph), machine="x86-64-v3", threads=1)
    assert only.equal
    assert next(row for row in only.levels["DRAM"] if row.tensor == "X").counted.loads == 14 * 20
