"""Emulated mappings against the reference, on random sizes: every operator, every record, both modes.

    python -m tilewright.instruction.tests.sweep --cases 5000 --seed 0

A case is one operator, one record, one mode, random extents, strides and storage, and one mapping drawn from all that
there are. Where every operand of the record is a fragment of lanes, tiles go through registers. The result is exact or
the case fails. Cases come in an order in which every combination is met once before one comes again: `--every` stops
there (about 41,000). Prints the counts; exits with 1 if a case failed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tilewright.expr.core import Compute
from tilewright.expr.text import parse_compute
from tilewright.instruction.emulate import emulate, exact_bound, reference, small_values
from tilewright.instruction.mapping import Mapping, Mode, enumerate_mappings
from tilewright.instruction.matching import adapted, match
from tilewright.instruction.physical import PhysicalMapping, physical
from tilewright.instruction.tests.sample_records import OPERATORS
from tilewright.intrinsics.fragments import execute_registers, from_registers, to_registers
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic
from tilewright.intrinsics.registry import standard

Array = np.ndarray[Any, Any]

_DRAWN_FROM = 300  # mappings of one case
_LARGEST_WORK = 1 << 22  # multiply-adds of one case, so that no case takes long


@dataclass(frozen=True)
class Case:
    operator: str
    record: Intrinsic
    mode: Mode
    seed: int


def cases(count: int, seed: int) -> Iterator[Case]:
    """Operators in turn, and for each the records in turn, so that all meet; modes alternate."""
    generator = random.Random(seed)
    order = combinations()
    generator.shuffle(order)
    for number in range(count):
        yield Case(*order[number % len(order)], generator.randrange(1 << 30))


def combinations() -> list[tuple[str, Intrinsic, Mode]]:
    """Every operator with every record that sums products of two operands, in both modes."""
    records = [record for record in standard() if record.combine == "sum" and len(record.sources) == 2]
    modes: tuple[Mode, ...] = ("points", "signature")
    return [(name, record, mode) for name in OPERATORS for record in records for mode in modes]


def run(case: Case) -> str:
    """`exact`, why there was nothing to run, or what is wrong."""
    generator = random.Random(case.seed)
    drawn = draw(case, generator)
    if isinstance(drawn, str):
        return drawn
    compute = drawn.match.compute
    numbers = random.Random(case.seed)
    bound = exact_bound(compute.output.dtype, prod(axis.extent for axis in compute.reduce))  # type: ignore[misc]
    canonical = drawn.match.canonical
    node = canonical.nodes[-1]
    inputs = {tensor.name: tensor for each in canonical.nodes for tensor in each.inputs()}
    written = {each.name for each in canonical.nodes}
    tensors = {
        name: small_values(tensor.dtype, tensor.shape, numbers, max(1, bound))  # type: ignore[arg-type]
        for name, tensor in inputs.items()
        if name not in written
    }
    wanted = reference(original(case, generator, draw_again=True), tensors)
    found = emulate(drawn, tensors, execute=through_registers if in_fragments(case.record) else None)
    if found.shape != wanted.shape or (found != wanted).any():
        return f"WRONG: {case.operator} {case.record.name} {case.mode} {drawn} seed {case.seed} of {node.name}"
    return "exact"


def in_fragments(record: Intrinsic) -> bool:
    """Whether lanes hold all operands."""
    return all(isinstance(operand.layout, Fragment) for operand in record.operands)


def through_registers(record: Intrinsic, dst: Array, *sources: Array) -> Array:
    """`execute` with every tile scattered to the registers of lanes, and the result gathered from them."""
    fragments: list[Any] = [operand.layout for operand in record.operands]
    registers = [to_registers(each, tile) for each, tile in zip(fragments, (*sources, dst), strict=True)]
    result = execute_registers(record, registers[-1], *registers[:-1])
    return from_registers(fragments[-1], result, record.shape(record.destination))


def original(case: Case, generator: random.Random, *, draw_again: bool = False) -> Compute:
    """The operator with random extents, strides and dilations."""
    if draw_again:
        generator = random.Random(case.seed)
    text, sizes = OPERATORS[case.operator]
    stride, dilation = generator.choice(((1, 1), (2, 1), (1, 2), (3, 1)))
    if case.operator not in ("T2D", "DIL"):
        for spatial, window in (("d", "t"), ("p", "r"), ("q", "s")):
            text = text.replace(f"{spatial}+{window}", f"{stride}*{spatial}+{dilation}*{window}")
    extents = {name: 1 if small == 1 else generator.randint(1, 4) for name, small in sizes.items()}
    if case.operator == "T2D":
        extents |= {"r": min(extents["r"], 3), "s": min(extents["s"], 2)}
    return adapted(parse_compute(text, extents), case.record)


def draw(case: Case, generator: random.Random) -> PhysicalMapping | str:
    """One mapping of the case with its storage."""
    node = original(case, generator)
    found: list[Mapping] = []
    for one in match(node, case.record, complete=True):
        found += islice(enumerate_mappings(one, case.mode), _DRAWN_FROM)
    if not found:
        return "no mapping"
    storage = [generator.choice(("packed", "strided")) for _ in case.record.operands]
    whole = physical(generator.choice(found), storage=storage, keep_windows=generator.random() < 0.5)  # type: ignore[arg-type]
    return "too large" if whole.calls * case.record.macs > _LARGEST_WORK else whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="cases that ran, not counting those without a mapping")
    parser.add_argument("--every", action="store_true", help="every combination once, however many run")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    most = len(combinations()) if arguments.every else 1 << 40
    start = time.perf_counter()
    outcomes: Counter[str] = Counter()
    seen: dict[str, set[Any]] = {each: set() for each in ("operators", "records", "fragments", "modes", "combinations")}
    wrong: list[str] = []
    for case in cases(most, arguments.seed):
        outcome = run(case)
        outcomes[outcome.partition(":")[0]] += 1
        if outcome.startswith("WRONG"):
            wrong.append(outcome)
        if outcome == "exact":
            seen["operators"].add(case.operator)
            seen["records"].add(case.record.name)
            seen["modes"].add(case.mode)
            seen["combinations"].add((case.operator, case.record.name, case.mode))
            if in_fragments(case.record):
                seen["fragments"].add(case.record.name)
        if not arguments.every and outcomes["exact"] + outcomes["WRONG"] >= arguments.cases:
            break
    counts = {kind: len(names) for kind, names in seen.items()}
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"outcomes": dict(outcomes), **counts, "seconds": seconds, "wrong": wrong[:10]}, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
