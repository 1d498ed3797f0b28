"""Products of a wave: every record of AMD has code, which calls the function that the record names."""

from __future__ import annotations

import re

import pytest

from tests.covering import FULL, chosen
from tilewright.codegen.amdgpu.pipeline import llvm_text
from tilewright.codegen.amdgpu.target import TRIPLE
from tilewright.codegen.amdgpu.tests.compile import compiled, count, kernel, targeted
from tilewright.errors import InvalidProgram
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.machine import Gpu, names, resolve

RECORDS = [record for record in standard() if record.target == "amd"]
MACHINE = {"gfx11": "gfx1100", "gfx12": "gfx1201"}


def machine_of(record: Intrinsic) -> str:
    return MACHINE.get(record.features[0], record.features[0])


def product(record: Intrinsic, machine: str, name: str = "") -> str:
    """One product on fragments that lie in memory lane after lane."""
    lines, views, types = ["%t = simt.thread_id 0"], [], []
    for letter, operand in zip("abc", record.operands, strict=True):
        assert isinstance(operand.layout, Fragment)
        count, dtype = operand.layout.elements, operand.dtype if bits(operand.dtype) != 8 else "i8"
        view = f"memref<{operand.layout.lanes * count}x{dtype}>"
        views.append(f"%{letter}: {view}")
        types.append(f"tensor<{count}x{dtype}>")
        lines += [f"%n{letter} = arith.constant {count} : index", f"%i{letter} = arith.muli %t, %n{letter} : index"]
        lines.append(f"%v{letter} = tile.load %{letter}[%i{letter}] strides [1] align 16 : {view} -> {types[-1]}")
    lines.append(f'%d = simt.mma "{name or record.name}" %va, %vb, %vc : {", ".join(types)}')
    lines.append(f"tile.store %d, %c[%ic] strides [1] align 16 : {types[2]}, {views[2].split(': ')[1]}")
    return kernel("\n".join(lines), ", ".join(views), machine)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_every_record_has_code(record: Intrinsic) -> None:
    machine = machine_of(record)
    text = product(record, machine)
    called = set(re.findall(r"@\"?(llvm\.amdgcn\.w?mf?ma[\w.]*)", llvm_text(targeted(text, machine))))
    by = standard().find(record.realised_by) if record.realised_by else record
    assert called == {by.llvm}
    found = {name: number for name, number in count(compiled(text, machine)).items() if re.match("v_w?mf?ma", name)}
    (number,) = found.values()
    assert number == record.extents["r1"] // by.extents["r1"]


def test_refused() -> None:
    record = standard().find("wmmar3_16x16x16_f16_f32")
    with pytest.raises(InvalidProgram, match="kernel k: gfx1201 has no wmmar3_16x16x16_f16_f32"):
        compiled(product(record, "gfx1201"), "gfx1201")
    with pytest.raises(InvalidProgram, match="no code for the intrinsic 'mma_m16n8k16_f16_f32'"):
        compiled(product(record, "gfx1100", "mma_m16n8k16_f16_f32"))
    with pytest.raises(InvalidProgram, match=r"fragments of \(16, 16, 8\) elements of a, b, c; the record has \(8"):
        compiled(product(record, "gfx1201", "wmmar4_16x16x16_f16_f32"), "gfx1201")


def _listed() -> list[tuple[str, str]]:
    machines = [machine for machine in map(resolve, names()) if isinstance(machine, Gpu)]
    listed = [(each.name, name) for each in machines if each.llvm.triple == TRIPLE for name in each.intrinsics]
    return listed if FULL else [listed[number] for number in chosen(listed, strength=1)]


@pytest.mark.parametrize(("machine", "name"), _listed())
def test_every_machine_has_code_for_what_it_lists(machine: str, name: str) -> None:
    text = product(standard().find(name), machine)
    assert any(re.match("v_w?mf?ma", found) for found in count(compiled(text, machine)))


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("gfx908", "mfma_16x16x16_bf16_f32"), ("gfx908", "mfma_16x16x4_f64_f64"), ("gfx90a", "mfma_16x16x32_s8_s32"),
        ("gfx90a", "mfma_16x16x32_f8e4m3fnuz_f32"), ("gfx942", "mfma_16x16x16_s8_s32"),
        ("gfx950", "mfma_16x16x8_bf16_f32"), ("gfx1100", "mfma_16x16x16_f16_f32"),
        ("gfx1201", "wmmar3_16x16x16_f16_f32"),
    ],
)  # fmt: skip
def test_instructions_of_other_processors_are_refused(machine: str, name: str) -> None:
    """LLVM would end the process."""
    with pytest.raises(InvalidProgram, match=f"{machine} has no {name}"):
        compiled(product(standard().find(name), machine), machine)


@pytest.mark.parametrize("name", ["mfma_16x16x32_f8e4m3fnuz_f32", "vmfma_32x32x16_f8e4m3fnuz_f32"])
def test_formats_of_another_processor_are_refused(name: str) -> None:
    """CDNA 4 reads the same bits as other numbers."""
    text = product(standard().find(name), "gfx942")
    compiled(text, "gfx942")
    with pytest.raises(InvalidProgram, match=f"gfx950 has no {name}"):
        compiled(text, "gfx950")
