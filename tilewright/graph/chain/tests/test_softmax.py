"""A softmax whose row runs in parts: the rescalings of `running` and `simplified`, carried out step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.expr.core import Apply, Expr, Read
from tilewright.graph.chain.softmax import running, simplified
from tilewright.graph.chain.workloads import attention, two_products
from tilewright.tiles.problem import OLD, Problem

KEYS, STEP = 12, 4


@pytest.fixture
def problem() -> Problem:
    return Problem.of(attention(1, 5, 3, 4, KEYS, "f32"))


def factor(expr: Expr, old: Any, new: Any) -> Any:
    if isinstance(expr, Read):
        return old if expr.tensor.name == OLD else new
    assert isinstance(expr, Apply)
    values = [factor(each, old, new) for each in expr.args]
    return {"sub": np.subtract, "div": np.divide, "exp": np.exp}[expr.function](*values)


def in_parts(problem: Problem, scores: Any, values: Any) -> Any:
    """The output, some keys after the others: every running value changes once in a step, then sums are rescaled."""
    with_maximum = any(compute.accum == "max" for compute in problem.computes)
    rows, columns = len(scores), values.shape[1]
    now = {"Max": np.full(rows, -np.inf), "Sum": np.zeros(rows), "A": np.zeros((rows, columns))}
    for start in range(0, KEYS, STEP):
        part, before = scores[:, start : start + STEP], dict(now)
        if with_maximum:
            now["Max"] = np.maximum(now["Max"], part.max(1))
        weights = np.exp(part - now["Max"][:, None]) if with_maximum else np.exp(part)
        for running_value, total in (("Max", "Sum"), ("Max", "A"), ("Sum", "A")):
            for one in problem.rescaled:
                if (one.running, one.total) == (running_value, total):
                    scale = np.nan_to_num(factor(one.factor, before[running_value], now[running_value]))
                    now[total] = now[total] * (scale[:, None] if total == "A" else scale)
            if total == "Sum":
                now["Sum"] = now["Sum"] + weights.sum(1)
        if not with_maximum:
            assert [(one.running, one.total) for one in problem.rescaled] == [("Sum", "A")]
        now["A"] = now["A"] + weights / now["Sum"][:, None] @ values[start : start + STEP]
    return now["A"]


@pytest.mark.parametrize("rewrite", [running, simplified])
def test_sums_that_are_rescaled_are_those_of_the_whole_row(rewrite: Any, problem: Problem) -> None:
    numbers = np.random.default_rng(0)
    scores, values = numbers.standard_normal((5, KEYS)), numbers.standard_normal((KEYS, 3))
    weights = np.exp(scores)
    expected = weights / weights.sum(1, keepdims=True) @ values
    np.testing.assert_allclose(in_parts(rewrite(problem), scores, values), expected, rtol=1e-12)


def test_the_operators_of_both(problem: Problem) -> None:
    assert running(problem).computes == problem.computes
    assert [compute.name for compute in simplified(problem).computes] == ["S", "Exp", "Sum", "Div", "A"]
    exponential = simplified(problem).compute("Exp")
    assert [read.tensor.name for read in exponential.reads()] == ["S"]


def test_without_a_softmax_nothing_changes() -> None:
    chain = Problem.of(two_products(1, 8, 4, 4, 6, "f32"))
    assert running(chain) == simplified(chain) == chain
