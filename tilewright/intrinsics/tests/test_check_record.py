"""Contradictory records are refused, and the message says what contradicts what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.errors import CompileError, InvalidIntrinsic
from tilewright.intrinsics.check_record import check
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement, Numerics
from tilewright.intrinsics.registry import standard

MMA = standard().find("mma_m16n8k16_f16_f32")
DOT = standard().find("vpdpbusd")


def laid_out(record: Intrinsic, which: str, **change: Any) -> Intrinsic:
    """The record with an operand changed, or, with `indices` and so on, its fragment."""
    operands = []
    for operand in record.operands:
        if operand.role == which:
            if "indices" in change or "lanes" in change or "replicated" in change or "elements" in change:
                assert isinstance(operand.layout, Fragment)
                operand = replace(operand, layout=replace(operand.layout, **change))
            else:
                operand = replace(operand, **change)
        operands.append(operand)
    return replace(record, operands=tuple(operands))


def moved(address: str, **change: Any) -> Intrinsic:
    return replace(MMA, memory=(Movement("lda", "Src1", "reg", "shared", address, **change),))


ROW = "lane // 4 + 8 * (e // 2 % 2)"
WRONG = {
    "no coverage": (
        laid_out(MMA, "Dst", indices=("lane // 4 + 8 * (e // 2)", "2 * (lane % 4)")),
        "the fragment of Dst does not cover it: no lane holds [i1=0, i2=1]",
    ),
    "no bijection": (
        laid_out(MMA, "Src2", elements=8, indices=("2 * (lane % 4) + e % 2 + 8 * (e // 2 % 2)", "lane // 4")),
        "holds [r1=0, i2=0] twice: lane 0, e 0 and lane 0, e 4",
    ),
    "needless replication": (laid_out(MMA, "Dst", replicated=True), "says replicated, and holds every element once"),
    "outside of the tile": (
        laid_out(MMA, "Src1", indices=(ROW, "2 * (lane % 4) + e % 2 + 16 * (e // 4)")),
        "leaves the tile: lane 0, e 4 holds r1 = 16, its extent is 16",
    ),
    "too few indices": (laid_out(MMA, "Src1", indices=(ROW,)), "has 1 indices for 2 loops"),
    "lanes of another group": (laid_out(MMA, "Src1", lanes=64), "has 64 lanes, a warp32 has 32"),
    "unknown name in a fragment": (laid_out(MMA, "Src1", indices=(ROW, "warp")), "'warp' is unknown"),
    "no formula": (laid_out(MMA, "Src1", indices=(ROW, "e ** 2")), "'e ** 2' has no place in a formula"),
    "a division by a name": (laid_out(MMA, "Src1", indices=(ROW, "e // lane")), "'e // lane' has no place"),
    "a call": (laid_out(MMA, "Src1", indices=(ROW, "exit()")), "'exit()' has no place"),
    "offsets that collide": (laid_out(DOT, "Src2", layout="3 * i + r"), "puts [i=0, r=3] and [i=1, r=0] at 3"),
    "offsets outside": (laid_out(DOT, "Src2", layout="5 * i + r"), "puts [i="),
    "unknown loop in offsets": (laid_out(DOT, "Src2", layout="4 * j + r"), "'j' is unknown in the layout of Src2"),
    "an unknown word": (laid_out(DOT, "Src2", layout="swizzled"), "'swizzled' is unknown in the layout"),
    "unknown dtype": (laid_out(MMA, "Src1", dtype="f17"), "unknown element type 'f17'"),
    "unknown loop of an operand": (laid_out(MMA, "Src1", loops=("i1", "r2")), "Src1 has unknown loop 'r2'"),
    "operand and body disagree": (
        laid_out(MMA, "Src1", loops=("r1", "i1")),
        "compute has Src1[i1, r1] where the operands have Src1[r1, i1]",
    ),
    "operands in another order": (replace(MMA, operands=MMA.operands[::-1]), "compute has Src1[i1, r1] where"),
    "an operand too few": (replace(MMA, operands=MMA.operands[1:]), "compute has Src1"),
    "a role twice": (laid_out(MMA, "Src2", role="Src1"), "operand 'Src1' has no name of its own"),
    "no scope": (laid_out(MMA, "Src1", scope=""), "Src1 has no scope"),
    "negative extent": (replace(MMA, extents={"i1": 16, "i2": -8, "r1": 16}), "loop i2 has extent -8"),
    "an extent that is no integer": (replace(MMA, extents={"i1": 16, "i2": True, "r1": 16}), "loop i2 has extent True"),
    "no loops": (replace(MMA, extents={}), "it has no loops"),
    "an enormous call": (replace(MMA, extents={"i1": 1 << 20, "i2": 1 << 20, "r1": 2}), "points"),
    "a loop nobody has": (replace(MMA, extents={**MMA.extents, "z": 2}), "loop z indexes no operand"),
    "no statement": (replace(MMA, compute="Dst[i1, i2] -= Src1[i1, r1]"), "compute is not a statement"),
    "a syntax error": (replace(MMA, compute="Dst[i1, i2] += Src1[i1, r1] * "), "compute: "),
    "an index that is no loop": (
        replace(MMA, compute="Dst[i1, i2] += Src1[i1, r1] * Src2[r1 + 1, i2]"),
        "compute has the index r1 + 1",
    ),
    "a function no body has": (
        replace(MMA, compute="Dst[i1, i2] += exp(Src1[i1, r1]) * Src2[r1, i2]"),
        "compute uses exp",
    ),
    "an operand read twice": (
        replace(MMA, compute="Dst[i1, i2] += Src1[i1, r1] * Src1[i1, r1] * Src2[r1, i2]"),
        "compute has Src1[i1, r1] where the operands have Src2[r1, i2]",
    ),
    "pad that is not neutral": (replace(MMA, pad_identity=1.0), "pad_identity 1.0 is not neutral: it makes 0.0"),
    "pad that is no integer": (replace(DOT, pad_identity=0.5), "pad_identity 0.5 is no integer"),
    "a sum of factors that zero does not neutralise": (
        replace(MMA, compute="Dst[i1, i2] max= Src1[i1, r1] * Src2[r1, i2]"),
        "pad_identity 0.0 is not neutral: it makes -1.0 of the destination 0.0",
    ),
    "unknown rule": (replace(MMA, numerics=Numerics("soft")), "unknown rule 'soft'"),
    "a rule for other types": (replace(MMA, numerics=Numerics("saturated_pairs_i16")), "adds to i32, not f32"),
    "a group that does not divide": (replace(MMA, numerics=Numerics(group=5)), "adds 5 at a time"),
    "saturated floats": (replace(MMA, numerics=Numerics(saturate=True)), "f32 cannot saturate"),
    "an unknown option": (replace(MMA, numerics=Numerics(order="any")), "unknown options"),  # type: ignore[arg-type]
    "floats into integers": (laid_out(MMA, "Dst", dtype="i32"), "float sources and an accumulator of i32"),
    "an unknown name in an address": (moved("addr_a + i1 * pitch + r1"), "unknown name 'pitch' in address"),
    "a loop of another operand": (moved("addr_a + i2 * stride_a + r1"), "unknown name 'i2'"),
    "an address that is not affine": (moved("addr_a + i1 * r1"), "not affine"),
    "a divided loop in an address": (moved("addr_a + i1 // 2 + r1"), "not affine"),
    "a loop in a lane's address": (moved("addr_a + r1", lane_address="i1 * 8"), "unknown name 'i1'"),
    "an address without a loop": (moved("addr_a + r1"), "puts [i1=0, r1=0] and [i1=1, r1=0] at one address"),
    "one stride for two loops": (
        moved("addr_a + (i1 + r1) * stride_a"), "puts [i1=5, r1=15] and [i1=6, r1=14] at one address",
    ),
    "rows that overlap": (moved("addr_a + i1 * 8 + r1"), "puts [i1=0, r1=8] and [i1=1, r1=0] at one address"),
    "an odd alignment": (moved("addr_a + r1", alignment_bytes=12), "aligned to 12 bytes"),
    "no granularity": (moved("addr_a + r1", stride_multiple=0), "strides of multiples of 0"),
    "an operand that is none": (
        replace(MMA, memory=(Movement("x", "Src9", "reg", "shared", ""),)),
        "no operand 'Src9'",
    ),
    "no cost": (replace(MMA, cost=Cost(0.0)), "impossible cost"),
    "cost without end": (replace(MMA, cost=Cost(float("inf"))), "impossible cost"),
    "capacity of nothing": (replace(MMA, limits=Limits({"shared": 0})), "impossible limits"),
    "a name with blanks": (replace(MMA, name="my mma"), "the name 'my mma'"),
    "capacity of another scope": (replace(MMA, limits=Limits({"sharde": 99})), "capacity of 'sharde', where it keeps"),
    "no target": (replace(MMA, target=""), "the target '' is no identifier"),
    "a scope that is no name": (
        replace(MMA, memory=(Movement("lda", "Src1", "reg", "1/0", ""),)), "has the scope '1/0'",
    ),
    "unknown group": (replace(MMA, group="warp16"), "unknown group 'warp16'"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_contradictory_record_is_refused(fault: str) -> None:
    record, message = WRONG[fault]
    with pytest.raises(InvalidIntrinsic) as caught:
        check(record)
    assert message in caught.value.message
    assert isinstance(caught.value, CompileError)
    assert caught.value.where == record.name


def test_every_record_of_the_catalogue_is_consistent() -> None:
    for record in standard():
        check(record)


def test_other_combiners_need_their_own_padding() -> None:
    check(replace(MMA, compute="Dst[i1, i2] max= Src1[i1, r1] + Src2[r1, i2]", pad_identity=-3e38, numerics=Numerics()))
