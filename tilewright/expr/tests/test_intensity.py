"""Which operators are compute-intensive, and which of them an array of multiply-adds runs."""

from __future__ import annotations

import pytest

from tilewright.expr.intensity import is_compute_intensive, is_matrix_operator
from tilewright.expr.text import parse_compute


@pytest.mark.parametrize(
    ("text", "intensive"),
    [
        ("O[i, j] += A[i, k] * B[k, j]", True),
        ("O[i] += A[i, k] * B[k]", False),
        ("O[b, c, i] += A[b, c, i + r] * B[c, r]", False),  # depthwise, multiplier 1
        ("O[b, g, k, i] += A[b, g, c, i + r] * B[g, k, c, r]", True),
        ("O[i, j] = A[i, j] + B[i, j]", False),
        ("O[i] += A[i, k]", False),
    ],
)
def test_what_is_compute_intensive(text: str, intensive: bool) -> None:
    sizes = {name: 3 for name in "bcgijkr" if name in text.replace("[", " ").replace("]", " ")}
    assert is_compute_intensive(parse_compute(text, sizes)) is intensive


@pytest.mark.parametrize(
    ("body", "of_a_matrix"),
    [
        ("A[i, k] * B[k, j]", True),
        ("f64(A[i, k]) * f64(B[k, j])", True),
        ("select(k < 2, A[i, k], 0.0) * B[k, j]", True),
        ("select(k < 2, A[i, k], exp(A[i, k])) * B[k, j]", False),
        ("exp(A[i, k]) * B[k, j]", False),
        ("A[i, k] + B[k, j]", False),
        ("A[i, k] * B[k, j] * A[i, k]", False),
    ],
)
def test_what_an_array_of_multiply_adds_runs(body: str, of_a_matrix: bool) -> None:
    sizes = dict.fromkeys("ijk", 3)
    assert is_matrix_operator(parse_compute(f"O[i, j] += {body}", sizes)) is of_a_matrix


def test_a_largest_product_is_no_matrix_operator() -> None:
    largest = parse_compute("O[i, j] max= A[i, k] * B[k, j]", dict.fromkeys("ijk", 3))
    assert is_compute_intensive(largest)
    assert not is_matrix_operator(largest)
