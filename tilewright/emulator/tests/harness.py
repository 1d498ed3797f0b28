"""For tests of the emulator: kernels written down as bodies, and the stored kernels of other compilers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilewright import emulator
from tilewright.emulator import Result, TensorMap, parse

STORED = Path(__file__).parent / "ptx"

_REGISTERS = """
    .reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<64>; .reg .f32 %f<32>; .reg .b64 %rd<32>; .reg .f64 %fd<16>;
"""


def stored(name: str) -> str:
    """The text of a kernel that another compiler emitted."""
    return (STORED / f"{name}.ptx").read_text()


def kernel(body: str, parameters: int = 2, target: str = "sm_80", before: str = "") -> str:
    """A kernel `k` with pointers `p0`, … and registers of every kind; `%rd0` and `%rd1` are the first two pointers.

    `%r0` is the thread, `%rd2` and `%rd3` the addresses of its own 4 bytes in the first two buffers.
    """
    declared = ", ".join(f".param .u64 p{number}" for number in range(parameters))
    loads = "\n".join(f"ld.param.u64 %rd{number}, [p{number}];" for number in range(min(parameters, 2)))
    return f"""
.version 8.5
.target {target}
.address_size 64
{before}
.visible .entry k({declared})
{{
{_REGISTERS}
{loads}
mov.u32 %r0, %tid.x;
mul.wide.u32 %rd4, %r0, 4;
add.s64 %rd2, %rd0, %rd4;
add.s64 %rd3, %rd1, %rd4;
{body}
ret;
}}
"""


def execute(body: str, *args: Any, threads: int = 32, blocks: int = 1, shared: int = 0, **options: Any) -> Result:
    """Runs a body in one row of threads. Tensor maps are in memory that the host wrote: the body acquires them."""
    maps = [number for number, argument in enumerate(args[:2]) if isinstance(argument, TensorMap)]
    acquire = "".join(f"fence.proxy.tensormap::generic.acquire.sys [%rd{number}], 128;\n" for number in maps)
    text = kernel(acquire + body, max(2, len(args)), options.pop("target", "sm_80"), options.pop("before", ""))
    return emulator.run(parse(text), "k", (blocks, 1, 1), (threads, 1, 1), list(args), shared, **options)


def kinds(result: Result) -> list[str]:
    return sorted(diagnostic.kind for diagnostic in result.diagnostics)


def unary(opcode: str, values: np.ndarray[Any, Any], result: Any, *, extra: str = "") -> np.ndarray[Any, Any]:
    """``opcode d, a`` on each value; types by NumPy."""
    return apply(opcode, [values], result, extra)


def apply(
    opcode: str, columns: list[np.ndarray[Any, Any]], result: Any, extra: str = "", target: str = "sm_80"
) -> np.ndarray[Any, Any]:
    """``opcode d, a, b, …`` on each row of values, one thread per row; `extra` are further operands."""
    count = len(columns[0])
    found = np.zeros(count, result)
    loads, names = [], []
    for number, column in enumerate(columns):
        bits = 8 * column.dtype.itemsize
        name = f"%v{number}"
        loads.append(
            f".reg .b{max(16, bits)} {name}; ld.param.u64 %rd8, [p{number}]; "
            f"mad.wide.u32 %rd8, %r1, {bits // 8}, %rd8; ld.global.b{bits} {name}, [%rd8];"
        )
        names.append(name)
    bits = 8 * found.dtype.itemsize
    body = f"""
    mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 128, %r0;
    setp.ge.u32 %p1, %r1, {count}; @%p1 bra DONE;
    {" ".join(loads)}
    .reg .b{max(16, bits)} %d;
    {opcode} %d, {", ".join(names)}{extra};
    ld.param.u64 %rd9, [p{len(columns)}]; mad.wide.u32 %rd9, %r1, {bits // 8}, %rd9;
    st.global.b{bits} [%rd9], %d;
    DONE:
    """
    columns = [np.ascontiguousarray(column) for column in columns]
    text = kernel(body, len(columns) + 1, target)
    outcome = emulator.run(parse(text), "k", (-(-count // 128), 1, 1), (128, 1, 1), [*columns, found])
    assert not outcome.diagnostics, [str(diagnostic) for diagnostic in outcome.diagnostics]
    return found


SHARED = ".shared .align 16 .b8 s[512];"
MINE = "shl.b32 %r1, %r0, 2; mov.u32 %r2, s; add.u32 %r3, %r2, %r1;"  # %r3: the thread's own word of s
NEXT = "add.u32 %r4, %r0, 1; and.b32 %r4, %r4, 63; shl.b32 %r4, %r4, 2; add.u32 %r4, %r2, %r4;"  # its neighbour's


def buffers(count: int = 64) -> list[np.ndarray]:
    """An input of so many numbers and an output of zeros."""
    return [np.arange(count, dtype=np.uint32), np.zeros(count, np.uint32)]


def run64(body: str, **options: object) -> tuple[list[str], list[np.ndarray]]:
    """The kinds of diagnostics of 64 threads that share `s`, and their buffers."""
    arrays = buffers()
    result = execute(body, *arrays, threads=64, before=SHARED, **options)
    return kinds(result), arrays
