"""The joint search of whole graphs: measured once, kept, replayed, explained, and never worse than the rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compiler import search
from tilewright.compiler.compile import build, compile_graph, plan_graph, rebuilt, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.neighbourhood import neighbourhood, structural_hash
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.timer import Timer
from tilewright.decision import ASKED
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg
from tilewright.machine import host
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.runtime import calibrate
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.module import Module
from tilewright.tiles.product import product_of
from tilewright.tiles.tree import kernels

Array = np.ndarray[Any, Any]


def network(layers: int = 2) -> tuple[Graph, Array]:
    """Convolutions of 16 channels with a relu each, all alike."""
    generator = np.random.default_rng(0)
    b = GraphBuilder("network")
    image = generator.standard_normal((1, 16, 11, 9), np.float32)
    x = b.input("x", image.shape, "f32")
    for number in range(layers):
        w = b.constant(generator.standard_normal((16, 16, 3, 3), np.float32) / 12, f"w{number}")
        x = elementwise.relu(conv.conv(x, w, pads=1, name=f"c{number}"), name=f"y{number}")
    return b.finish([x]), image


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "calibrated", lambda options: host())


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache", search="joint", trials=2)


@pytest.fixture
def several(options: Options) -> Options:
    """With enough trials for another register tile than that of the rules."""
    return replace(options, trials=6)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """Options whose cache has the search of `network()`, with the times of `unlike_the_rules` and enough trials."""
    options = Options(cache_dir=tmp_path_factory.mktemp("searched"), search="joint", trials=6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calibrate, "calibrated", lambda options: host())
        pretend(patched, unlike_the_rules)
        plan_graph(network()[0], host(), 1, options)
    return options


class Pretended:
    """A module that is not run: some kernels of a plan."""

    def __init__(self, plan: Plan, kernels: Sequence[Kernel]) -> None:
        self.plan, self.kernels = plan, kernels


def pretend(monkeypatch: pytest.MonkeyPatch, cost: Callable[[Kernel], float]) -> list[Pretended]:
    """Have kernels take the seconds that `cost` says; gives all modules that were timed."""
    made: list[Pretended] = []

    def module(self: Timer, plan: Plan, kernels: Sequence[Kernel]) -> Pretended:
        made.append(Pretended(plan, kernels))
        return made[-1]

    monkeypatch.setattr(Timer, "module", module)
    monkeypatch.setattr(Timer, "times", lambda self, found: [cost(kernel) for kernel in found.kernels])
    return made


def unlike_the_rules(kernel: Kernel) -> float:
    """As if the register tile that the rules choose for these layers were a slow one."""
    if product_of(kernel.scheduled) is None:
        return 1e-6
    return 2e-3 if tile_of(kernel) == by_the_rules() else 1e-3


def tile_of(kernel: Kernel) -> dict[str, int]:
    """The register tile of a product."""
    (product,) = kernels(kernel.scheduled.tree).values()
    assert product.mapping is not None
    return {
        each.name: each.trips for each in product.quantum if each.trips > 1 and each.name not in product.mapping.depth
    }


@cache
def by_the_rules() -> dict[str, int]:
    """The register tile of every layer."""
    plan = make_plan(network()[0], host(), 1)
    tiles = [tile_of(each) for each in plan.kernels if product_of(each.scheduled)]
    assert tiles[0] == tiles[1]
    return tiles[0]


def close(found: Any, graph: Graph, image: Array) -> bool:
    (expected,) = evaluate(graph, [image], precise=True, wide=True)
    return bool(np.abs(found - expected).max() <= 1e-3)


def found_in(plan: Plan) -> dict[str, Any]:
    return {name: product["search"] for name, product in plan.products.items() if "search" in product}


def test_a_measured_search_computes_the_same_and_is_explained(options: Options) -> None:
    graph, image = network(1)
    module = compile_graph(graph, threads=1, options=options)
    assert close(module(image), graph, image)
    decisions = [each for each in json.loads(module.artifact.plan)["decisions"] if each["subject"].startswith("search")]
    assert [each["subject"] for each in decisions] == ["search of c0"]
    text = module.explain(all=True)
    assert "s measured (" in text
    assert "s predicted)" in text
    assert "as the rules say" in text
    assert "by among the 2 best by prediction" in text, "what was not tried is refused by a rule"


def test_what_was_found_is_kept_in_the_cache(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = network(1)
    pretend(monkeypatch, unlike_the_rules)
    first = plan_graph(graph, host(), 1, options)
    made = pretend(monkeypatch, unlike_the_rules)
    again = plan_graph(graph, host(), 1, options)
    assert made == [], "nothing is timed again"
    assert found_in(again) == found_in(first)
    assert [each.explain() for each in again.decisions] == [each.explain() for each in first.decisions]
    plan_graph(graph, host(), 2, options)
    assert made, "for another number of threads it is"


def test_the_choice_is_what_runs(searched: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, image = network()
    with monkeypatch.context() as patched:
        pretend(patched, unlike_the_rules)
        plan = plan_graph(graph, host(), 1, searched)
        artifact = build(graph, host(), 1, searched)
    for name, found in found_in(plan).items():
        assert "choice" in found, found
        assert plan.products[name]["loops"] == [list(names) for names in found["choice"]["mapping"]["loops"]]
        assert plan.products[name]["schedule"]["tile"] != by_the_rules()
    module = Module(artifact, threads=1)
    assert close(module(image), graph, image)


def test_a_module_is_rebuilt_as_it_was_searched(
    searched: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, image = network()
    with monkeypatch.context() as patched:
        pretend(patched, unlike_the_rules)
        build(graph, host(), 1, searched).save(tmp_path / "searched.twm")
    monkeypatch.setattr(Timer, "module", None)  # nothing may be timed
    stored = Artifact.read(tmp_path / "searched.twm")
    again = rebuilt(stored, "host", 1, Options(cache=False, cache_dir=searched.cache_dir))
    products, expected = (json.loads(each.plan)["products"] for each in (again, stored))
    assert products == expected
    assert again.code == stored.code
    assert close(Module(again, threads=1)(image), graph, image)
    elsewhere = rebuilt(stored, "host", 2, Options(cache=False))
    assert "search" not in json.loads(elsewhere.plan)["products"]["c0"], "for two threads nobody searched"


def test_a_damaged_record_is_the_files_fault(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = network(1)
    with monkeypatch.context() as patched:
        pretend(patched, unlike_the_rules)
        artifact = build(graph, host(), 1, options)
    plan = json.loads(artifact.plan)
    plan["products"]["c0"]["search"]["choice"] = {"mapping": 3}
    damaged = Artifact(artifact.manifest, artifact.code, artifact.constants, artifact.program, artifact.graph,
                       json.dumps(plan))  # fmt: skip
    with pytest.raises(
        InvalidFile, match=r"plan\.json, search of c0: .*choice\.mapping is 3, not a mapping with the fields"
    ):
        rebuilt(damaged, "host", 1, Options(cache=False))


def test_a_choice_that_slows_the_whole_graph_is_dropped(several: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone another tile is fast; in the whole graph, pretend, the rules' is."""
    graph, _ = network()
    rules = make_plan(graph, host(), 1)
    pretend(monkeypatch, unlike_the_rules)

    def times(self: Timer, found: Pretended) -> list[float]:
        whole = len(found.kernels) == len(found.plan.kernels) and found.plan.graph.name == "network"
        return [(3e-3 - cost if whole else cost) for cost in map(unlike_the_rules, found.kernels)]

    monkeypatch.setattr(Timer, "times", times)
    plan = plan_graph(graph, host(), 1, several)
    assert all("choice" not in each for each in found_in(plan).values())
    assert found_in(plan).keys() == {"c0", "c1"}
    assert [kernel.scheduled for kernel in plan.kernels] == [kernel.scheduled for kernel in rules.kernels]
    text = "\n".join(decision.explain() for decision in plan.decisions)
    assert "search of c0: as the rules say, because the whole graph is not slower" in text


