"""Tables 5.1, 5.3 and 5.4 anew: the golden counts, and the command that prints them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.command_line import CliRunner
from tilewright.errors import InvalidArgument
from tilewright.instruction.model import mapping_seconds
from tilewright.intrinsics.registry import standard
from tilewright.reproduce.amos import machines
from tilewright.reproduce.amos.layers import CHOSEN, LOGS, convolution, place, short
from tilewright.reproduce.amos.mappings import MAPPINGS, WMMA, Report, mapped
from tilewright.reproduce.amos.networks import NETWORKS, bert, mobilenet
from tilewright.reproduce.amos.operators import resnet18
from tilewright.reproduce.experiment import EXPERIMENTS, find
from tilewright.reproduce.tests.reports import amos_mappings

RECORD = standard().find(WMMA)


@pytest.fixture(scope="module")
def found() -> Report:
    return amos_mappings()


def test_every_claim_is_met_but_two_that_say_why(found: Report) -> None:
    assert {claim.name for claim in found.claims} == {"spec3-E1", "spec3-E2", "spec3-E3", "spec3-E4"}
    differing = {claim.subject: claim for claim in found.claims if claim.verdict != "met"}
    gemv, conv = (
        differing[f"{what} onto {name}"] for what, name in (("mappings of C3D", "GEMV"), ("right ones of C3D", "CONV"))
    )
    assert len(differing) == 2
    assert (gemv.published, gemv.ours, gemv.bar, gemv.verdict) == ("7", 15, 7, "differs")
    assert "the count of C2D" in gemv.reason
    assert (conv.ours, conv.bar, conv.verdict) == (30, 31, "differs")
    assert "1 by V1" in conv.reason


def test_spec3_g2_g4_in_the_report(found: Report) -> None:
    assert [row.mappings for row in found.operators] == list(MAPPINGS.values())
    assert [row.signature for row in found.operators] == [1, 1, 9, 49, 225, 49, 49, 49, 21, 147, 21, 1, 1, 1, 1]


def test_spec3_g23(found: Report) -> None:
    assert [row.calls for row in found.layers] == [
        501760, 451584, 50176, 225792, 25088, 451584, 225792, 25088, 479232, 225792, 25088, 451584,
    ]  # fmt: skip
    assert [row.utilisation for row in found.layers] == [0.9187, 1, 1, 1, 1, 1, 1, 1, 0.9423, 1, 1, 1]
    assert found.layers[9].fused == (784, 512, 2304)
    assert all(row.valid for row in found.layers)


def test_spec3_g46(found: Report) -> None:
    assert {row.network: row.mapped for row in found.networks} == {
        "ShuffleNet": 50, "ResNet-50": 54, "MobileNet": 29, "BERT": 84, "MI-LSTM": 9,
    }  # fmt: skip
    assert {row.network: row.standard for row in found.networks} == {
        "ShuffleNet": 50, "ResNet-50": 54, "MobileNet": 28, "BERT": 96, "MI-LSTM": 9,
    }  # fmt: skip


def test_spec3_g46_of_one_layer_of_bert() -> None:
    """The attention scores divide within the sum: without hoisting they are no product."""
    graph = bert(True, layers=1, length=32)
    assert len(mapped(graph, RECORD, clean=False)) == 7
    assert len(mapped(graph, RECORD)) == 8
    assert len(mapped(bert(False, layers=1, length=32), RECORD, clean=False)) == 8


def test_what_is_no_product_is_not_mapped() -> None:
    names = {node.name.partition(".")[0] for node in mapped(mobilenet(), RECORD)}
    assert names == {"conv", "dense"}


def test_spec3_g47(found: Report) -> None:
    assert found.kinds == 8
    assert found.to_json()["kinds_in_table_5_4"] == 8


def test_the_published_mappings_are_written_as_they_print() -> None:
    for chosen in CHOSEN:
        whole = place(chosen.configuration, chosen.mapping, RECORD)
        assert short(whole.mapping) == chosen.mapping


def test_logs_name_mappings_of_the_layers() -> None:
    assert [log.mappings for log in LOGS] == [18, 20, 20, 20, 20, 20, 20, 20, 20, 8, 8, 8]
    for log, configuration in zip(LOGS, resnet18(1), strict=True):
        assert place(configuration, log.best, RECORD).calls > 0
        assert convolution(configuration).output.shape[0] == 1


def test_networks_state_the_published_numbers() -> None:
    assert [(n.operators, n.xla, n.mapped) for n in NETWORKS] == [
        (70, 6, 50), (71, 15, 54), (30, 7, 29), (204, 42, 84), (11, 0, 9),
    ]  # fmt: skip


def test_the_machine_of_the_amos_code() -> None:
    """Mappings of C9 in its order: the fewer calls and bytes, the sooner; a wmma takes 64 cycles on a sub-core."""
    whole = place(resnet18(16)[9], "(npq|k|crs)", RECORD)
    narrow = place(resnet18(16)[9], "(q|k|s)", RECORD)
    assert mapping_seconds(whole, machines.V100) < mapping_seconds(narrow, machines.V100)
    assert machines.V100.units_per_core == 4


def test_the_report_is_json_and_tables(found: Report) -> None:
    stored = json.loads(json.dumps(found.to_json()))
    assert {"table_5_1", "table_5_3", "table_5_4", "claims"} <= set(stored)
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_command_lists_and_refuses() -> None:
    from tilewright.cli.main import app

    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--json"])
    assert [each["name"] for each in json.loads(listed.stdout)] == [each.name for each in EXPERIMENTS]
    assert "amos-mappings" in runner.invoke(app, ["reproduce"]).stdout
    assert runner.invoke(app, ["reproduce", "nonsuch"]).exit_code == 2
    with pytest.raises(InvalidArgument, match="there is no experiment"):
        find("nonsuch")


def test_the_command_prints_tables_and_claims(found: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.cli.main import app
    from tilewright.reproduce.amos import mappings

    monkeypatch.setattr(mappings, "report", lambda: found)
    done = CliRunner().invoke(app, ["reproduce", "amos-mappings"])
    assert done.exit_code == 1, done.stdout
    assert "Table 5.4" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "mappings of C3D onto GEMV " in line)
    assert line.split() == ["E3", "mappings", "of", "C3D", "onto", "GEMV", "7", "15", "=", "7", "differs"]
    assert "E3, mappings of C3D onto GEMV, differs: 7 is the count of C2D" in done.stdout
    claims = done.stdout[done.stdout.index("\nclaim ") :].splitlines()
    assert max(map(len, claims)) <= 110
    assert json.loads(CliRunner().invoke(app, ["reproduce", "amos-mappings", "--json"]).stdout) == json.loads(
        json.dumps(found.to_json())
    )
    equal = [replace(row, compat=row.thesis, valid=row.thesis, points_c2d=7) for row in found.accelerators]
    monkeypatch.setattr(mappings, "report", lambda: replace(found, accelerators=tuple(equal)))
    assert CliRunner().invoke(app, ["reproduce", "amos-mappings"]).exit_code == 0
