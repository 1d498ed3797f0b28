"""Records that a user writes: instructions of known families under any name, from a file to code that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

import tilewright
from tilewright.compiler import gpu
from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.test_gpu_products import Array, arrays_of, check, graph_of, product, products, ptx
from tilewright.errors import InvalidProgram
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.intrinsics import Intrinsic, Registry, load_records, standard
from tilewright.intrinsics.composite import family
from tilewright.intrinsics.files import to_json
from tilewright.kernel.dialect import DotOp
from tilewright.kernel.records import RECORDS, record_of
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.detect import host
from tilewright.machine.reading import FILES
from tilewright.options import Options
from tilewright.runtime.module import Module


def records(folder: Path, original: str, name: str, **changes: Any) -> Registry:
    """The catalogue with a copy of a record under another name, read from a file as a user would write it."""
    fields = {**to_json(standard().find(original)), "name": name, "aliases": [], **changes}
    file = folder / "records.yaml"
    file.write_text(json.dumps({"intrinsics": [fields]}))  # JSON is YAML
    return standard().add(*load_records(file))


def machine(folder: Path, usual: str, original: str, name: str) -> str:
    """A machine file that lists a record in place of another."""
    text = (FILES / f"{usual}.yaml").read_text()
    assert original in text
    file = folder / "machine.yaml"
    file.write_text(text.replace(original, name))
    return str(file)


@pytest.mark.parametrize(
    ("usual", "original", "dtype", "sizes", "calls"),
    [
        ("sm_80", "mma_m16n8k16_f16_f32", "f16", (33, 40, 48), "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ("sm_80", "mma_m16n8k32_s8_s32", "i8", (17, 9, 70), "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"),
        (
            "sm_90a",
            "wgmma_m64n64k16_f16_f32",
            "f16",
            (64, 64, 64),
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16",
        ),
    ],
)
def test_a_record_under_any_name_runs_on_a_gpu(
    tmp_path: Path, usual: str, original: str, dtype: str, sizes: tuple[int, int, int], calls: str
) -> None:
    """Compiled to PTX, run by the emulator, compared with the evaluator."""
    registry = records(tmp_path, original, "my_tile_product")
    mine = Registry([registry.find("my_tile_product")])
    where = machine(tmp_path, usual, original, "my_tile_product")
    module = check(product(dtype, sizes, epilogue="bias"), where, intrinsics=mine)
    assert products(module)[0]["instruction"] == "my_tile_product"
    assert calls in ptx(module)


def test_a_program_carries_the_records_of_a_user(tmp_path: Path) -> None:
    """The text is all that code generation needs: printed and read again, it gives the same PTX."""
    registry = records(tmp_path, "mma_m16n8k16_f16_f32", "my_tile_product")
    program = tile_program(tmp_path, Registry([registry.find("my_tile_product")]))
    text = print_module(program)
    assert RECORDS in text
    again = parse_module(text)
    dot = next(op for op in again.walk() if isinstance(op, DotOp))
    assert record_of(dot) == registry.find("my_tile_product")
    options = Options(cache=False)
    assert gpu.form(again, "ptx", options) == gpu.form(program, "ptx", options)


def test_records_of_the_catalogue_are_not_carried() -> None:
    program = tile_program(None, standard())
    assert RECORDS not in program.attributes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "tile.records: is not JSON"),
        ('{"intrinsics": [{"name": "my_tile_product"}]}', r"tile\.records: intrinsics\.0\.target is missing"),
    ],
)
def test_carried_records_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    program = tile_program(None, standard())
    program.attributes[RECORDS] = StringAttr(text)
    with pytest.raises(InvalidProgram, match=message):
        gpu.form(program, "ptx", Options(cache=False))


def test_a_function_that_llvm_does_not_have_is_refused(tmp_path: Path) -> None:
    llvm = "llvm.nvvm.mma.m16n8k99.row.col.f32.f32"
    registry = records(tmp_path, "mma_m16n8k16_f16_f32", "my_tile_product", llvm=llvm)
    program = tile_program(tmp_path, Registry([registry.find("my_tile_product")]))
    with pytest.raises(InvalidProgram, match=f"LLVM has no function {llvm}"):
        gpu.form(program, "ptx", Options(cache=False))


def tile_program(folder: Path | None, registry: Registry) -> ModuleOp:
    """A product for sm_80 as a tile program; in a folder, the machine lists `my_tile_product`."""
    where = "sm_80" if folder is None else machine(folder, "sm_80", "mma_m16n8k16_f16_f32", "my_tile_product")
    target = resolve_target(where)
    assert isinstance(target, Gpu)
    plan = plan_graph(graph_of(product("f16", (33, 40, 48))), target, 1, Options(cache=False, intrinsics=registry))
    return gpu.tile_program(plan, Placement(plan), target)


# CPUs -----------------------------------------------------------------------------------------------------------------

WORDS = {
    "name": "my_pairs", "target": "x86", "compute": "Dst[i] += Src1[r] * Src2[i, r]", "extents": {"i": 16, "r": 2},
    "operands": [
        {"role": "Src1", "dtype": "i16", "loops": ["r"], "layout": "r"},
        {"role": "Src2", "dtype": "i16", "loops": ["i", "r"], "layout": "2 * i + r"},
        {"role": "Dst", "dtype": "i32", "loops": ["i"], "layout": "i"},
    ],
    "memory": [
        {"name": "lda", "operand": "Src1", "destination": "reg", "source": "mem", "address": "addr_a + r",
         "via": "broadcast of 4 bytes", "alignment_bytes": 4},
        {"name": "ldb", "operand": "Src2", "destination": "reg", "source": "mem", "address": "addr_b + 2 * i + r"},
        {"name": "stc", "operand": "Dst", "destination": "mem", "source": "reg", "address": "addr_c + i"},
    ],
    "numerics": {"order": "fixed"}, "cost": {"issue_cycles": 0.5, "latency_cycles": 5}, "features": ["avx512vnni"],
    "llvm": "llvm.x86.avx512.vpdpwssd.512", "emitter": "words", "source": "Intel SDM vol. 2, VPDPWSSD",
}  # fmt: skip


def on_this_cpu(record: Intrinsic, *dtypes: str) -> tuple[Module, Array, Array]:
    """A product that only the record and outer products of it may execute; the result, and the evaluator's."""
    if not set(record.features) <= set(host().features):
        pytest.skip(f"this machine lacks {', '.join(record.features)}")
    b = GraphBuilder()
    x, w = b.input("x", (37, 45), dtypes[0]), b.input("w", (45, 50), dtypes[1])
    wide: dict[str, Any] = {} if dtypes[0] == "f32" else {"accumulate": "i32", "out_dtype": "i32"}
    graph = b.finish([linalg.matmul(x, w, **wide)])
    mine = Registry([*family(record, 32), record])
    module = tilewright.compile(graph, threads=1, options=Options(cache=False, verify_each=True, intrinsics=mine))
    arrays = arrays_of(graph, np.random.default_rng(0))
    assert f"on {record.name}" in module.explain(all=True)
    return module, module(*arrays), evaluate(graph, arrays)[0]


