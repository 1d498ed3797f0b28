"""Chains of two to four operators, or three products, with tile trees by chance: legal ones that `lower` takes.

    python -m tests.random_chains --trees 500 --seed 0
    python -m tests.random_chains --trees 500 --products 3
    python -m tests.random_chains --trees 500 --windows

Each tree is compiled for this machine's CPU and run, its program is counted (`compiler.counting`), and both results are
compared with the evaluator. What the program moves must be what the tree says, but for values in registers. Where steps
leave elements out, it must be what the tree says with sets of elements for slices (`exact_walk`).

A chain is two products with element-wise work, a softmax, or nothing between them, and element-wise work or nothing
behind them; or three products with element-wise work or nothing behind each; or one whose first result is read through
windows (`random_windows`). Trees differ in register tiles, the order of their loops, blocks of all loops and their
order, and programs of the grid; extents are odd as often as not.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from math import lcm
from typing import Any

import numpy as np

from tests.exact_walk import Levels, exact_levels
from tests.random_windows import random_windowed_tree, random_windows
from tilewright.compiler.count_reasons import GAPS, GUARDED
from tilewright.compiler.counting import KernelCount, Where, count_plan
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph
from tilewright.machine.description import Cpu
from tilewright.operator.product_point import ProductPoint, k_unroll
from tilewright.operator.products_tree import ProductsTree, products_tree
from tilewright.operator.rules.cpu_fused import FusedPoint, fused_kernel, step_of_rows
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.notation import print_tree
from tilewright.tiles.product import Product, products_of
from tilewright.tiles.traffic import Moved
from tilewright.tiles.tree import TileTree, to_json
from tilewright.tiles.windows import window_reads

Array = np.ndarray[Any, Any]

CHAIN = """
    input A: f32[{b}, {m}, {k}]
    input B: f32[{b}, {k}, {l}]
    input D: f32[{b}, {l}, {n}]
    C: f32[b:{b}, m:{m}, l:{l}] += A[b, m, k] * B[b, k, l] over k:{k}
    {between}
    E: f32[b:{b}, m:{m}, n:{n}] += {link}[b, m, l] * D[b, l, n] over l:{l}
    {after}"""
THIRD = """
    input U: f32[{b}, {n}, {p}]
    H: f32[b:{b}, m:{m}, p:{p}] += {link}[b, m, n] * U[b, n, p] over n:{n}
    {after}"""
ELEMENTWISE = "F: f32[b:{b}, m:{m}, l:{l}] = max(C[b, m, l] * 0.5, 0.0)"
SOFTMAX = """S: f32[b:{b}, m:{m}, l:{l}] = {score}
    M: f32[b:{b}, m:{m}] max= S[b, m, l] over l:{l}
    X: f32[b:{b}, m:{m}, l:{l}] = exp(S[b, m, l] - M[b, m])
    T: f32[b:{b}, m:{m}] += X[b, m, l] over l:{l}
    P: f32[b:{b}, m:{m}, l:{l}] = X[b, m, l] / T[b, m]"""
AFTER = "G: f32[b:{b}, m:{m}, n:{n}] = min(E[b, m, n], 40.0)"
LAST = "R: f32[b:{b}, m:{m}, p:{p}] = max(H[b, m, p], -40.0)"


@dataclass(frozen=True)
class Case:
    """A chain, a tree for the kernel of that name which computes it, and the plan with this tree."""

    graph: Graph
    kernel: str
    tree: TileTree
    plan: Plan

    @property
    def options(self) -> Options:
        """What compiles the chain with the tree."""
        return _options(self.kernel, self.tree)


def _options(kernel: str, tree: TileTree) -> Options:
    return Options(cache=False, fuse="always", trees={kernel: to_json(tree)})


def random_case(
    roll: random.Random, machine: Cpu, *, small: bool = False, products: int = 2, windows: bool = False
) -> Case:  # fmt: skip
    """A chain that one kernel computes, and a legal tree of it."""
    while True:
        graph = random_windows(roll, small) if windows else random_chain(roll, 2 if small else 1, products)
        kernels = make_plan(graph, machine, 1, Options(cache=False, fuse="always")).kernels
        fused = [each for each in kernels if _is_chain(each.scheduled, products, windows)]
        if len(fused) != 1:
            continue
        made = random_windowed_tree if windows else random_tree
        name, tree = fused[0].name, made(roll, products_tree(fused[0].scheduled), machine)
        try:
            return Case(graph, name, tree, make_plan(graph, machine, 1, _options(name, tree)))
        except CompileError:  # registers or L2 do not hold it, or another product was matched
            continue


def _is_chain(kernel: Kernel, products: int, windows: bool) -> bool:
    return bool(window_reads(kernel.statements)) if windows else len(products_of(kernel)) == products


def random_chain(roll: random.Random, divisor: int = 1, products: int = 2) -> Graph:
    """Products with what is between and behind them; a softmax may have a mask, of which some rows see little."""
    most = {"b": 3, "m": 40, "k": 20, "l": 90, "n": 40, **({"p": 40} if products > 2 else {})}
    links = ("l", "n") if products > 2 else ("l",)
    size = {name: roll.randint(4 if name in links else 1, extent // divisor) for name, extent in most.items()}
    kinds = ("plain", "elementwise") if products > 2 else ("plain", "elementwise", "softmax")
    kind, after = roll.choice(kinds), roll.choice(("", AFTER))
    between, link = {"plain": ("", "C"), "elementwise": (ELEMENTWISE, "F"), "softmax": (SOFTMAX, "P")}[kind]
    masked = f"l <= m + {roll.randint(0, size['l'])} ? C[b, m, l] * 0.125 : -inf"
    score = roll.choice(("C[b, m, l] * 0.125", masked))
    text, result = CHAIN.format(**size, between=between, link=link, after=after), "G" if after else "E"
    if products > 2:
        last = roll.choice(("", LAST))
        text, result = text + THIRD.format(**size, link=result, after=last), "R" if last else "H"
    return parse_graph(f"{text.format(**size, score=score)}\n    output {result}")


def random_tree(roll: random.Random, tree: ProductsTree, machine: Cpu) -> TileTree:
    """Other register tiles, orders, blocks and programs for the products of a tree."""
    works = tuple(each.work for each in tree.products)
    points = tuple(_point(roll, work) for work in works)
    tiles = [{**p.tile(work), work.depth[0].name: k_unroll(work)} for p, work in zip(points, works, strict=True)]
    between = {number: rows.statements for number, rows in tree.rows.items()}
    axes = {axis.name: axis for work in works for axis in (*work.spatial, *work.depth)}
    blocks = []
    for name in roll.sample([name for name in ("b", "m") if name in axes], len({"b", "m"} & axes.keys())):
        unit = 1 if name == "b" else lcm(*(tile.get(name, 1) for tile in tiles))
        size = 1 if name == "b" else unit * roll.randint(1, 4)
        if axes[name].size > size or name == "b":
            blocks.append(SpatialLoop(axes[name], size, roll.randint(1, 3)))
    steps = [step_of_rows(works[0], tiles[0], machine)] if between else []
    cut = works[-1].depth[0].name if len(works) == 2 else roll.choice([work.depth[0].name for work in works])
    size = lcm(*(tile.get(cut, 1) for tile in tiles), *steps) * roll.randint(1, 3)
    if size < axes[cut].size and roll.random() < 0.6:
        blocks.append(SpatialLoop(axes[cut], size))
    at_a_time = [int(work.has_epilogue and roll.random() < 0.2) for work in works]
    return fused_kernel(works, FusedPoint(points, tuple(blocks)), at_a_time, between, machine).tree


def _point(roll: random.Random, work: Product) -> ProductPoint:
    rows, vectors = roll.randint(1, 6), roll.randint(1, 3)
    vectors = min(vectors, -(-work.columns.size // work.lanes))
    order = [axis.name for axis in (work.columns, *work.rows)]
    roll.shuffle(order)
    return ProductPoint(tuple(min(rows, axis.size) for axis in work.rows), vectors, tuple(order))


def inputs_of(graph: Graph, seed: int) -> list[Array]:
    """Small whole numbers, whose products f32 adds up without rounding."""
    generator = np.random.default_rng(seed)
    return [generator.integers(-3, 4, tuple(map(int, each.shape))).astype(np.float32) for each in graph.inputs]


def counted(case: Case, machine: Cpu, seed: int, on: Where = "interpreter") -> list[KernelCount]:
    """The counts of a case; AssertionError where the interpreter, or machine code, computes something else than the
    evaluator.
    """
    given = inputs_of(case.graph, seed)
    found, counts = count_plan(case.plan, machine, given, on)
    _require_close(found, evaluate(case.graph, given, precise=True, wide=True))
    return counts


def run(case: Case, machine: Cpu, seed: int) -> None:
    """Compile the case for this machine and run it; AssertionError for another result than the evaluator's."""
    import tilewright

    given = inputs_of(case.graph, seed)
    module = tilewright.compile(case.graph, machine=machine.name, threads=1 + seed % 2, options=case.options)
    _require_close([np.asarray(module(*given))], evaluate(case.graph, given, precise=True, wide=True))


