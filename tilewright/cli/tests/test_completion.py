"""Completion: the shell is offered every value of an option or argument whose values are from a known set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tests.command_line import CliRunner
from tilewright.cli.main import COMMANDS, app

#: Metavariables of values that are from no set: numbers, files, expressions, names that the user chose.
OPEN = {
    "N", "S", "X", "N[,N…]", "N,…", "X,Y,Z", "BYTES", "MxN", "N=16,K=64,…", "NAME=N,N,…", "FIELD=V,…", "p2,…", "TEXT",
    "MODEL", "[MODEL]", "FILE", "FILE…", "FILE|-", "FILE.csv", "FILE.tile", "FILE.md", "FILE.json", "KERNEL.ptx",
    "IN.npz", "OUT.npz", "DIR", "PREFIX", "LAYOUT", "(nq|k|c)",
}  # fmt: skip

#: Names that are known from the user's file only.
OF_FILES = {("explain", "--kernel"), ("emulate", "--entry")}


def command_of(name: str) -> Any:
    found: Any = get_command(app)
    for word in name.split():
        found = found.commands[word]
    return found


def closed_parameters() -> Iterator[tuple[str, str]]:
    """Commands and their options, or "" for an argument, whose values are from a known set."""
    for name, _, _ in COMMANDS:
        for parameter in command_of(name).params:
            option = parameter.opts[-1] if parameter.opts[-1].startswith("-") else ""
            is_flag = getattr(parameter, "is_flag", False)
            if not is_flag and parameter.metavar not in OPEN and (name, option) not in OF_FILES:
                yield name, option


def offered(command: str, option: str, incomplete: str) -> list[str]:
    """What bash gets for the command line so far."""
    words = ["tilewright", *command.split(), *([option] if option else [])]
    environment = {
        "_TILEWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join([*words, incomplete]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="tilewright")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.stdout.split()


def test_values_of_known_sets_are_found() -> None:
    found = set(closed_parameters())
    assert {("machines", ""), ("compile", "--emit"), ("validate tileflow", "--latency"), ("opt", "--pass")} <= found
    assert ("explain", "--json") not in found


@pytest.mark.parametrize(("command", "option"), list(closed_parameters()))
def test_every_value_of_a_known_set_is_offered(command: str, option: str) -> None:
    values = offered(command, option, "")
    assert len(values) > 1
    first = values[0][:1]
    assert offered(command, option, first) == [value for value in values if value.startswith(first)]
    assert offered(command, option, "no-such-value") == []


@pytest.mark.parametrize(
    ("command", "option", "incomplete", "value"),
    [
        ("machines", "", "nv", "nvidia-h200-sxm"),
        ("run", "--machine", "ho", "host"),
        ("reproduce", "", "am", "amos-mappings"),
        ("reproduce", "--layers", "G2,C1", "G2,C11"),
        ("reproduce", "--without", "padding,sw", "padding,swizzle"),
        ("intrinsics", "", "mma_m16", "mma_m16n8k16_f16_f32"),
        ("opt", "-p", "d", "dce"),
        ("opt", "-p", "pad", "pad-tiles"),
        ("compile", "--disable", "fold", "fold-padding"),
        ("map", "--op", "C", "C2D"),
        ("map", "--intrinsic", "wmma_16", "wmma_16x16x16_f16_f32"),
        ("run", "--device", "e", "emulator"),
        ("compile", "--fuse", "al", "always"),
        ("search", "--workload", "a", "attention"),
        ("search", "--dataflow", "layerwise,t", "layerwise,tileflow"),
        ("search", "--shape", "bert-b", "bert-base"),
        ("fuse", "--workload", "conv-chain-C", "conv-chain-C8"),
    ],
)
def test_a_value_is_offered(command: str, option: str, incomplete: str, value: str) -> None:
    assert value in offered(command, option, incomplete)


def test_passes_that_are_required_are_not_offered_to_be_switched_off() -> None:
    assert "pad-tiles" not in offered("compile", "--disable", "pad")
