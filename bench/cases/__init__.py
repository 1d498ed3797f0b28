"""The cases, one family of them per file. Listing them imports neither `onnx` nor `torch`; building one does."""

from __future__ import annotations

from fnmatch import fnmatch

from bench.cases import attention, chains, convolutions, gemm, irregular, memory_bound, networks, overhead, resnet18
from bench.problem import Case

CASES: dict[str, Case] = {
    case.name: case
    for family in (gemm, convolutions, resnet18, chains, attention, memory_bound, irregular, overhead, networks)
    for case in family.cases()
}


def select(patterns: list[str]) -> list[Case]:
    """The cases whose name or family is, or matches, one of `patterns` ("all" matches every case), in table order.

    Raises ValueError for a pattern without a case.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = {
            case.name
            for case in CASES.values()
            if pattern == "all" or fnmatch(case.name, pattern) or fnmatch(case.family, pattern)
        }
        if not found:
            raise ValueError(f"no case or family matches {pattern!r}; --list shows all")
        chosen |= found
    return [case for case in CASES.values() if case.name in chosen]
