"""`tilewright model` and `tilewright validate tileflow`: their numbers, files, and errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.tiles.file import read_tile_file
from tilewright.tiles.notation import parse_tree

DATA = Path(__file__).parents[2] / "reproduce" / "tileflow" / "rows"
CHAIN = """
input A: f16[8, 4]
input B: f16[4, 6]
input D: f16[6, 5]
C: f16[m:8, l:6] += A[m, k] * B[k, l] over k:4
E: f16[m:8, n:5] += C[m, l] * D[l, n] over l:6
output E
tree
@DRAM for m:2, l:3 {
  shar[
    @L1 for m:4, l:2, k:4 { @RF for once:1 { op C } },
    @L1 for m:4, l:2, n:5 { @RF for once:1 { op E } }
  ]
}
"""


@pytest.fixture(autouse=True)
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.tile").write_text(CHAIN)


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_what_levels_move_is_that_of_the_worked_example() -> None:
    """Spec 1, section 5.4: the row of `Shar`."""
    found = json.loads(run("model", "chain.tile", "--machine", "edge", "--json"))
    tensors = found["levels"]["DRAM"]["tensors"]
    assert {name: tensors[name]["read"] for name in "ABDE"} == {"A": 32, "B": 48, "D": 60, "E": 0}
    assert tensors["E"]["update"] == 40
    assert "C" not in tensors
    assert found["levels"]["L1"]["footprint"] == 70 - 8  # words; C, which both children hold, counts once
    assert found["levels"]["L1"]["capacity"] == 2_097_152
    assert found["energy_unit"] == "16-bit multiply-adds"
    text = run("model", "chain.tile", "--machine", "edge")
    assert f"{found['cycles']:,.0f} cycles, bounded by {found['bottleneck']}" in text


def test_files_have_every_metric_and_the_tree() -> None:
    run("model", "chain.tile", "--machine", "edge", "--csv", "out")
    metrics = dict(csv.reader(Path("out.csv").read_text().splitlines()))
    assert (metrics["metric"], metrics["DRAM::Read::A"], metrics["L1::Fill"]) == ("value", "32", "140")
    mapping = Path("out.mapping.txt").read_text()
    assert "# L1: holds 124 B of 4 MiB, filled with 280 B" in mapping
    assert "# a step in L1: A 32 B, B 16 B, C 16 B, D 20 B, E 40 B\n@DRAM for m:2, l:3 {" in mapping
    assert parse_tree(mapping) == read_tile_file(Path("chain.tile")).tree


def test_a_sweep_has_a_row_per_value() -> None:
    text = run("model", "chain.tile", "--machine", "edge", "--sweep", "DRAM.read_words_per_cycle=0.01,30")
    slow, fast = csv.DictReader(io.StringIO(text))
    assert float(slow["Cycle"]) == 140 / 0.01 > float(fast["Cycle"])


def test_a_tree_that_is_too_large_is_analysed_and_said_to_be() -> None:
    text = run("machines", "edge")
    Path("tiny.yaml").write_text(text.replace("4194304", "100"))
    found = json.loads(run("model", "chain.tile", "--machine", "tiny.yaml", "--json", status=1))
    assert "L1" in found["too_large"][0]
    assert found["levels"]["L1"]["footprint"] > found["levels"]["L1"]["capacity"] == 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.tile"], "absent.tile"),
        (["chain.tile", "--sweep", "L9.size=1"], "L1.capacity_bytes"),
        (["chain.tile", "--sweep", "L1.capacity_bytes=0"], "capacity_bytes"),
        (["chain.tile", "--sweep", "L1.capacity_bytes"], "FIELD=VALUE"),
        (["chain.tile", "--sweep", "L1.capacity_bytes=1", "--json"], "without --json"),
        (["chain.tile", "--sweep", "L1.capacity_bytes=1", "--draw"], "without --draw"),
        (["chain.tile", "--draw", "--json"], "JSON has no picture"),
        (["chain.tile", "--csv", "absent/out"], "absent"),
        (["chain.tile", "--machine", "host"], "L1"),
    ],
)
def test_errors_say_what_is_legal(arguments: list[str], said: str) -> None:
    given = arguments if "--machine" in arguments else [*arguments, "--machine", "edge"]
    assert said in run("model", *given, status=2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("m:2, l:3", "m:3, l:3", "L1 coverage"), ("@L1 for m:4, l:2, k:4", "@L7 for m:4, l:2, k:4", "L7"),
     ("m:2, l:3", "k:2, m:2, l:3", "L"), ("\ntree\n", "\ntrees\n", "tree"),
     ("m:2, l:3", "m:2, l:3 bypass Q", "one of A, B, C, D, E"), ("shar[", "shar(", "write '[' here")],
)  # fmt: skip
def test_trees_that_are_not_legal_are_refused(old: str, new: str, said: str) -> None:
    Path("chain.tile").write_text(CHAIN.replace(old, new))
    assert said in run("model", "chain.tile", "--machine", "edge", status=2)


def test_dumped_trees_have_the_cycles_of_the_comparison() -> None:
    rows = (DATA / "tileflow_fused_gemm_rtl.csv").read_text().splitlines()
    Path("fused.csv").write_text("\n".join([rows[0], rows[1], rows[40]]) + "\n")
    found = json.loads(run("validate", "tileflow", "--fused", "fused.csv", "--dump", "trees", "--json"))
    assert found["fused"]["rows"] == found["fused"]["bits_equal_rows"] == 2
    errors = []
    for number, row in ((1, rows[1]), (2, rows[40])):
        path = f"trees/fused-{number:03}.tile"
        assert read_tile_file(Path(path)).problem.computes[0].name == "C"
        text = run("model", path, "--machine", "tileflow-rtl", "--json")
        errors.append(abs(json.loads(text)["cycles"] / int(row.split(",")[12]) - 1))
    assert found["fused"]["mean_abs_error"] == pytest.approx(sum(errors) / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [("M,N,K\n1,1,1\n", "no column micro_M"), ("M,N,K,micro_M,micro_N,micro_K,rtl_cycles\n", "no rows"),
     ("M,N,K,micro_M,micro_N,micro_K,rtl_cycles\n16,16,16,16,16,x,700\n", "rows.csv:2")],
)  # fmt: skip
def test_rows_that_are_none_are_refused(text: str, said: str) -> None:
    Path("rows.csv").write_text(text)
    assert said in run("validate", "tileflow", "--gemm", "rows.csv", status=2)
    run("validate", "tileflow", status=2)


RUN = """
problem:
  io: {ins: A B, outs: C}
  dimensions: [M, N, K]
  instance: {M: 8, N: 8, K: 4}
  ops:
    - name: product
      dimensions: [M, N, K]
      data-spaces:
        - {name: C, projection: [[[M]], [[N]]]}
        - {name: A, projection: [[[M]], [[K]]]}
        - {name: B, projection: [[[K]], [[N]]]}
      ins: A B
      out: C
