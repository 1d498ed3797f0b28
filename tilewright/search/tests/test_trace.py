"""The file of a trace: strict JSON lines, a half-written end, damage, and what is drawn from it."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from tilewright.errors import CompileError, InvalidFile
from tilewright.search.cost import Budget, Evaluation
from tilewright.search.factor_space import Table
from tilewright.search.minimise import minimise
from tilewright.search.random import Random
from tilewright.search.tests.tiles import PRODUCTS
from tilewright.search.trace import Step, Trace, parse_trace

SPACE = PRODUCTS[0].space()


def cost(point: Table) -> Evaluation:
    return Evaluation.refused("k is not cut") if point[2][0] == 1 else PRODUCTS[0](point)


def search(path: Path, evaluations: int) -> Trace:
    return minimise(cost, Random(SPACE), Budget(evaluations), trace=path, clock=lambda: 0.5).trace


@cache
def content() -> bytes:
    trace = minimise(cost, Random(SPACE), Budget(40), clock=lambda: 0.5).trace
    return "".join(trace.lines()).encode()


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_a_file_has_a_header_and_a_line_per_evaluation(tmp_path: Path) -> None:
    search(tmp_path / "trace", 40)
    assert (tmp_path / "trace").read_bytes() == content()
    header, *steps = [json.loads(line, parse_constant=refuse) for line in content().decode().splitlines()]
    assert header["method"] == "random"
    assert header["seed"] == 0
    assert header["space"] == json.loads(json.dumps(SPACE.identity))
    assert len(steps) == 40
    assert all(list(step) == ["time", "iteration", "point", "evaluation", "best"] for step in steps)
    assert {tuple(step["evaluation"]) for step in steps} == {("value",), ("refused",)}


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_half_written_last_line_is_dropped_and_nothing_else(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    whole = content()[:-cut]
    path.write_bytes(whole)
    stored = whole.count(b"\n") - 1
    assert len(Trace.read(path).steps) == stored
    asked: list[object] = []
    outcome = minimise(
        lambda point: asked.append(point) or cost(point),
        Random(SPACE), Budget(40), trace=path, clock=lambda: 0.5,
    )  # fmt: skip
    assert len(asked) == 40 - stored
    assert path.read_bytes() == content()
    assert len(outcome.trace.steps) == 40


@pytest.mark.parametrize("size", [0, 1, 30])
def test_a_half_written_header_is_written_again(size: int, tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(content()[:size])
    search(tmp_path / "trace", 40)
    assert (tmp_path / "trace").read_bytes() == content()


@pytest.mark.parametrize("foreign", [b"notes of mine", b"notes of mine\n", b"{}\n", b"[1]\n", b"\x00\xff", b"\n"])
def test_a_file_of_another_kind_is_refused_and_left_alone(foreign: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(foreign)
    with pytest.raises(InvalidFile, match="trace"):
        search(tmp_path / "trace", 5)
    assert (tmp_path / "trace").read_bytes() == foreign


@pytest.mark.parametrize("seed", range(300))
def test_a_damaged_file_is_refused_with_its_line_or_read(seed: int, tmp_path: Path) -> None:
    """Bytes are changed, removed, doubled: no other error than one for the user, and no invalid value."""
    numbers = random.Random(seed)
    damaged = bytearray(content())
    for _ in range(numbers.choice([1, 1, 3, 20])):
        start = numbers.randrange(len(damaged))
        length = numbers.choice([1, 1, 5, 200])
        piece = [
            numbers.randbytes(1), bytes([numbers.choice(b'0123456789-.e{}[],":nul')]), b"",
            bytes(damaged[start : start + length]) * 2,
        ]  # fmt: skip
        damaged[start : start + length] = numbers.choice(piece)
    path = tmp_path / "trace"
    path.write_bytes(damaged)
    said: CompileError | None = None
    try:
        trace, whole = parse_trace(bytes(damaged), "trace")
        assert whole <= len(damaged)
        assert trace is None or all(isinstance(step, Step) for step in trace.steps)
        search(path, 40)
    except CompileError as error:
        said = error
    assert said is None or (said.where and said.help)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "no JSON"), ("NaN", "NaN is no number"), ("[" * 100_000, "no JSON"), ("9" * 10_000, "no JSON"),
        ("{}", "time is missing"), ("[]", "not a mapping"),
        ('{"time":0,"iteration":-1,"point":1,"evaluation":{"value":1},"best":null}', "iteration is -1"),
        ('{"time":0,"iteration":0,"point":1,"evaluation":{"value":1e999},"best":null}', "value is inf"),
        ('{"time":0,"iteration":0,"point":1,"evaluation":{},"best":null}', "evaluation is {}"),
        ('{"time":0,"iteration":0,"point":1,"evaluation":{"value":1},"best":2}', r"best is 2\.0, but the least .* 1"),
        ('{"time":0,"iteration":0,"point":1,"evaluation":{"refused":""},"best":2}', "best is 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(line: str, message: str) -> None:
    header = content().splitlines()[0].decode()
    with pytest.raises(InvalidFile, match=message) as caught:
        parse_trace(f"{header}\n{line}\n".encode(), "trace")
    assert caught.value.where.startswith("trace:2")


def test_another_version_is_refused() -> None:
    header = json.loads(content().splitlines()[0])
    with pytest.raises(InvalidFile, match="has version 7, this is version 1"):
        parse_trace(json.dumps(header | {"version": 7}).encode() + b"\n", "trace")


def test_a_curve_begins_at_the_first_valid_point_and_falls() -> None:
    answers = [Evaluation.refused("a"), Evaluation(3.0), Evaluation(4.0), Evaluation(1.0)]
    clock = iter([0.0, *(0.5 * number for number in range(20))])
    trace = minimise(lambda _: answers.pop(0), Random(SPACE), Budget(4), clock=clock.__next__).trace
    assert trace.curve() == ((2, 1.0, 3.0), (3, 1.5, 3.0), (4, 2.0, 1.0))
