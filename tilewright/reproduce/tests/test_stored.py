"""Stored results: shown again without a run, drawn, and refused where they are none."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.command_line import CliRunner
from tilewright.cli.console import show_json
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.reproduce.amos import cpu, ranking
from tilewright.reproduce.experiment import Experiment, Report, find

LAYERS = ("C0", "C6", "C11")


def ranked() -> ranking.Report:
    points = [ranking.Point(f"p{i}", (i + 1e-6, i + 1.1e-6), i + 2e-6) for i in range(5)]
    return ranking.Report("somewhere", tuple(ranking.Layer(name, 100, tuple(points)) for name in LAYERS))


def compared() -> cpu.Report:
    names = (cpu.JOINT, cpu.UNIT, cpu.MATRIX, cpu.NONE, cpu.NHWC, cpu.TEMPLATE)
    layers = tuple(
        cpu.Layer(name, {each: cpu.Contender(each, 1e-3 + i * 1e-4, "(q|k|c)") for i, each in enumerate(names)})
        for name in LAYERS
    )
    dots = (cpu.Dot("C2D", "C0", "dot", 7, 7, "(rc)", 4.0), cpu.Dot("C2D", "C6", "dot", 7, 0, "", float("inf")))
    return cpu.Report("somewhere", 1, layers, layers, dots)


REPORTS: dict[str, Callable[[], Report]] = {"amos-model": ranked, "amos-cpu": compared}


@pytest.fixture(params=REPORTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    show_json(REPORTS[name]().to_json())
    path = tmp_path / "stored.json"
    path.write_text(capsys.readouterr().out)
    return path


def tilewright(*arguments: object) -> Result:
    from tilewright.cli.main import app

    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_stored_results_are_those_of_the_run(name: str, stored: Path) -> None:
    found, first = find(name).stored(stored), REPORTS[name]()
    assert found == first
    assert (found.tables, found.claims, found.pictures) == (first.tables, first.claims, first.pictures)
    assert tilewright("reproduce", name, "--from", stored, "--json").stdout == stored.read_text()


def test_every_measured_experiment_is_here() -> None:
    from tilewright.reproduce.experiment import EXPERIMENTS

    # Not of layers: `test_mlir_matmul`, `test_chimera`, `test_chimera_cpu`, `test_chimera_gpu`.
    elsewhere = {"mlir-matmul", "chimera-orders", "chimera-traffic", "chimera-cpu", "chimera-gpu"}
    assert {each.name for each in EXPERIMENTS if each.measured} == set(REPORTS) | elsewhere


def test_the_plot_has_every_layer_and_row(name: str, stored: Path, tmp_path: Path) -> None:
    done = tilewright("reproduce", name, "--from", stored, "--plot", tmp_path / "a.svg")
    assert done.exit_code in (0, 1)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    texts = {"".join(each.itertext()).strip() for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert set(LAYERS) <= texts
    pictures = REPORTS[name]().pictures
    assert {picture.title for picture in pictures} <= texts
    assert len(pictures) == 3


def test_a_plot_of_the_model_has_the_points_in_microseconds() -> None:
    scatter, bars, curves = ranked().pictures
    assert isinstance(scatter, ranking.Scatter)
    assert scatter.panels["C6"][0] == pytest.approx((1.0, 2.0))
    assert [len(points) for points in scatter.panels.values()] == [5, 5, 5]
    assert isinstance(bars, ranking.Bars)
    assert {len(values) for values in bars.series.values()} == {3}
    assert isinstance(curves, ranking.Curves)
    assert curves.lines["C0"][-1] == (1.0, 1.0)
    assert [x for x, _ in curves.lines["C0"]] == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_plot_of_layers_has_ratios() -> None:
    fixed, layouts, template = compared().pictures
    assert isinstance(fixed, cpu.Bars)
    assert fixed.groups == LAYERS
    assert {series: values[0] for series, values in fixed.series.items()} == pytest.approx(
        {cpu.UNIT: 1.1, cpu.MATRIX: 1.2, cpu.NONE: 1.3}
    )
    assert isinstance(layouts, cpu.Bars)
    assert isinstance(template, cpu.Bars)
    assert (layouts.series[cpu.NHWC][0], template.series[cpu.TEMPLATE][0]) == pytest.approx((1.4, 1.5))


def damage(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_what_is_no_result_is_refused(name: str, stored: Path, tmp_path: Path) -> None:
    whole = stored.read_text()
    layers = "layers" if name == "amos-model" else "f32"
    number = "predicted" if name == "amos-model" else "seconds"
    for text in ("", "{", "[]", "null", "7", '{"error": {}}', "\xff", "[" * 100_000, whole.replace(LAYERS[0], "")[:-9]):
        stored.write_bytes(text.encode("latin-1"))
        with pytest.raises(InvalidFile, match=f"no result of {name}") as raised:
            find(name).stored(stored)
        assert raised.value.where == str(stored)
    for worthless in ("0", "-1", "null", '"fast"', "NaN", "1e999", "[]"):
        before, _, rest = whole.partition(f'"{number}": ')
        stored.write_text(
            f'{before}"{number}": {worthless}{rest[rest.index(next(c for c in rest if c in ",}" + chr(10))) :]}'
        )
        with pytest.raises(InvalidFile, match=f"no result of {name}"):
            find(name).stored(stored)
    for change in (lambda v: v.pop(layers), lambda v: v[layers].clear(), lambda v: v[layers][0].pop("name")):
        stored.write_text(whole)
        damage(stored, change)
        with pytest.raises(InvalidFile, match=f"no result of {name}"):
            find(name).stored(stored)
    with pytest.raises(InvalidFile, match="no such file"):
        find(name).stored(tmp_path / "nonsuch.json")


def test_a_contender_that_is_missing_is_noticed_before_anything_is_printed(tmp_path: Path) -> None:
    value = compared().to_json() | {"dots": []}
    value["f32"][1]["contenders"].pop()
    value["f32"][1]["contenders"].pop()
    (tmp_path / "a.json").write_text(json.dumps(value))
    done = tilewright("reproduce", "amos-cpu", "--from", tmp_path / "a.json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "there is no 'NHWC'" in done.stderr


@pytest.fixture
def unrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """No experiment may run."""

    def run(self: Experiment, **given: Any) -> Report:
        raise AssertionError("it ran")

    monkeypatch.setattr(Experiment, "run", run)


@pytest.mark.usefixtures("unrun")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("amos-model", "--plot", "a.jpg"), "'a.jpg' has no suffix of a picture"),
        (("amos-model", "--plot", "nonsuch/a.svg"), "there is no folder 'nonsuch'"),
        (("amos-mappings", "--plot", "a.svg"), "amos-mappings has no plot"),
        (("amos-mappings", "--from", "a.json"), "amos-mappings has no stored results"),
        (("amos-cpu", "--from", "a.json", "--trials", "3"), "--trials is for a run"),
        (("--plot", "a.svg"), "options without the NAME"),
        (("--layers", "C0"), "options without the NAME"),
    ],
)
def test_what_does_not_fit_is_said_before_a_run(arguments: tuple[str, ...], message: str) -> None:
    done = tilewright("reproduce", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr


@pytest.mark.usefixtures("unrun")
def test_without_matplotlib_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = tilewright("reproduce", "amos-cpu", "--plot", "a.svg")
    assert done.exit_code == 3
    assert "pip install 'tilewright[report]'" in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_plot_that_cannot_be_written_loses_no_result(
    name: str, stored: Path, tmp_path: Path, form: tuple[str, ...]
) -> None:
    (tmp_path / "a.svg").mkdir()
    shown = tilewright("reproduce", name, "--from", stored, *form)
    done = tilewright("reproduce", name, "--from", stored, "--plot", tmp_path / "a.svg", *form)
    assert done.exit_code == 2
    assert "cannot write" in done.stderr
    assert done.stdout == shown.stdout != ""


def test_only_what_is_measured_is_stored(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no stored results"):
        find("amos-mappings").stored(tmp_path / "a.json")
