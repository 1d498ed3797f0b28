"""Loop inference and bounds, rule by rule of spec 1, section 1.2."""

import pytest

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import Axis, Compute, Dim, Graph, Tensor, select
from tilewright.expr.infer import check, check_bounds
from tilewright.expr.text import parse_compute

SIZES = {"n": 2, "k": 4, "h": 5, "w": 6, "c": 3, "r": 3, "s": 2, "i": 7, "j": 8}


def loops(text: str) -> tuple[list[str], list[str]]:
    compute = parse_compute(text, SIZES)
    return [axis.name for axis in compute.axes], [axis.name for axis in compute.reduce]


def test_spec1_g01_spatial_loops_index_the_output_and_all_others_reduce() -> None:
    assert loops("C[i, j] = sum(A[i, k] * B[j, k])") == (["i", "j"], ["k"])
    assert loops("C[n, k, h, w] += A[n, c, h + r, w + s] * B[k, c, r, s]") == (["n", "k", "h", "w"], ["c", "r", "s"])
    assert loops("B[i, j] = A[i, j] >= 0 ? A[i, j] : 0") == (["i", "j"], [])


def test_a_loop_of_a_condition_counts() -> None:
    assert loops("C[i] += r < 2 ? A[i] : 0") == (["i"], ["r"])


def test_extents_come_from_dimensions_indexed_alone() -> None:
    compute = parse_compute("input A: f32[6, 9]\ninput B: f32[9, 4]\nC[i, j] += A[i, k] * B[k, j]")
    assert [axis.extent for axis in compute.loops] == [6, 4, 9]


def test_a_loop_that_stands_nowhere_alone_needs_a_size() -> None:
    text = "input A: f32[9]\nC[h] += A[h + r]"
    with pytest.raises(InvalidExpression, match="loop h stands alone in no unguarded index"):
        parse_compute(text)
    assert parse_compute(text, {"h": 7, "r": 3}).output.shape == (7,)


def test_two_extents_for_one_loop_are_an_error_unless_a_size_decides() -> None:
    text = "input A: f32[6]\ninput B: f32[9]\nC[i] = A[i] + B[i]"
    with pytest.raises(ExtentMismatch, match=r"i indexes dimension 0 of A \(6\) and dimension 0 of B \(9\)"):
        parse_compute(text)
    assert parse_compute(text, {"i": 6}).output.shape == (6,)


def test_shapes_are_as_long_as_the_indices_need() -> None:
    compute = parse_compute("C[h, w] += A[h * 2 + r, w // 2] * A[h, w]", SIZES)
    assert compute.inputs() == (Tensor("A", (11, 6), "f32"),)


def test_composite_indices_are_checked_with_a_counterexample() -> None:
    with pytest.raises(InvalidExpression, match="index 7 in dimension 0 at h = 4, r = 3"):
        parse_compute("input A: f32[7]\nC[h] += A[h + r]", {"h": 5, "r": 4})
    with pytest.raises(InvalidExpression, match="index -1 in dimension 0 at h = 0"):
        parse_compute("input A: f32[7]\nC[h] = A[h - 1]", {"h": 5})


def test_a_guard_lifts_the_check_where_it_holds_only() -> None:
    parse_compute("input A: f32[7]\nC[h] = (h >= 1 and h <= 7) ? A[h - 1] : 0", {"h": 20})
    parse_compute("input A: f32[7]\nC[h] = (h < 1 or not h <= 7) ? 0 : A[h - 1]", {"h": 20})
    with pytest.raises(InvalidExpression, match="index 7 in dimension 0 at h = 8"):
        parse_compute("input A: f32[7]\nC[h] = (h >= 1 and h <= 8) ? A[h - 1] : 0", {"h": 20})