def _require_close(found: list[Array], wanted: Any) -> None:
    for each, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-4)


def differences(case: Case, counts: list[KernelCount], machine: Cpu) -> list[str]:
    """What the kernels of a chain move otherwise than their trees say, but for values in registers.

    Where steps leave elements out, and where a condition does, only these make the difference.
    """
    kernels = {each.name: each.scheduled for each in case.plan.kernels}
    exact: dict[str, Levels] = {}
    found = []
    for each in counts:
        found += [f"{each.kernel}: {each.refused}"] if each.refused else []
        for level, rows in each.levels.items():
            for row in rows:
                allowed = not row.why or (row.expected and _no_more(row.counted, row.model))
                if row.why in (GAPS, GUARDED):
                    if each.kernel not in exact:
                        exact[each.kernel] = exact_levels(kernels[each.kernel], machine)
                    allowed = row.counted == exact[each.kernel][level].get(row.tensor)
                if not allowed:
                    found.append(f"{each.kernel}, {level}: {row}")
    return found


def _reasons(case: Case, counts: list[KernelCount]) -> str:
    """Why the kernel of a chain moves something else than its tree says, but for values in registers."""
    rows = [row for each in counts if each.kernel == case.kernel for rows in each.levels.values() for row in rows]
    return ", ".join(sorted({row.why for row in rows if not row.expected})) or "equal"


