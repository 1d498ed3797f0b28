"""Chains in the joint search: both ways are timed, the faster one runs, is stored and explained with both numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.covering import some
from tilewright.compiler import fused, search
from tilewright.compiler.compile import build, compile_graph, plan_graph, rebuilt
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.tests.test_fused_products import attention, chain, inputs
from tilewright.compiler.tests.test_search import pretend
from tilewright.compiler.tests.test_three_products import chain as three_products
from tilewright.compiler.timer import Timer
from tilewright.decision import Decision
from tilewright.expr.evaluate import evaluate
from tilewright.machine import host
from tilewright.options import Options
from tilewright.runtime import calibrate
from tilewright.runtime.artifact import Artifact
from tilewright.tiles.product import products_of

SIZES = (2, 97, 33, 17, 130)


@pytest.fixture(autouse=True)
def _predicted_to_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every chain that has a kernel, on every machine."""
    monkeypatch.setattr(fused, "LEAST_GAIN", 0.01)
    monkeypatch.setattr(calibrate, "calibrated", lambda options: host())


@pytest.fixture
def products_by_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only chains are searched. The search of products takes nine tenths of a test that needs none of it."""
    monkeypatch.setattr(search._Search, "_outcome", lambda self, part, node: None)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache", search="joint", trials=1)


def seconds(one: float) -> object:
    """A product takes a millisecond, two in one kernel `one`, other kernels nothing."""

    def cost(kernel: Kernel) -> float:
        return (0.0, 1e-3, one)[len(products_of(kernel.scheduled))]

    return cost


def timing(plan: Plan) -> Decision:
    (found,) = (each for each in plan.decisions if each.subject == "search of C + E")
    return found


def kernels_with_products(plan: Plan) -> list[int]:
    return [len(products_of(each.scheduled)) for each in plan.kernels if products_of(each.scheduled)]


@pytest.mark.usefixtures("products_by_the_rules")
@pytest.mark.parametrize(("one", "expected"), [(1.5e-3, [2]), (2.5e-3, [1, 1])])
def test_the_faster_way_runs_and_the_decision_has_both_times(
    one: float, expected: list[int], options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, seconds(one))  # type: ignore[arg-type]
    plan = plan_graph(chain(SIZES), host(), 1, options)
    assert kernels_with_products(plan) == expected
    decision = timing(plan)
    faster, slower = ("one kernel", "a kernel each") if expected == [2] else ("a kernel each", "one kernel")
    assert (decision.chosen, decision.runner_up) == (faster, slower)
    assert decision.cost is not None
    assert decision.runner_up_cost is not None
    assert {decision.cost.seconds, decision.runner_up_cost.seconds} == {one, 2e-3}
    assert decision.cost.seconds < decision.runner_up_cost.seconds  # type: ignore[operator]
    assert "predicted" in decision.reason


@pytest.mark.parametrize("one", [1.5e-3, 2.5e-3])
def test_a_module_is_rebuilt_as_its_chains_were_timed(
    one: float, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        pretend(patched, seconds(one))  # type: ignore[arg-type]
        build(chain(SIZES), host(), 1, options).save(tmp_path / "chain.twm")
    monkeypatch.setattr(Timer, "module", None)  # nothing may be timed
    stored = Artifact.read(tmp_path / "chain.twm")
    again = rebuilt(stored, "host", 1, Options(cache=False, cache_dir=options.cache_dir))
    assert again.code == stored.code
    assert json.loads(again.plan)["products"] == json.loads(stored.plan)["products"]


@pytest.mark.usefixtures("products_by_the_rules")
def test_what_was_timed_is_kept_in_the_cache(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, seconds(1.5e-3))  # type: ignore[arg-type]
    first = plan_graph(chain(SIZES), host(), 1, options)
    made = pretend(monkeypatch, seconds(2.5e-3))  # type: ignore[arg-type]
    again = plan_graph(chain(SIZES), host(), 1, options)
    assert not made, "nothing is timed again"
    assert timing(again) == timing(first)
    apart = plan_graph(chain(SIZES), host(), 1, replace(options, fuse="never"))
    assert kernels_with_products(apart) == [1, 1], "what was found with other options is not taken"


@pytest.mark.usefixtures("products_by_the_rules")
@pytest.mark.parametrize(("one", "expected"), [(2.5e-3, [3]), (3.5e-3, [1, 1, 1])])
def test_three_products_are_timed_beside_a_kernel_each(
    one: float, expected: list[int], options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, lambda kernel: (0.0, 1e-3, 1.9e-3, one)[len(products_of(kernel.scheduled))])
    plan = plan_graph(three_products((2, 97, 33, 17, 40, 31)), host(), 1, options)
    assert kernels_with_products(plan) == expected
    (decision,) = (each for each in plan.decisions if each.subject == "search of C + E + G")
    assert decision.cost is not None
    assert decision.cost.seconds == min(one, 3e-3)


@pytest.mark.usefixtures("products_by_the_rules")
def test_never_times_no_chain(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, seconds(1.5e-3))  # type: ignore[arg-type]
    plan = plan_graph(chain(SIZES), host(), 1, replace(options, fuse="never"))
    assert kernels_with_products(plan) == [1, 1]
    assert not any("+" in each.subject for each in plan.decisions)


@pytest.mark.usefixtures("products_by_the_rules")
def test_what_is_asked_for_wins_over_what_was_found(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilt module follows its options, and tells no decision that it does not follow."""
    for one, fuse, expected in ((2.5e-3, "always", [2]), (1.5e-3, "never", [1, 1])):
        with monkeypatch.context() as patched:
            pretend(patched, seconds(one))  # type: ignore[arg-type]
            folder = tmp_path / fuse
            artifact = build(chain(SIZES), host(), 1, replace(options, cache_dir=folder))
        again = rebuilt(artifact, "host", 1, Options(cache=False, cache_dir=folder, fuse=fuse))
        trees = json.loads(again.plan)["trees"]
        assert [str(tree).count("'mapping'") for tree in trees.values() if "'mapping'" in str(tree)] == expected
        assert not any(each.subject == "search of C + E" for each in again.stored_plan().decisions)


@pytest.mark.usefixtures("products_by_the_rules")
def test_a_given_tree_of_a_chain_wins_over_what_was_found(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, seconds(2.5e-3))  # type: ignore[arg-type]
    asked = plan_graph(chain(SIZES), host(), 1, Options(cache=False, fuse="always"))
    plan = plan_graph(chain(SIZES), host(), 1, replace(options, trees={"C+E": asked.trees()["C+E"]}))
    assert kernels_with_products(plan) == [2]


@pytest.mark.usefixtures("products_by_the_rules")
@pytest.mark.parametrize("between", some(["softmax", ""], 1))
def test_a_timed_chain_computes_the_same(between: str, options: Options) -> None:
    """With real times, whichever way they choose."""
    graph = attention(SIZES) if between else chain(SIZES)
    module = compile_graph(graph, threads=1, options=options)
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_allclose(module(*inputs(graph)), expected, rtol=0, atol=1e-4)
    assert "search of " in module.explain(all=True)
