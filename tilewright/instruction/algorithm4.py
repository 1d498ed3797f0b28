"""Algorithm 4: a mapping checked by boolean matrix products, as published and with outer loops allowed for.

X: tensors x software loops, Y: intrinsic loops x software loops, Z: operands x intrinsic loops. The published form
compares all columns of ``Z * Y`` with X, hence refuses every mapping that leaves a loop outside; the masked form
compares the columns of mapped loops. Neither sees whether Y is a function: that is check V1.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from tilewright.instruction.matching import Matrix


def products(x: Matrix, y: Matrix, z: Matrix) -> tuple[Matrix, Matrix]:
    """``X' = Z * Y`` and ``Z' = X * Y^T``, boolean."""
    return z @ y, x @ y.T


def literal(x: Matrix, y: Matrix, z: Matrix) -> bool:
    """The test as published: ``X' == X`` and ``Z' == Z``."""
    found_x, found_z = products(x, y, z)
    return bool((found_x == x).all() and (found_z == z).all())


def masked(x: Matrix, y: Matrix, z: Matrix) -> bool:
    """The test on the columns of mapped loops only."""
    found_x, found_z = products(x, y, z)
    used = y.any(axis=0)
    return bool((found_x == x)[:, used].all() and (found_z == z).all())


def count(x: Matrix, z: Matrix, *, partial: bool = False, mask: bool = False) -> int:
    """How many of all assignments of software loops to intrinsic loops are accepted.

    Every loop goes to one intrinsic loop or, if `partial`, to none.
    """
    test = masked if mask else literal
    rows, columns = z.shape[1], x.shape[1]
    choices = np.vstack([np.eye(rows, dtype=np.bool_), np.zeros((int(partial), rows), np.bool_)])
    return sum(test(x, choices[list(assignment)].T, z) for assignment in product(range(len(choices)), repeat=columns))
