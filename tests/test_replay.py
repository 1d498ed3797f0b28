"""Replay: programs that are equal, changed, refused or not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.covering import some
from tests.replay import programs
from tests.replay.__main__ import main
from tests.replay.corpus import entries
from tests.replay.job import Job
from tests.replay.programs import MACHINES, kernels
from tests.replay.store import Store
from tilewright.errors import Unsupported

NAME = "operator/GMM-f32"


def test_names_are_unique_and_of_every_kind() -> None:
    names = [entry.name for entry in entries([])]
    assert len(set(names)) == len(names)
    assert {name.partition("/")[0] for name in names} == {"bench", "operator", "random"}


@pytest.mark.parametrize("machine", some(MACHINES, 1))
def test_a_program_is_recorded_and_compared(machine: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    (recorded,) = Job(store, (machine,), 2, True, (NAME,))(0)
    assert recorded.kernels > 0
    assert not recorded.refused
    (same,) = Job(store, (machine,), 2, False, (NAME,))(0)
    assert same == recorded
    text = store.get(NAME, machine)
    assert text is not None
    assert kernels(text) == recorded.kernels
    store.put(NAME, machine, text.replace("tile.func", "tile.other", 1))
    (changed,) = Job(store, (machine,), 2, False, (NAME,))(0)
    assert "-" in changed.difference
    assert "tile.other" in changed.difference


def test_programs_before_all_passes_are_recorded(tmp_path: Path) -> None:
    for machine in ("host", "sm_80"):
        Job(Store(tmp_path / "all"), (machine,), 2, True, (NAME,))(0)
        Job(Store(tmp_path / "lowered"), (machine,), 2, True, (NAME,), lowered=True)(0)
        before, after = (Store(tmp_path / part).get(NAME, machine) for part in ("lowered", "all"))
        assert before is not None
        assert "tile.dot" in before
        assert before != after


def test_a_refusal_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise Unsupported("no code for this")

    monkeypatch.setattr(programs, "plan_graph", refuse)
    (outcome,) = Job(Store(tmp_path), ("host",), 1, True, (NAME,))(0)
    assert outcome.refused
    text = Store(tmp_path).get(NAME, "host")
    assert text is not None
    assert "no code for this" in text


def test_what_was_not_recorded_is_a_difference(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path), "--only", NAME, "--machine", "host", "--workers", "1"]
    assert main(["compare", *arguments]) == 1
    assert "not recorded" in capfd.readouterr().out
    assert main(["record", *arguments]) == 0
    assert main(["compare", *arguments]) == 0
    assert "1 graphs, 1 machines, 1 programs" in capfd.readouterr().out


def test_a_pattern_without_a_graph_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as found:
        main(["record", str(tmp_path), "--only", "nothing/*"])
    assert found.value.code == 2