def test_products_that_are_alike_are_searched_once(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = network(5)
    searched: list[str] = []
    original = search._Search._outcome

    def outcome(self: search._Search, part: Graph, node: str) -> search.Outcome | None:
        searched.append(node)
        return original(self, part, node)

    monkeypatch.setattr(search._Search, "_outcome", outcome)
    with monkeypatch.context() as patched:
        pretend(patched, unlike_the_rules)
        plan = plan_graph(graph, host(), 1, Options(cache=False, search="joint", trials=6))
    assert set(found_in(plan)) == {f"c{number}" for number in range(5)}
    assert searched == ["c0", "c1", "c4"], "the first, those with products on both sides, the last"
    assert "for c1" in next(each for each in plan.decisions if each.subject == "search of c2").reason
    vectors = {found["choice"]["mapping"]["vector"] for found in found_in(plan).values()}
    assert len(vectors) == 5, "each in the names of its own tensors"


def test_a_tree_that_is_given_takes_the_place_of_what_is_found(
    searched: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the graph are searched without the trees, which name kernels of the whole."""
    graph, _ = network()
    pretend(monkeypatch, unlike_the_rules)
    found = plan_graph(graph, host(), 1, searched)
    trees = found.trees()
    kernel = found.products["c1"]["kernel"]
    outer = trees[kernel]["for"] = trees[kernel]["for"][::-1]
    plan = plan_graph(graph, host(), 1, replace(searched, trees={kernel: trees[kernel]}))
    assert plan.trees() == trees
    assert plan.trees()[kernel]["for"] == outer
    assert found_in(plan) == found_in(found)
    asked = next(each for each in plan.decisions if each.subject == f"tile tree of {kernel}")
    assert asked.reason == ASKED


def test_neighbourhoods_end_at_the_next_products() -> None:
    graph, _ = network(5)
    plan = make_plan(graph, host(), 1)
    whole = plan.computed.explicit()
    part = neighbourhood(whole, "c2", plan.products)
    kept = {node.name for node in part.nodes}
    assert {"c1", "y1", "c2", "y2", "c3"} <= kept
    assert not {"c0", "c4", "y3"} & kept
    assert structural_hash(part, "c2") != structural_hash(part, "c1"), "the same part, another product"
    assert structural_hash(neighbourhood(whole, "c3", plan.products), "c3") == structural_hash(part, "c2")
    assert structural_hash(neighbourhood(whole, "c4", plan.products), "c4") != structural_hash(part, "c2"), (
        "nothing reads the last"
    )
    evaluate(part, [np.zeros(tuple(map(int, tensor.shape)), np.float32) for tensor in part.inputs])  # type: ignore[arg-type]


def test_points_are_dealt_to_threads() -> None:
    b = GraphBuilder("product")
    x, w = b.input("x", (512, 256), "f32"), np.ones((256, 128), np.float32)
    graph = b.finish([linalg.matmul(x, b.constant(w, "w"), name="y")])

    def programs(threads: int) -> int:
        from tilewright.compiler.joint import candidates, replay
        from tilewright.instruction.model import hierarchy
        from tilewright.instruction.search import Choice

        among = candidates(graph, "y", host(), hierarchy(host(), cores=threads), threads=threads)
        choice = Choice(among[0].mapping, among[0].points[-1])
        module = Module(build(graph, host(), threads, Options(cache=False), choose=replay({"y": choice})), threads)
        image = np.random.default_rng(0).standard_normal((512, 256), np.float32)
        assert np.allclose(module(image), image @ w, atol=1e-3)
        return next(each.programs for each in module.manifest.launches if each.name == "y")

    assert programs(1) == 1
    assert programs(2) >= 2


@pytest.mark.parametrize(
    ("name", "message"), [("aarch64", "cannot be timed here"), ("sm_90a", "products of .* are not searched")]
)
def test_other_machines_are_not_searched(name: str, message: str, options: Options) -> None:
    machine = resolve_target(name)
    if isinstance(machine, Cpu) and machine.architecture == host().architecture:
        pytest.skip("this is such a machine")
    with pytest.raises(InvalidArgument, match=message):
        plan_graph(network(1)[0], machine, 1, replace(options, search="joint"))


@pytest.mark.parametrize(
    ("given", "message"), [({"search": "best"}, "no search 'best'"), ({"trials": 0}, "trials is 0")]
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Options(**given)


def test_by_default_nothing_of_it_is_even_imported() -> None:
    program = """
import sys
from tilewright.compiler.compile import build
from tilewright.compiler.tests.test_search import network
for name in [name for name in sys.modules if name == "tilewright.compiler.search"]:
    del sys.modules[name]
from tilewright.machine import host
from tilewright.options import Options
build(network(1)[0], host(), 1, Options(cache=False))
print("tilewright.compiler.search" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