def test_a_guard_on_other_loops_is_taken_into_account() -> None:
    parse_compute("input A: f32[7]\nC[h, w] = (w + h < 7 and w >= 0) ? A[h] : 0", {"h": 20, "w": 4})
    with pytest.raises(InvalidExpression, match="with index 7"):
        parse_compute("input A: f32[7]\nC[h, w] = (w + h < 8 and w >= 0) ? A[h] : 0", {"h": 20, "w": 4})


def test_indices_that_are_not_affine_are_tried_exactly() -> None:
    i, j = Axis("i", 4), Axis("j", 4)
    x = Tensor("x", (7,), "f32")
    check(Compute(Tensor("o", (4, 4), "f32"), (i, j), x[(i * 3 + j * 2) % 8 // 2 + (i * i) // 3]))
    with pytest.raises(InvalidExpression, match="with index 9 in dimension 0 at i = 3"):
        check(Compute(Tensor("o", (4, 4), "f32"), (i, j), x[i * i]))


def test_a_large_affine_domain_is_decided_by_its_corners() -> None:
    i, j = Axis("i", 1 << 20), Axis("j", 1 << 20)
    x = Tensor("x", ((1 << 21) - 2,), "f32")
    with pytest.raises(InvalidExpression, match="with index 2097150 in dimension 0 at i = 1048575, j = 1048575"):
        check(Compute(Tensor("o", (1 << 20, 1 << 20), "f32"), (i, j), x[i + j]))


def test_named_dimensions() -> None:
    n = Dim("N", 1, 64)
    x, i = Tensor("x", (n,), "f32"), Axis("i", n)
    check(Compute(Tensor("o", (n,), "f32"), (i,), x[i]))
    with pytest.raises(InvalidExpression, match="with index 1 in dimension 0 at N = 1, i = 0"):
        check(Compute(Tensor("o", (n,), "f32"), (i,), x[i + 1]))
    check(Compute(Tensor("o", (n,), "f32"), (i,), select(i < 1, x[i], 0.0)))


def test_no_iteration_means_no_read() -> None:
    i = Axis("i", 0)
    check(Compute(Tensor("o", (0,), "f32"), (i,), Tensor("x", (2,), "f32")[i + 5]))


def test_check_bounds_names_the_node() -> None:
    i = Axis("i", 4)
    x = Tensor("x", (4,), "f32")
    good = Compute(Tensor("good", (4,), "f32"), (i,), x[i])
    bad = Compute(Tensor("bad", (4,), "f32"), (i,), x[i + 1])
    check_bounds(Graph((x,), (good.output,), (good,)))
    with pytest.raises(InvalidExpression, match="bad reads x"):
        check_bounds(Graph((x,), (bad.output,), (good, bad)))


@pytest.mark.parametrize(("text", "message"), [
    ("C[i] = A[i, k]", "k occurs on the right only"), ("C[i] += A[i]", "without a reduction loop"),
    ("C[i, i] = A[i]", "one loop indexes two dimensions"), ("C[i] += A[i, k] over i", "the reduction loops are [k]"),
    ("C[i] += A[i, k, j] over k", "the reduction loops are [k, j]"), ("C[i] += A[i, k] over k, k", "are [k]"),
    ("C[i] += A[i, k] over k, z", "are [k]"),
    ("C[i] = C[i]", "reads itself"), ("C[i, j] = A[i] + A[i, j]", "A is read with"),
    ("C[i] = i > 2 ? A[i - 3] : 0", "declare the shape of A"), ("C[i] = A[i - 1]", "index -1"),
])  # fmt: skip
def test_rules_that_are_broken(text: str, message: str) -> None:
    with pytest.raises(InvalidExpression) as caught:
        parse_compute(text, SIZES)
    assert message in str(caught.value)


def test_an_explicit_list_orders_the_reduction_loops() -> None:
    assert loops("C[i] += A[i, k, j] over j, k") == (["i"], ["j", "k"])
    unused = parse_compute("C[i] += A[i, k] over k, z:5", SIZES)
    assert [axis.extent for axis in unused.reduce] == [4, 5]
