"""Tiles of products on GPUs without asynchronous copies: the chosen ones, those of the MMA deduction, what they take.

    python -m tests.gpu_tiles [PATTERN] [--conflicts] [--json]

A row for each tile of the products of `tests.amd_products` and of `bench/gpu` on sm_75 and AMD GPUs, or of those in
whose names a regular expression is found: predicted cycles, registers as estimated and as taken, spills, bytes of
shared memory. AMD's are of LLVM's metadata, others of `ptxas`. `--conflicts` counts bank conflicts in a run of a
product of one tile and three k tiles, by the interpreter. Exit status 1 where a chosen tile spills more registers or
has more conflicts than the deduction's, or is predicted to take longer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest import mock

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from bench.gpu.cases import CASES
from tests import gpu_programs
from tests.amd_products import PRODUCTS
from tilewright.codegen.amdgpu import pipeline as amd
from tilewright.codegen.nvptx import pipeline as nvidia
from tilewright.codegen.nvptx import ptxas
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import ChooseProduct
from tilewright.expr.graph import Graph
from tilewright.instruction.block_tiles import Candidate, Ranking
from tilewright.kernel.dialect import FuncOp
from tilewright.kernel.elements import Array, dtype_of
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.simt_memory import Access, BlockMemory, Place
from tilewright.layouts.access import WIDEST_BITS, wavefronts
from tilewright.machine.description import Gpu
from tilewright.machine.targets import AMD
from tilewright.operator.rules.gpu_product import BlockShape
from tilewright.options import Options

BENCH = ("sm_75", "gfx90a", "gfx942", "gfx1100", "gfx1201")
FAMILIES = ("gemm", "convolution", "attention")
TILES = 3  # of k, in the runs that count conflicts
BYTES = WIDEST_BITS // 8

Choose = Callable[[Ranking], Candidate | None]


@dataclass(frozen=True)
class Subject:
    """A graph with products for one machine; `by_columns` where it is one product of sizes m, n, k alone."""

    name: str
    machine: Gpu
    graph: Graph
    options: Options
    dtype: str = ""
    by_columns: str = ""
    size: tuple[int, ...] = ()


def subjects() -> Iterator[Subject]:
    """All that the command knows."""
    for each in PRODUCTS:
        graph = gpu_programs.product(each.dtype, each.by_columns, each.size)
        machine = gpu_programs.machine_of(each.machine)
        yield Subject(str(each), machine, graph, Options(), each.dtype, each.by_columns, each.size)
    for name in BENCH:
        for case in CASES:
            if case.family in FAMILIES:
                options = Options(input_precision=case.input_precision)
                plain = re.fullmatch(r"(\d+)x(\d+)x(\d+) ([nt])([nt])", case.name)
                order = (("a" if plain[4] == "t" else "") + ("b" if plain[5] == "t" else "")) if plain else ""
                size = tuple(int(plain[number]) for number in (1, 2, 3)) if plain else ()
                dtype = {"s8": "i8"}.get(case.dtype, case.dtype)
                title = f"{name} {case.family} {case.name} {case.dtype}"
                yield Subject(title, gpu_programs.machine_of(name), case.graph(), options, dtype, order, size)


def rows(subject: Subject, conflicts: bool) -> Iterator[dict[str, Any]]:
    """What the chosen tiles take, and where the deduction proposes others what these do."""
    chosen = _row(subject, "chosen", lambda ranking: None, conflicts)
    if not chosen["tiles"]:
        return
    yield chosen
    deduced = _row(subject, "deduced", lambda ranking: ranking.deduced, conflicts)
    if deduced["tiles"] != chosen["tiles"]:
        yield deduced


def _row(subject: Subject, by: str, choose: Choose, conflicts: bool) -> dict[str, Any]:
    seen: list[tuple[str, Ranking]] = []

    def tile(ranking: Ranking, node: str) -> Candidate | None:
        seen.append((node, ranking))
        return choose(ranking)

    plan = make_plan(subject.graph, subject.machine, 1, subject.options, ChooseProduct(tile=tile))
    taken = [candidate for node, made in plan.products.items() if (candidate := _taken(seen, node, made)) is not None]
    found = {
        "product": subject.name, "by": by, "tiles": [str(each) for each in taken],
        "cycles": round(sum(each.cycles for each in taken)),
        "estimate": max((each.registers for each in taken), default=0),
    }  # fmt: skip
    if not taken:
        return found
    found |= _resources(gpu_programs.distributed(plan, subject.machine, subject.options), subject.machine)
    if conflicts and subject.size:
        found["conflicts"] = bank_conflicts(subject, taken[0])
    return found


def _taken(seen: list[tuple[str, Ranking]], node: str, made: dict[str, Any]) -> Candidate | None:
    """The candidate that a plan has for a product; None for multiply-adds."""

    def same(shape: BlockShape) -> bool:
        return ([shape.m, shape.n, shape.k], list(shape.warps), shape.stages, shape.splits, shape.intrinsic) == (
            made["block"], made["warps"], made["stages"], made["splits"], made["instruction"]
        )  # fmt: skip

    rankings = [ranking for name, ranking in seen if name == node]
    return next((each for ranking in reversed(rankings) for each in ranking.candidates if same(each.shape)), None)


def _resources(program: ModuleOp, machine: Gpu) -> dict[str, int]:
    """The most that a kernel takes of each resource."""
    if machine.llvm.triple == AMD:
        needs = list(amd.generate(program).resources.values())
        keys = {"registers": "vector_registers", "spills": "vector_spills", "scalar_spills": "scalar_spills",
                 "stack_bytes": "private_bytes", "shared_bytes": "shared_bytes"}  # fmt: skip
        return {name: max(getattr(each, key) for each in needs) for name, key in keys.items()}
    code = nvidia.generate(program)
    reports = ptxas.check(code.ptx, machine.llvm.cpu)
    if reports is None:
        raise SystemExit("gpu_tiles: no ptxas is found, which says what kernels take")
    found = {
        name: max(getattr(each, name) for each in reports.values()) for name in ("registers", "spills", "stack_bytes")
    }
    return found | {"scalar_spills": 0, "shared_bytes": max(kernel.shared_bytes for kernel in code.kernels)}


# Bank conflicts -------------------------------------------------------------------------------------------------------


def bank_conflicts(subject: Subject, tile: Candidate) -> int:
    """Wavefronts too many in a run of a product of one tile, of sizes that have the remainders of the subject's."""
    shape = replace(tile.shape, splits=1)
    sides = shape.m, shape.n, TILES * shape.k
    size = tuple(side - (-whole) % 8 for side, whole in zip(sides, subject.size, strict=True))
    graph = gpu_programs.product(subject.dtype, subject.by_columns, size)
    choose = ChooseProduct(tile=lambda ranking, node: replace(tile, shape=shape))
    plan = make_plan(graph, subject.machine, 1, subject.options, choose)
    program = gpu_programs.distributed(plan, subject.machine, subject.options)
    total = 0
    for kernel in program.body.block.ops:
        if isinstance(kernel, FuncOp):
            arrays = [_zeros(arg.type) for arg in kernel.body.block.args]
            with counted(kernel.lanes) as counts:
                run_kernel(program, kernel.sym_name.data, arrays)
            total += sum(counts)
    return total


