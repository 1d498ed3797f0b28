"""A sample of `tests.distributed_mutations` on every run, what is listed as equivalent, the kernels as they are."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests import distributed_mutations as mutations
from tests.covering import some
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.text import parse_module


@pytest.mark.parametrize("name", mutations.FAMILIES)
def test_kernels_are_right_as_they_are(name: str) -> None:
    """As whole tiles give; products of small numbers exactly, against NumPy too."""
    _, text, given = mutations.FAMILIES[name]
    whole = [each.copy() for each in given]
    run_kernel(parse_module(text), "k", whole)
    found = mutations.run(name, mutations.program_of(name))
    np.testing.assert_allclose(found, whole[-1], rtol=1e-5 if "softmax" in name else 0)
    if len(given) == 3:
        rows = {1600: 40, 2048: 32, 1024: 32}[found.size]
        a, b = given[0].reshape(rows, -1).astype(np.float64), given[1].astype(np.float64)
        np.testing.assert_array_equal(found.reshape(rows, -1), a @ b.reshape(a.shape[1], -1))


@pytest.mark.parametrize("name", mutations.FAMILIES)
def test_errors_at_some_sites_are_found(name: str) -> None:
    for mutant in random.Random(1).sample(mutations.mutants(name), 8):
        assert mutations.seen(mutant) or mutations.reason(mutant), str(mutant)


def test_errors_listed_as_equivalent_change_nothing() -> None:
    listed = [each for name in mutations.FAMILIES for each in mutations.mutants(name) if mutations.reason(each)]
    assert len(listed) == 38
    assert [str(each) for each in some(listed, 13) if mutations.seen(each)] == []


@pytest.mark.parametrize("name", ["gfx1201", "gfx942"])
def test_every_barrier_left_out_is_found(name: str) -> None:
    barriers = [each for each in mutations.mutants(name) if each.kind == "no barrier"]
    assert {mutations.seen(each) for each in barriers} == {"refused"}
