"""`tilewright search` as a user types it: the table, JSON, files, and what is wrong with bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilewright.cli.main import app

CHAIN = ("--workload", "attention", "--shape", "G10", "--machine", "edge")
ONE = (*CHAIN, "--dataflow", "flat-rgran", "--evaluations", "60")


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def value(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_the_best_tree_is_a_file_for_which_the_model_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "best.tile"
    found = value("search", *CHAIN, "--dataflow", "layerwise,FLAT-RGran", "--evaluations", "40", "-o", str(path))
    assert [each["dataflow"] for each in found["dataflows"]] == ["Layerwise", "FLAT-RGran"]
    best = min(found["dataflows"], key=lambda each: each["cycles"])
    layerwise = found["dataflows"][0]
    assert found["best"] == best["dataflow"]
    assert best["speedup"] == pytest.approx(layerwise["cycles"] / best["cycles"])
    assert best["dram_words"] < layerwise["dram_words"]  # what is fused stays on the chip
    predicted = value("model", str(path), "--machine", "edge")
    assert (predicted["cycles"], predicted["energy"]) == (best["cycles"], best["energy"])
    assert predicted["too_large"] == []


def test_same_seed_and_evaluations_give_the_same_and_a_trace_goes_on(tmp_path: Path) -> None:
    once = value("search", *ONE)
    assert once == value("search", *ONE, "--resume", str(tmp_path / "trace"))
    stored = (tmp_path / "trace").read_text().splitlines()
    assert len(stored) == 61
    assert value("search", *ONE, "--seed", "1") != once
    assert value("search", *ONE, "--resume", str(tmp_path / "trace")) == once
    assert (tmp_path / "trace").read_text().splitlines() == stored
    text = run("search", *ONE, "--seed", "1", "--resume", str(tmp_path / "trace"), status=2)
    assert "the trace is of another search: seed is 0 in the file, 1 here" in text


def test_energy_and_the_tree_search() -> None:
    found = value("search", *ONE, "--objective", "energy", "--method", "tree-search")
    (energy,) = found["dataflows"]
    assert (found["objective"], found["method"], energy["stopped"]) == ("energy", "tree-search", "evaluations")
    assert energy["speedup"] is None
    assert "@DRAM for" in energy["tree"]


def test_a_table_says_what_bounds_each_dataflow() -> None:
    head, row = run("search", *ONE).splitlines()
    assert head.split()[:2] == ["dataflow", "cycles"]
    assert row.split()[0] == "FLAT-RGran"
    assert row.split()[2] == "-"  # nothing to compare with


def test_seconds_end_a_search() -> None:
    text = run("search", *CHAIN, "--dataflow", "tileflow", "--seconds", "0", "--json", status=1)
    (found,) = json.loads(text)["dataflows"]
    assert (found["stopped"], found["evaluations"], found["cycles"]) == ("seconds", 0, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "sort", "--shape", "G1", "--machine", "edge"), "unknown workload 'sort'"),
        (("--workload", "attention", "--shape", "C1", "--machine", "edge"), "attention has no shape 'C1'"),
        (("--workload", "conv-chain", "--shape", "C99", "--machine", "edge"), "C1 to C8"),
        (("--workload", "attention", "--shape", "G1", "--machine", "edge", "--dataflow", "isos"), "Uni-pipe"),
        (("--workload", "attention", "--shape", "G1", "--machine", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_named_with_what_is_legal(arguments: tuple[str, ...], message: str) -> None:
    assert message in run("search", *arguments, status=2)


def test_a_machine_needs_a_level_between_dram_and_the_units(tmp_path: Path) -> None:
    path = tmp_path / "flat.yaml"
    path.write_text("""\
name: flat
kind: accelerator
clock_hz: 1_000_000_000
word_bits: 16
levels:
  - {name: DRAM, technology: dram, read_words_per_cycle: 8, write_words_per_cycle: 8}
  - {name: RF, technology: regfile, fanout: [16, 16], capacity_bytes: 6,
     read_words_per_cycle: 3, write_words_per_cycle: 3}
compute: {fanout: [1, 1], operations_per_cycle: 1}
""")
    text = run("search", "--workload", "attention", "--shape", "G1", "--machine", str(path), status=2)
    assert "a dataflow over the levels DRAM, RF" in text
