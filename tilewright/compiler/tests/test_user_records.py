"""Records that a user writes: instructions of known families under any name, from a file to code that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

from tilewright.compiler import gpu
from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.test_gpu_products import check, graph_of, product, products, ptx
from tilewright.errors import InvalidProgram
from tilewright.intrinsics import Registry, load_records, standard
from tilewright.intrinsics.files import to_json
from tilewright.kernel.dialect import DotOp
from tilewright.kernel.records import RECORDS, record_of
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.reading import FILES
from tilewright.options import Options


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
        ('{"intrinsics": [{"name": "my_tile_product"}]}', "tile.records: intrinsics.0 lacks 'target'"),
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
    return gpu.gpu_program(plan, Placement(plan), target)
