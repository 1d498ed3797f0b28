"""What LLVM makes of large products on AMD GPUs: registers, spills, instructions by machine, type and storage order.

    python -m tests.amd_products [PATTERN] [--json]

A row for each of 72 products, named like `gfx1100-bf16-ab-2041x1037x1031` (`a`, `b`: stored by columns), or for those
whose names a regular expression is found in. Exit status 1 where vector registers are spilled, which go to memory;
scalar ones that are go to lanes of a vector register.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tests import gpu_programs
from tilewright.codegen.amdgpu.pipeline import AmdCode, generate
from tilewright.compiler.make_plan import make_plan
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
    graph = gpu_programs.product(each.dtype, each.by_columns, each.size)
    machine = gpu_programs.machine_of(each.machine)
    return gpu_programs.distributed(make_plan(graph, machine, 1), machine, Options())


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
    options = gpu_programs.parser_of("amd_products", __doc__).parse_args()
    chosen = [each for each in PRODUCTS if re.search(options.pattern, str(each))]
    spilled = []
    for each in chosen:
        found = row(str(each), generate(distributed(each)))
        if found["vector_spills"] or found["private_bytes"]:
            spilled.append(str(each))
        gpu_programs.show(
            found,
            f"{found['product']:32} {found['vector_registers']:4} vector and {found['scalar_registers']:4} scalar "
            f"registers, spilled {found['vector_spills']:3} and {found['scalar_spills']:3}, {found['instructions']:5} "
            f"instructions: {found['matrix']:3} matrix, {found['memory']:4} memory, {found['barriers']:2} barriers",
            options.json,
        )
    return gpu_programs.end(spilled, len(chosen), "spill vector registers", options.json)


if __name__ == "__main__":
    sys.exit(main())