def test_an_instruction_that_the_catalogue_lacks_runs_on_a_cpu(tmp_path: Path) -> None:
    """One file is all that it takes: pairs of 16 bits, for which no record of the catalogue has an instruction."""
    file = tmp_path / "records.json"
    file.write_text(json.dumps({"intrinsics": [WORDS]}))
    (record,) = load_records(file)
    module, found, wanted = on_this_cpu(record, "i16", "i16")
    assert (found == wanted).all()
    assert "my_pairs" in module.artifact.program
    assert b"vpdpwssd" not in module.artifact.code  # an instruction, no call


@pytest.mark.parametrize(
    ("original", "dtypes"), [("vpdpbusd_16x4_u8s8_s32", ("u8", "i8")), ("fma_16_f32_f32", ("f32", "f32"))]
)
def test_a_record_under_any_name_runs_on_a_cpu(tmp_path: Path, original: str, dtypes: tuple[str, str]) -> None:
    record = records(tmp_path, original, "my_product").find("my_product")
    module, found, wanted = on_this_cpu(record, *dtypes)
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert 'tile.dot "my_product"' in module.artifact.program


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llvm": ""}, "my_pairs multiplies no words of 32 bits"),
        ({"llvm": "llvm.x86.avx512.vpdpwssd"}, "LLVM has no function llvm.x86.avx512.vpdpwssd"),
        ({"llvm": "llvm.x86.avx512.vpdpnothing.512"}, "LLVM has no function llvm.x86.avx512.vpdpnothing.512"),
        ({"emitter": "numbers"}, "no emitter 'numbers' on this target, which my_pairs names"),
    ],
)
def test_records_without_code_are_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    file = tmp_path / "records.json"
    file.write_text(json.dumps({"intrinsics": [WORDS | changes]}))
    (record,) = load_records(file)
    with pytest.raises(InvalidProgram, match=message):
        on_this_cpu(record, "i16", "i16")
