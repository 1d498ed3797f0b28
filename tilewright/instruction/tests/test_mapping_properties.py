"""Properties of mappings on random operators, and random cases of the sweep over operators, records and modes."""

from __future__ import annotations

import random
import time
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.expr.core import Compute, Tensor
from tilewright.expr.evaluate import evaluate, evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_compute
from tilewright.instruction import algorithm4
from tilewright.instruction.emulate import emulate, reference, small_values
from tilewright.instruction.mapping import Mapping, Mode, mappings
from tilewright.instruction.matching import match
from tilewright.instruction.physical import physical
from tilewright.instruction.relayout import apply_mappings, relayouts, stored_read
from tilewright.instruction.tests.sample_records import OPERATORS, listed, matrix, record
from tilewright.instruction.tests.sweep import Case, combinations, run
from tilewright.instruction.validation import judge
from tilewright.intrinsics.intrinsic import Intrinsic

SWEPT = tries(15, full=335)  # cases of each of the 15 operators
RELAXED = settings(max_examples=tries(8, full=40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def affine_operators(draw: st.DrawFn) -> Compute:
    """A sum of products of two tensors over up to 7 loops of extents 1 to 4, with sums of loops as indices."""
    spatial = [f"i{number}" for number in range(draw(st.integers(1, 4)))]
    summed = [f"r{number}" for number in range(draw(st.integers(1, 3)))]
    loops = spatial + summed
    sizes = {loop: draw(st.integers(1, 4)) for loop in loops}
    reads = []
    for name in ("A", "B"):
        used = draw(st.lists(st.sampled_from(loops), unique=True, max_size=len(loops)))
        indices = []
        while used:
            group, used = used[: draw(st.integers(1, 2))], used[2:]
            terms, low = [], 0
            for loop in group:
                factor = draw(st.sampled_from((1, 1, 1, 2, -1)))
                terms.append(f"{factor}*{loop}" if factor != 1 else loop)
                low += min(0, factor * (sizes[loop] - 1))
            indices.append(" + ".join([*terms, str(-low)]))
        reads.append(f"{name}[{', '.join(indices)}]")
    return parse_compute(f"Y[{', '.join(spatial)}] += {' * '.join(reads)} over {', '.join(summed)}", sizes)


RECORDS = (
    matrix(2),
    matrix(3, 2, 4),
    record("Dst[i] += Src1[r] * Src2[i, r]", {"i": 3, "r": 2}, name="gemv"),
    record("Dst[i] += Src1[i, r] * Src2[i, r]", {"i": 2, "r": 2}, layouts={"Src2": "r * 2 + i"}, name="full"),
    record("Dst[] += Src1[r] * Src2[r]", {"r": 3}, name="dot"),
    record("Dst[i] += Src1[] * Src2[i]", {"i": 4}, name="axpy"),
    record("Dst[k, p, q] += Src1[c, p, q] * Src2[k, c]", {"k": 2, "p": 2, "q": 2, "c": 2}, name="conv"),
    record("Dst[m, n, l, h] += Src1[m, k, l] * Src2[k, n, h]", {"m": 2, "n": 2, "k": 2, "l": 2, "h": 3}, name="tiles"),
)


@RELAXED
@given(affine_operators(), st.sampled_from(RECORDS), st.integers(0, 3), st.booleans())
def test_every_mapping_of_a_random_operator_is_exact(node: Compute, of: Intrinsic, first: int, flip: bool) -> None:
    generator = random.Random(first)
    tensors = {each.name: small_values("f32", each.shape, generator, 3) for each in node.inputs()}  # type: ignore[arg-type]
    for mode in ("points", "signature"):
        found = mappings(node, of, mode, complete=True, commute=True, flip=flip)  # type: ignore[arg-type]
        for each in islice(found, first, 60, 7):
            verdict = judge(each, mode)  # type: ignore[arg-type]
            assert verdict.refusal is None, str(verdict.refusal)
            np.testing.assert_array_equal(emulate(physical(each), tensors), reference(node, tensors))
            mapped = apply_mappings(Graph(node.inputs(), (node.output,), (node,)), {"Y": physical(each)})
            np.testing.assert_array_equal(evaluate(mapped, tensors)[0], reference(node, tensors))


@RELAXED
@given(affine_operators())
def test_points_are_a_subset_of_signature_and_grow(node: Compute) -> None:
    ours, all_of_them = (listed(node, matrix(2), mode) for mode in ("points", "signature"))  # type: ignore[arg-type]
    assert {str(each) for each in ours} <= {str(each) for each in all_of_them}
    sizes = [sum(map(len, each.sets)) for each in all_of_them]
    assert sizes == sorted(sizes)
    assert all(0 < physical(each).utilisation <= 1 for each in all_of_them[:20])


@RELAXED
@given(affine_operators(), st.data())
def test_masked_algorithm_4_is_equality_of_signatures(node: Compute, data: st.DataObject) -> None:
    for one in match(node, matrix(2)):
        places = [data.draw(st.sampled_from((None, 0, 1, 2))) for _ in one.loops]
        sets = tuple(
            tuple(axis for axis, place in zip(one.loops, places, strict=True) if place == number) for number in range(3)
        )
        mapping = Mapping(one, sets)
        columns = [tuple(map(bool, column)) for column in one.intrinsic_access.T]
        alike = all(one.signature(axis) == columns[number] for number, axes in enumerate(sets) for axis in axes)
        accepted = algorithm4.masked(one.access, mapping.matrix, one.intrinsic_access)
        assert accepted == (alike and all(sets))


@RELAXED
@given(affine_operators(), st.sampled_from(("packed", "strided")), st.booleans())
def test_unpacking_a_packed_operand_gives_what_was_read(node: Compute, storage: str, keep: bool) -> None:
    generator = random.Random(0)
    tensors = {each.name: small_values("f32", each.shape, generator, 100) for each in node.inputs()}  # type: ignore[arg-type]
    for each in listed(node, matrix(2), "signature")[:6]:
        whole = physical(each, storage=storage, keep_windows=keep)  # type: ignore[arg-type]
        shape = tuple(axis.extent for axis in each.match.loops)
        for number, into in enumerate(relayouts(whole)):
            packed = evaluate_compute(into, tensors)
            back = Compute(Tensor("back", shape, "f32"), each.match.loops, stored_read(whole, number, into.output))
            read = Compute(Tensor("read", shape, "f32"), each.match.loops, each.match.reads[number])
            np.testing.assert_array_equal(evaluate_compute(back, {into.name: packed}), evaluate_compute(read, tensors))


def test_a_space_of_millions_is_walked_lazily() -> None:
    spatial, summed = [f"i{number}" for number in range(12)], [f"r{number}" for number in range(8)]
    text = f"Y[{', '.join(spatial)}] += A[{', '.join(spatial[:6] + summed)}] * B[{', '.join(summed + spatial[6:])}]"
    node = parse_compute(text, dict.fromkeys([*spatial, *summed], 2))
    start = time.process_time()
    found = list(islice(mappings(node, matrix(2)), 1000))
    assert time.process_time() - start < 2
    assert len({str(each) for each in found}) == 1000  # of 63 * 63 * 255
    assert [sum(map(len, each.sets)) for each in found[:2]] == [3, 3]


SWEEP = tuple({record.name: record for _, record, _ in combinations()}.values())


@pytest.mark.parametrize("operator", OPERATORS)
@settings(max_examples=SWEPT, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(st.sampled_from(SWEEP), st.sampled_from(("points", "signature")), st.integers(0, (1 << 30) - 1))
def test_random_cases_of_the_sweep(operator: str, record: Intrinsic, mode: Mode, seed: int) -> None:
    """450 cases that have a mapping, over all operators, records and both modes; 5,025 with `--full`."""
    outcome = run(Case(operator, record, mode, seed))
    assume(outcome not in ("no mapping", "too large"))
    assert outcome == "exact"
