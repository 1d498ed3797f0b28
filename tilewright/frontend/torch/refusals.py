"""Operators that no graph of fixed shapes can hold: why, and what to do instead."""

from __future__ import annotations

_NO_IMPORTER = "this operator has no importer"

_OUTSIDE = "call it outside of what is compiled"

#: Families of operators, by their names without overloads, with the reason for all of them.
_FAMILIES: tuple[tuple[str, str], ...] = (
    (
        "bernoulli binomial cauchy exponential geometric log_normal multinomial normal normal_functional poisson rand"
        " rand_like randint randint_like randn randn_like random randperm rrelu_with_noise_functional uniform"
        " _fused_dropout _sample_dirichlet _standard_gamma",
        "random numbers (draw them outside, and pass them as an input)",
    ),
    (
        "nonzero unique_consecutive unique_dim unique_dim_consecutive _unique _unique2",
        f"the shape of the result depends on data ({_OUTSIDE})",
    ),
    ("masked_select", "the shape of the result depends on data (torch.where keeps the shape)"),
    (
        "bincount",
        "the shape of the result depends on data (torch.zeros(n).scatter_add(0, x, weights) counts into n bins)",
    ),
    (
        "allclose equal is_nonzero",
        "takes a number out of a tensor, for Python to act on (keep it a tensor of rank 0)",
    ),
    (
        "cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_householder_product"
        " linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex"
        " linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular lu_unpack ormqr"
        " triangular_solve _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd",
        f"factorises a matrix ({_OUTSIDE})",
    ),
    (
        "digamma erfinv i0 igamma igammac lgamma polygamma special_i0e special_i1 special_i1e special_ndtri"
        " special_zeta",
        f"a special function that kernels do not have ({_OUTSIDE})",
    ),
    ("frexp nextafter", f"reads the bits of numbers ({_OUTSIDE})"),
    ("gcd lcm", f"the number of steps depends on data ({_OUTSIDE})"),
)

REASONS: dict[str, str] = {name: reason for names, reason in _FAMILIES for name in names.split()}
"""Why operators have no importer, by the name of the operator without its overload."""


def refusal(overload: str) -> str:
    """Why an overload such as "aten.rand.default" has no importer."""
    parts = overload.split(".")
    return REASONS.get(parts[1] if len(parts) == 3 else overload, _NO_IMPORTER)
