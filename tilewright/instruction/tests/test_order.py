"""Orders of stored operands: what lies where, what is padding, and that relayouts put every element there."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis, Compute, Tensor, static_shape
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.text import parse_compute, print_expr
from tilewright.instruction.cpu_products import CpuProducts
from tilewright.instruction.order import Digit, Index, Order, undivided
from tilewright.instruction.panels import panels, vector_rows
from tilewright.instruction.products import MappedProduct, find_product
from tilewright.instruction.relayout import named_by_content, packed
from tilewright.intrinsics.registry import standard
from tilewright.machine.registry import resolve_cpu

N, K = Axis("n", 70), Axis("k", 12)
PANELS = Order((Index.of(K), Index.of(N)), (Digit("n", 32, 3), Digit("k", 4, 3), Digit("n", 1, 32), Digit("k", 1, 4)))


def test_dimensions_are_digits_of_indices() -> None:
    assert PANELS.shape == (3, 3, 32, 4)
    assert [print_expr(place, "i64") for place in PANELS.places()] == ["n // 32", "k // 4", "n % 32", "k % 4"]
    assert [PANELS.room(index) for index in PANELS.indices] == [12, 96]
    assert str(PANELS) == "[n/32:3 k/4:3 n%32:32 k%4:4]"
    assert print_expr(undivided(PANELS.indices).address(), "i64") == "k * 70 + n"


def test_digits_in_the_middle_and_of_extent_1() -> None:
    index = Index.of(Axis("k", 24))
    order = Order((index,), (Digit("k", 1, 2), Digit("k", 2, 3), Digit("k", 24, 1), Digit("k", 6, 4)))
    assert [print_expr(place, "i64") for place in order.places()] == ["k % 2", "k % 6 // 2", "0", "k // 6"]


def test_fused_loops_are_decoded_and_forms_that_are_dimensions_are_kept() -> None:
    (p, q, r), tensor = (
        (Axis(name, extent) for name, extent in zip("pqr", (4, 5, 3), strict=True)),
        Tensor("T", (6, 15), "f32"),
    )
    window = Index("p.r", 6, Affine(0, {p: 1, r: 1}))
    kept = packed(tensor[p + r, q * 3], undivided([window, Index.of(q)]))
    assert print_expr(kept.body, "f32") == "T[d0, d1 * 3]"
    fused = packed(tensor[r, p], undivided([Index.of(p, r)]))
    assert print_expr(fused.body, "f32") == "T[d0 % 3, d0 // 3]"
    flat = packed(tensor[0, p * 3 + r], undivided([Index.of(p, r)]))
    assert print_expr(flat.body, "f32") == "T[0, d0]"


def test_an_order_of_whole_dimensions_is_a_layout_of_the_tensor() -> None:
    w = Tensor("w", (70, 1, 12), "f32")
    layout = PANELS.layout(w[N, 0, K])
    assert layout is not None
    values = np.random.default_rng(0).random((70, 1, 12), np.float32)
    stored = evaluate_compute(packed(w[N, 0, K], PANELS), {"w": values})
    np.testing.assert_array_equal(layout.pack(values), stored.reshape(-1))
    for read in (w[K, 0, N], w[N + 0 * K, 0, N], Tensor("w", (71, 1, 12), "f32")[N, 0, K], w[N, 0, K * 0]):
        assert PANELS.layout(read) is None


def test_names_of_loops_are_not_in_the_name_of_a_relayout() -> None:
    w = Tensor("w", (70, 12), "f32")
    u, v = Axis("u", 70), Axis("v", 12)
    renamed = Order(
        (Index.of(v), Index.of(u)),
        tuple(replace(digit, index={"n": "u", "k": "v"}[digit.index]) for digit in PANELS.digits),
    )
    one, other = packed(w[N, K], PANELS), packed(w[u, v], renamed)
    assert one == other == named_by_content(one)
    assert packed(w[N, K], undivided(PANELS.indices)).name != one.name


# Panels -----------------------------------------------------------------------------------------------------------


def mapped(node: Compute) -> MappedProduct:
    found, _ = find_product(node, CpuProducts(standard(), resolve_cpu("znver5")))
    assert found is not None
    return found


def test_panels_of_a_convolution() -> None:
    walked = mapped(
        parse_compute("Y[f,p,q] += X[c,p+r,q+s] * W[f,c,r,s]", {"f": 40, "p": 9, "q": 9, "c": 64, "r": 3, "s": 3})
    )
    assert walked.b.tensor.name == "W"
    c, r, s = (next(axis for axis in walked.depth if axis.name == name) for name in "crs")
    sums = [Index.of(r), Index.of(s), Index.of(c)]
    assert str(panels(walked, sums, 32)) == "[f/32:2 r:3 s:3 c:64 f%32:32]"
    assert str(panels(walked, sums, 32, depth=16)) == "[f/32:2 c/16:4 r:3 s:3 c%16:16 f%32:32]"
    assert str(vector_rows(walked, sums)) == "[r:3 s:3 c:64 f:40]"


def test_loops_outside_come_first() -> None:
    walked = mapped(parse_compute("Y[b,i,j] += A[b,i,k] * B[b,k,j]", {"b": 3, "i": 70, "j": 33, "k": 20}))
    assert str(panels(walked, [Index.of(axis) for axis in walked.depth], 16)) == "[b:3 j/16:3 k:20 j%16:16]"


def test_neighbours_of_a_group_are_innermost() -> None:
    i, j, k = (Axis(name, extent) for name, extent in zip("ijk", (70, 33, 18), strict=True))
    x, w = Tensor("x", (70, 18), "u8"), Tensor("w", (18, 33), "i8")
    walked = mapped(
        Compute(Tensor("y", (70, 33), "i32"), (i, j), x[i, k].cast("i32") * w[k, j].cast("i32"), (k,), "sum")
    )
    assert walked.group == 4
    assert str(panels(walked, [Index.of(k)], 32)) == "[j/32:2 k/4:5 j%32:32 k%4:4]"
    assert str(panels(walked, [Index.of(k)], 32, depth=8)) == "[j/32:2 k/8:2 k%8/4:2 j%32:32 k%4:4]"


@st.composite
def orders(draw: st.DrawFn) -> tuple[Compute, Order]:
    """An order of one to three indices with up to three digits each, some of which need padding, and a read of them."""
    indices, digits = [], []
    for number in range(draw(st.integers(1, 3))):
        loops = [Axis(f"i{number}{each}", draw(st.integers(1, 4))) for each in range(draw(st.integers(1, 2)))]
        index = Index.of(*loops)
        indices.append(index)
        divisor = 1
        for extent in draw(st.lists(st.integers(1, 4), max_size=2)):
            digits.append(Digit(index.name, divisor, extent))
            divisor *= extent
        digits.append(Digit(index.name, divisor, -(-index.extent // divisor) + draw(st.integers(0, 1))))
    loops = [loop for index in indices for loop in index.form.terms]
    indexed = draw(st.permutations(loops))
    tensor = Tensor("T", tuple(loop.extent for loop in indexed), "i32")
    point = Compute(Tensor("R", tuple(loop.extent for loop in loops), "i32"), tuple(loops), tensor[tuple(indexed)])
    return point, Order(tuple(indices), tuple(draw(st.permutations(digits))))


@settings(max_examples=tries(30, full=150), deadline=None)
@given(case=orders(), pad=st.integers(0, 1))
def test_every_element_lies_where_its_place_says_and_the_rest_is_padding(case: tuple[Compute, Order], pad: int) -> None:
    point, order = case
    (read,) = point.reads()
    values = np.arange(7, 7 + prod(static_shape(read.tensor.shape)), dtype=np.int32).reshape(
        static_shape(read.tensor.shape)
    )
    stored = evaluate_compute(packed(read, order, pad), {"T": values})
    assert stored.shape == order.shape
    there = replace(point, body=Tensor("S", order.shape, "i32")[order.places()])
    wanted = evaluate_compute(point, {"T": values})
    np.testing.assert_array_equal(evaluate_compute(there, {"S": stored}), wanted)
    flat = replace(point, body=Tensor("S", (stored.size,), "i32")[order.address()])
    np.testing.assert_array_equal(evaluate_compute(flat, {"S": stored.reshape(-1)}), wanted)
    assert np.sort(stored[stored != pad]).tolist() == values.reshape(-1).tolist()
