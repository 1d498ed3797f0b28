"""Norms whose rows come from main memory: sum and squared deviations in one pass, against the evaluator in f64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.tests.test_review import machine_with_small_caches
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.norm import layer_norm
from tilewright.options import Options
from tilewright.runtime.module import Module

UNCACHED = Options(cache=False)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    return machine_with_small_caches(tmp_path_factory.mktemp("machine"))


def norm(rows: int, points: int, dtype: str, machine: str, threads: int = 1) -> Module:
    b = GraphBuilder()
    x = b.input("x", (rows, points), dtype)
    scale, bias = b.input("scale", (points,), dtype), b.input("bias", (points,), dtype)
    return compile_graph(b.finish([layer_norm(x, scale, bias)]), machine, threads, UNCACHED)


def in_f64(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    result: np.ndarray = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias
    return result


@given(points=st.integers(70, 700), threads=st.integers(1, 2), seed=st.integers(0, 99), far=st.sampled_from([0.0, 1e3]))
@settings(max_examples=tries(3, full=12), deadline=None)
def test_one_pass_gives_what_two_give(machine: str, points: int, threads: int, seed: int, far: float) -> None:
    rng = np.random.default_rng(seed)
    rows = 17 + 16384 // points  # more than the last cache holds
    x = (far + rng.normal(size=(rows, points))).astype(np.float32)
    scale, bias = (rng.normal(size=points).astype(np.float32) for _ in range(2))
    module = norm(rows, points, "f32", machine, threads)
    assert "in one pass" in module.explain(all=True)
    np.testing.assert_allclose(module(x, scale, bias), in_f64(x, scale, bias), rtol=1e-4, atol=1e-3 if far else 1e-5)


def test_rows_with_an_infinite_value_have_no_variance(machine: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 333)).astype(np.float32)
    x[3, 7], x[5, 332], x[9, 0] = np.inf, -np.inf, np.nan
    found = norm(64, 333, "f32", machine)(x, np.ones(333, np.float32), np.zeros(333, np.float32))
    broken = np.isin(np.arange(64), (3, 5, 9))
    assert np.isnan(found[broken]).all()
    assert np.isfinite(found[~broken]).all()


def test_f64_rows(machine: str) -> None:
    rng = np.random.default_rng(1)
    x, scale, bias = rng.normal(size=(64, 311)), rng.normal(size=311), rng.normal(size=311)
    module = norm(64, 311, "f64", machine)
    assert "in one pass" in module.explain(all=True)
    np.testing.assert_allclose(module(x, scale, bias), in_f64(x, scale, bias), rtol=1e-11, atol=1e-12)
