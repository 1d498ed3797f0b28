"""The tile tree of a kernel against the tile program of the same kernel: same loops, same points, legal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, scf
from xdsl.ir import Block, Operation, SSAValue

from tests.covering import some
from tests.random_graphs import random_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.program import steps
from tilewright.expr.core import Compute, Read, walk
from tilewright.expr.text import parse_graph, print_statement
from tilewright.kernel import dialect as tile
from tilewright.lower.module import lower_kernel
from tilewright.lower.steps import Step
from tilewright.machine.registry import resolve_cpu
from tilewright.operator.passes import row_buffers
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.rules.cpu_product import scheduled_product
from tilewright.operator.rules.cpu_rows import row_tree
from tilewright.tiles.kernel import Kernel as ScheduledKernel
from tilewright.tiles.kernel import expressions
from tilewright.tiles.legality import WrongCoverage, check, violations
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.machines import program_resources
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import Problem, problem_of
from tilewright.tiles.product import product_of
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.tree import Binding, Path, Tile, TileTree, ancestors, kernels, leaves

MACHINE = Resources((Level("DRAM"), Level("L2"), Level("L1"), Level("REG", reduce=True)))

GRAPHS = {
    "product with epilogue": """
        input X: f32[50, 100]
        input W: f32[100, 70]
        input b: f32[70]
        Y: f32[i:50, j:70] += X[i, k] * W[k, j] over k:100
        Z: f32[i:50, j:70] = max(Y[i, j] + b[j], 0.0)
        output Z""",
    "product": """
        input X: f32[64, 32]
        input W: f32[32, 64]
        Y: f32[i:64, j:64] += X[i, k] * W[k, j] over k:32
        output Y""",
    "deep product": """
        input X: f32[29, 3001]
        input W: f32[3001, 18]
        Y: f32[i:29, j:18] += X[i, k] * W[k, j] over k:3001
        Z: f32[i:29, j:18] = tanh(Y[i, j])
        output Z""",
    "products of a batch": """
        input X: f32[3, 17, 9]
        input W: f32[3, 9, 33]
        Y: f32[b:3, i:17, j:33] += X[b, i, k] * W[b, k, j] over k:9
        output Y""",
    "narrow product": """
        input X: i8[7, 30]
        input W: i8[30, 19]
        Y: i32[i:7, j:19] += i32(X[i, k]) * i32(W[k, j]) over k:30
        output Y""",
    "convolution": """
        input X: f32[1, 5, 12, 13]
        const W: f32[20, 5, 3, 3]
        Y: f32[n:1, f:20, h:10, w:11] += X[n, c, h + r, w + s] * W[f, c, r, s] over c:5, r:3, s:3
        Z: f32[n:1, f:20, h:10, w:11] = max(Y[n, f, h, w], 0.0)
        output Z""",
    "softmax": """
        input S: f32[37, 130]
        M: f32[i:37] max= S[i, l] over l:130
        E: f32[i:37, l:130] = exp(S[i, l] - M[i])
        T: f32[i:37] += E[i, l] over l:130
        P: f32[i:37, l:130] = E[i, l] / T[i]
        output P""",
    "layer norm": """
        input X: f32[24, 48]
        S: f32[i:24] += X[i, l] over l:48
        M: f32[i:24] = S[i] / 48.0
        D: f32[i:24, l:48] = X[i, l] - M[i]
        V: f32[i:24] += D[i, l] * D[i, l] over l:48
        N: f32[i:24, l:48] = D[i, l] / sqrt(V[i] / 48.0 + 0.00001)
        output N""",
    "map": "input X: f32[3, 1000]\nY: f32[i:3, j:1000] = tanh(X[i, j])\noutput Y",
    "transpose": "input X: f32[40, 50]\nY: f32[i:50, j:40] = X[j, i]\noutput Y",
    "rows of five": "input X: f32[9, 5]\nY: f32[i:9] += X[i, j] over j:5\noutput Y",
    "columns": "input X: f32[30, 70]\nY: f32[j:70] += X[i, j] over i:30\noutput Y",
    "window": """
        input X: f32[2, 3, 9, 9]
        Y: f32[n:2, c:3, h:4, w:4] max= X[n, c, h*2 + r, w*2 + s] over r:3, s:3
        output Y""",
    "everything": "input X: f32[6, 7]\nY: f32[] += X[i, j] over i:6, j:7\noutput Y",
    "one number": "input X: f32[]\nY: f32[] = exp(X[])\noutput Y",
}
ROOM = program_resources(resolve_cpu("x86-64-v3"))
CASES = [(name, machine, threads) for name in GRAPHS for machine, threads in (("host", 1), ("x86-64-v2", 3))]


def planned(text: str, machine: str, threads: int) -> Plan:
    constants = {"W": np.ones((20, 5, 3, 3), np.float32)} if "const W" in text else {}
    return make_plan(parse_graph(text, constants), resolve_cpu(machine), threads)


def lowered(plan: Plan) -> list[tuple[Kernel, tile.FuncOp]]:
    made = []
    for kernel, step in zip(plan.kernels, steps(plan), strict=True):
        assert isinstance(step, Step)
        made.append((kernel, lower_kernel(step, "kernel", ROOM)))
    return made


# What the tree says ---------------------------------------------------------------------------------------------------


def programs(tree: TileTree) -> dict[str, int]:
    """The loops of the grid."""
    if isinstance(tree, Tile) and tree.level == "DRAM" and tree.binding is Binding.SP:
        return {loop.name: loop.trips for loop in tree.loops}
    return {}


def runs(tree: TileTree, path: Path, extents: dict[str, int], program: dict[str, int]) -> int:
    """How many register tiles of the leaf at `path` one program executes, those beyond an edge left out."""
    factors: dict[str, list[tuple[int, str]]] = {name: [] for name in extents}
    for _, node in ancestors(tree, path):
        if isinstance(node, Tile):
            grid = node.level == "DRAM" and node.binding is Binding.SP
            for loop in node.loops:
                factors.setdefault(loop.name, []).append((loop.trips, "grid" if grid else node.level))
    kernel = dict(leaves(tree))[path].kernel
    for loop in kernel.quantum if kernel is not None else ():
        factors[loop.name].append((loop.trips, "REG"))
    count = 1
    for name, steps_of in factors.items():
        choices, stride = [], 1
        for trips, place in reversed(steps_of):
            if place == "grid":
                choices.append([program[name] * stride])
            elif place != "REG":
                choices.append([step * stride for step in range(trips)])
            stride *= trips
        count *= sum(sum(origin) < extents.get(name, 1) for origin in product(*choices))
    return count


# What the program does ------------------------------------------------------------------------------------------------


Known = list[int | None]


class Counting:
    """Walks the loops of one program and counts dots, and loads and stores per view, with the elements stored."""

    def __init__(self, func: tile.FuncOp, program: tuple[int, ...]) -> None:
        self.program = program
        self.values: dict[SSAValue, int] = {}
        self.dots = 0
        self.loads: Counter[SSAValue] = Counter()
        self.stores: Counter[SSAValue] = Counter()
        self.elements: Counter[SSAValue] = Counter()
        self.block(func.body.block)

    def block(self, block: Block) -> None:
        for op, rule in _counted(block):
            known = [self.values.get(operand) for operand in op._operands]
            rule(self, op, known)

    def loop(self, op: scf.ForOp, known: Known) -> None:
        low, high, step = (int(value) for value in known[:3])  # type: ignore[arg-type]
        for index in range(low, high, step):
            self.values[op.body.block.args[0]] = index
            self.block(op.body.block)

    def branch(self, op: scf.IfOp, known: Known) -> None:
        self.block((op.true_region if self.values.get(op.cond, 1) else op.false_region).block)

    def constant(self, op: arith.ConstantOp, known: Known) -> None:
        number = getattr(getattr(op.value, "value", None), "data", None)
        if isinstance(number, int):
            self.values[op.result] = number & 1 if str(op.result.type) == "i1" else number

    def program_id(self, op: tile.ProgramIdOp, known: Known) -> None:
        self.values[op.results[0]] = self.program[op.axis.value.data]

    def number(self, op: Operation, known: Known) -> None:
        if None not in known:
            self.values[op.results[0]] = ARITHMETIC[type(op)](known)

    def negation(self, op: arith.XOrIOp, known: Known) -> None:
        """A condition on numbers counts as true: of two branches for one pass, the first runs."""
        if str(op.results[0].type) == "i1":
            self.values[op.results[0]] = (1 if known[0] is None else known[0]) ^ 1

    def dot(self, op: tile.DotOp, known: Known) -> None:
        self.dots += 1

    def load(self, op: tile.LoadOp, known: Known) -> None:
        self.loads[op.view] += 1

    def store(self, op: tile.StoreOp, known: Known) -> None:
        self.stores[op.view] += 1
        bounds = [self.values[bound] for bound in op.bounds]
        extents = tile.shape(op.value)
        self.elements[op.view] += prod(map(min, extents, bounds) if bounds else extents)


ARITHMETIC: dict[type[Operation], Callable[[Any], int]] = {
    arith.MuliOp: prod, arith.AddiOp: sum, arith.MinSIOp: min, arith.SubiOp: lambda known: known[0] - known[1],
    tile.CompareOp: lambda known: int(known[0] == known[1]),
}  # fmt: skip
RULES: dict[type[Operation], Callable[[Counting, Any, Known], None]] = {
    scf.ForOp: Counting.loop, scf.IfOp: Counting.branch, arith.ConstantOp: Counting.constant,
    tile.ProgramIdOp: Counting.program_id, arith.XOrIOp: Counting.negation, tile.DotOp: Counting.dot,
    tile.LoadOp: Counting.load, tile.StoreOp: Counting.store, **dict.fromkeys(ARITHMETIC, Counting.number),
}  # fmt: skip


@lru_cache(maxsize=1000)
def _counted(block: Block) -> list[tuple[Operation, Callable[[Counting, Any, Known], None]]]:
    """The operations of a block that have a rule, in order."""
    return [(op, RULES[type(op)]) for op in block.ops if type(op) in RULES]


def executions(func: tile.FuncOp) -> list[tuple[tuple[int, ...], Counting]]:
    return [(program, Counting(func, program)) for program in np.ndindex(*func.extents)]


# Comparison -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "machine", "threads"), CASES)
def test_the_tree_of_every_kernel_is_legal_and_is_the_program(name: str, machine: str, threads: int) -> None:
    for kernel, func in lowered(planned(GRAPHS[name], machine, threads)):
        tree, computes = kernel.scheduled.tree, expressions(kernel.scheduled)
        problem = Problem.of(computes)
        check(tree, problem, imperfect=True, resources=MACHINE)
        assert parse_tree(print_tree(tree), kernels(tree)) == tree
        grid = programs(tree)
        assert prod(grid.values()) == prod(func.extents)
        arguments = dict(zip(kernel.arguments, func.body.block.args, strict=True))
        done = executions(func)
        stored: Counter[str] = Counter()
        for program, counted in done:
            where = dict(zip(grid, program, strict=False))
            expected = {
                leaf.op: runs(tree, path, extents_of(problem.compute(leaf.op)), where) for path, leaf in leaves(tree)
            }
            product = product_of(kernel.scheduled)
            if product is not None:
                assert counted.dots == expected[computes[0].name]
                assert computes[-1].name == kernel.writes[0]
                path, _ = leaves(tree)[-1]
                once = {axis.name: 1 for axis in product.depth}
                tiles = runs(tree, path, {**extents_of(computes[-1]), **once}, where)
                assert counted.stores[arguments[kernel.writes[0]]] == tiles
            else:
                for read in (r for r in kernel.reads if len(expected) == 1):
                    assert counted.loads[arguments[read]] == expected[computes[0].name] * reads_of(computes[0], read)
                for write in kernel.writes:
                    reduced = bool(problem.compute(write).reduce)
                    assert reduced or counted.stores[arguments[write]] == expected[write]
            for write in kernel.writes:
                stored[write] += counted.elements[arguments[write]]
        for write in kernel.writes:
            assert stored[write] == problem.compute(write).output.size


def extents_of(compute: Compute) -> dict[str, int]:
    return {axis.name: int(axis.extent) for axis in compute.loops}  # type: ignore[arg-type]


def reads_of(compute: Compute, tensor: str) -> int:
    """Distinct reads of a tensor: each is one load per register tile."""
    return len({read for read in walk(compute.body) if isinstance(read, Read) and read.tensor.name == tensor})


@pytest.mark.parametrize("seed", some(range(25), 8))
def test_trees_of_random_graphs_are_legal(seed: int) -> None:
    plan = make_plan(random_graph(seed), resolve_cpu("x86-64-v3"), 3)
    for kernel, func in lowered(plan):
        tree = kernel.scheduled.tree
        check(tree, problem_of(kernel.scheduled), imperfect=True, resources=MACHINE)
        assert prod(programs(tree).values()) == prod(func.extents)
        if product_of(kernel.scheduled) is None:
            scratch = [op for op in func.body.walk() if isinstance(op, tile.AllocOp)]
            assert len(scratch) == len(row_buffers(kernel.scheduled.statements))


POINT = ProductPoint((8,), 2, ("j", "i"))


def product_kernel(name: str, k_blocks: int = 1, *, epilogue_vectors: int = 0) -> ScheduledKernel:
    """A product with tiles of 8 rows by 2 vectors of 8 lanes, its rows in two blocks."""
    machine = resolve_cpu("x86-64-v3")
    (kernel,) = planned(GRAPHS[name], "x86-64-v3", 1).kernels
    work = product_of(kernel.scheduled)
    assert work is not None
    point = replace(POINT, k_blocks=k_blocks)
    return scheduled_product(work, point, {"i": 2}, machine, epilogue_vectors=epilogue_vectors)


def test_a_product() -> None:
    """64 x 32 times 32 x 64: 8 tiles of rows in 2 blocks, 4 of columns, 8 products along k."""
    scheduled = product_kernel("product")
    tree = scheduled.tree
    assert print_tree(tree) == "@DRAM par i:2 { @L2 for j:4, i:4 { @L1 for k:8 { op Y as fma_8_f32_f32_8x16x4 } } }"
    check(tree, problem_of(scheduled))  # perfect factors
    (found,) = kernels(tree).values()
    assert found.semantics == "C: f32[m:8, n:16] += A[m, k] * B[k, n] over k:4"
    assert {loop.name: loop.trips for loop in found.quantum} == {"i": 8, "j": 16, "k": 4}
    assert [operand.shape for operand in found.operands] == [(8, 4), (4, 16), (8, 16)]


def test_a_product_with_epilogue_and_blocks_of_k() -> None:
    scheduled = product_kernel("product with epilogue", k_blocks=3)
    assert print_tree(scheduled.tree) == (
        "@DRAM par i:2 { @L2 for j:5 { stage Y in L2 { "
        "seq[@L2 for k:3, i:4 with prefetch_lines(64), prefetch_rows(64) "
        "{ @L1 for k:9 { op Y as fma_8_f32_f32_8x16x4 } }, "
        "@L2 for i:4 { @REG unroll i:8, j:2 { par j:8 { op Z } } }] } } }"
    )
    check(scheduled.tree, problem_of(scheduled), imperfect=True)
    product, epilogue = expressions(scheduled)
    assert product.name == "Y"
    assert "max(Y[i, j] +" in print_statement(epilogue)


@pytest.mark.parametrize(("vectors", "loop"), [(1, "j:2 { @REG par j:8"), (2, "j:1 { @REG unroll j:2 { par j:8")])
def test_a_product_with_its_epilogue_in_a_loop(vectors: int, loop: str) -> None:
    """The vectors are read from L1."""
    scheduled = product_kernel("product with epilogue", epilogue_vectors=vectors)
    assert print_tree(scheduled.tree) == (
        "@DRAM par i:2 { @L2 for j:5, i:4 { seq[@L1 for k:25 { op Y as fma_8_f32_f32_8x16x4 }, "
        f"@L1 for i:8, {loop} {{ op Z }} {'} ' * (vectors - 1)}}}] }} }}"
    )
    check(scheduled.tree, problem_of(scheduled), imperfect=True, resources=MACHINE)


def test_a_map_and_a_reduction() -> None:
    (kernel,) = planned(GRAPHS["map"], "x86-64-v3", 1).kernels
    (statement,) = kernel.scheduled.statements
    tree = row_tree((statement,), [SpatialLoop(statement.axes[0], 32, 4, 8)], lanes=8)
    assert print_tree(tree) == "@DRAM par i_j:4 { @L2 for i_j:24 { @REG unroll i_j:4 { par i_j:8 { op Y } } } }"
    (kernel,) = planned(GRAPHS["columns"], "x86-64-v3", 1).kernels
    (statement,) = kernel.scheduled.statements
    tree = row_tree((statement,), [SpatialLoop(statement.axes[0], 16, 1, 8)], lanes=8)
    assert print_tree(tree) == "@L2 for j:5 { @L1 for i:30 { @REG unroll j:2 { par j:8 { op Y } } } }"


def test_a_wrong_factor_is_found() -> None:
    (kernel,) = planned(GRAPHS["map"], "x86-64-v3", 1).kernels
    tree = kernel.scheduled.tree
    assert isinstance(tree, Tile)
    shorter = replace(tree, loops=tuple(replace(loop, factor=loop.trips - 1) for loop in tree.loops))
    found = list(violations(shorter, problem_of(kernel.scheduled), imperfect=True))
    assert [type(violation) for violation in found] == [WrongCoverage]


def test_row_buffers_are_filled_by_the_first_pass_that_reads_them() -> None:
    (kernel,) = planned(GRAPHS["softmax"], "x86-64-v3", 1).kernels
    assert row_buffers(kernel.scheduled.statements) == ("E",)
    assert [compute.name for compute in expressions(kernel.scheduled)] == ["M", "E", "T", "P"]
