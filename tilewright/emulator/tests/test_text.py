"""Parsing: what is understood, what is refused and where; mutated text never ends in a traceback."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright import emulator
from tilewright.emulator import InvalidPtx, parse
from tilewright.emulator.tests.harness import execute, kernel, stored
from tilewright.errors import CompileError, InvalidArgument

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (HEAD + ".entry k() { add.s32 %r1, %r2 }", "4:31", "expected ';'"),
        (HEAD + ".entry k() {\n ret;", "4:12", "without '}'"),
        (HEAD + "`", "4:1", "unexpected character"),
        (".target sm_80\n", "1:1", "no .version"),
        (HEAD + ".const .b32 c = " + 99 * "(" + "1", "4:82", "more than 64 levels"),
        (HEAD + ".const .b32 c = 1 / (3 - 3);", "4:22", "0 on the right of '/'"),
        (HEAD.replace("64", "32"), "3:15", "addresses of 32 bits"),
        (HEAD.replace("sm_80", "sm_8.0"), "2:9", "unknown target 'sm_8.0'"),
        (HEAD + ".entry k() { .reg .foo %r; }", "4:19", "expected a type"),
        (HEAD + ".entry k() { .reg .b32 %r<9999999>; }", "4:24", "registers"),
        (HEAD + ".entry k() { ret; }\n.entry k() { ret; }", "5:8", "defined twice"),
        (HEAD + ".entry k() .minnctapersm 0 { ret; }", "4:28", ".minnctapersm 0; 1 or more"),
        (HEAD + ".entry k() .minnctapersm { ret; }", "4:26", ".minnctapersm has one number, not 0"),
        (HEAD + ".entry k() .maxnreg { ret; }", "4:21", ".maxnreg has one number, not 0"),
        (HEAD + ".entry k() .maxntid 4, 1, 1, 1 { ret; }", "4:32", ".maxntid has 1 to 3 numbers, not 4"),
    ],
)
def test_malformed_text_names_the_place(text: str, place: str, words: str) -> None:
    with pytest.raises(InvalidPtx) as caught:
        parse(text)
    assert caught.value.where == f"PTX:{place}"
    assert words in str(caught.value)


def test_constants_are_calculated() -> None:
    body = """mov.u32 %r1, (1 << 4 | 2) - -6 / 4 * 2 + 17 % 5 * (-7 % 4); ld.const.u32 %r2, [c + 2*2];
    add.u32 %r1, %r1, %r2; st.global.u32 [%rd1 + 3*4 - 2*2], %r1;"""
    target = np.zeros(4, np.uint32)
    execute(body, np.zeros(4, np.uint32), target, threads=1, before=".const .align 4 .b32 c[2] = {1, 0xf0 & ~16 ^ 1};")
    assert target.tolist() == [0, 0, 18 + 2 + 2 + 0xE1, 0]


def in_clusters(extents: tuple[int, ...]) -> emulator.Module:
    return parse(f"{HEAD}.entry k() .reqnctapercluster {', '.join(map(str, extents))} {{ ret; }}")


@pytest.mark.parametrize("extents", [(0, 1, 1), (17, 1, 1), (4, 4, 2)])
def test_clusters_have_1_to_16_blocks(extents: tuple[int, int, int]) -> None:
    grid = (68, 4, 2)
    with pytest.raises(InvalidArgument, match="1 or more each, 16 together"):
        emulator.run(parse(HEAD + ".entry k() { ret; }"), "k", grid, (32, 1, 1), [], cluster=extents)
    with pytest.raises(InvalidArgument, match="1 or more each, 16 together"):
        emulator.run(in_clusters(extents), "k", grid, (32, 1, 1), [])


@pytest.mark.emulator_only  # sm_80 has no clusters
def test_clusters_of_a_launch_are_those_that_the_kernel_requires() -> None:
    for cluster in ((), (4, 4), (4, 4, 1)):
        emulator.run(in_clusters((4, 4)), "k", (8, 4, 1), (32, 1, 1), [], cluster=cluster)
    with pytest.raises(InvalidArgument, match=r"clusters of \(2, 4, 1\) blocks[\s\S]*requires \(4, 4, 1\)"):
        emulator.run(in_clusters((4, 4)), "k", (8, 4, 1), (32, 1, 1), [], cluster=(2, 4, 1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("frobnicate.b32 %r1, %r2;", "not emulated"), ("add.s32 %r1, %r2;", "operands"),
        ("add.s32 %r1, %r2, %nothing;", "not declared"), ("add.wrong.s32 %r1, %r2, %r3;", "modifier .wrong"),
        ("add.s32 %rd1, %rd2, %r3;", "64 bits"), ("bra NOWHERE;", "label"), ("ld.global.u32 %r1, %rd1;", "address"),
        ("ld.shared.nc.u32 %r1, [%r2];", ".nc is for"), ("ld.nc.u32 %r1, [%rd1];", ".nc is for"),
        ("add %r1, %r2, %r3;", "types"), ("call foo, (%r1);", "no body"), ("@%r1 ret;", "register of 1 bits"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f3};", "registers"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused(body: str, words: str) -> None:
    with pytest.raises(InvalidPtx, match=r"PTX:\d+:\d+") as caught:
        execute(body)
    assert words in str(caught.value)


def test_scopes_constants_calls_and_switches() -> None:
    before = """
    .func (.reg .b32 %out) twice(.reg .b32 %in) { add.u32 %out, %in, %in; ret; }
    .func (.param .b32 r) far(.param .b32 a) { .reg .b32 %t<3>; .reg .pred %q; ld.param.b32 %t1, [a];
      setp.lt.u32 %q, %t1, 4; @%q bra SMALL; add.u32 %t1, %t1, 1000; SMALL: st.param.b32 [r], %t1; ret; }
    .global .align 4 .u32 table[4] = {7, 0x10, 0b11, 010}; .const .align 8 .f64 half = 0d3FE0000000000000;
    """
    body = """
    { .reg .b32 t; mov.u32 t, 5; { .reg .b32 t; mov.u32 t, 6; } call (%r1), twice, (t); }
    { .param .b32 x; .param .b32 y; st.param.b32 [x+0], %r0; call.uni (y), far, (x); ld.param.b32 %r2, [y+0]; }
    mov.u64 %rd5, table; and.b32 %r3, %r0, 3; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd5, %rd5, %rd6;
    ld.global.u32 %r4, [%rd5];
    T: .branchtargets A, B, A, C; brx.idx %r3, T;
    A: mov.u32 %r5, 100; bra E; B: mov.u32 %r5, 200; bra E; C: mov.u32 %r5, 300;
    E: add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r4; add.u32 %r1, %r1, %r5; ld.const.f64 %fd1, [half];
    cvt.rzi.u32.f64 %r6, %fd1; add.u32 %r1, %r1, %r6; add.u32 %r1, %r1, WARP_SZ; st.global.u32 [%rd3], %r1;
    """
    out = np.zeros(32, np.uint32)
    result = execute(body, np.zeros(32, np.uint32), out, before=before)
    assert not result.diagnostics
    lane = np.arange(32)
    far = np.where(lane < 4, lane, lane + 1000)
    wanted = 10 + far + np.array([7, 16, 3, 8])[lane % 4] + np.array([100, 200, 100, 300])[lane % 4] + 32
    assert (out == wanted).all()


_CALLEES = """
.func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %t; ld.param.b32 %t, [a]; add.u32 %t, %t, %t; st.param.b32 [r], %t; ret; }
.func (.param .b32 r) minus(.param .b32 a) { .reg .b32 %t; ld.param.b32 %t, [a]; neg.s32 %t, %t; st.param.b32 [r], %t; ret; }
.func (.param .b32 r) other(.param .b32 a) { .reg .b32 %t; mov.u32 %t, 7; st.param.b32 [r], %t; ret; }
.func nothing(.param .b32 a) { ret; }
.global .align 8 .u64 table[2] = {twice, minus};
.extern .func (.param .b32 r) vprintf(.param .b64 text, .param .b64 values);
"""  # noqa: E501


def test_calls_through_registers_go_to_the_function_whose_address_they_hold() -> None:
    body = """
    and.b32 %r1, %r0, 1; mov.u64 %rd5, table; mad.wide.u32 %rd5, %r1, 8, %rd5; ld.global.u64 %rd6, [%rd5];
    setp.gt.u32 %p1, %r0, 27; mov.u64 %rd7, other; selp.b64 %rd6, %rd7, %rd6, %p1; setp.ne.u32 %p2, %r0, 5;
    { .param .b32 x; .param .b32 y; st.param.b32 [x], %r0;
      kind: .callprototype (.param .b32 _) _ (.param .b32 _); @%p2 call (y), %rd6, (x), kind;
      ld.param.b32 %r2, [y]; }
    selp.b32 %r2, %r2, 55, %p2;
    st.global.u32 [%rd3], %r2;
    """
    out = np.zeros(32, np.uint32)
    assert not execute(body, np.zeros(32, np.uint32), out, before=_CALLEES).diagnostics
    lane = np.arange(32)
    wanted = np.where(lane > 27, 7, np.where(lane % 2 == 0, 2 * lane, -lane))
    wanted[5] = 55
    assert (out.view(np.int32) == wanted).all()
    nowhere = body.replace("mov.u64 %rd7, other", "mov.u64 %rd7, 64")
    (diagnostic,) = execute(nowhere, np.zeros(32, np.uint32), out, before=_CALLEES).diagnostics
    assert diagnostic.kind == "trap"


def test_a_printf_gives_a_result() -> None:
    body = """
    { .param .b64 x; .param .b64 y; .param .b32 z; st.param.b64 [x], %rd0; st.param.b64 [y], %rd0;
      call.uni (z), vprintf, (x, y); ld.param.b32 %r2, [z]; }
    st.global.u32 [%rd3], %r2;
    """
    assert not execute(body, np.zeros(32, np.uint32), np.ones(32, np.uint32), before=_CALLEES).diagnostics


def test_special_registers() -> None:
    body = """mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
    mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.y; mad.lo.u32 %r6, %r5, %r4, %r0; mov.u32 %r7, %ntid.y;
    mul.lo.u32 %r7, %r7, %r4;
    mad.lo.u32 %r8, %r1, %r7, %r6; mul.wide.u32 %rd5, %r8, 4; add.s64 %rd5, %rd1, %rd5;
    mov.u32 %r9, %laneid; mov.u32 %r10, %lanemask_lt; popc.b32 %r10, %r10; sub.u32 %r9, %r9, %r10;
    add.u32 %r8, %r8, %r9;
    st.global.u32 [%rd5], %r8;"""
    out = np.zeros(3 * 2 * 40, np.uint32)
    result = emulator.run(parse(kernel(body)), "k", (3, 2, 1), (8, 5, 1), [np.zeros(1, np.uint32), out])
    assert not result.diagnostics
    assert (out == np.arange(240)).all()


SEEDS = [stored("add"), kernel("""
    mov.u32 %r1, 0; L: mad.lo.u32 %r1, %r1, 3, %r0; setp.lt.u32 %p1, %r1, 50; @%p1 bra L;
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
    st.shared.u32 [%r0], %r2; bar.sync 0; cvt.rn.f32.u32 %f1, %r2; ex2.approx.f32 %f1, %f1;
    st.global.v2.f32 [%rd2], {%f1, %f1};
    cp.async.ca.shared.global [%r1], [%rd1], 4; mbarrier.init.shared.b64 [%r3], 1; prmt.b32 %r5, %r1, %r2, 0x1234;
    atom.global.add.u32 %r6, [%rd1], 1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r8];
    mov.b64 {%r9, %r10}, %rd2;
