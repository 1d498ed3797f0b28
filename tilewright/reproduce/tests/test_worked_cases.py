"""Worked cases: what is known of them is found, they compute the product, and their documents are up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.text import parse_module
from tilewright.reproduce.matmul import worked_cases
from tilewright.reproduce.matmul.worked_cases import CASES, Case, Stages, document, report

DOCUMENTS = Path(__file__).parents[3] / "docs" / "worked"
DTYPES = {"f16": np.float16, "f32": np.float32}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def stages(request: pytest.FixtureRequest) -> Stages:
    case: Case = request.param
    return worked_cases.worked(case)


def test_known_facts_are_found(stages: Stages) -> None:
    assert {fact: find(stages) for fact, _, find in stages.case.known} == {
        fact: expected for fact, expected, _ in stages.case.known
    }


def test_the_document_is_what_the_command_writes(stages: Stages) -> None:
    name = stages.case.name
    command = f"tilewright reproduce worked-cases --case {name} --document docs/worked/{name}.md"
    assert (DOCUMENTS / f"{name}.md").read_text() == document(stages), command


def test_the_smallest_case_computes_the_product_behind_every_pass() -> None:
    (case,) = (each for each in CASES if each.name == "16x8x16")
    (m, n, k), rng = case.sizes, np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = rng.integers(-2, 3, (m, n)).astype(DTYPES[case.accumulator])
    for stage in worked_cases.worked(case).passes:
        found = c.ravel().copy()
        run_kernel(parse_module(stage.text), "k", [a.ravel(), b.ravel(), found], races=True)
        np.testing.assert_array_equal(found.reshape(m, n), c + a.astype(np.float32) @ b.astype(np.float32), stage.name)


def test_another_case_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there is no case '8x8x8'"):
        report("8x8x8")