mapping:
  node-type: Tile
  factors: M=4 N=4
  target: DRAM
  subtree: {node-type: Tile, factors: M=2 N=2 K=4, target: RF, subtree: {node-type: Op, name: product}}
"""
CHIP = """
architecture:
  subtree:
    - name: chip
      local:
        - {name: DRAM, class: DRAM, attributes: {read_bandwidth: 1}}
        - {name: RF, class: regfile, attributes: {depth: 20}}
        - {name: mac, class: intmac}
"""


def test_runs_of_the_artifact_are_read_with_their_machine_or_another() -> None:
    Path("run.yaml").write_text(RUN)
    Path("chip.yml").write_text(CHIP)
    found = json.loads(run("model", "run.yaml", "chip.yml", "--json"))
    assert found["levels"]["DRAM"]["tensors"]["A"]["read"] == 32
    assert found["levels"]["DRAM"]["tensors"]["B"]["read"] == 4 * 32
    assert found["levels"]["RF"]["footprint"] == found["levels"]["RF"]["capacity"] == 20
    assert (found["cycles"], found["bottleneck"]) == (8 * 8 * 4, "compute")
    text = run("model", "run.yaml", "chip.yml", "--sweep", "DRAM.read_words_per_cycle=0.5,1")
    slow, given = csv.DictReader(io.StringIO(text))
    assert (float(slow["Cycle"]), float(given["Cycle"])) == (5 * 32 / 0.5, 256)
    beyond = json.loads(run("model", "run.yaml", "--machine", "edge", "--json", status=1))
    assert beyond["levels"]["L1"]["footprint"] == 20
    assert "keeps 40 bytes in RF, which holds 6" in beyond["too_large"][0]
    assert "RF" in run("model", "run.yaml", "--machine", "host", status=2)


def test_pipes_evict_as_in_the_artifact_where_it_is_asked_for() -> None:
    Path("chain.tile").write_text(CHAIN.replace("shar[", "pipe["))
    reads = [
        json.loads(run("model", "chain.tile", "--machine", "edge", "--json", *option))["levels"]["DRAM"]["tensors"]
        for option in ([], ["--compat-evict"])
    ]
    assert [each["A"]["read"] for each in reads] == [32, 96]  # rows of `Shar` and `Seq` in spec 1, section 5.4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run.yaml"], "there is no mapping"),
        (["run.yaml", "chain.tile"], "one .tile file, or the .yaml files of one run"),
        (["run.yaml", "absent.yaml"], "absent.yaml"),
    ],
)
def test_files_that_are_no_run_are_refused(arguments: list[str], said: str) -> None:
    Path("run.yaml").write_text(RUN.replace("mapping:", "check:"))
    assert said in run("model", *arguments, status=2)


def test_a_machine_that_states_latencies_has_every_step_timed() -> None:
    """As `validate` has it; others overlap phases, unless `--latency` says something else."""
    rows = (DATA / "tileflow_gemm_rtl.csv").read_text().splitlines()
    Path("gemm.csv").write_text("\n".join(rows[:2]) + "\n")
    run("validate", "tileflow", "--gemm", "gemm.csv", "--dump", "trees")
    tree = ("model", "trees/gemm-001.tile", "--machine", "tileflow-rtl")
    usual, steps, phases = (
        json.loads(run(*tree, *options, "--json"))
        for options in ((), ("--latency", "stepwise"), ("--latency", "phases"))
    )
    assert usual == steps
    assert (usual["latency"], phases["latency"]) == ("stepwise", "phases")
    assert usual["cycles"] > phases["cycles"]
    assert run(*tree).startswith(f"{usual['cycles']:,.0f} cycles step by step, bounded by ")
    edge = [json.loads(run("model", "chain.tile", "--machine", "edge", *option, "--json"))
            for option in ((), ("--latency", "phases"))]  # fmt: skip
    assert edge[0] == edge[1]


def test_the_tree_is_drawn_below_the_table() -> None:
    text = run("model", "chain.tile", "--machine", "edge", "--draw")
    table, picture = text.split("\n\n")[-2:]
    assert table.startswith("level ")
    lines = picture.splitlines()
    assert lines[0].startswith("chain on edge: ")
    assert [line.split()[0] for line in lines[1:4]] == ["DRAM", "L1", "RF"]
    assert lines[4].startswith("┌─")
    assert "│ @DRAM for m:2, l:3 " in lines[5]
    assert max(map(len, lines)) <= 80  # of the terminal of tests


def test_memory_that_is_double_buffered_holds_what_is_streamed_twice() -> None:
    """A, B, D and E are replaced in some step, C lives inside a step; the registers of the units stay as they are."""
    once, twice = (
        json.loads(run("model", "chain.tile", "--machine", "edge", "--json", *option))["levels"]
        for option in ((), ("--double-buffer",))
    )
    assert once["L1"]["footprint"] == 16 + 8 + 8 + 10 + 20
    assert twice["L1"]["footprint"] == 2 * (16 + 8 + 10 + 20) + 8
    assert twice["RF"] == once["RF"]
    text = run("machines", "edge")
    Path("tiny.yaml").write_text(text.replace("4194304", "200"))
    run("model", "chain.tile", "--machine", "tiny.yaml")
    found = json.loads(run("model", "chain.tile", "--machine", "tiny.yaml", "--double-buffer", "--json", status=1))
    assert "keeps 232 bytes in L1, which holds 200" in found["too_large"][0]


TREE = "tile tree of chain.tile"


@pytest.mark.parametrize(
    ("old", "new", "place", "value", "change"),
    [
        ("shar[", "shar(", "chain.tile:10:7", "found '('", "write '[' here"),
        ("op C", "op Q", TREE, "op Q is no expression here", "one of C, E"),
        ("@L1 for m:4, l:2, k", "@L7 for m:4, l:2, k", TREE, "level L7 does not exist", "DRAM, L1, RF"),
        ("m:2, l:3", "m:3, l:3", TREE, "extent 8, but factors 3@DRAM*4@L1 = 12", "make m at DRAM 2"),
        ("over k:4", "over k:5", "chain.tile:5", "5", ""),
        ("\ntree\n", "\n", "chain.tile:", "there is no line `tree`", "then a line `tree`"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_has_a_place_a_value_and_a_change(
    old: str, new: str, place: str, value: str, change: str
) -> None:
    Path("chain.tile").write_text(CHAIN.replace(old, new, 1))
    text = run("model", "chain.tile", "--machine", "edge", status=2)
    for part in (place, value, change, "help: "):
        assert part in text
    error = json.loads(run("model", "chain.tile", "--machine", "edge", "--json", status=2).split("\n}\n")[0] + "\n}")
    assert error["error"]["where"].startswith(place)


def test_a_machine_without_a_level_of_the_tree_is_named_with_the_levels_that_it_has() -> None:
    text = run("model", "chain.tile", "--machine", "x86-64-v4", status=2)
    assert "level RF does not exist" in text
    assert "DRAM, L3, L2, L1, REG" in text


def test_a_memory_of_capacity_0_is_refused_with_its_line() -> None:
    text = run("machines", "edge")
    Path("none.yaml").write_text(text.replace("4194304", "0"))
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "4194304" in line)
    said = run("model", "chain.tile", "--machine", "none.yaml", status=2)
    assert f"none.yaml:{line}" in said
    assert "capacity_bytes" in said
    assert "a whole number from 1" in said


def test_a_row_that_lacks_a_value_is_refused_with_its_line() -> None:
    head = "M,N,K,micro_M,micro_N,micro_K,rtl_cycles"
    Path("rows.csv").write_text(f"{head}\n16,16,16,16,16,16,700\n16,16,16,16\n")
    said = run("validate", "tileflow", "--gemm", "rows.csv", status=2)
    assert "rows.csv:3" in said
    assert "micro_N is ''" in said
    assert "a whole number of 1 or more" in said
