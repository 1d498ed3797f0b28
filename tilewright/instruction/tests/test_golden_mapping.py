"""Golden tests G1 to G26 and G48 of the instruction level: counts, validity, placement, relayouts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import chain, combinations

import numpy as np
import pytest

from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.text import parse_compute, print_expr
from tilewright.instruction import algorithm4
from tilewright.instruction.canonical import canonicalise
from tilewright.instruction.emulate import emulate, reference, small_values
from tilewright.instruction.mapping import distinct, mappings, parse_mapping
from tilewright.instruction.matching import adapted, match
from tilewright.instruction.physical import physical
from tilewright.instruction.relayout import relayouts
from tilewright.instruction.tests.sample_records import OPERATORS, listed, matrix, operator, record, texts
from tilewright.instruction.validation import MappingRefused, judge, validate
from tilewright.intrinsics.intrinsic import Intrinsic

# In the order of G1.
NAMES = ["GMV", "GMM", "C1D", "C2D", "C3D", "T2D", "GRP", "DIL", "DEP", "CAP", "BCV", "GFC", "MEN", "VAR", "SCN"]
POINTS = dict(zip(NAMES, (1, 1, 3, 7, 13, 3, 7, 7, 4, 14, 4, 1, 1, 1, 1), strict=True))
RULE_R = dict(zip(NAMES, (1, 1, 6, 35, 180, 7, 35, 35, 11, 105, 11, 1, 1, 1, 1), strict=True))
SIGNATURE = dict(zip(NAMES, (1, 1, 9, 49, 225, 49, 49, 49, 21, 147, 21, 1, 1, 1, 1), strict=True))
C2D = "Y[n,k,p,q] += X[n,c,p+r,q+s] * W[k,c,r,s]"
#: ResNet-18: c, k, output size, window, stride, and the mapping, fused extents, calls and utilisation of Table 5.4.
LAYERS: dict[str, tuple[int, int, int, int, int, str, tuple[int, int, int], int, float]] = {
    "C0": (3, 64, 112, 7, 2, "(nq|k|crs)", (1792, 64, 147), 501760, 0.9187),
    "C1": (64, 64, 56, 3, 1, "(nq|k|cr)", (896, 64, 192), 451584, 1),
    "C2": (64, 64, 56, 1, 1, "(pq|k|c)", (3136, 64, 64), 50176, 1),
    "C3": (64, 128, 28, 3, 2, "(npq|k|cs)", (12544, 128, 192), 225792, 1),
    "C4": (64, 128, 28, 1, 2, "(pq|k|c)", (784, 128, 64), 25088, 1),
    "C5": (128, 128, 28, 3, 1, "(pq|k|c)", (784, 128, 128), 451584, 1),
    "C6": (128, 256, 14, 3, 2, "(n|k|cs)", (16, 256, 384), 225792, 1),
    "C7": (128, 256, 14, 1, 2, "(npq|k|c)", (3136, 256, 128), 25088, 1),
    "C8": (256, 256, 14, 3, 1, "(pq|k|c)", (196, 256, 256), 479232, 0.9423),
    "C9": (256, 512, 7, 3, 2, "(npq|k|crs)", (784, 512, 2304), 225792, 1),
    "C10": (256, 512, 7, 1, 2, "(npq|k|c)", (784, 512, 256), 25088, 1),
    "C11": (512, 512, 7, 3, 1, "(n|k|crs)", (16, 512, 4608), 451584, 1),
}
AXPY = record("Dst[i] += Src1[z] * Src2[i, z]", {"i": 4, "z": 1}, name="axpy")
GEMV = record("Dst[i] += Src1[r] * Src2[i, r]", {"i": 16, "r": 4}, name="gemv")
CONV = record("Dst[kk, pp, qq] += Src1[cc, pp, qq] * Src2[kk, cc]", {"kk": 16, "pp": 4, "qq": 4, "cc": 16}, name="conv")
DOT = record("Dst[] += Src1[r] * Src2[r]", {"r": 4}, name="dot")
SDOT = record("Dst[i] += Src1[i, r] * Src2[i, r]", {"i": 4, "r": 4}, name="sdot")


def layer(name: str, batch: int) -> Compute:
    c, k, size, window, stride, *_ = LAYERS[name]
    text = f"Y[n,k,p,q] += X[n,c,p*{stride}+r,q*{stride}+s] * W[k,c,r,s]"
    return parse_compute(text, {"n": batch, "k": k, "p": size, "q": size, "c": c, "r": window, "s": window})


def point_count(node: Compute, of: Intrinsic) -> int:
    (found,) = match(node, of)
    return len(found.points)


def counts(node: Compute, of: Intrinsic, **options: bool) -> int:
    return len(listed(node, of, **options))


@pytest.mark.parametrize("name", NAMES)
def test_spec3_g1_g2_g4_counts(name: str) -> None:
    node = operator(name)
    assert point_count(node, matrix(16)) == POINTS[name]
    assert counts(node, matrix(16)) == RULE_R[name]
    assert len(listed(node, matrix(16), "signature")) == SIGNATURE[name]
    assert len(listed(node, matrix(16), "amos-compat")) == RULE_R[name]


@pytest.mark.parametrize("name", NAMES)
def test_spec3_g3_rule_r_is_the_unions_of_match_points(name: str) -> None:
    (found,) = match(operator(name), matrix(16))
    subsets = chain.from_iterable(combinations(found.points, size) for size in range(1, len(found.points) + 1))
    families = {tuple(frozenset(point[loop] for point in chosen) for loop in range(3)) for chosen in subsets}
    disjoint = {family for family in families if sum(map(len, family)) == len(frozenset().union(*family))}
    assert {tuple(map(frozenset, each.sets)) for each in listed(operator(name), matrix(16))} == disjoint


@pytest.mark.parametrize("name", NAMES)
def test_spec3_g4_every_signature_mapping_computes_the_operator(name: str) -> None:
    for each in listed(operator(name), matrix(2), "signature"):
        assert judge(each, "signature").refusal is None


def test_spec3_g5_points_of_c2d() -> None:
    (found,) = match(operator("C2D"), matrix(16))
    shown = {"".join(axis.name for axis in point) for point in found.points}
    assert shown == {"nkc", "nkr", "nks", "pkc", "pks", "qkc", "qkr"}


@pytest.mark.parametrize(("text", "found"), [("(p|k|r)", 0), ("(np|k|cr)", 1), ("(p|k|cr)", 0), ("(npq|k|r)", 0)])
def test_spec3_g6_members_of_rule_r(text: str, found: int) -> None:
    assert texts(operator("C2D"), matrix(16)).count(text) == found


def test_spec3_g7_definitions_are_part_of_the_rule() -> None:
    wide = parse_compute("M[c,j] += A[n,c,h,w] * U[n,h,w,j]", {"n": 2, "c": 3, "h": 4, "w": 5, "j": 1})
    assert counts(wide, matrix(16)) == 7
    assert counts(operator("T2D"), matrix(16), flip=True) == 35
    vector = parse_compute("C[i] += A[i,x] * B[x]", {"i": 8, "x": 9})
    sizes = {"n": 2, "c": 3, "p": 2, "q": 3, "r": 3, "s": 2}
    depthwise = parse_compute("Y[n,c,p,q] += X[n,c,p+r,q+s] * W[c,r,s]", sizes)
    assert counts(vector, matrix(16)) == counts(depthwise, matrix(16)) == 0
    assert counts(vector, matrix(16), complete=True) == 1
    assert counts(depthwise, matrix(16), complete=True) == 11
    linear = parse_compute("Y[b,t,o] += X[b,t,i] * W[o,i]", {"b": 2, "t": 3, "o": 4, "i": 5})
    assert counts(linear, matrix(16)) == 3
    batched = parse_compute("Y[b,i,j] += X[b,i,x] * W[b,x,j]", {"b": 2, "i": 3, "j": 4, "x": 5})
    assert counts(batched, matrix(16)) == 1


@pytest.mark.parametrize(("name", "count"), [("C2D", 35), ("DEP", 11)])
def test_spec3_g8_operands_swapped(name: str, count: int) -> None:
    found = listed(operator(name), matrix(16), commute=True)
    assert [each.match.swapped for each in found].count(True) == count
    assert len(found) == 2 * count


def test_spec3_g9_accelerators_on_c3d() -> None:
    node = operator("C3D")
    assert counts(node, AXPY) == counts(node, GEMV) == 15
    swapped = [each for each in listed(node, GEMV, commute=True) if each.match.swapped]
    assert len(swapped) == 180
    assert point_count(node, CONV) == 30
    found = listed(node, CONV)
    assert len(found) == 366
    assert len({(each.sets[0], frozenset(each.sets[1:3]), each.sets[3]) for each in found}) == 183
    assert len(listed(node, CONV, "signature")) == 750
    compat = listed(node, CONV, "amos-compat")
    assert len(compat) == 31
    refused = [verdict.refusal for each in compat if (verdict := judge(each, differential=False)).refusal]
    assert [refusal.check for refusal in refused if refusal] == ["V1"]


def test_compat_prefers_points_that_fill_the_tile_exactly() -> None:
    node = operator("C3D", n=1, k=16, d=2, p=4, q=4, c=16)
    assert texts(node, CONV, "amos-compat") == ["(k|p|q|c)", "(k|q|p|c)", "(k|ndpq|ndpq|ctrs)"]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (record("Dst[i] += Src1[r] * Src2[i, r]", {"i": 16, "r": 4}),
         {"C1D": 3, "C2D": 7, "C3D": 15, "GRP": 7, "DEP": 3, "CAP": 21, "BCV": 7}),
        (DOT, {"C2D": 7, "C3D": 15, "DEP": 3}),
        (SDOT, {"DEP": 3, "BCV": 7, "GRP": 7, "C2D": 0}),
    ],
    ids=["gemv", "dot", "vector-dot"],
)  # fmt: skip
def test_spec3_g10_g11_dot_products(of: Intrinsic, expected: Mapping[str, int]) -> None:
    assert {name: counts(operator(name), of) for name in expected} == expected


def test_spec3_g12_algorithm4_exhaustively() -> None:
    (found,) = match(operator("C2D"), matrix(16))
    x, z = found.access, found.intrinsic_access
    assert algorithm4.count(x, z) == 1
    assert algorithm4.count(x, z, partial=True) == 1
    assert algorithm4.count(x, z, partial=True, mask=True) == 49
    (depthwise,) = match(operator("DEP"), matrix(16))
    assert algorithm4.count(depthwise.access, depthwise.intrinsic_access, partial=True, mask=True) == 21


def rows(values: np.ndarray) -> str:
    return "/".join("".join(str(int(value)) for value in row) for row in values)


def test_spec3_g13_two_unlike_loops_together() -> None:
    node = parse_compute(C2D, OPERATORS["C2D"][1])
    (found,) = match(node, matrix(16))
    # k beside n, the others as in (npq|k|crs): i2 then has no loop.
    wrong = parse_mapping(found, "(npqk||crs)")
    x, z = algorithm4.products(found.access, wrong.matrix, found.intrinsic_access)
    assert rows(x) == "1111111/0000111/1111000"
    assert rows(z) == "101/101/100"
    assert refusal_of(wrong).check == "V3"


def refusal_of(mapping: object, **options: object) -> MappingRefused:
    with pytest.raises(MappingRefused) as caught:
        validate(mapping, **options)  # type: ignore[arg-type]
    return caught.value


def test_spec3_g14_outer_loops_pass_under_the_mask_only() -> None:
    (found,) = match(operator("C2D"), matrix(16))
    mapping = parse_mapping(found, "(nq|k|c)")
    arguments = found.access, mapping.matrix, found.intrinsic_access
    assert not algorithm4.literal(*arguments)
    assert algorithm4.masked(*arguments)
    assert rows(algorithm4.products(*arguments)[0]) == "1001100/0100100/1101000"


def test_spec3_g15_relations_pass_the_literal_test_and_fail_v1() -> None:
    (found,) = match(operator("C3D"), CONV)
    union = listed(operator("C3D"), CONV, "amos-compat")[-1]
    assert str(union) == "(k|ndpq|ndpq|ctrs)"
    assert algorithm4.literal(found.access, union.matrix, found.intrinsic_access)
    assert refusal_of(union).check == "V1"


@pytest.mark.parametrize(
    ("tile", "batch", "expected"),
    [
        ((8, 32, 16), 1, (18, 20, 20, 20, 20, 20, 20, 20, 20, 8, 8, 8)),
        ((16, 16, 16), 1, (18, 20, 20, 20, 20, 20, 8, 8, 8, 8, 8, 8)),
        ((16, 16, 16), 16, (22, 24, 24, 24, 24, 24, 20, 20, 20, 20, 20, 20)),
    ],
)
def test_spec3_g16_g17_strict(tile: tuple[int, int, int], batch: int, expected: tuple[int, ...]) -> None:
    found = tuple(len(listed(layer(name, batch), matrix(*tile), strict=True)) for name in LAYERS)
    assert found == expected


@pytest.mark.parametrize(("name", "batch", "count"), [("C1", 16, 35), ("C1", 1, 17), ("C2", 16, 7), ("C2", 1, 3)])
def test_spec3_g18_distinct_programs(name: str, batch: int, count: int) -> None:
    assert len(distinct(listed(layer(name, batch), matrix(16)))) == count


def test_distinct_keeps_a_program_that_has_only_unit_loops() -> None:
    assert len(distinct(listed(operator("GMV"), matrix(16)))) == 1


def example() -> Compute:
    return parse_compute(C2D, {"n": 1, "k": 4, "p": 2, "q": 2, "c": 1, "r": 3, "s": 3})


def test_spec3_g19_g20_the_worked_example() -> None:
    (found,) = match(example(), matrix(2))
    whole = physical(parse_mapping(found, "(npq|k|crs)"))
    assert (whole.fused, whole.tiles, whole.calls, whole.utilisation) == ((4, 4, 9), (2, 2, 5), 20, 0.9)
    image, weight, output = whole.placements
    shown = [print_expr(place.base(dict(whole.index_axes)), "i64") for place in whole.placements]
    assert shown == [
        "i1 // 2 * 20 + r1 // 2 * 4", "r1 // 2 * 8 + i2 // 2 * 4", "i1 // 2 * 8 + i2 // 2 * 4",
    ]  # fmt: skip
    assert [tuple(place.strides.values()) for place in whole.placements] == [(2, 1)] * 3
    assert (image.elements, weight.elements, output.elements) == (40, 40, 16)
    pixels = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)  # from 1, so that zeros are padding
    weights = np.arange(1, 37, dtype=np.float32).reshape(4, 1, 3, 3)
    first, second = (evaluate_compute(node, {"X": pixels, "W": weights}).ravel() for node in relayouts(whole))
    text = """0 1 1 2  2 4 3 5  5 6 6 7  8 9 9 10  10 _ 11 _  4 5 5 6  6 8 7 9  9 10 10 11
              12 13 13 14  14 _ 15 _"""
    assert first.tolist() == [0 if word == "_" else int(word) + 1 for word in text.split()]
    assert np.flatnonzero(first == 0).tolist() == [17, 19, 37, 39]
    assert np.flatnonzero(second == 0).tolist() == [34, 35, 38, 39]
    for (p, q, r, s), (i1, r1, base, inside, pixel) in {
        (0, 0, 0, 0): (0, 0, 0, 0, 0), (0, 1, 1, 2): (1, 5, 8, 3, 7), (1, 0, 2, 2): (2, 8, 36, 0, 14),
        (1, 1, 2, 1): (3, 7, 32, 3, 14), (1, 1, 2, 2): (3, 8, 36, 2, 15),
    }.items():  # fmt: skip
        assert (p * 2 + q, r * 3 + s, (p + r) * 4 + q + s) == (i1, r1, pixel)
        assert i1 // 2 * 20 + r1 // 2 * 4 == base
        assert i1 % 2 * image.strides["i1"] + r1 % 2 == inside
        assert first[base + inside] == pixel + 1


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_spec3_g21_emulation_equals_reference(stride: int, dilation: int) -> None:
    text = f"Y[n,k,p,q] += X[n,c,p*{stride}+r*{dilation},q*{stride}+s*{dilation}] * W[k,c,r,s]"
    node = parse_compute(text, OPERATORS["C2D"][1])
    generator = random.Random(stride * 10 + dilation)
    tensors = {each.name: small_values("f32", each.shape, generator) for each in node.inputs()}  # type: ignore[arg-type]
    wanted = reference(node, tensors)
    for mode, count in (("points", 35), ("signature", 49)):
        found = listed(node, matrix(2), mode)  # type: ignore[arg-type]
        assert len(found) == count
        for each in found:
            np.testing.assert_array_equal(emulate(physical(each), tensors), wanted)


def test_spec3_g22_an_element_of_c9() -> None:
    (found,) = match(layer("C9", 16), matrix(16))
    whole = physical(parse_mapping(found, "(npq|k|crs)"))
    at = dict(zip((axis.name for axis in found.loops), (15, 0, 6, 0, 222, 0, 2), strict=True))
    assert (at["n"] * 7 + at["p"]) * 7 + at["q"] == 777
    assert (at["c"] * 3 + at["r"]) * 3 + at["s"] == 2000
    assert (at["p"] * 2 + at["r"], at["q"] * 2 + at["s"]) == (12, 2)
    image = whole.placements[0]
    address = 777 // 16 * image.tile_strides[0] + 2000 // 16 * image.tile_strides[1] + 777 % 16 * 16 + 2000 % 16
    assert address == 1801616
    # The generated relayout reads exactly that element of the padded input.
    small = physical(parse_mapping(match(layer("C9", 16), matrix(16))[0], "(npq|k|crs)"))
    values = np.zeros(small.match.reads[0].tensor.shape, np.float32)
    values[15, 222, 12, 2] = 1
    assert np.flatnonzero(evaluate_compute(relayouts(small)[0], {"X": values})).tolist().count(address) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_spec3_g23_table_5_4(name: str) -> None:
    *_, text, fused, calls, utilisation = LAYERS[name]
    (found,) = match(layer(name, 16), matrix(16))
    mapping = parse_mapping(found, text)
    whole = physical(mapping)
    assert (whole.fused, whole.calls) == (fused, calls)
    assert whole.utilisation == pytest.approx(utilisation, abs=5e-5)
    assert text in texts(layer(name, 16), matrix(16))


def test_spec3_g24_g25_utilisation() -> None:
    depthwise = operator("DEP", n=1, c=16, m=6, p=56, q=56, r=3, s=3)
    whole = physical(parse_mapping(match(depthwise, matrix(16))[0], "(pq|m|rs)"))
    assert (whole.calls, whole.utilisation) == (3136, 0.2109375)
    for (rows_, columns), expected in {(1024, 256): (1024, 0.0625), (64, 56 * 56): (784, 0.0625)}.items():
        (each,) = listed(operator("GMV", i=rows_, x=columns), matrix(16))
        whole = physical(each)
        assert (whole.calls, whole.utilisation) == expected
        assert each.degenerate


def test_spec3_g26_window_preserving_packing() -> None:
    (found,) = match(layer("C5", 16), matrix(16))
    mapping = parse_mapping(found, "(n|k|cs)")
    assert physical(mapping, keep_windows=False).placements[0].elements == 14450688
    assert physical(mapping).placements[0].elements == 5160960
    assert found.reads[0].tensor.size == 1843200


def test_spec3_g48_padding_is_guarded_by_the_fused_index() -> None:
    node = example()
    pixels = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    pixels[0, 0, 3, 0] = np.nan
    found = emulate(
        physical(parse_mapping(match(node, matrix(2))[0], "(pq|k|rs)")),
        {"X": pixels, "W": np.ones((4, 1, 3, 3), np.float32)},
    )
    assert found[0, 0, 0].tolist() == [45, 54]


def test_spec3_g46_scaled_scores_need_hoisting() -> None:
    """``sum(q * k / s)`` maps only after its divisor has left the sum: 12 more operators of BERT."""
    node = parse_compute("S[b,i,j] += Q[b,i,x] * K[b,j,x] / 8.0", {"b": 2, "i": 3, "j": 4, "x": 5})
    assert counts(node, matrix(2)) == 1
    canonical = canonicalise(node)
    assert len(canonical.after) == 1
    generator = random.Random(0)
    tensors = {each.name: small_values("f32", each.shape, generator) for each in node.inputs()}  # type: ignore[arg-type]
    (mapping,) = mappings(node, matrix(2))
    np.testing.assert_allclose(emulate(physical(mapping), tensors), reference(node, tensors), rtol=1e-6)


def test_c3d_against_a_matrix_unit_covers_all_sets() -> None:
    node = adapted(operator("C3D"), matrix(16, dtypes=("f16", "f16", "f32")))
    assert node.body.dtype == "f32"
    assert counts(node, matrix(16, dtypes=("f16", "f16", "f32"))) == 180
