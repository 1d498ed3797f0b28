"""The LLVM functions that records name, called with registers as the fragments say, become the instructions."""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm
import pytest

from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic, Operand
from tilewright.intrinsics.registry import standard

TARGETS = {
    "sm": ("nvptx64-nvidia-cuda", "sm_90a", "+ptx86"),
    "gfx11": ("amdgcn-amd-amdhsa", "gfx1100", "+wavefrontsize32"),
    "gfx12": ("amdgcn-amd-amdhsa", "gfx1201", "+wavefrontsize32"),
    **{name: ("amdgcn-amd-amdhsa", name, "") for name in ("gfx908", "gfx90a", "gfx942")},
}
SCALARS = {"f32": "float", "f64": "double", "f16": "half", "i32": "i32", "tf32": "i32"}


@cache
def assembly(target: str, text: str) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, features = TARGETS[target]
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features)
    return str(machine.emit_assembly(module))


def function(record: Intrinsic, result: str, arguments: list[str]) -> str:
    """A module that calls the function once; arguments `i1` and `i32 0` are constants."""
    types = [argument.split()[0] if argument.startswith("i32 0") else argument for argument in arguments]
    loads, values = [], []
    for number, (argument, kind) in enumerate(zip(arguments, types, strict=True)):
        if argument in ("i1", "i32 0"):
            values.append(f"{kind} 0")
        else:
            loads.append(f"%p{number} = getelementptr i8, ptr addrspace(1) %p, i64 {number * 64}")
            loads.append(f"%v{number} = load {kind}, ptr addrspace(1) %p{number}, align 4")
            values.append(f"{kind} %v{number}")
    body = "\n".join(loads)
    return (
        f"declare {result} @{record.llvm}({', '.join(types)})\n"
        f"define void @run(ptr addrspace(1) %p) {{\n{body}\n%d = call {result} @{record.llvm}({', '.join(values)})\n"
        f"store {result} %d, ptr addrspace(1) %p, align 4\nret void\n}}\n"
    )


def elements(operand: Operand) -> int:
    assert isinstance(operand.layout, Fragment)
    return operand.layout.elements


def registers(operand: Operand) -> list[str]:
    """The registers of a lane as NVVM passes them: half2, words, or single numbers."""
    count = elements(operand) * bits(operand.dtype)
    if operand.dtype == "f16":
        return ["<2 x half>"] * (count // 32)
    if operand.dtype in ("f32", "f64"):
        return [SCALARS[operand.dtype]] * elements(operand)
    return ["i32"] * max(1, count // 32)


def named(prefix: str) -> list[Intrinsic]:
    return [record for record in standard() if record.name.startswith(prefix) and record.llvm]


def ptx_type(dtype: str) -> str:
    return {"i8": "s8", "u8": "u8", "i32": "s32"}.get(dtype, dtype.removeprefix("f8").removesuffix("fn"))


@pytest.mark.parametrize("record", named("mma_"), ids=lambda record: record.name)
def test_mma_sync(record: Intrinsic) -> None:
    a, b, c = record.operands
    result = registers(c)
    text = function(record, f"{{{', '.join(result)}}}", [*registers(a), *registers(b), *result])
    m, n, k = record.extents.values()
    types = ".".join(ptx_type(operand.dtype) for operand in (c, a, b, c))
    satfinite = r"\.satfinite" if record.numerics.saturate else ""
    found = re.search(
        rf"mma\.sync\.aligned\.m{m}n{n}k{k}\.row\.col{satfinite}\.{types}\s*({{[^;]*}});", assembly("sm", text)
    )
    assert found, assembly("sm", text)
    sizes = [len(group.split(",")) for group in re.findall(r"\{([^}]*)\}", found[1])]
    assert sizes == [len(registers(c)), len(registers(a)), len(registers(b)), len(registers(c))]
    assert record.limits.registers == sum(elements(o) * bits(o.dtype) // 32 for o in record.operands)


def amd_vector(operand: Operand, count: int) -> str:
    dtype = operand.dtype
    if bits(dtype) == 8:
        if operand.layout.lanes == 64:  # type: ignore[union-attr]
            return f"i{8 * count}"
        return f"<{count // 4} x i32>"
    scalar = "i16" if dtype == "bf16" else SCALARS[dtype]
    return scalar if count == 1 else f"<{count} x {scalar}>"


@pytest.mark.parametrize("record", named("mfma_"), ids=lambda record: record.name)
def test_mfma(record: Intrinsic) -> None:
    a, b, c = (amd_vector(operand, elements(operand)) for operand in record.operands)
    text = function(record, c, [a, b, c, "i32 0", "i32 0", "i32 0"])
    m, n, k = record.extents.values()
    assert re.search(rf"v_mfma_\w+_{m}x{n}x{k}_?[a-z]", assembly(record.features[0], text))


@pytest.mark.parametrize("record", [*named("wmmar3_"), *named("wmmar4_")], ids=lambda record: record.name)
def test_wmma_of_rdna(record: Intrinsic) -> None:
    a, b, c = record.operands
    generation = record.features[0]
    # RDNA 3 stores one 16-bit result per register; the function passes both halves.
    wide = 2 if generation == "gfx11" and bits(c.dtype) == 16 else 1
    result = amd_vector(c, elements(c) * wide)
    arguments = [amd_vector(a, elements(a)), amd_vector(b, elements(b)), result]
    if a.dtype == "i8":
        arguments = ["i1", arguments[0], "i1", arguments[1], arguments[2], "i1"]
    elif bits(c.dtype) == 16:
        arguments.append("i1")
    assert "v_wmma_" in assembly(generation, function(record, result, arguments))
