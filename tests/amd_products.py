"""What LLVM makes of large products on AMD GPUs: registers, spills, instructions by machine, type and storage order.

    python -m tests.amd_products [PATTERN] [--json]

A row for each of 72 products, named like `gfx1100-bf16-ab-2041x1037x1031` (`a`, `b`: stored by columns), or for those
whose names a regular expression is found in. Exit status 1 where vector registers are spilled, which go to memory;
scalar ones that are go to lanes of a vector register.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.amdgpu.pipeline import AmdCode, generate
from tilewright.compiler import gpu
from tilewright.compiler.plan import make_plan
from tilewright.compiler.program import Placement
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options

MACHINES = ("gfx1100", "gfx1201", "gfx942")
TYPES = ("f16", "bf16", "i8")
BY_COLUMNS = ("", "a", "b", "ab")
SIZES = ((2048, 2048, 2048), (2041, 1037, 1031))
_MATRIX = re.compile("v_w?mf?ma")


@dataclass(frozen=True)
class Product:
    """``c[m, n] = sum over k`` of one type; `by_columns` names the operands whose columns lie together in memory."""

    machine: str
    dtype: str
    by_columns: str
    size: tuple[int, int, int]

    def __str__(self) -> str:
        parts = self.machine, self.dtype, self.by_columns, "x".join(map(str, self.size))
        return "-".join(part for part in parts if part)


PRODUCTS = tuple(Product(*each) for each in product(MACHINES, TYPES, BY_COLUMNS, SIZES))


def distributed(each: Product) -> ModuleOp:
    """The program of a product as `compile` makes it, in distributed form."""
    (m, n, k), b = each.size, GraphBuilder()
    turned_a, turned_b = ("a" in each.by_columns, "b" in each.by_columns)
    x = b.input("x", (k, m) if turned_a else (m, k), each.dtype)
    w = b.input("w", (n, k) if turned_b else (k, n), each.dtype)
    wide: Any = {"accumulate": "i32", "out_dtype": "i32"} if each.dtype == "i8" else {}
    graph = b.finish([linalg.matmul(x, w, transpose_a=turned_a, transpose_b=turned_b, **wide)])
    machine = resolve(each.machine)
    assert isinstance(machine, Gpu)
    plan = make_plan(graph, machine, 1)
    program = gpu.tile_program(plan, Placement(plan), machine)
    gpu.distribute(program, Options())
    return program


def row(name: str, code: AmdCode) -> dict[str, Any]:
    """What the kernels of a product take, the most of each, and the instructions of all."""
    needs = [asdict(each) for each in code.resources.values()]
    most = {key: max(each[key] for each in needs) for key in needs[0]}
    found = Counter(line.split()[0] for line in code.assembly.splitlines() if re.match(r"\t[a-z]+_[a-z]", line))
    return {
        "product": name, **most, "instructions": found.total(),
        "matrix": sum(count for word, count in found.items() if _MATRIX.match(word)),
        "memory": sum(count for word, count in found.items() if re.match("global_|buffer_|ds_", word)),
        "barriers": sum(count for word, count in found.items() if re.fullmatch("s_barrier(_wait)?", word)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.amd_products", description=__doc__.split("\n\n")[0])
    parser.add_argument("pattern", nargs="?", default="", help="only products in whose names this is found")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    options = parser.parse_args()
    chosen = [each for each in PRODUCTS if re.search(options.pattern, str(each))]
    spilled = []
    for each in chosen:
        found = row(str(each), generate(distributed(each)))
        if found["vector_spills"] or found["private_bytes"]:
            spilled.append(str(each))
        print(
            json.dumps(found) if options.json else
            f"{found['product']:32} {found['vector_registers']:4} vector and {found['scalar_registers']:4} scalar "
            f"registers, spilled {found['vector_spills']:3} and {found['scalar_spills']:3}, {found['instructions']:5} "
            f"instructions: {found['matrix']:3} matrix, {found['memory']:4} memory, {found['barriers']:2} barriers",
            flush=True,
        )  # fmt: skip
    if not options.json:
        print(f"{len(spilled)} of {len(chosen)} spill vector registers{': ' if spilled else ''}{', '.join(spilled)}")
    return int(bool(spilled))


if __name__ == "__main__":
    sys.exit(main())
