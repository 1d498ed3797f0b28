"""Rules of mbarriers, tensor copies, products of four warps and circular buffers refuse something, with a reason."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import InvalidProgram
from tilewright.kernel import circular_buffer, groups, tensor_map_box
from tilewright.kernel.hopper import simt_async, simt_warpgroup
from tilewright.kernel.text import parse_module, print_module

G, S, B = "memref<4096xf16>", 'memref<4096xf16, "shared">', 'memref<4xi64, "shared">'
T, F = "tensor<4xf32>", "tensor<64xf32>"
VALUES = f"""\
  %o = arith.constant 0 : index
  %t = arith.constant true
  %a = arith.constant dense<1.0> : tensor<8xf16>
  %c = arith.constant dense<1.0> : {F}
  %s = simt.shared align 1024 : {S}
  %b = simt.shared align 8 : {B}
  %f = simt.warpgroup_fence %c : {F} -> {F}
"""
LOAD = "simt.tensor_load %v[%o, %o] to %s[%o] counted %b[%o]"
TENSOR = "extents [64, 64] strides [64, 1] box [8, 32] swizzle 64"
VIEWS = f": {G}, {S}, {B}"
MATRIX = "matrix [0, 1024, 128, 0]"
MMA = 'simt.warpgroup_mma "wgmma_m64n128k16_f16_f32"'

WHOLE = f"""\
%w = simt.warp_id
%l = simt.elect
simt.registers "grow" 240
simt.mbarrier_init %b[%o] arrivals 1 : {B}
simt.fence "mbarrier"
simt.barrier number 1 of 128
simt.mbarrier_arrive %b[%o] expect 512 : {B}
simt.mbarrier_arrive %b[%o] : {B}
simt.mbarrier_wait %b[%o] parity %o : {B}
{LOAD} {TENSOR} {VIEWS}
simt.tensor_store %s[%o] to %v[%o, %o] {TENSOR} : {S}, {G}
simt.tensor_commit
simt.tensor_wait 0
%x = {MMA} %s[%o] {MATRIX}, %s[%o] {MATRIX}, %f : {S}, {S}, {F}
%y = {MMA} %a, %s[%o] {MATRIX}, %x : tensor<8xf16>, {S}, {F}
simt.warpgroup_commit
%z = simt.warpgroup_wait 0 %y : {F} -> {F}
"""

CASES = [
    (f"simt.mbarrier_arrive %s[%o] : {S}", 'mbarriers are i64 in memory space "shared", not memref<4096xf16'),
    (f"simt.mbarrier_init %b[%o] arrivals 0 : {B}", "0 arrivals; 1 to 1048575"),
    (f"simt.mbarrier_arrive %b[%o] expect 0 : {B}", "announces 0 bytes; 1 to 1048575"),
    (f"simt.mbarrier_arrive %b[%o] of block %o expect 8 : {B}", "bytes are announced to mbarriers of one's own block"),
    (f"{LOAD} {TENSOR} everywhere {VIEWS}", "a copy to all blocks of a program, which has one"),
    ('simt.fence "all"', "unknown kind 'all'; one of async, mbarrier"),
    (f"simt.tensor_load %s[%o, %o] to %s[%o] counted %b[%o] {TENSOR} : {S}, {S}, {B}", "copies between"),
    (f"{LOAD} extents [64] strides [64, 1] box [8, 32] swizzle 64 {VIEWS}", "2 coordinates, extents (64,), strides"),
    (f"{LOAD} extents [64, 64] strides [60, 1] box [8, 32] swizzle 64 {VIEWS}", "strides [60, 1]: but for the last"),
    (f"{LOAD} extents [64, 64] strides [64, 2] box [8, 32] swizzle 64 {VIEWS}", "strides [64, 2]: the last is 1"),
    (f"{LOAD.replace('o, %o] to', 'o, %o, %o, %o, %o, %o] to')} extents [1, 1, 1, 1, 64, 64] "
     f"strides [64, 64, 64, 64, 64, 1] box [1, 1, 1, 1, 8, 32] swizzle 64 {VIEWS}", "6 coordinates; 5 at most"),
    (f"{LOAD} extents [64, 64] strides [64, 1] box [300, 32] swizzle 64 {VIEWS}", "a box of [300, 32]: 1 to 256"),
    (f"{LOAD} extents [64, 64] strides [64, 1] box [8, 32] swizzle 32 {VIEWS}", "rows of 64 bytes swizzled by 32"),
    (f"{LOAD} extents [65, 64] strides [64, 1] box [8, 32] swizzle 64 {VIEWS}", "a tensor of [65, 64] with strides"),
    ("simt.tensor_wait -1", "waits for -1 groups"),
    ('simt.registers "take" 240', "unknown kind 'take'; one of grow, shrink"),
    ('simt.registers "grow" 100', "100 registers; 24 to 256, a multiple of 8"),
    (f"%r = simt.warpgroup_fence %c : {F} -> {T}", "results have not the types of the operands"),
    (f"%r = simt.warpgroup_wait 8 %c : {F} -> {F}", "waits for all but 8 groups; 0 to 7"),
    (f'%r = simt.warpgroup_mma "mma_m16n8k16_f16_f32" %s[%o] {MATRIX}, %s[%o] {MATRIX}, %f : {S}, {S}, {F}',
     "no product of four warps"),
    (f'%r = simt.warpgroup_mma "wgmma_m64n128k32_s8_s32" %s[%o] {MATRIX}, %s[%o] {MATRIX}, %f : {S}, {S}, {F}',
     "wgmma_m64n128k32_s8_s32 on elements f16"),
    (f'%r = simt.warpgroup_mma "wgmma_m64n64k16_f16_f32" %s[%o] {MATRIX}, %s[%o] {MATRIX}, %f : {S}, {S}, {F}',
     "a thread holds 32 elements of the result, not tensor<64xf32>"),
    (f"%r = {MMA} %s[%o] {MATRIX}, %s[%o] {MATRIX}, %c : {S}, {S}, {F}", "c come from a fence or from another product"),
    (f"%k = arith.constant dense<1.0> : tensor<4xf16>\n%r = {MMA} %k, %s[%o] {MATRIX}, %f : tensor<4xf16>, {S}, {F}",
     "a thread holds 8 elements of a, not tensor<4xf16>"),
    (f"%r = {MMA} %s[%o] matrix [0, 8, 128, 0], %s[%o] {MATRIX}, %f : {S}, {S}, {F}", "multiples of 16 bytes"),
    (f"%r = {MMA} %s[%o] matrix [0, 128], %s[%o] {MATRIX}, %f : {S}, {S}, {F}", "a matrix is leading and stride"),
    (f"%r = {MMA} %v[%o] {MATRIX}, %s[%o] {MATRIX}, %f : {G}, {S}, {F}", "shared memory of one type"),
    (f'%m = simt.shared align 16 : memref<64xf32, "shared">\n%r = simt.warpgroup_mma "wgmma_m64n128k8_tf32_f32" '
     f'%m[%o] {MATRIX}, %m[%o] matrix [0, 1024, 128, 1], %f : memref<64xf32, "shared">, memref<64xf32, "shared">, {F}',
     "transposes elements of 4 bytes; only of 2"),
    (f'%r = "simt.warpgroup_mma"(%s, %s, %o, %f) <{{intrinsic = "wgmma_m64n128k16_f16_f32", b_matrix = '
     f"array<i64: 0, 1024, 128, 0>}}> : ({S}, {S}, index, {F}) -> {F}", "a lies in shared memory: it needs an offset"),
]  # fmt: skip

R = 'memref<2xi64, "shared">'
Z, H = "tensor<64x64xf32>", "tensor<64x64xf16>"
CIRCULAR = (
    f"%s, %x, %y = tile.circular_buffer 1 : {R}, {S}, {S}\n%n = arith.constant 0 : index\n"
    f"%w = arith.constant true\n%c = arith.constant dense<0.0> : {Z}\n"
)
COPY = f"tile.bulk_load %v[%n, %n] to %x at 0 extents [64, 64] strides [64, 1] box [64, 64] swizzle 128 : {G}, {S}"
DOT = 'tile.staged_dot "wgmma_m64n64k16_f16_f32"'
MEMORY = 'memory "#nvmma<swizzle=128, bits=16, transposed=false>"'

WHOLE_BUFFER = f"""\
tile.produce %s[%n] when %w {{ {COPY} }} : {R}
tile.consumer_wait %s[%n] : {R}
%d = {DOT} %x {MEMORY}, %y {MEMORY}[%n] depth 64, %c : {S}, {S}, {Z}
%e = tile.finish 0 %d : {Z}
tile.consumer_release %s[%n] : {R}
"""

FRAGMENTS = f"""\
%p, %q = tile.circular_buffer 1 : {R}, memref<2048xf32, "shared">
%d = tile.staged_dot "wgmma_m64n64k8_tf32_f32" %q memory "#nvmma<swizzle=128, bits=32, transposed=false>",
  %q memory "#nvmma<swizzle=128, bits=32, transposed=false>"[%n] depth 32 registers "b", %c
  : memref<2048xf32, "shared">, memref<2048xf32, "shared">, {Z}
