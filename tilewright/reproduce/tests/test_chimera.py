"""Block orders and data movement of chains: figures beside the published ones, stored results, plots, errors."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.graph.chain.hierarchy import hierarchy_of
from tilewright.graph.chain.solve import solve
from tilewright.graph.chain.workloads import workload
from tilewright.instruction.quanta import MachineQuanta
from tilewright.machine.description import Cpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.chimera import orders, traffic
from tilewright.reproduce.chimera.plans import count
from tilewright.reproduce.claim import Claim
from tilewright.reproduce.experiment import Report, find
from tilewright.reproduce.tests.reports import chimera_orders, chimera_traffic


@pytest.fixture(scope="module")
def moved() -> traffic.Report:
    return chimera_traffic()


@pytest.fixture(scope="module")
def planned() -> orders.Report:
    return chimera_orders()


def claim(report: Report, subject: str) -> Claim:
    return next(each for each in report.claims if each.subject.startswith(subject))


# Orders ---------------------------------------------------------------------------------------------------------------


def test_orders_are_those_of_the_publication_but_for_one_that_cannot_run(planned: orders.Report) -> None:
    by_name = {each.subject: each for each in planned.claims}
    assert by_name["best order of those that can run"].ours == "mlkn"
    printed = by_name["best order as printed"]
    assert printed.verdict == "differs"
    assert "unfinished" in printed.reason
    assert "41,943,040" in printed.reason
    differs = {each.subject for each in planned.claims if each.verdict == "differs"}
    assert differs == {
        "best order as printed",
        "what rounding costs over DV*",
        "C6: gain",
        "chains that are slower fused",
    }


def test_the_tables_have_every_order(planned: orders.Report) -> None:
    listed, ranked, sizes, *plans = planned.tables
    assert len(listed.rows) == len(ranked.rows) == 24
    assert [row[0] for row in listed.rows if row[-1] == "yes"] == sorted(
        row[0] for row in ranked.rows if row[-1] == "yes"
    )
    runnable = {row[0]: row[1:5] for row in listed.rows if row[-1] == "yes"}
    assert len(runnable) == 8
    assert runnable["m l k n"] == ("l", "m", "m", "l")
    assert len(sizes.rows) == len(orders.CAPACITIES)
    assert [len(table.rows) for table in plans] == [2, 2, 1, 2, 2, 1, 2]
    assert len(planned.plans) == 12


def test_gains_are_of_the_predicted_times(planned: orders.Report) -> None:
    group = next(each for each in orders.GROUPS if each.claim == "spec1-E4")
    gains = [plan.gain for plan in planned.of(group)]
    assert planned.gain(group) == pytest.approx((gains[0] * gains[1]) ** 0.5)
    assert all(plan.gain == plan.apart_seconds / plan.seconds for plan in planned.plans)


@pytest.mark.parametrize("name", ["G13", "g1", "C0", ""])
def test_another_chain_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="there is no chain") as error:
        find("chimera-orders").run(layers=[name])
    assert error.value.help == "G1 to G12, C1 to C8"


# Traffic --------------------------------------------------------------------------------------------------------------


def test_what_is_counted_is_what_is_predicted(moved: traffic.Report) -> None:
    """E11 at an eighth of the extents; the cache and the sizes of tiles are those of the whole experiment."""
    for nest in traffic.NESTS:
        assert len(moved.of(nest)) == 10
        assert moved.r_squared(nest) >= traffic.R_SQUARED
        assert 0.98 < moved.ratio(nest) < 1.05
    assert claim(moved, "the solver's tiles").verdict == "met"
    assert claim(moved, "some steps").verdict == "met"


def test_tiles_for_all_of_a_cache_move_more_than_predicted(moved: traffic.Report) -> None:
    """New blocks displace blocks that are still used: the solver is to be asked for a part of the cache."""
    whole = next(each.tiling for each in moved.solved if each.share == 1)
    assert whole.predicted < moved.point.predicted
    assert whole.counted > 1.5 * moved.point.counted


def test_every_nest_has_the_same_tilings(moved: traffic.Report) -> None:
    tiles = [[each.tile for each in moved.of(nest)] for nest in traffic.NESTS]
    assert tiles[0] == tiles[1] == tiles[2]
    assert len({tuple(tile.values()) for tile in tiles[0]}) == 10


def test_fusion_moves_less_beyond_the_second_cache(moved: traffic.Report) -> None:
    for chain in moved.chains:
        assert chain.levels[1].more < -40
        assert chain.levels[2].more < -40


@pytest.mark.parametrize("name", ["G6", "G10"])
def test_a_fused_plan_moves_each_tensor_once_beyond_the_level_of_its_link(name: str) -> None:
    """Caches bring what the plan says, and the block of C once, which a write brings too."""
    cpu = resolve(traffic.MACHINE)
    assert isinstance(cpu, Cpu)
    computes = workload(f"gemm-chain-{name}", "f32")
    plan = solve(computes, hierarchy_of(cpu), MachineQuanta(cpu)).best
    l1, _, l3 = count(plan, cpu.caches, fused=True)
    assert l1.fills == pytest.approx(sum(plan.dv["L1"].values()) / traffic.LINE_ELEMENTS, rel=0.02)
    predicted = sum(plan.dv["L3"].values()) / traffic.LINE_ELEMENTS
    link = plan.tiles[plan.fused_in]["m"] * plan.tiles[plan.fused_in]["l"] / traffic.LINE_ELEMENTS
    assert predicted <= l3.fills <= 1.02 * (predicted + link)
    apart = count(plan, cpu.caches, fused=False)[2]
    assert apart.fills >= predicted + plan.chain.access("C").size / traffic.LINE_ELEMENTS


# Stored, drawn, shown -------------------------------------------------------------------------------------------------

NAMES = ("chimera-orders", "chimera-traffic")


@pytest.fixture
def reports(planned: orders.Report, moved: traffic.Report) -> dict[str, Any]:
    return dict(zip(NAMES, (planned, moved), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_stored_results_are_those_of_the_run(name: str, reports: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(reports[name].to_json()))
    found = find(name).stored(path)
    assert found == reports[name]
    assert (found.tables, found.claims, found.pictures) == (
        reports[name].tables, reports[name].claims, reports[name].pictures
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_plot_has_every_picture(name: str, reports: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    path.write_text(json.dumps(reports[name].to_json()))
    done = CliRunner().invoke(app, ["reproduce", name, "--from", str(path), "--plot", str(tmp_path / "a.svg")])
    assert done.exit_code == 1  # some claims differ
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {picture.title for picture in reports[name].pictures} <= texts
    for each in reports[name].claims:
        assert each.subject in done.stdout


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("chimera-orders", lambda value: value["plans"].clear()),
        ("chimera-orders", lambda value: value["plans"][0].update(seconds=0)),
        ("chimera-orders", lambda value: value["plans"][0].update(chain="G99")),
        ("chimera-traffic", lambda value: value.pop("tilings")),
        ("chimera-traffic", lambda value: value["tilings"][0].update(nest="klmn")),
        ("chimera-traffic", lambda value: value["tilings"][0].update(counted=-1)),
        ("chimera-traffic", lambda value: value.update(tilings=value["tilings"][:10])),
        ("chimera-traffic", lambda value: value["solved"].clear()),
        ("chimera-traffic", lambda value: value.update(solved=value["solved"][:1])),
        ("chimera-traffic", lambda value: value["chains"][0]["levels"][0].update(apart_fills=True)),
    ],
)
def test_what_is_no_result_is_refused(
    name: str, change: Callable[[Any], object], reports: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "stored.json"
    value = json.loads(json.dumps(reports[name].to_json()))
    change(value)
    path.write_text(json.dumps(value))
    with pytest.raises(InvalidFile, match=f"no result of {name}"):
        find(name).stored(path)
