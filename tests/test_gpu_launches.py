"""Kernels that start while those before them run: in PTX and machine code nothing global comes before the wait."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tilewright
from tests.covering import some
from tests.machine_code import ACQBULK, machine_code
from tests.test_gpu_attention import hopper
from tests.test_gpu_tensor_copies import halves
from tests.test_gpu_without import FAMILIES
from tilewright import Options
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.compiler.tests.test_gpu import GRAPHS
from tilewright.compiler.tests.test_gpu_fused import attending
from tilewright.emulator import parse, run
from tilewright.expr.core import Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg, reduce
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve

START, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
# Accesses of global memory in PTX, in the forms that are generated; tensor maps are parameters.
GLOBAL = re.compile(r"\b(ld|st|atom|red|cp\.async|prefetch|cp\.reduce)\b[.\w:]*\.(global|bulk)\b|\bld\.b|\bst\.b")
ACCESSES = {
    0x981: "LDG", 0x381: "LDG", 0x986: "STG", 0x386: "STG", 0xFAE: "LDGSTS", 0x9A8: "ATOMG", 0x98E: "REDG",
    0x5B4: "UTMALDG", 0x3B4: "UTMALDG", 0x5B5: "UTMASTG", 0x3B5: "UTMASTG",
}  # fmt: skip


def many_terms(b: GraphBuilder) -> Tensor:
    """A sum that blocks share: a second kernel adds their parts."""
    return reduce.reduce_sum(b.input("x", (2, 1 << 18), "f32"), (1,))


def deep(b: GraphBuilder) -> Tensor:
    """A product whose k is split."""
    return linalg.matmul(b.input("x", (64, 8192), "f16"), b.input("w", (8192, 64), "f16"))


def of(build: Callable[[GraphBuilder], Tensor]) -> Graph:
    b = GraphBuilder()
    return b.finish([build(b)])


def compiled(graph: Graph, disable: tuple[str, ...] = (), machine: str = "sm_90a", **more: object) -> tilewright.Module:
    options = Options(cache=False, disable=disable, **more)  # type: ignore[arg-type]
    return tilewright.compile(graph, machine=machine, options=options, device="emulator")


def attention() -> ModuleOp:
    text = programs.attention((1, 136, 128), (64, 64), (4, 1), True, "wgmma_m64n{n}k16_{dtype}_f32", "f16")
    module = parse_module(text)
    module.attributes["tile.target"] = hopper().attribute()
    run_pipeline(module, "gpu")
    return module


PROGRAMS: dict[str, Callable[[], str]] = {
    **{f"graph: {name}": lambda build=build: text_of(of(build)) for name, build in GRAPHS.items()},
    **{
        f"family: {name}": lambda family=family: text_of(of(family.build), input_precision=family.input_precision)
        for name, family in FAMILIES.items()
        if "sm_90a" in family.machines
    },
    "sum in parts": lambda: text_of(of(many_terms)),
    "split k": lambda: text_of(of(deep)),
    "fused products": lambda: text_of(attending((130, 140, 64)), fuse="always"),
    "bulk copies": lambda: generate(halves((200, 136, 72), (64, 128, 32))).ptx,
    "multicast": lambda: generate(halves((256, 256, 64), (128, 256, 64), cluster=2)).ptx,
    "chain of four warps": lambda: generate(attention()).ptx,
}
EXPECTED = {
    "bulk copies": "cp.async.bulk.tensor.2d.global", "multicast": ".multicast::cluster", "split k": "_parts(",
    "chain of four warps": "wgmma.mma_async", "fused products": "wgmma.mma_async", "family: f64": "mma.sync",
    "sum in parts": ".entry sum_parts", "family: convolution": "cp.async.cg",
}  # fmt: skip


def text_of(graph: Graph, **more: object) -> str:
    return compiled(graph, **more).artifact.code.decode()  # type: ignore[arg-type]


def entries(ptx: str) -> dict[str, list[str]]:
    """The lines of every kernel, without comments."""
    found = {}
    for part in ptx.split(".visible .entry ")[1:]:
        name, _, body = part.partition("(")
        lines = [line.split("//")[0].strip() for line in body[body.index("{") : body.index("\n}")].splitlines()]
        found[name] = [line for line in lines if line]
    return found


def check_prologue(lines: list[str]) -> None:
    """One start and one wait, which every way through the kernel passes, before all accesses to global memory."""
    assert lines.count(START) == 1
    assert lines.count(WAIT) == 1
    wait = lines.index(WAIT)
    before, behind = lines[:wait], lines[wait:]
    assert START in before
    assert not [line for line in before if GLOBAL.search(line)]
    assert not [line for line in before if re.search(r"\b(ret|exit|trap)\b", line)]
    labels = {line[:-1] for line in before if line.endswith(":")}
    assert all(target in labels for line in before for target in re.findall(r"\bbra\S*\s+([\w$]+)", line))
    assert not [line for line in behind if any(re.search(rf"\bbra\S*\s+{re.escape(each)};", line) for each in labels)]


OTHERS = [name for name in PROGRAMS if name not in EXPECTED]


@pytest.mark.parametrize("name", [*EXPECTED, *some(OTHERS, 6)])
def test_nothing_global_comes_before_the_wait(name: str) -> None:
    ptx = PROGRAMS[name]()
    found = entries(ptx)
    assert found
    for lines in found.values():
        check_prologue(lines)
        assert any(GLOBAL.search(line) for line in lines), "the check knows the accesses that the kernel has"
    assert EXPECTED.get(name, "") in ptx
    check_machine_code(ptx)


def check_machine_code(ptx: str) -> None:
    """The assembler has moved no access across the wait, where there is one and nothing is loaded as constant."""
    if ptxas.find() is None or ".nc" in ptx:
        return
    for instructions in machine_code(ptx).values():
        opcodes = [each.opcode for each in instructions]
        before = opcodes[: opcodes.index(ACQBULK)]
        assert opcodes.count(ACQBULK) == 1
        assert {ACCESSES[each] for each in before if each in ACCESSES} == set()
        assert any(each in ACCESSES for each in opcodes)


@pytest.mark.parametrize(
    ("change", "legal"),
    [
        ((WAIT, ""), False),
        ((WAIT, f"{WAIT}\n{WAIT}"), False),
        ((START, f"{START}\nld.global.b32 %r1, [%rd1];"), False),
        ((START, f"{START}\n@%p1 prefetch.global.L2 [%rd1+0];"), False),
        ((START, f"{START}\ncp.async.bulk.tensor.1d.shared::cluster.global [%r1], [%rd1, {{%r2}}], [%r3];"), False),
        ((START, f"{START}\n@%p1 ret;"), False),
        ((START, f"{START}\n@%p1 bra $BEHIND;"), False),
        ((START, f"$BEFORE:\n{START}\n@%p1 bra $BEFORE;"), True),
        ((START, f"{START}\nst.shared.b32 [%r1], %r2;\nld.param.b64 %rd1, [k_param_0];"), True),
    ],
)  # fmt: skip
def test_the_check_finds_what_it_looks_for(change: tuple[str, str], legal: bool) -> None:
    text = f"{START}\nmov.u32 %r1, %tid.x;\n{WAIT}\nst.global.b32 [%rd1], %r1;\n$BEHIND:\nret;"
    check_prologue(text.splitlines())
    lines = text.replace(*change).splitlines()
    if legal:
        check_prologue(lines)
    else:
        with pytest.raises(AssertionError):
            check_prologue(lines)


CONSTANTS = """builtin.module {
  tile.func @k(%a: memref<32xf32>, %c: memref<32xf32>, %b: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
    %t = simt.thread_id 0
    %x = tile.load %a[%t] strides [] : memref<32xf32> -> f32
    %y = tile.load %c[%t] strides [] : memref<32xf32> -> f32
    %z = arith.addf %x, %y : f32
    tile.store %z, %b[%t] strides [] : f32, memref<32xf32>
    tile.return
  }
  tile.main arena 256 constants 128 {
    %0 = tile.buffer "input" 0 : memref<32xf32>
    %1 = tile.buffer "constant" 0 : memref<32xf32>
    %2 = tile.buffer "arena" 0 : memref<32xf32>
    %3 = tile.buffer "output" 0 : memref<32xf32>
    tile.launch @k(%0, %1, %2) : memref<32xf32>, memref<32xf32>, memref<32xf32>
    tile.launch @k(%2, SECOND, %3) : memref<32xf32>, memref<32xf32>, memref<32xf32>
  }
}"""


@pytest.mark.parametrize(
    ("second", "disable", "around"),
    [("%1", False, [False, True]), ("%0", False, [False, False]), ("%1", True, [True, True])],
)
def test_only_constants_of_the_module_go_around_caches(second: str, disable: bool, around: list[bool]) -> None:
    """The assembler moves loads by .nc across the wait: of what other kernels write there is none.

    Without the pass all that the kernel itself does not write is loaded so.
    """
    module = parse_module(CONSTANTS.replace("SECOND", second))
    module.attributes["tile.target"] = hopper().attribute()
    run_pipeline(module, "gpu", ["overlap-launches"] if disable else [])
    (lines,) = entries(generate(module).ptx).values()
    assert [".nc." in line for line in lines if line.startswith("ld.global")] == around


def test_kernels_say_that_they_wait() -> None:
    graph, switched_off = of(GRAPHS["softmax"]), ("overlap-launches",)
    for machine, disable, waits in (("sm_90a", (), True), ("sm_90a", switched_off, False), ("sm_80", (), False)):
        module = compiled(graph, disable, machine)
        assert [kernel.waits for kernel in module.manifest.kernels] == [waits] * len(module.manifest.kernels)
        assert ("griddepcontrol" in module.artifact.code.decode()) == waits


def test_tensor_maps_come_while_a_kernel_waits() -> None:
    b = GraphBuilder()
    module = compiled(b.finish([linalg.matmul(b.input("x", (256, 256), "f16"), b.input("w", (256, 256), "f16"))]))
    (kernel,) = module.artifact.manifest.kernels
    before, behind = module.artifact.code.decode().split(WAIT)
    assert before.count("prefetch.tensormap") == len(kernel.tensor_maps) > 0
    assert "prefetch" not in behind


@pytest.mark.parametrize(("rows", "most"), [(1, 1), (132, 1), (133, 2), (300, 3), (400, None)])
def test_few_blocks_ask_for_so_much_shared_memory_that_no_more_fit(rows: int, most: int | None) -> None:
    """A multiprocessor has 228 KiB, of which each block takes one beside its own.

    The kernel itself uses no more than without the pass, which is what the emulator gives it.
    """
    b = GraphBuilder()
    graph = b.finish([reduce.reduce_sum(b.input("x", (rows, 1024), "f32"), (1,))])
    (kernel,) = compiled(graph).artifact.manifest.kernels
    assert kernel.grid[0] == rows
    (before,) = compiled(graph, ("overlap-launches",)).artifact.manifest.kernels
    assert kernel.shared_bytes == before.shared_bytes < 4096
    assert before.spare_shared_bytes == 0
    taken = kernel.launched_shared_bytes + 1024
    assert (228 << 10) // taken == most if most else kernel.spare_shared_bytes == 0


def test_kernels_with_much_shared_memory_ask_for_no_more() -> None:
    """What a block of a large tile uses keeps others out already."""
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (1024, 1024), "f16"), b.input("w", (1024, 1024), "f16"))])
    (kernel,) = compiled(graph, cluster=1).artifact.manifest.kernels
    assert kernel.shared_bytes > 114 << 10
    assert kernel.spare_shared_bytes == 0


def test_blocks_of_machines_with_less_shared_memory_ask_for_what_there_is() -> None:
    """A multiprocessor of sm_120a has 100 KiB."""
    b = GraphBuilder()
    graph = b.finish([reduce.reduce_sum(b.input("x", (8, 1024), "f32"), (1,))])
    (kernel,) = compiled(graph, machine="sm_120a").artifact.manifest.kernels
    assert (100 << 10) // (kernel.launched_shared_bytes + 1024) == 1
    assert kernel.launched_shared_bytes <= 99 << 10


@pytest.mark.parametrize("machine", ["sm_90", "sm_100a", "sm_120a"])
def test_newer_machines_wait_too(machine: str) -> None:
    ptx = compiled(of(GRAPHS["softmax"]), machine=machine).artifact.code.decode()
    for lines in entries(ptx).values():
        check_prologue(lines)


def by_hand() -> PtxCode:
    """A kernel in which the wait is written down."""
    text = """
    tile.func @k(%a: memref<32xf32>, %b: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
      %t = simt.thread_id 0
      simt.wait_for_launches
      %x = tile.load %a[%t] strides [] : memref<32xf32> -> f32
      tile.store %x, %b[%t] strides [] : f32, memref<32xf32>
      tile.return
    }"""
    module, machine = parse_module(text), resolve("sm_90a")
    assert isinstance(machine, Gpu)
    module.attributes["tile.target"] = target_for(machine).attribute()
    return generate(module)


@pytest.mark.emulator_only
def test_the_emulator_finds_a_wait_that_is_gone() -> None:
    """Moved behind the load in the text of a kernel, the wait is a diagnostic; where it was, there is none."""
    code = by_hand().ptx
    lines = code.splitlines()
    load = next(number for number, line in enumerate(lines) if "ld.global" in line)
    (wait,) = (number for number, line in enumerate(lines) if WAIT in line)
    assert wait < load
    late = [*lines[:wait], *lines[wait + 1 : load + 1], lines[wait], *lines[load + 1 :]]
    for text, kinds in ((code, []), ("\n".join(late), ["too-early"])):
        given = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        done = run(parse(text), "k", (1, 1, 1), (32, 1, 1), given)
        assert [each.kind for each in done.diagnostics] == kinds
        np.testing.assert_array_equal(*given)