"""

IN_REGISTERS = f"""\
%h = arith.constant dense<0.0> : {H}
%d = {DOT} %h, %y {MEMORY}[%n] depth 64, %c : {H}, {S}, {Z}
%p, %q = tile.circular_buffer 1 : {R}, {S}
%e = {DOT} %q {MEMORY}[%n], %y {MEMORY}[%n] depth 64, %c : {S}, {S}, {Z}
"""

CIRCULAR_CASES = [
    (f"tile.produce %s[%n] when %w {{ {COPY.replace('swizzle 128', 'swizzle 128 together')} }} : {R}",
     "1 blocks copy a box of [64, 64] together"),
    (f"%a, %b = tile.circular_buffer 2 : {R}, {S}", "2 slots with a state of memref<2xi64"),
    (f'%a, %b = tile.circular_buffer 3 : memref<6xi64, "shared">, {S}',
     '3 slots in buffers memref<4096xf16, "shared">'),
    (f"%q = tile.staging : {R}\ntile.consumer_release %q[%n] : {R}",
     'memref<2xi64, "shared"> is not of a circular buffer'),
    (f"tile.produce %s[%n] when %w {{ %q = arith.constant true }} : {R}", "arith.constant in a fill; copies of boxes"),
    (f"tile.produce %s[%n] when %w {{ {COPY.replace('[64, 64] strides', '[64] strides')} }} : {R}", "2 coordinates"),
    (f'tile.produce %s[%n] when %w {{ {COPY.replace("%v", "%u").replace(G, "memref<64xf32>")} }} : {R}',
     "copies between memref<64xf32>"),
    (f"%d = {DOT} %x {MEMORY}, %y {MEMORY}[%n] depth 32, %c : {S}, {S}, {Z}",
     "slots of 4096 elements for a tile of 2048"),
    (f"%q = arith.constant dense<0.0> : {F}\n%d = {DOT} %x {MEMORY}, %y {MEMORY}[%n] depth 64, %q : {S}, {S}, {F}",
     "adds a product of matrices to tensor<64xf32>"),
    (f'%a, %b, %d = tile.circular_buffer 1 : {R}, {S}, memref<4096xbf16, "shared">\n'
     f'%r = {DOT} %b {MEMORY}, %d {MEMORY}[%n] depth 64, %c : {S}, memref<4096xbf16, "shared">, {Z}',
     "multiplies memref<4096xf16"),
    (f'%d = {DOT} %x {MEMORY}, %y {MEMORY}[%n] depth 64 registers "c", %c : {S}, {S}, {Z}', 'registers "c": of a or b'),
    (f'%d = {DOT} %x {MEMORY}, %y {MEMORY}[%n] depth 64 registers "b", %c : {S}, {S}, {Z}',
     "threads read fragments of f16; of elements of 4 bytes"),
    (f"%d = {DOT} %x, %y {MEMORY}[%n] depth 64, %c : {S}, {S}, {Z}", "a buffer has a memory, a tile in registers none"),
    (f"%h = arith.constant dense<0.0> : {H}\n%d = {DOT} %h, %y {MEMORY}[%n] depth 32, %c : {H}, {S}, {Z}",
     "in registers: a tile of 64x32, which is of no use"),
    (f"%d = {DOT} %x {MEMORY}[%n], %y {MEMORY}[%n] depth 64, %c : {S}, {S}, {Z}",
     "a has the number of a use where it is of another circular buffer than b"),
    (f"%e = tile.finish -1 %c : {Z}", "waits for all but -1 products"),
]  # fmt: skip


def _distributed(text: str) -> str:
    return f"tile.func @k(%v: {G}) grid [4] threads [256, 1, 1] warp 32 {{\n{VALUES}{text}\n  tile.return\n}}"


def _tiles(text: str) -> str:
    return f"tile.func @k(%v: {G}, %u: memref<64xf32>) grid [4] {{\n{CIRCULAR}{text}\n  tile.return\n}}"


ALL = [*((_distributed(text), message) for text, message in CASES), *((_tiles(t), m) for t, m in CIRCULAR_CASES)]


def _in_cluster(text: str) -> str:
    return text.replace("grid [4]", "grid [4] cluster 2")


TEXTS = {
    "distributed": _distributed(WHOLE),
    "tiles": _tiles(WHOLE_BUFFER),
    "tiles, fragments": _tiles(FRAGMENTS),
    "tiles, first factor elsewhere": _tiles(IN_REGISTERS),
    "distributed, cluster": _in_cluster(_distributed(f"""\
