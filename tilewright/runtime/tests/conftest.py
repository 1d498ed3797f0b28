"""Objects made by hand against the binary interface, so that these tests need no other package."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.expr.dtypes import numpy_dtype
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.loader import host_triple
from tilewright.runtime.manifest import Manifest

# c[i] = a[i] + b[i] + offset, one element per program; the offset is the only constant. Thread t counts its programs
# in its scratch space, of 64 bytes; the arena is written with the number of programs.
ADD_IR = """
target triple = "{triple}"
declare i64 @llvm.{counter}()
define void @add(ptr %call, i64 %thread, i64 %begin, i64 %end) {{
entry:
  %inputs = load ptr, ptr %call
  %a = load ptr, ptr %inputs
  %b_at = getelementptr ptr, ptr %inputs, i64 1
  %b = load ptr, ptr %b_at
  %outputs_at = getelementptr ptr, ptr %call, i64 1
  %outputs = load ptr, ptr %outputs_at
  %c = load ptr, ptr %outputs
  %constants_at = getelementptr ptr, ptr %call, i64 2
  %constants = load ptr, ptr %constants_at
  %offset = load {type}, ptr %constants
  %scratch_at = getelementptr ptr, ptr %call, i64 4
  %scratch = load ptr, ptr %scratch_at
  %mine = mul i64 %thread, 8
  %counter = getelementptr i64, ptr %scratch, i64 %mine
  %count = load i64, ptr %counter
  %programs = sub i64 %end, %begin
  %new_count = add i64 %count, %programs
  store i64 %new_count, ptr %counter
  br label %next
next:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %next ]
  %a_at = getelementptr {type}, ptr %a, i64 %i
  %a_is = load {type}, ptr %a_at
  %b_item = getelementptr {type}, ptr %b, i64 %i
  %b_is = load {type}, ptr %b_item
  %sum = {add} {type} %a_is, %b_is
  %total = {add} {type} %sum, %offset
  %c_at = getelementptr {type}, ptr %c, i64 %i
  store {type} %total, ptr %c_at
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %end
  br i1 %more, label %next, label %done
done:
  ret void
}}

define i32 @tw_main(ptr %call) {{
entry:
  %parallel_at = getelementptr ptr, ptr %call, i64 5
  %parallel = load ptr, ptr %parallel_at
  %pool_at = getelementptr ptr, ptr %call, i64 6
  %pool = load ptr, ptr %pool_at
  %profile_at = getelementptr ptr, ptr %call, i64 7
  %profile = load ptr, ptr %profile_at
  %start = call i64 @llvm.{counter}()
  %profiling = icmp ne ptr %profile, null
  br i1 %profiling, label %stamp_start, label %launch
stamp_start:
  store i64 %start, ptr %profile
  br label %launch
launch:
  call void %parallel(ptr %pool, ptr @add, ptr %call, i64 {programs})
  br i1 %profiling, label %stamp, label %done
stamp:
  %end = call i64 @llvm.{counter}()
  %end_at = getelementptr i64, ptr %profile, i64 1
  store i64 %end, ptr %end_at
  br label %done
done:
  ret i32 {status}
}}
"""
COUNTER = {"x86_64": "readcyclecounter", "aarch64": "readsteadycounter"}.get(platform.machine(), "readcyclecounter")


def compile_object(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(host_triple()).create_target_machine(opt=2, reloc="pic", codemodel="small")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


def add_artifact(
    shape: tuple[int, ...] = (1000,), dtype: str = "f32", offset: float = 0.5, status: int = 0, **changes: Any
) -> Artifact:
    """A module of one kernel; `changes` replace fields of its manifest.

    Types of 16 bits are combined bit by bit, since not every machine adds them.
    """
    kind, adding = {"f32": ("float", "fadd"), "f64": ("double", "fadd"), "i8": ("i8", "add")}.get(dtype, ("i16", "xor"))
    programs = int(np.prod(shape))
    code = compile_object(
        ADD_IR.format(triple=host_triple(), type=kind, add=adding, programs=programs, status=status, counter=COUNTER)
    )
    constants = np.frombuffer(np.array([offset], numpy_dtype(dtype)).tobytes(), np.uint8)
    tensor = {"dtype": dtype, "shape": list(shape)}
    manifest = {
        "name": "add",
        "inputs": [{"name": "a", **tensor}, {"name": "b", **tensor}],
        "outputs": [{"name": "c", **tensor}],
        "constants_bytes": constants.size,
        "arena_bytes": 128,
        "scratch_bytes": 64,
        "launches": [{"name": "c", "kernel": "add", "programs": programs, "flops": 2 * programs, "bytes": 4000}],
        "features": [],
        "triple": host_triple(),
        **changes,
    }
    plan = {"decisions": [{"subject": "add", "chosen": "one element per program", "reason": "it is a test"}]}
    return Artifact(Manifest.from_json(manifest), code, constants, "tile text", '{"computes": []}', json.dumps(plan))


@pytest.fixture(name="add_artifact", scope="session")
def _add_artifact() -> Callable[..., Artifact]:
    return add_artifact