""")]  # fmt: skip
WORDS = [
    "%r1",
    "%p1",
    "%rd1",
    "0",
    "-1",
    "0f3F800000",
    ";",
    ",",
    "{",
    "}",
    "[",
    "]",
    ".u32",
    ".f32",
    ".v4",
    "@",
    "add.s32",
    "bar.sync",
    "0xFFFFFFFFFFFFFFFF",
    "exit",
    ".reg",
    ".shared",
    "ld",
    "mma.sync",
    "L:",
    "L",
    "%tid.x",
    "_",
    "!",
    "|",
]


@pytest.mark.emulator_only
@settings(max_examples=tries(15, full=150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_text_runs_or_is_refused(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    parts = re.findall(r"[\w.%:$]+|\s+|.", text)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(parts) - 1))
        how = data.draw(st.sampled_from(["drop", "swap", "replace", "insert", "copy"]))
        if how == "drop":
            del parts[at]
        elif how == "swap":
            other = data.draw(st.integers(0, len(parts) - 1))
            parts[at], parts[other] = parts[other], parts[at]
        elif how == "copy":
            parts.insert(at, parts[data.draw(st.integers(0, len(parts) - 1))])
        else:
            word = data.draw(st.sampled_from(WORDS) | st.text(max_size=4))
            parts[at : at + (how == "replace")] = [word]
    try:
        module = parse("".join(parts))
        for entry in module.entries[:1]:
            emulator.run(module, entry, (1, 1, 1), (32, 1, 1), [np.zeros(64, np.uint32)] * 2, 256, limit=2000)
    except CompileError:
        pass
