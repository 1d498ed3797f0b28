"""`execute` against Arm's dot products, run by qemu-user where it is installed, bit for bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.codegen.cpu.tests.emulate import missing, run_aarch64
from tilewright.intrinsics.elements import storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")

CALLS = 200


def code(record: Intrinsic) -> bytes:
    """An object whose `tw_main` runs the instruction CALLS times, on vectors that follow each other."""
    by_element = "shufflevector <4 x i32> %bw, <4 x i32> undef, <4 x i32> <i32 2, i32 2, i32 2, i32 2>"
    word = by_element if len(record.sources[1].loops) == 1 else "add <4 x i32> %bw, zeroinitializer"
    text = f"""target triple = "aarch64-unknown-linux-gnu"
declare <4 x i32> @{record.llvm}(<4 x i32>, <16 x i8>, <16 x i8>)
define i32 @tw_main(ptr %call) {{
entry:
  %inputs = load ptr, ptr %call
  %place = getelementptr ptr, ptr %call, i64 1
  %outputs = load ptr, ptr %place
  %a = load ptr, ptr %inputs
  %pb = getelementptr ptr, ptr %inputs, i64 1
  %b = load ptr, ptr %pb
  %pc = getelementptr ptr, ptr %inputs, i64 2
  %c = load ptr, ptr %pc
  %d = load ptr, ptr %outputs
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %ai = getelementptr <4 x i32>, ptr %a, i64 %i
  %bi = getelementptr <4 x i32>, ptr %b, i64 %i
  %ci = getelementptr <4 x i32>, ptr %c, i64 %i
  %di = getelementptr <4 x i32>, ptr %d, i64 %i
  %av = load <16 x i8>, ptr %ai
  %bw = load <4 x i32>, ptr %bi
  %cv = load <4 x i32>, ptr %ci
  %word = {word}
  %bv = bitcast <4 x i32> %word to <16 x i8>
  %dv = call <4 x i32> @{record.llvm}(<4 x i32> %cv, <16 x i8> {"%av, <16 x i8> %bv"})
  store <4 x i32> %dv, ptr %di
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {CALLS}
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        features="+neon,+dotprod,+i8mm", reloc="static", codemodel="small"
    )
    module = llvm.parse_assembly(text)
    module.verify()
    name = record.llvm.split(".")[3]
    assert f"\t{name}\t" in machine.emit_assembly(module)
    return bytes(machine.emit_object(module))


@pytest.mark.parametrize("record", [r for r in standard() if "dot.v4i32" in r.llvm], ids=lambda record: record.name)
def test_execute_is_what_the_instruction_does(record: Intrinsic, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (
        np.frombuffer(random.bytes(16 * CALLS), storage(operand.dtype)).reshape(CALLS, 4, 4)
        for operand in record.sources
    )
    c = np.frombuffer(random.bytes(16 * CALLS), np.int32).reshape(CALLS, 4)
    made = SimpleNamespace(code=code(record), arena_bytes=0, scratch_bytes=0)
    (expected,) = run_aarch64(made, [a, b, c], [np.zeros_like(c)], tmp_path)  # type: ignore[arg-type]
    second = b[:, 2] if len(record.sources[1].loops) == 1 else b
    np.testing.assert_array_equal(execute(record, c, a, second), expected)
