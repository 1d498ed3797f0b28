"""The distributed form: its text, and every rule of its operations refuses something, and says so."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tilewright.errors import InvalidProgram
from tilewright.kernel import simt
from tilewright.kernel.text import parse_module, print_module

G, S = "memref<64xf16>", 'memref<64xf16, "shared">'
VALUES = f"""\
  %o = arith.constant 0 : index
  %t = arith.constant true
  %h = arith.constant 1.0 : f16
  %d = arith.constant 1.0 : f32
  %a = arith.constant dense<1.0> : tensor<8xf16>
  %f = arith.constant dense<1.0> : tensor<4xf32>
  %s = simt.shared align 16 : {S}
"""

WHOLE = f"""\
%i = simt.thread_id 0
%p = tile.program_id 0
simt.async_copy %v[%o] to %s[%o] 8 valid %i bypass : {G}, {S}
simt.async_copy %v[%o] to %s[%o] 2 : {G}, {S}
simt.commit
simt.wait 0
simt.barrier
%x = simt.load_matrix %s[%o] 4 : {S} -> tensor<8xf16>
%y = simt.load_matrix %s[%o] 2 transpose : {S} -> tensor<4xf16>
%z = simt.mma "mma_m16n8k16_f16_f32" %x, %y, %f : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
%n = tile.tf32 "nearest" %f : tensor<4xf32>
%e = simt.mma "mma_m16n8k8_tf32_f32" %n, %n, %f precision "tf32x3" : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
simt.store_matrix %y, %s[%o] 2 transpose : tensor<4xf16>, {S}
%w = simt.load_fragment "wmma_16x16x16_f16_f32" "a" %s[%o, %o] columns : {S} -> tensor<16xf16>
simt.store_fragment "wmma_16x16x16_f16_f16" %a, %v[%o, %o] : tensor<8xf16>, {G}
%u = simt.shuffle "xor" %z, %i : tensor<4xf32>
%q = simt.atomic "add" %h, %v[%o] mask %t : f16, {G} -> f16
%j = simt.join %x, %y : tensor<8xf16>, tensor<4xf16> -> tensor<12xf16>
%k = simt.part %j[8] : tensor<12xf16> -> tensor<4xf16>
tile.store %u, %w32[%o] strides [1] align 16 : tensor<4xf32>, memref<64xf32>
%m = simt.shared align 128 at 256 : {S}
"""

CASES = [
    ("%i = simt.thread_id 3", "axis 3 of a block"),
    ("simt.barrier number 16 of 64", "barrier 16; 1 to 15"),
    ("simt.barrier number 1 of 48", "48 threads meet; whole warps of 32, 128 at most"),
    ('"simt.barrier"() <{number = 1 : i64}> : () -> ()', "a barrier of some warps has a number and a count of threads"),
    ('%r = simt.shuffle "left" %d, %o : f32', "unknown kind 'left'; one of xor"),
    (f"%m = simt.shared align 16 : {G}", 'memref<64xf16> is not in memory space "shared"'),
    (f"%m = simt.shared align 1 : {S}", "alignment of 1 bytes; a power of two, at least 2"),
    (f"%m = simt.shared align 24 : {S}", "alignment of 24 bytes"),
    (f"%m = simt.shared align 16 at 8 : {S}", "lies at byte 8, not a multiple of 16"),
    (f"simt.async_copy %s[%o] to %s[%o] 8 : {S}, {S}", "copies from global to shared memory, not from"),
    (f'%m = simt.shared align 16 : memref<9xf32, "shared">\n'
     f'simt.async_copy %v[%o] to %m[%o] 4 : {G}, memref<9xf32, "shared">', "copies f16 into f32"),
    (f"simt.async_copy %v[%o] to %s[%o] 3 : {G}, {S}", "copies 6 bytes; 4, 8 or 16"),
    (f"simt.async_copy %v[%o] to %s[%o] 4 bypass : {G}, {S}", "only copies of 16 bytes bypass the first cache"),
    ("simt.wait -1", "waits for -1 groups"),
    (f'%r = simt.atomic "mul" %h, %v[%o] : f16, {G} -> f16', "unknown kind 'mul'; one of add"),
    (f'%r = simt.atomic "add" %d, %v[%o] : f32, {G} -> f32', "add of f32 on memref<64xf16>"),
    (f"%r = simt.load_matrix %s[%o] 3 : {S} -> tensor<6xf16>", "moves 3 matrices; 1, 2 or 4"),
    (f"%r = simt.load_matrix %v[%o] 4 : {G} -> tensor<8xf16>", "registers and memref<64xf16>, not shared memory"),
    (f"%r = simt.load_matrix %s[%o] 2 : {S} -> tensor<8xf16>", "2 matrices are 4 elements of a lane, not tensor"),
    ('%m = simt.shared align 16 : memref<64xf32, "shared">\n'
     '%r = simt.load_matrix %m[%o] 4 transpose : memref<64xf32, "shared"> -> tensor<4xf32>', "transposes elements"),
    (f'%r = simt.load_fragment "x" "d" %s[%o, %o] : {S} -> tensor<16xf16>', "operand 'd'; a, b or c"),
    (f'%r = simt.load_fragment "x" "a" %s[%o, %o] : {S} -> tensor<16xf32>', "a fragment tensor<16xf32> from a view"),
    ("%r = simt.join %a, %f : tensor<8xf16>, tensor<4xf32> -> tensor<12xf16>", "joins tensor<8xf16>, tensor<4xf32> to"),
    ("%r = simt.join %a, %a : tensor<8xf16>, tensor<8xf16> -> tensor<12xf16>", "joins 2 tiles to tensor<12xf16>"),
    ("%r = simt.part %a[0] : tensor<8xf16> -> tensor<4xf32>", "takes tensor<4xf32> out of tensor<8xf16>"),
    ("%r = simt.part %a[5] : tensor<8xf16> -> tensor<4xf16>", "elements 5 to 8 of tensor<8xf16>"),
    ('%r = simt.mma "mma_m16n8k4_tf32_f32" %f, %f, %f precision "tf32" : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>',
     "precision 'tf32' of mma_m16n8k4_tf32_f32; 'tf32x3' of what reads tf32"),
    ('%r = simt.mma "mfma_16x16x4_f32_f32" %f, %f, %f precision "tf32x3" : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>',
     "precision 'tf32x3' of mfma_16x16x4_f32_f32; 'tf32x3' of what reads tf32"),
    (f'simt.store_fragment "x" %f, %v[%o, %o] : tensor<4xf32>, {G}', "a fragment tensor<4xf32> to a view of f16"),
]  # fmt: skip


def whole(text: str, threads: str = "threads [64, 2, 1] warp 32") -> str:
    values = VALUES if threads else ""
    arguments = f"%v: {G}, %w32: memref<64xf32>"
    return f"tile.func @k({arguments}) grid [4, 2] {threads} {{\n{values}{text}\n  tile.return\n}}"


def test_text_comes_back() -> None:
    text = print_module(parse_module(whole(WHOLE)))
    assert print_module(parse_module(text)) == text
    assert "grid [4, 2] threads [64, 2, 1] warp 32" in text


@pytest.mark.parametrize(("text", "message"), CASES, ids=[message for _, message in CASES])
def test_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_module(whole(text), "file")
    assert message in caught.value.message
    assert caught.value.where.startswith("file:")


@pytest.mark.parametrize("text", ["%i = simt.thread_id 0", "simt.barrier", "simt.commit", "simt.wait 0"])
def test_tile_form_has_no_threads(text: str) -> None:
    with pytest.raises(InvalidProgram, match="outside of a kernel with threads"):
        parse_module(whole(text, threads=""))


def test_every_message_has_a_case() -> None:
    source = Path(str(simt.__file__)).read_text()
    messages = set(re.findall(r'VerifyException\(\s*f?["\']([^"\']*)', source)) - {"outside of a kernel with threads"}
    assert len(messages) > 15
    for message in messages:
        pattern = ".*".join(re.escape(piece) for piece in re.split(r"\{[^}]*\}?", message))
        assert any(re.search(pattern, _error(text)) for text, _ in CASES), f"no case for {message!r}"


@cache
def _error(text: str) -> str:
    try:
        parse_module(whole(text))
    except InvalidProgram as error:
        return error.message
    return ""
