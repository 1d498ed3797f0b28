"""Gathers whose offsets are counted, not read: the accesses of a view, at sizes that no tile divides."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import Target
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module
from tilewright.runtime import emulated

RNG = np.random.default_rng(0)
DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i8": np.int8}


def program(body: str, size: int, type_: str, grid: int, places: int = 0) -> str:
    return f"""builtin.module {{
      tile.func @k(%a: memref<{size}x{type_}>, %b: memref<{places or size}x{type_}>, %n: memref<4xi64>) grid [{grid}] {{
        %p = tile.program_id 0
        {body}
        tile.return
      }}
    }}"""


def vector(elements: int, type_: str, size: int, start: int = 0, known: bool = True) -> str:
    """Elements of a block side by side, those behind the last one masked; the number of them constant, or read."""
    count = (
        f"%last = arith.constant {size} : i64"
        if known
        else """%at = arith.constant 0 : index
        %last = tile.load %n[%at] strides [] : memref<4xi64> -> i64"""
    )
    offsets, flags, data = f"tensor<{elements}xi64>", f"tensor<{elements}xi1>", f"tensor<{elements}x{type_}>"
    return f"""{count}
        %width = arith.constant {elements} : index
        %start = arith.constant {start} : index
        %first = arith.muli %p, %width : index
        %begin = arith.addi %first, %start : index
        %o = arith.index_cast %begin : index to i64
        %i = tile.iota 0 : {offsets}
        %s = tile.broadcast %o : i64 -> {offsets}
        %t = arith.addi %i, %s : {offsets}
        %e = tile.broadcast %last : i64 -> {offsets}
        %m = tile.compare "lt" %t, %e : {offsets} -> {flags}
        %x = tile.gather %a[%t : {offsets}] mask %m : {flags} : memref<{size}x{type_}> -> {data}
        tile.store %x, %b[%begin] mask %m : {flags} strides [1] : {data}, memref<{size}x{type_}>"""


def matrix(rows: int, columns: int, step: int, type_: str, size: int, turned: bool = False) -> str:
    """Rows `step` elements apart, or columns, in a loop whose trips carry the offsets on."""
    fast, slow = (0, 1) if turned else (1, 0)
    extents, own, other = f"{rows}x{columns}", ["1", "1"], ["1", "1"]
    own[fast], other[slow] = str((rows, columns)[fast]), str((rows, columns)[slow])
    data, flags = f"tensor<{extents}x{type_}>", f"tensor<{extents}xi1>"
    o, thin, flat = f"tensor<{extents}xi64>", f"tensor<{'x'.join(own)}xi64>", f"tensor<{'x'.join(other)}xi64>"
    jump = (rows, columns)[slow] * step
    return f"""%f = tile.iota {fast} : {thin}
        %r = tile.iota {slow} : {flat}
        %w = arith.constant dense<{step}> : {flat}
        %v = arith.muli %r, %w : {flat}
        %c = tile.broadcast %f : {thin} -> {o}
        %d = tile.broadcast %v : {flat} -> {o}
        %t = arith.addi %c, %d : {o}
        %j = arith.constant dense<{jump}> : {o}
        %e = arith.constant dense<{size}> : {o}
        %low = arith.constant 0 : index
        %high = arith.constant 3 : index
        %one = arith.constant 1 : index
        %room = arith.constant {rows * columns} : index
        %end = scf.for %trip = %low to %high step %one iter_args(%q = %t) -> ({o}) {{
          %m = tile.compare "lt" %q, %e : {o} -> {flags}
          %x = tile.gather %a[%q : {o}] mask %m : {flags} : memref<{size}x{type_}> -> {data}
          %place = arith.muli %trip, %room : index
          tile.store %x, %b[%place] strides [{columns}, 1] : {data}, memref<{3 * rows * columns}x{type_}>
          %u = arith.addi %q, %j : {o}
          scf.yield %u : {o}
        }}"""


def ran(text: str, arrays: list[np.ndarray[Any, Any]]) -> tuple[str, Any]:
    """The PTX and the counts of a run without diagnostics that gives what the interpreter gives on whole tiles."""
    wanted, found = ([array.copy() for array in arrays] for _ in range(2))
    run_kernel(parse_module(text), "k", wanted)
    module = parse_module(text)
    module.attributes["tile.target"] = Target("sm_80", ("ptx80",)).attribute()
    run_pipeline(module, "gpu", (), verify_each=True)
    code = generate(module)
    run = emulated.run_kernel(code, "k", found)
    assert run.diagnostics == []
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(other, one)
    ((_, counts),) = run.counts
    return code.ptx, counts


def arrays(size: int, type_: str, places: int = 0, last: int = 0) -> list[np.ndarray[Any, Any]]:
    dtype = DTYPES[type_]
    return [RNG.integers(-100, 100, size).astype(dtype), np.zeros(places or size, dtype), np.full(4, last)]


def loads(ptx: str) -> set[str]:
    """The kinds of accesses to %a, reads of %n aside."""
    return {kind for kind in re.findall(r"ld\.global(?:\.nc)?\.(\S+)", ptx) if kind != "b64"}


@pytest.mark.parametrize("type_", ["f16", "f32", "i8"])
def test_counted_offsets_are_16_bytes_per_access_and_stay_where_they_are(type_: str) -> None:
    size = 4096
    ptx, counts = ran(program(vector(2048, type_, size), size, type_, 2), arrays(size, type_))
    assert loads(ptx) == {"v4.b32"}
    assert "st.global.v4.b32" in ptx
    assert "bar.sync" not in ptx  # the store takes them as they are
    assert counts.total("global", "transactions") == counts.total("global", "fewest")


@pytest.mark.covering(1)
@pytest.mark.parametrize("known", [True, False], ids=["constant", "read"])
@pytest.mark.parametrize("size", [1, 1000, 1001, 1024])
def test_ragged_ends(size: int, known: bool) -> None:
    ptx, _ = ran(program(vector(512, "f32", size, known=known), size, "f32", 2), arrays(size, "f32", last=size))
    assert "v4.b32" in loads(ptx) or (known and size == 1)  # whose other places LLVM sees to be empty
    assert ("b32" in loads(ptx)) == (not known or size % 4 > 0)  # else one mask serves four elements


def test_what_begins_anywhere_is_read_element_by_element() -> None:
    size = 1003
    ptx, _ = ran(program(vector(512, "f32", size, start=3), size, "f32", 2), arrays(size, "f32"))
    assert loads(ptx) == {"b32"}
    text = program(vector(512, "f16", 1002, start=2), 1002, "f16", 2)
    assert "b32" in loads(ran(text, arrays(1002, "f16"))[0])  # two halves


@pytest.mark.covering(1)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("step", "kinds"), [(64, {"v4.b32"}), (72, {"v4.b32"}), (68, {"v2.b32"}), (67, {"b16"})])
def test_offsets_that_go_round_a_loop(step: int, kinds: set[str], turned: bool) -> None:
    rows, columns = (64, 16) if turned else (16, 64)
    size = 3 * 16 * step - 16  # the last row is not whole, but a multiple of 16
    text = program(matrix(rows, columns, step, "f16", size, turned), size, "f16", 1, 3 * rows * columns)
    ptx, counts = ran(text, arrays(size, "f16", 3 * rows * columns))
    assert kinds <= loads(ptx)
    if step == 64:
        assert loads(ptx) == kinds
        assert counts.total("global load", "transactions") == size * 2 // 32
