"""Products compiled for GPUs, and what the commands that print a row for each have in common.

Used by `tests.amd_products` and `tests.gpu_tiles`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tilewright.compiler import gpu
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options


def product(dtype: str, by_columns: str, size: Sequence[int]) -> Graph:
    """One product of sizes m, n, k; `by_columns` names the operands whose columns lie together in memory."""
    (m, n, k), b = size, GraphBuilder()
    turned_a, turned_b = "a" in by_columns, "b" in by_columns
    x = b.input("x", (k, m) if turned_a else (m, k), dtype)
    w = b.input("w", (n, k) if turned_b else (k, n), dtype)
    wide: Any = {"accumulate": "i32", "out_dtype": "i32"} if dtype == "i8" else {}
    return b.finish([linalg.matmul(x, w, transpose_a=turned_a, transpose_b=turned_b, **wide)])


def machine_of(name: str) -> Gpu:
    machine = resolve(name)
    assert isinstance(machine, Gpu)
    return machine


def distributed(plan: Plan, machine: Gpu, options: Options) -> ModuleOp:
    """The program of a plan as `compile` makes it, in distributed form."""
    program = gpu.tile_program(plan, Placement(plan), machine)
    gpu.distribute(program, options)
    return program


def parser_of(module: str, description: str) -> argparse.ArgumentParser:
    """For a command that prints a row for each of many products, or a line of JSON."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.{module}", description=description.split("\n\n")[0])
    parser.add_argument("pattern", nargs="?", default="", help="only products in whose names this is found")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    return parser


def show(row: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(row) if as_json else text, flush=True)


def end(failed: Sequence[str], count: int, fault: str, as_json: bool) -> int:
    """The last line, which names the products that have a fault, and the exit status."""
    if not as_json:
        print(f"{len(failed)} of {count} {fault}{': ' if failed else ''}{'; '.join(failed)}")
    return int(bool(failed))
