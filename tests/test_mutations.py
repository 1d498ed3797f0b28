"""A sample of `tests.mutations` on every run: what is planted is found, and the kernels are right before that."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests import mutations


@pytest.mark.parametrize("name", mutations.FAMILIES)
def test_kernels_are_right_as_they_are(name: str) -> None:
    family = mutations.FAMILIES[name]
    findings, arguments, _ = mutations.run(name, mutations.code_of(name).ptx)
    assert findings == []
    assert family.wanted is not None
    np.testing.assert_allclose(arguments[-1], family.wanted(family.arguments()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", mutations.FAMILIES)
def test_errors_at_some_sites_are_found(name: str) -> None:
    every = mutations.mutants(name)
    assert len(every) > 3
    result = mutations.plant(random.Random(1).sample(every, min(12, len(every))))
    assert [each["mutant"] for each in result["survivors"] if not each["reason"]] == []