def _no_more(part: Moved, whole: Moved) -> bool:
    return part.loads <= whole.loads and part.fills <= whole.fills and part.stores <= whole.stores


def main() -> int:
    from tilewright.machine.registry import resolve_cpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=500, help="how many trees (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first tree (default: 0)")
    parser.add_argument("--products", type=int, default=2, choices=(2, 3), help="of a chain (default: 2)")
    parser.add_argument("--windows", action="store_true", help="the first result is read through windows")
    parser.add_argument("--small", action="store_true", help="smaller extents, as in the tests")
    parser.add_argument("--no-cpu", action="store_true", help="count only, compile nothing")
    parser.add_argument("--machine", default="x86-64-v3", help="default: x86-64-v3")
    arguments = parser.parse_args()
    machine, verdicts, wrong = resolve_cpu(arguments.machine), Counter[str](), 0
    for number in range(arguments.seed, arguments.seed + arguments.trees):
        roll = random.Random(number)
        case = random_case(
            roll, machine, small=arguments.small, products=arguments.products, windows=arguments.windows
        )  # fmt: skip
        try:
            counts = counted(case, machine, number)
            found = differences(case, counts, machine)
            verdicts[_reasons(case, counts)] += 1
            if not arguments.no_cpu:
                run(case, machine, number)
        except Exception as error:  # every failure is shown with its tree
            found = [repr(error)]
        if found:
            wrong += 1
            print(f"tree {number} of {case.kernel}:\n{print_tree(case.tree, indented=True)}", *found, sep="\n")
    print(f"{arguments.trees} trees, {wrong} with a difference; {dict(verdicts)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