simt.cluster_barrier
%r = tile.block_rank
simt.mbarrier_arrive %b[%o] of block %r : {B}
{LOAD} {TENSOR} everywhere {VIEWS}""")),
    "tiles, cluster": _in_cluster(_tiles(WHOLE_BUFFER.replace("swizzle 128 :", "swizzle 128 together :"))),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_comes_back(text: str) -> None:
    printed = print_module(parse_module(text))
    assert print_module(parse_module(printed)) == printed


@pytest.mark.parametrize(("text", "message"), ALL, ids=[message for _, message in ALL])
def test_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram) as caught:
        parse_module(text, "file")
    assert message in caught.value.message


@pytest.mark.parametrize(
    "module", [tensor_map_box, groups, simt_async, simt_warpgroup, circular_buffer], ids=lambda module: module.__name__
)
def test_every_message_has_a_case(module: Any) -> None:
    messages = set(re.findall(r'VerifyException\(\s*f?["\']([^"\']*)', Path(str(module.__file__)).read_text()))
    assert messages
    for message in messages:
        pattern = ".*".join(re.escape(piece) for piece in re.split(r"\{[^}]*\}?", message))
        assert any(re.search(pattern, _error(text)) for text, _ in ALL), f"no case for {message!r}"


@cache
def _error(text: str) -> str:
    try:
        parse_module(text)
    except InvalidProgram as error:
        return error.message
    return ""
