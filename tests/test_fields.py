"""Values read from plain values: everything that is wrong is named with its place, its value, and what is legal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tilewright.errors import CompileError, InvalidArgument, InvalidFile, InvalidMachine
from tilewright.fields import (
    Contradiction,
    Place,
    Readable,
    anything,
    items,
    optional,
    real,
    record,
    required,
    several,
    size,
    string,
    table,
)


@dataclass(frozen=True)
class Edge(Readable):
    """A value that checks itself wherever it is made."""

    ends: tuple[int, int] = required(items(size, size))
    weight: float = optional(real, 1.0)

    def __post_init__(self) -> None:
        if self.ends[0] == self.ends[1]:
            raise InvalidArgument(f"both ends are {self.ends[0]}", help="two different numbers")


@dataclass(frozen=True, kw_only=True)
class Net(Readable):
    name: str = required(string)
    edges: tuple[Edge, ...] = optional(several(record(Edge)), ())
    notes: dict[str, Any] | None = optional(table(string, anything))
    first: Edge | None = optional(record(Edge))

    def check(self) -> None:
        for number, edge in enumerate(self.edges):
            if max(edge.ends) > 9:
                raise Contradiction(("edges", number), f"has the end {max(edge.ends)}", "9 at most")


NET = Net(name="n", edges=(Edge((1, 2)), Edge((2, 3), 0.5)), notes={"a": [1]}, first=Edge((0, 1)))


def test_what_was_written_is_read_back() -> None:
    value = NET.to_json()
    assert value["edges"][1] == {"ends": [2, 3], "weight": 0.5}
    assert Net.from_json(value) == NET
    assert "first" not in Net(name="n").to_json(), "None is left out"
    assert Net.from_json({"name": "n", "edges": None}) == Net(name="n"), "None stands for a field that is left out"


@pytest.mark.parametrize(
    ("value", "message", "help"),
    [
        (3, "is 3, not a mapping with the fields name, edges, notes, first", ""),
        ({}, "name is missing", ""),
        ({"name": 1, "edges": [{"ends": [1]}]}, "name is 1, not a text; edges.0.ends is [1], not a list of 2", ""),
        ({"name": "n", "edges": [{"ends": [1, 2], "weihgt": 2}]}, "edges.0.weihgt is not a field", "mean weight?"),
        ({"name": "n", "edges": [{"ends": [4, 4]}]}, "edges.0 both ends are 4", "two different numbers"),
        ({"name": "n", "edges": [{"ends": [1, 2]}, {"ends": [3, 10]}]}, "edges.1 has the end 10", "9 at most"),
        ({"name": "n", "edges": [{"ends": [0, 1 << 47]}]}, "not a whole number from 0 to 2**47 - 1", ""),
        ({"name": "n", "edges": [{"ends": [0, True]}]}, "edges.0.ends.1 is True, not a whole number", ""),
        ({"name": "n", "first": {"ends": [0, 1], "weight": "1"}}, "first.weight is '1', not a number", ""),
    ],
)
def test_everything_that_is_wrong_is_named(value: object, message: str, help: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        Net.from_json(value, "net.json")
    assert message in caught.value.message
    assert help in caught.value.help
    assert caught.value.where == "net.json"


def test_many_faults_are_counted_and_the_first_sets_the_place() -> None:
    def where(place: Place) -> str:
        return f"line of {'/'.join(map(str, place))}"

    with pytest.raises(CompileError, match=r"edges\.7 is 0.*; and 92 more") as caught:
        Net.from_json({"name": "n", "edges": [0] * 100}, where, InvalidMachine)
    assert isinstance(caught.value, InvalidMachine)
    assert caught.value.where == "line of edges/0"
