"""A sample of `tests.mutations` on every run: what is planted is found, and the kernels are right before that."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from tests import equivalents
from tests.covering import tries
from tests.mutations import equivalent
from tests.mutations.errors import Mutant, mutants
from tests.mutations.kernels import FAMILIES, code_of
from tests.mutations.plant import plant, seen, unharmed


@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_are_right_as_they_are(name: str) -> None:
    family = FAMILIES[name]
    arguments, _ = unharmed(name)
    assert family.wanted is not None
    wanted = family.wanted(family.arguments())
    np.testing.assert_allclose(arguments[-1], wanted, rtol=family.tolerance, atol=family.tolerance)


@pytest.mark.emulator_only
@pytest.mark.parametrize("name", FAMILIES)
def test_errors_at_some_sites_are_found(name: str) -> None:
    every = mutants(name)
    assert every
    result = plant(random.Random(1).sample(every, min(tries(3, full=8), len(every))))
    assert [each["mutant"] for each in result["survivors"] if not each["reason"]] == []
    assert result["found though listed"] == []


@pytest.mark.parametrize("entry", equivalent.EQUIVALENT, ids=lambda entry: f"{entry[0]}, {entry[1]}")
def test_errors_listed_as_equivalent_can_be_planted(entry: equivalents.Entry) -> None:
    family, kind, was, sites, why = entry
    names = [name for name in FAMILIES if re.fullmatch(family, name)]
    assert names
    for name in names:
        found = equivalents.alike(mutants(name), kind, was)
        assert [equivalent.reason(found[site]) for site in sites] == [why] * len(sites)


@pytest.mark.emulator_only
def test_an_error_that_changes_nothing_survives() -> None:
    name = "element-wise"
    line, text = next(
        (number, line) for number, line in enumerate(code_of(name).ptx.splitlines(), 1) if line.strip() == "ret;"
    )
    mutant = Mutant(name, "none", line, text, "exit;")
    assert seen(mutant) == ""
    result = plant([mutant])
    assert (result["found"], result["survivors"]) == (0, [{"mutant": str(mutant), "reason": ""}])