def _zeros(type_: Attribute) -> Array:
    assert isinstance(type_, MemRefType)
    return np.zeros(prod(type_.get_shape()), dtype_of(type_))


@contextmanager
def counted(lanes: int) -> Iterator[list[int]]:
    """Lists the conflicts of each access to shared memory while the interpreter runs."""
    found: list[int] = []

    def watch(method: Any) -> Any:
        def watching(memory: BlockMemory, place: Place, access: Access, *rest: Any) -> Any:
            if not place.per_thread and not any(place is each for each in memory.arguments):
                at = place.view.start + access.chosen * place.view.element_bytes
                found.append(_conflicts(at, access.threads, place.view.element_bytes, lanes))
            return method(memory, place, access, *rest)

        return watching

    with mock.patch.multiple(BlockMemory, read=watch(BlockMemory.read), write=watch(BlockMemory.write)):
        yield found


def _conflicts(addresses: Array, threads: Array, size: int, lanes: int) -> int:
    """Of one operation: every thread has as many elements, which it accesses in the widest pieces that lie together."""
    each = len(addresses) // len(np.unique(threads))
    own = addresses.reshape(-1, each)
    assert (threads.reshape(-1, each) == threads.reshape(-1, each)[:, :1]).all(), "threads come one after the other"
    wide = each
    while wide > 1 and not _together(own, wide, size):
        wide //= 2
    pieces = own[:, ::wide].reshape(-1, lanes, each // wide).transpose(0, 2, 1).reshape(-1, lanes)
    return wavefronts(pieces, wide * size).conflicts


def _together(own: Array, wide: int, size: int) -> bool:
    """Whether so many elements of a thread are one access: neighbours in memory, aligned, 16 bytes at most."""
    if wide * size > BYTES or own.shape[1] % wide:
        return False
    parts = own.reshape(-1, wide)
    return bool((parts == parts[:, :1] + size * np.arange(wide)).all() and not (parts[:, 0] % (wide * size)).any())


def worse(chosen: dict[str, Any], deduced: dict[str, Any]) -> list[str]:
    """What the chosen tile has more of than it may."""
    found = ["spills" for name in ("spills", "stack_bytes") if chosen[name] > deduced[name]][:1]
    names = ("scalar_spills", "conflicts", "cycles")
    return found + [name for name in names if chosen.get(name, 0) > deduced.get(name, 0)]


def main() -> int:
    parser = gpu_programs.parser_of("gpu_tiles", __doc__)
    parser.add_argument("--conflicts", action="store_true", help="count bank conflicts of plain products")
    options = parser.parse_args()
    failed, count = [], 0
    for subject in subjects():
        if not re.search(options.pattern, subject.name):
            continue
        found = list(rows(subject, options.conflicts))
        count += bool(found)
        if found and (more := worse(found[0], found[-1])):
            failed.append(f"{subject.name} ({', '.join(more)})")
        for each in found:
            conflicts = f", {each['conflicts']} conflicts" if "conflicts" in each else ""
            gpu_programs.show(
                each,
                f"{each['product']:36} {each['by']:7} {'; '.join(each['tiles'])}: {each['cycles']} cycles, "
                f"registers {each['registers']} (about {each['estimate']}), spilled {each['spills']} and "
                f"{each['scalar_spills']}, {each['shared_bytes']} bytes shared{conflicts}",
                options.json,
            )
    return gpu_programs.end(failed, count, "are worse than the deduction's", options.json)


if __name__ == "__main__":
    sys.exit(main())
