"""`tilewright search` as a user types it: the table, JSON, files, and what is wrong with bad input."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.graph.tree_cost import TreeCost
from tilewright.search.cost import Evaluation
from tilewright.search.trace import Step
from tilewright.tiles.notation import parse_tree, print_tree

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
        (("--machine", "edge"), "MODEL or --workload"),
        (("absent.onnx", "--workload", "attention", "--machine", "edge"), "MODEL or --workload"),
        (("absent.onnx", "--machine", "edge"), "absent.onnx"),
        (("absent.onnx", "--machine", "edge", "--dataflow", "all"), "--dataflow is of a workload"),
        (("absent.onnx", "--machine", "edge", "--plot", "a.svg"), "--plot is of a workload"),
        (("absent.onnx", "--machine", "edge", "-o", "absent/trees"), "there is no folder 'absent'"),
        ((*CHAIN, "--shape", "G2"), "a workload has one shape"),
        (("--workload", "attention", "--machine", "edge"), "a workload has one shape"),
        ((*CHAIN, "--dtype", "i32"), "'i32' is no type of floating-point elements"),
        ((*CHAIN, "--sweep", "L9.size=1"), "L1.capacity_bytes"),
        ((*CHAIN, "--sweep", "L1.capacity_bytes"), "FIELD=VALUE"),
        ((*CHAIN, "--sweep", "L1.capacity_bytes=0"), "capacity_bytes"),
        ((*CHAIN, "--sweep", "clock_hz=1e9", "--json"), "without --json"),
        ((*CHAIN, "--sweep", "clock_hz=1e9", "--resume", "trace"), "without --resume"),
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


def test_a_sweep_has_the_best_dataflow_per_value() -> None:
    text = run("search", *ONE[:-2], "--evaluations", "40", "--sweep", "DRAM.read_words_per_cycle=0.05,30")
    slow, fast = csv.DictReader(io.StringIO(text))
    assert [row["DRAM.read_words_per_cycle"] for row in (slow, fast)] == ["0.05", "30"]
    assert slow["dataflow"] == fast["dataflow"] == "FLAT-RGran"
    assert float(slow["Cycle"]) > float(fast["Cycle"]) > 0
    assert float(slow["Cycle"]) >= float(slow["DRAM::Read"]) / 0.05


def test_a_sweep_has_an_empty_row_where_nothing_is_legal() -> None:
    text = run("search", *ONE[:-2], "--evaluations", "20", "--sweep", "L1.capacity_bytes=4194304,64", status=1)
    legal, none = csv.DictReader(io.StringIO(text))
    assert float(legal["Cycle"]) > 0
    assert (none["dataflow"], none["Cycle"]) == ("", "")


# Whole networks -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A convolution with padding and a ReLU, twice the same, a reshape, and a fully connected layer."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((8, 8, 3, 3)), "v": generator.standard_normal((8, 8, 3, 3)),
        "f": generator.standard_normal((16, 8 * 64)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]), helper.make_node("Gemm", ["e", "f"], ["y"], transB=1),
    ]  # fmt: skip
    shapes = {"x": ["n", 8, 8, 8], "y": ["n", 16]}
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name]) for name in "xy")
    constants = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return str(path)


WHOLE = ("--machine", "edge", "--shape", "x=1,8,8,8")


def test_a_network_layer_by_layer_and_fused(model: str, tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    found = value("search", model, *WHOLE, "--evaluations", "900", "-o", str(trees))
    layers = found["layers"]
    conv, relu, *_ = (layer["name"] for layer in layers)
    assert [(layer["how"], layer["same_as"]) for layer in layers] == [
        ("tree", None), ("streamed", None), ("tree", conv), ("streamed", relu), ("streamed", None), ("tree", None),
    ]  # fmt: skip
    apart, fused = found["totals"]["apart"], found["totals"]["fused"]
    assert apart["cycles"] == pytest.approx(sum(layer["cycles"] for layer in layers))
    assert apart["operations"] == 2 * (8 * 8 * 64 * 9 + 8 * 64) + 512 + 16 * 512
    assert fused["cycles"] < apart["cycles"]
    chosen = [chain for chain in found["chains"] if chain["chosen"]]
    assert [chain["apart"]["cycles"] > chain["cycles"] for chain in chosen] == [True] * len(chosen) != []
    assert found["missing"] == []
    for layer in layers:
        if layer["how"] == "tree" and layer["same_as"] is None:
            predicted = value("model", str(trees / f"{layer['name']}.tile"), "--machine", "edge")
            assert (predicted["cycles"], predicted["energy"]) == (layer["cycles"], layer["energy"])


def test_the_tables_of_a_network(model: str) -> None:
    layers, chains, totals, note = run("search", model, *WHOLE, "--evaluations", "600").split("\n\n")
    head, *rows = layers.splitlines()
    assert head.split()[:6] == ["layer", "times", "operations", "cycles", "utilisation", "energy"]
    assert [row.split()[1] for row in rows] == ["2", "2", "1", "1"]
    assert rows[1].endswith("by its movement")
    assert "cycles apart" in chains
    assert [row.split()[0] for row in totals.splitlines()] == ["total", "apart", "fused"]
    assert note.strip() == "energy in 16-bit multiply-adds, elements are f16"


def test_wider_elements_move_more_words(model: str, tmp_path: Path) -> None:
    path = tmp_path / "wide.yaml"
    path.write_text(run("machines", "edge").replace("capacity_bytes: 6\n", "capacity_bytes: 12\n"))
    whole = ("--machine", str(path), *WHOLE[2:], "--evaluations", "400")
    narrow, wide = (value("search", model, *whole, "--dtype", dtype)["totals"]["apart"] for dtype in ("f16", "f32"))
    assert wide["levels"]["RF"]["read"] == 2 * narrow["levels"]["RF"]["read"]


def test_a_network_on_machines_with_other_rates(model: str) -> None:
    sweep = ("--sweep", "DRAM.write_words_per_cycle=0.5,30", "--evaluations", "300")
    slow, fast = csv.DictReader(io.StringIO(run("search", model, *WHOLE, *sweep)))
    assert float(slow["Cycle"]) > float(fast["Cycle"])
    assert float(fast["apart::Cycle"]) >= float(fast["Cycle"])
    assert float(slow["apart::Cycle"]) >= 2 * float(slow["apart::DRAM::Update"])


def test_a_layer_without_a_tree_is_named_and_in_no_total(model: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(run("machines", "edge").replace("capacity_bytes: 4194304", "capacity_bytes: 4"))
    text = run("search", model, "--machine", str(path), *WHOLE[2:], "--evaluations", "100", status=1)
    assert "not in the totals: " in text
    assert "L1, which holds 4" in text


def test_a_network_with_an_open_extent_is_refused(model: str) -> None:
    assert "--shape" in run("search", model, "--machine", "edge", "--evaluations", "10", status=2)


def test_an_output_of_a_network_is_a_folder(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = run("search", model, *WHOLE, "--evaluations", "10", "-o", str(tmp_path / "file"), status=2)
    assert "is no folder" in text


def test_a_network_goes_on_with_its_traces(model: str, tmp_path: Path) -> None:
    arguments = ("search", model, *WHOLE, "--evaluations", "200", "--resume", str(tmp_path / "trace"))
    once = value(*arguments)
    stored = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(stored) > 2
    assert value(*arguments) == once
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == stored


def test_order_and_mapping_are_searched_too(tmp_path: Path) -> None:
    path = tmp_path / "best.tile"
    chain = ("--workload", "gemm-chain", "--shape", "G10", "--machine", "edge", "--evaluations", "600")
    found = value("search", *chain, "--dataflow", "layerwise,any", "-o", str(path))
    layerwise, any_order = found["dataflows"]
    assert any_order["dataflow"] == found["best"] == "any"
    assert any_order["cycles"] < layerwise["cycles"]
    assert 0 < any_order["evaluations"] <= 600
    assert value("model", str(path), "--machine", "edge")["cycles"] == any_order["cycles"]


# What a search leaves behind, and how it is followed and stopped ------------------------------------------------------


def test_how_a_search_converged_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    run("search", *CHAIN, "--dataflow", "layerwise,flat-rgran", "--evaluations", "40", "--plot", str(path))
    picture = path.read_text()
    assert picture.lstrip().startswith("<?xml")
    assert "</svg>" in picture
    assert "no folder" in run("search", *ONE, "--plot", str(tmp_path / "absent" / "a.svg"), status=2)
    assert "suffix" in run("search", *ONE, "--plot", str(tmp_path / "a.jpg"), status=2)


def test_files_have_the_metrics_the_tree_and_every_evaluation(tmp_path: Path) -> None:
    best = value("search", *ONE, "--csv", str(tmp_path / "one"))["dataflows"][0]
    metrics = dict(csv.reader((tmp_path / "one.csv").read_text().splitlines()))
    assert float(metrics["Cycle"]) == best["cycles"]
    mapping = (tmp_path / "one.mapping.txt").read_text()
    assert print_tree(parse_tree(mapping)) == best["tree"]
    assert mapping.startswith("# gemm-chain-G10-softmax on edge, FLAT-RGran: ")
    steps = list(csv.DictReader((tmp_path / "one.tuning.csv").read_text().splitlines()))
    assert list(steps[0]) == ["index", "time", "iter", "reward", "value", "best"]
    assert [int(step["index"]) for step in steps] == list(range(1, 61))
    assert float(steps[-1]["best"]) == best["cycles"] == min(float(step["value"]) for step in steps if step["value"])
    valid = next(step for step in steps if step["value"])
    assert float(valid["reward"]) == pytest.approx(-np.log10(float(valid["value"])))
    run("search", *CHAIN, "--dataflow", "layerwise,flat-rgran", "--evaluations", "20", "--csv", str(tmp_path / "two"))
    written = {path.name for path in tmp_path.glob("two*")}
    assert written == {"two.csv", "two.mapping.txt", "two.Layerwise.tuning.csv", "two.FLAT-RGran.tuning.csv"}
    assert "absent" in run("search", *ONE, "--csv", str(tmp_path / "absent" / "a"), status=2)


def test_any_number_of_processes_finds_the_same(tmp_path: Path) -> None:
    chain = ("--workload", "gemm-chain", "--shape", "G10", "--machine", "edge", "--dataflow", "any",
             "--evaluations", "600")  # fmt: skip
    alone, together = (value("search", *chain, *option) for option in ((), ("--workers", "2")))
    assert alone == together
    assert "searched in one process" in run("search", *ONE, "--workers", "2", status=2)
    assert "--workers is of a workload" in run("search", "a.onnx", "--machine", "edge", "--workers", "2", status=2)


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_on_a_terminal_says_how_far_a_search_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.cli import searching

    shown = Terminal()
    monkeypatch.setattr(searching.sys, "stderr", shown)
    line = searching.Progress()
    step = Step(0.0, 0, [1], Evaluation(1234.0), 1234.0)
    line("any", step)
    assert shown.getvalue() == ""  # not before a fifth of a second
    monkeypatch.setattr(searching.time, "monotonic", lambda: float("inf"))
    line("any", step)
    assert shown.getvalue() == "\rany: 2 evaluations, best 1,234\033[K"
    line.end()
    assert shown.getvalue().endswith("\r\033[K")
    monkeypatch.setattr(searching.sys, "stderr", io.StringIO())
    quiet = searching.Progress()
    quiet("any", step)
    quiet.end()
    assert searching.sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def interrupted_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody presses Ctrl-C while so many batches of trees have been evaluated."""
    batch, made = TreeCost.batch, []

    def counted(self: TreeCost, points: Any) -> Any:
        made.append(points)
        if len(made) > calls:
            raise KeyboardInterrupt
        return batch(self, points)

    monkeypatch.setattr(TreeCost, "batch", counted)


def test_ctrl_c_shows_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("search", *CHAIN, "--dataflow", "flat-rgran,tileflow", "--evaluations", "100000", "--json",
                 "-o", str(tmp_path / "best.tile"), "--resume", str(tmp_path / "trace"))  # fmt: skip
    interrupted_after(3, monkeypatch)
    found = json.loads(run(*arguments, status=130))
    (dataflow,) = found["dataflows"]  # the one that was begun
    assert dataflow["stopped"] == "interrupted"
    assert found["best"] == "FLAT-RGran"
    assert dataflow["cycles"] > 0
    assert (tmp_path / "best.tile").exists()
    assert len((tmp_path / "trace.FLAT-RGran").read_text().splitlines()) == dataflow["evaluations"] + 1
    assert not (tmp_path / "trace.TileFlow").exists()
