"""`tilewright layout`: the table, the picture, JSON, conversions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app

MMA = "#mma<v=2, W=[1,1], instr=[16,8]>"
BLOCKED = "blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>"
SHARED = "shared<vec=8, perPhase=4, maxPhase=2, O=[1,0]>"


def output(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["layout", *words])
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else result.stderr


def test_a_table_with_bases() -> None:
    lines = output(MMA, "--shape", "16x8").splitlines()
    assert lines[0] == f"{MMA} on 16x8"
    assert "  l  (0,2)  (0,4)  (1,0)  (2,0)  (4,0)" in lines
    assert lines[-1].split()[1] == "T28:2"


def test_places_of_every_element_in_json() -> None:
    facts = json.loads(output(MMA, "--shape", "16x8", "--json"))
    assert facts["places"] == ["warp", "lane", "register"]
    assert facts["elements"][9 * 8 + 5] == [[0, 6, 3]]
    assert facts["bases"]["register"] == [[0, 1], [8, 0]]
    assert facts["row_major_memory"] == {"elements_per_access": 2, "requests": 2, "sectors": 16, "fewest_sectors": 16}
    replicated = json.loads(output(f"slice<dim=1, parent={MMA}>", "--shape", "16", "--json"))
    assert replicated["elements"][1] == [[0, lane, 0] for lane in range(4, 8)]
    assert replicated["replication"] == 4


def test_offsets_in_json() -> None:
    facts = json.loads(output(SHARED, "--shape", "16x16", "--bits", "16", "--json"))
    assert facts["offsets"][4][9] == 65
    assert facts["storage_bytes"] == 512
    padded = json.loads(output("padded<pad=8, O=[1,0]>", "--shape", "3x5", "--bits", "16", "--json"))
    assert padded["linear"] is None
    assert padded["storage_bytes"] == 3 * 13 * 2


def test_conversions() -> None:
    facts = json.loads(output(MMA, "--shape", "16x8", "--to", BLOCKED, "--json"))["conversion"]
    assert (facts["kind"], facts["shuffles"], facts["cost"]) == ("shuffle", 4, 8)
    assert facts["map"] == "r0->l0, r1->r1, l0->l1, l1->l2, l2->l3, l3->l4, l4->r0"
    operand = f"dot<idx=0, parent={MMA}, w=2>"
    load = json.loads(output(SHARED, "--shape", "16x16", "--bits", "16", "--to", operand, "--json"))["conversion"]
    assert (load["kind"], load["matrix_load"]) == ("load", "ldmatrix.x4")
    store = output(f"dot<idx=0, parent={MMA}, w=2>", "--shape", "16x16", "--bits", "16", "--to", SHARED)
    assert "store: 16 bytes per thread" in store
    assert "0 too many" in store


def test_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    assert str(path) in output(MMA, "--shape", "16x8", "--svg", str(path))
    assert path.read_text().startswith("<svg")
    assert ">T6:3<" in path.read_text()


def test_large_tables_are_left_to_files() -> None:
    assert "--svg" in output(MMA, "--shape", "128x8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((MMA, "--shape", "16x12"), "pad it to 16x16"),
        ((MMA, "--shape", "16by8"), "write --shape 16x16"),
        ((MMA, "--shape", "0x8"), "write --shape 16x16"),
        (("mma<v=2, W=[1,3]>", "--shape", "16x8"), "2 or 4"),
        ((MMA, "--shape", "16x8", "--bits", "24"), "16 or 32"),
        ((MMA, "--shape", "16x8", "--svg", "/nowhere/a.svg"), "cannot write"),
    ],
)
def test_refusals(words: tuple[str, ...], message: str) -> None:
    assert message in output(*words, status=2)


@pytest.mark.parametrize("layout", ["wmma<W=[1,1]>", "dot<idx=0, parent=#wmma<W=[1,1]>, w=2>"])
def test_of_opaque_layouts_only_the_size_is_told(layout: str) -> None:
    text = output(layout, "--shape", "16x16", "--bits", "16")
    assert "opaque: which lane holds which element is unspecified" in text
    assert "sectors" not in text
    assert "wavefronts" not in output(layout, "--shape", "16x16", "--bits", "16", "--to", "padded<pad=8, O=[1,0]>")
    facts = json.loads(output(layout, "--shape", "16x16", "--bits", "16", "--json"))
    assert facts["opaque"]
    assert "row_major_memory" not in facts


def test_told_layouts_are_not_opaque() -> None:
    assert not json.loads(output(MMA, "--shape", "16x8", "--json"))["opaque"]
    assert "opaque" not in output(MMA, "--shape", "16x8")
