"""Clean-up before matching: what is hoisted, what becomes a node of its own, what stays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tests.random_graphs import computes
from tests.random_graphs import random_inputs as random_arrays
from tilewright.expr.core import Axis, Compute, Tensor, select, walk
from tilewright.expr.dtypes import is_float
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.text import parse_compute, print_statement
from tilewright.instruction.canonical import Canonical, canonicalise
from tilewright.instruction.emulate import emulate, reference
from tilewright.instruction.matching import adapted, match, mismatch
from tilewright.instruction.physical import physical
from tilewright.instruction.tests.sample_records import listed, matrix, record, texts
from tilewright.instruction.validation import judge

DIGITS = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}


def run(canonical: Canonical, tensors: dict[str, np.ndarray]) -> np.ndarray:
    values = dict(tensors)
    for node in canonical.nodes:
        values[node.name] = evaluate_compute(node, values)
    return values[canonical.nodes[-1].name]


def random_inputs(node: Compute, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {each.name: generator.integers(-4, 5, each.shape).astype(np.float32) for each in node.inputs()}


@pytest.mark.parametrize(
    ("text", "core"),
    [
        ("S[i,j] += A[i,x] * B[x,j] / 4.0", "A[i, x] * B[x, j]"),
        ("S[i,j] += A[i,x] / 4.0 * B[x,j]", "A[i, x] * B[x, j]"),
        ("S[i,j] += -(A[i,x] * 2.0) * (B[x,j] * C[j])", "A[i, x] * B[x, j]"),
        ("S[i,j] += A[i,x] * B[x,j] / C[i]", "A[i, x] * B[x, j]"),
    ],
)
def test_what_does_not_vary_leaves_the_sum(text: str, core: str) -> None:
    node = parse_compute(text, {"i": 3, "j": 4, "x": 5})
    canonical = canonicalise(node)
    assert f"+= {core} over" in print_statement(canonical.core)
    assert len(canonical.after) == 1
    assert canonical.nodes[-1].output == node.output
    tensors = {name: array + 9 for name, array in random_inputs(node).items()}
    np.testing.assert_allclose(run(canonical, tensors), reference(node, tensors), rtol=1e-6)


def test_plain_products_stay_as_they_are() -> None:
    node = parse_compute("S[i,j] += A[i,x] * B[x,j]", {"i": 3, "j": 4, "x": 5})
    assert canonicalise(node) == Canonical((), node)
    maximum = parse_compute("S[i] max= A[i,x]", {"i": 3, "x": 5})
    assert canonicalise(maximum) == Canonical((), maximum)


def test_casts_of_products_become_casts_of_factors() -> None:
    node = parse_compute("S: f32[i:2, j:3] += f32(A[i,x] * B[x,j]) over x:4", dtypes="f16")
    assert "+= f32(A[i, x]) * f32(B[x, j]) over" in print_statement(canonicalise(node).core)
    assert texts(node, matrix(2, dtypes=("f16", "f16", "f32"))) == ["(i|j|x)"]


def test_a_narrow_sum_is_formed_in_the_wider_type() -> None:
    node = parse_compute("S: f16[i:2, j:3] += f16(f32(A[i,x]) * f32(B[x,j])) over x:4", dtypes="f16")
    canonical = canonicalise(node)
    assert canonical.core.output.dtype == "f32"
    assert canonical.after[0].output == node.output
    half = parse_compute("S[i,j] += A[i,x] * B[x,j]", {"i": 2, "j": 3, "x": 4}, "f16")
    (found,) = match(half, matrix(2, dtypes=("f16", "f16", "f32")))
    assert found.compute.output.dtype == "f32"
    assert found.canonical.nodes[-1].output == half.output
    tensors = {each.name: np.ones(each.shape, np.float16) for each in half.inputs()}
    (mapping,) = listed(half, matrix(2, dtypes=("f16", "f16", "f32")))
    np.testing.assert_array_equal(emulate(physical(mapping), tensors), np.full((2, 3), 4, np.float16))


def padded() -> Compute:
    """A convolution that pads inside its sum."""
    n, k, p, q, c, r, s = (Axis(name, size) for name, size in zip("nkpqcrs", (2, 3, 4, 4, 2, 3, 3), strict=True))
    image, weight = Tensor("X", (2, 2, 4, 4), "f32"), Tensor("W", (3, 2, 3, 3), "f32")
    inside = (p + r >= 1) & (p + r - 1 < 4) & (q >= 1 - s) & (q + s - 1 < 4)
    body = select(inside, image[n, c, p + r - 1, q + s - 1], 0.0) * weight[k, c, r, s]
    return Compute(Tensor("Y", (2, 3, 4, 4), "f32"), (n, k, p, q), body, (c, r, s), "sum")


def test_guarded_padding_becomes_a_node() -> None:
    node = padded()
    canonical = canonicalise(node)
    (before,) = canonical.before
    assert before.output.shape == (2, 2, 6, 6)
    assert "Y.in[n, c, p + r, q + s]" in print_statement(canonical.core)
    tensors = random_inputs(node)
    np.testing.assert_array_equal(run(canonical, tensors), reference(node, tensors))
    assert len(listed(node, matrix(2))) == 35


def test_padding_inside_a_sum_follows_the_types_of_a_record() -> None:
    half = matrix(2, dtypes=("f16", "f16", "f32"))
    node = adapted(padded(), half)
    assert [each.dtype for each in node.inputs()] == ["f16", "f16"]
    assert len(listed(node, half)) == 35
    tensors = {name: array.astype(np.float16) for name, array in random_inputs(node).items()}
    np.testing.assert_array_equal(emulate(physical(listed(node, half)[0]), tensors), reference(node, tensors))


def test_a_factor_whose_indices_vary_together_gets_the_loops_as_dimensions() -> None:
    """A tile of ``p`` and ``p - r`` has points that the loops never reach, and whose reads leave the tensor."""
    p, r, k = Axis("p", 4), Axis("r", 4), Axis("k", 2)
    a, b = Tensor("A", (4,), "f32"), Tensor("B", (4, 2), "f32")
    body = select(p >= r, a[p - r], 0.0).cast("f32") * b[r, k]
    node = Compute(Tensor("Y", (4, 2), "f32"), (p, k), body, (r,), "sum")
    canonical = canonicalise(node)
    assert canonical.before[0].output.shape in ((7,), (4, 4))
    tensors = random_inputs(node)
    np.testing.assert_array_equal(run(canonical, tensors), reference(node, tensors))


def test_a_factor_that_reads_nothing_is_a_table_over_its_loops() -> None:
    """A running sum: the triangle is a table of x and j, not of their difference."""
    node = parse_compute("C[i,j] += A[i,x] * (x <= j ? 1.0 : 0.0)", {"i": 3, "j": 4, "x": 4})
    assert canonicalise(node).before[0].output.shape == (4, 4)
    assert texts(node, matrix(2)) == ["(i|j|x)"]
    half = matrix(2, dtypes=("f16", "f16", "f32"))
    assert texts(adapted(node, half), half) == ["(i|j|x)"]
    tensors = random_inputs(node)
    np.testing.assert_array_equal(emulate(physical(listed(node, matrix(2))[0]), tensors), reference(node, tensors))


def test_elementwise_factors_become_nodes() -> None:
    node = parse_compute("S[i,j] += max(A[i,x], 0.0) * (B[x,j] - C[x])", {"i": 3, "j": 4, "x": 5})
    canonical = canonicalise(node)
    assert [before.output.shape for before in canonical.before] == [(3, 5), (5, 4)]
    tensors = random_inputs(node)
    np.testing.assert_array_equal(run(canonical, tensors), reference(node, tensors))


def test_reversed_windows_stay_or_are_turned_around() -> None:
    node = parse_compute("Y[p,k] += X[p+r] * W[k,2-r]", {"p": 5, "k": 2, "r": 3})
    assert canonicalise(node).before == ()
    turned = canonicalise(node, flip=True)
    assert len(turned.before) == 1
    assert "W" not in {each.name for each in turned.core.inputs()}
    tensors = random_inputs(node)
    np.testing.assert_array_equal(run(turned, tensors), reference(node, tensors))


def test_units_are_added_where_an_intrinsic_loop_has_none() -> None:
    node = parse_compute("C[i] += A[i,x] * B[x]", {"i": 5, "x": 7})
    (found,) = match(node, matrix(2), complete=True)
    assert [axis.extent for axis in found.canonical.units] == [1]
    tensors = random_inputs(node)
    np.testing.assert_array_equal(run(found.canonical, tensors), reference(node, tensors))
    (mapping,) = listed(node, matrix(2), complete=True)
    assert mapping.degenerate
    np.testing.assert_array_equal(emulate(physical(mapping), tensors), reference(node, tensors))


CUBE = record(
    "Dst[m1, n1, m2, n2] += Src1[m1, k1, m2, k2] * Src2[k1, n1, n2, k2]",
    {"m1": 2, "n1": 3, "k1": 2, "m2": 4, "n2": 4, "k2": 4}, name="cube",
)  # fmt: skip


def test_long_loops_are_split_where_a_record_has_tiles_of_lanes() -> None:
    node = parse_compute("C[i,j] += A[i,x] * B[x,j]", {"i": 16, "j": 12, "x": 8})
    assert listed(node, CUBE) == []
    found = {str(each): physical(each) for each in listed(node, CUBE, complete=True)}
    whole = found["(i.o|j.o|x.o|i.i|j.i|x.i)"]
    assert (whole.calls, whole.utilisation) == (2, 1.0)
    tensors = random_inputs(node)
    for each in found.values():
        np.testing.assert_array_equal(emulate(each, tensors), reference(node, tensors))
        assert judge(each).refusal is None


def test_loops_that_share_a_dimension_are_not_split() -> None:
    node = parse_compute("Y[p,k] += X[p+r] * W[k,r]", {"p": 16, "k": 16, "r": 8})
    found = listed(node, CUBE, "signature", complete=True)
    assert found
    assert all(each.degenerate for each in found)
    tensors = random_inputs(node)
    np.testing.assert_array_equal(emulate(physical(found[0]), tensors), reference(node, tensors))


def test_names_in_use_are_not_taken_again() -> None:
    taken = {"Y.in", "Y.core"}
    assert not taken & {node.name for node in canonicalise(padded(), taken=taken).nodes}


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ("S[i:3] max= A[i,x] over x:5", "f32", "accumulates with sum, the node with max"),
        ("S[i:3, j:5] = A[i] * B[j]", "f32", "the node with nothing"),
        ("S[i:3, j:5] += A[i,x] + B[x,j] over x:2", "f32", "computes Src1[i1, r1] * Src2[r1, i2]"),
        ("S[i:3, j:5] += A[i,x] * B[x,j] over x:2", "f64", "accumulates in f32, the node in f64"),
        ("S: f32[i:2, j:2] += f32(A[i,x]) * f32(B[x,j]) over x:2", "f16", "Src1 of matrix_2_2_2 is f32"),
        ("S[i:3, j:0] += A[i,x] * B[x,j] over x:2", "f32", "it is empty: loop j has extent 0"),
    ],
)
def test_reasons_why_a_record_does_not_apply(text: str, dtype: str, words: str) -> None:
    node = parse_compute(text, dtypes=dtype)
    assert match(node, matrix(2)) == ()
    assert words in mismatch(node, matrix(2))


@settings(max_examples=tries(12, full=100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(computes(points=256), st.booleans())
def test_random_nodes_keep_their_meaning(node: Compute, flip: bool) -> None:
    canonical = canonicalise(node, flip=flip)
    assert canonical.nodes[-1].output == node.output
    found, wanted = run(canonical, random_arrays(node)), reference(node, random_arrays(node))
    if not is_float(node.output.dtype):
        np.testing.assert_array_equal(found, wanted)
        return
    precise = evaluate_compute(node, random_arrays(node), precise=True, wide=True)
    digits = min(DIGITS[each.dtype] for each in (node.output, *walk(node.body)) if each.dtype in DIGITS)
    scale = np.abs(precise).max(initial=1.0) * (1 + sum(axis.extent for axis in node.reduce))  # type: ignore[misc]
    assert (np.abs(found.astype(np.float64) - precise) <= 64 * 2.0**-digits * scale).all()


def test_integer_products_keep_wrapping() -> None:
    node = parse_compute("S: i32[i:2, j:3] += i32(i64(A[i,x]) * i64(B[x,j])) over x:4", dtypes="i32")
    canonical = canonicalise(node)
    tensors = {each.name: np.full(each.shape, 2**30 + 5, np.int32) for each in node.inputs()}
    np.testing.assert_array_equal(run(canonical, tensors), reference(node, tensors))
