"""The graphs of the corpus: cases of the benchmark, operators of publications at small sizes, random ONNX graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial

from bench.cases import CASES
from bench.problem import Case
from tests.random_onnx import model_of, random_case
from tilewright.expr.graph import Graph
from tilewright.expr.ops import catalogue
from tilewright.frontend.onnx import import_model

RANDOM_CASES = 200  # seeds from 0


@dataclass(frozen=True)
class Entry:
    """A graph by name, made when it is asked for."""

    name: str
    build: Callable[[], Graph]


def entries(patterns: list[str]) -> list[Entry]:
    """The graphs whose name matches one of the patterns; all of them where there are none.

    Raises ValueError for a pattern that matches nothing.
    """
    everything = [*_bench(), *_operators(), *_random()]
    for pattern in patterns:
        if not any(fnmatch(entry.name, pattern) for entry in everything):
            raise ValueError(f"no graph of the corpus matches {pattern!r}: names begin with bench/, operator/, random/")
    return [entry for entry in everything if not patterns or any(fnmatch(entry.name, each) for each in patterns)]


def _bench() -> Iterator[Entry]:
    for name, case in CASES.items():
        yield Entry(f"bench/{name}", partial(_of_case, case))


def _of_case(case: Case) -> Graph:
    return import_model(case.build().model)


def _operators() -> Iterator[Entry]:
    for name, operator in catalogue.OPERATORS.items():
        build = partial(catalogue.build, name, form=operator.forms[0])
        yield Entry(f"operator/{name}-f32", partial(build, dtype="f32"))
        yield Entry(f"operator/{name}-f16", partial(build, dtype="f16"))


def _random() -> Iterator[Entry]:
    for seed in range(RANDOM_CASES):
        yield Entry(f"random/{seed}", partial(_of_seed, seed))


def _of_seed(seed: int) -> Graph:
    return import_model(model_of([random_case(seed)]))
