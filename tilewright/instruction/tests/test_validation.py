"""Checks V1 to V9: each refuses with its own code and a counterexample, in order."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import CompileError, InvalidArgument
from tilewright.expr.core import Tensor
from tilewright.expr.text import parse_compute
from tilewright.instruction import validation
from tilewright.instruction.mapping import Mapping, enumerate_mappings, mapping_of, parse_mapping
from tilewright.instruction.matching import match
from tilewright.instruction.physical import physical
from tilewright.instruction.tests.sample_records import listed, matrix, operator, record
from tilewright.instruction.validation import CHECKS, MappingRefused, Verdict, judge, shrunken, validate
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.intrinsic import Limits, Movement, Numerics

PRODUCT = "C: i32[i:6, j:5] += i32(A[i,x]) * i32(B[x,j]) over x:7"


def load(address: str, source: str = "global", **more: int) -> Movement:
    return Movement("lda", "Src1", "reg", source, address, **more)  # type: ignore[arg-type]


def refused(mapping: object, **options: object) -> MappingRefused:
    with pytest.raises(MappingRefused) as caught:
        validate(mapping, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize(
    ("sets", "check", "words"),
    [
        (["np", "kp", "c"], "V1", "loop p goes to i1 and i2; p = 1 has two places"),
        (["nc", "k", "r"], "V2", "loop c is a reduction, i1 is spatial"),
        (["n", "k", "cp"], "V2", "results for p = 0 and 1 would be added"),
        (["nk", "p", "c"], "V3", "X does not depend on k, but Src1 is indexed by i1"),
        (["npq", "", "crs"], "V4", "no loop goes to i2"),
        (["npq", "k", "r"], "V7", "p, r = 1, 0 and 0, 1 give dimension 2 of X one index"),
    ],
)
def test_every_structural_check_has_its_code(sets: list[str], check: str, words: str) -> None:
    (found,) = match(operator("C2D"), matrix(2))
    error = refused(mapping_of(found, sets))
    assert (error.check, error.code) == (check, CHECKS[check])
    assert words in error.message
    assert isinstance(error, CompileError)
    assert error.help


def test_v3_where_two_values_would_share_an_element() -> None:
    (found,) = match(operator("DEP"), matrix(2))
    error = refused(mapping_of(found, ["c", "m", "r"]))
    assert error.check == "V3"
    assert "W depends on c, but Src2 is not indexed by i1: c = 0 and c = 1 would share one element" in error.message


def test_codes_are_distinct() -> None:
    assert len(set(CHECKS.values())) == 9


def test_v5_padding_must_be_neutral() -> None:
    ones = replace(matrix(2), pad_identity=1.0)
    error = refused(listed(operator("GMM"), ones)[0])
    assert error.check == "V5"
    assert "padding with 1 contributes 1 to sum, whose neutral value is 0" in error.message


def test_v6_overflow_inside_one_call() -> None:
    narrow = record(
        "Dst[i] += Src1[r] * Src2[i, r]", {"i": 4, "r": 4}, ("u8", "i8", "i32"), name="narrow",
        numerics=Numerics("saturated_pairs_i16"),
    )  # fmt: skip
    node = parse_compute(PRODUCT, dtypes={"A": "u8", "B": "i8"})
    error = refused(listed(node, narrow)[0])
    assert error.check == "V6"
    assert "one call of narrow gives" in error.message
    allowed = judge(listed(node, narrow)[0], exact=False)
    assert (allowed.refusal, allowed.notes) == (None, (error.message,))


def test_v6_saturation_is_refused_only_where_sums_can_reach_it() -> None:
    clamped = replace(matrix(2, dtypes=("u8", "i8", "i32")), numerics=Numerics(saturate=True), name="clamped")
    short = parse_compute(PRODUCT, dtypes={"A": "u8", "B": "i8"})
    assert judge(listed(short, clamped)[0]).refusal is None
    long = parse_compute(PRODUCT.replace("x:7", "x:100000"), dtypes={"A": "u8", "B": "i8"})
    error = refused(listed(long, clamped)[0])
    assert error.check == "V6"
    assert "100000 products of" in error.message
    assert judge(listed(long, clamped)[0], exact=False, differential=False).refusal is None


def test_v6_narrow_inputs_need_leave() -> None:
    narrow = matrix(2, dtypes=("tf32", "tf32", "f32"))
    mapping = listed(operator("GMM"), narrow)[0]
    assert refused(mapping).check == "V6"
    allowed = judge(mapping, exact=False)
    assert allowed.refusal is None
    assert allowed.notes[0].startswith("V6: Src1 is tf32")


def test_v7_is_a_note_in_mode_signature() -> None:
    (found,) = match(operator("C2D"), matrix(2))
    notes = validate(parse_mapping(found, "(p|k|crs)"), "signature")
    assert len(notes) == 1
    assert notes[0].startswith("V7")


@pytest.mark.parametrize(
    ("memory", "storage", "words"),
    [
        (load("a + i1 * s + r1", alignment_bytes=64), "packed", "aligned to 64 bytes"),
        (load("a + i1 * s + r1", stride_multiple=8), "packed", "multiples of 8"),
        (load("a + 3 * i1 + r1"), "packed", "steps of 3"),
    ],
)
def test_v8_movements(memory: Movement, storage: str, words: str) -> None:
    strict = replace(matrix(2), memory=(memory,))
    error = refused(physical(listed(operator("GMM"), strict)[0], storage=storage))  # type: ignore[arg-type]
    assert error.check == "V8"
    assert words in error.message


def test_v8_nearer_memories_place_tiles_themselves() -> None:
    staged = replace(matrix(2), memory=(load("a + i1 * s + r1", "shared", alignment_bytes=64),))
    assert judge(listed(operator("GMM"), staged)[0]).refusal is None


def test_v8_capacity() -> None:
    tiny = replace(matrix(2), limits=Limits({"reg": 40}))
    error = refused(listed(operator("GMM"), tiny)[0])
    assert error.check == "V8"
    assert "one call holds 48 bytes in reg, which has 40" in error.message


def test_v8_registers() -> None:
    wide = replace(matrix(2), limits=Limits(registers=30))
    mapping = listed(operator("GMM"), wide)[0]
    assert judge(mapping, registers=32).refusal is None
    assert "occupies 30 registers, the machine has 16" in refused(mapping, registers=16).message


def test_v9_finds_a_record_that_does_something_else() -> None:
    def wrong(of: object, dst: np.ndarray, *sources: np.ndarray) -> np.ndarray:
        result = execute(of, dst, *sources)  # type: ignore[arg-type]
        result[..., 0, -1] += 1
        return result

    mapping = listed(operator("GMM"), matrix(2))[0]
    assert judge(mapping).refusal is None
    error = refused(mapping, execute=wrong)
    assert error.check == "V9"
    assert "element i = 0, j = 1 is" in error.message


def test_v9_runs_once_per_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def counted(of: object, dst: np.ndarray, *sources: np.ndarray) -> np.ndarray:
        runs.append(of)
        return execute(of, dst, *sources)  # type: ignore[arg-type]

    monkeypatch.setattr(validation, "_PROVEN", {})
    for size in (40, 80, 160):
        node = operator("GMM", i=size, j=size, x=size)
        assert judge(listed(node, matrix(2))[0], execute=counted).refusal is None
    first = len(runs)
    assert first > 0
    assert judge(listed(operator("GMM", i=40, j=40, x=41), matrix(2))[0], execute=counted).refusal is None
    assert len(runs) == first
    same_name = replace(matrix(2), numerics=Numerics(order="fixed"))
    assert judge(listed(node, same_name)[0], execute=counted).refusal is None
    assert len(runs) == 2 * first


def test_small_instances_have_padding() -> None:
    (found,) = match(operator("C2D", n=16, k=64, p=56, q=56, c=64, r=3, s=3), matrix(16))
    for each in enumerate_mappings(found):
        small = shrunken(each)
        assert all(1 <= axis.extent <= 3 for axis in small.match.loops)  # type: ignore[operator]
        assert any(have % 2 for have in small.fused)


def test_parts_and_loops_of_a_mapping_must_exist() -> None:
    (found,) = match(operator("C2D"), matrix(2))
    with pytest.raises(InvalidArgument, match="2 parts for the 3 loops"):
        parse_mapping(found, "(n|k)")
    with pytest.raises(InvalidArgument, match="'z' is not a loop"):
        parse_mapping(found, "(nz|k|c)")
    with pytest.raises(InvalidArgument, match="is not a mapping"):
        parse_mapping(found, "n|k|c")
    assert str(parse_mapping(found, " ( q n ,k, c) ")) == "(nq|k|c)"


def test_c3d_is_judged_quickly() -> None:
    """All 180 mappings: V1 to V8 in half a second, V9 in five; generous factors for a busy machine."""
    node = operator("C3D", n=1, k=64, d=8, p=56, q=56, c=64, t=3, r=3, s=3)
    start = time.process_time()
    found = listed(node, matrix(16))
    assert all(judge(each, differential=False).refusal is None for each in found)
    static = time.process_time()
    assert all(judge(each).refusal is None for each in found)
    end = time.process_time()
    assert len(found) == 180
    assert static - start < 1.0
    assert end - static < 10.0


def test_layers_of_one_shape_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    inner = validation._judged

    def noted(mapping: Mapping, *given: object) -> Verdict:
        judged.append(mapping.match.compute.name)
        return inner(mapping, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(validation, "_judged", noted)
    validation._known.cache_clear()
    node = operator("GMM", i=4, j=4, x=6)
    for name in ("one", "other"):
        layer = replace(node, output=Tensor(name, node.output.shape, node.output.dtype))
        assert judge(listed(layer, matrix(2))[0]).refusal is None
    assert judged == ["t2"]
