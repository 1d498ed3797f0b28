"""Summaries of kernels: the most expensive first, like ones together, in lines of 80 columns."""

import re
from dataclasses import replace

import pytest

from tilewright.decision import Cost, Decision, Refusal
from tilewright.errors import InvalidArgument
from tilewright.runtime.explanation import Explanation
from tilewright.runtime.profile import KernelTime, Profile
from tilewright.runtime.tests.test_profile import COPY, PRODUCT, SORT, manifest, measured

TILE = Decision(
    "register tile of conv+relu", "6 rows by 4 vectors", "1200000 predicted cycles, fewest of 9 tiles",
    "4 rows by 6 vectors", "1800000 cycles", (Refusal("28 rows by 1 vector", "at most 1.1 times the fewest", "2"),),
    Cost(cycles=1.2e6), Cost(cycles=1.8e6), "conv+relu",
)  # fmt: skip
MAPPING = replace(TILE, subject="instruction of conv", chosen="(i|j|k) on fma_16_f32_f32", runner_up="", refused=())
FUSED = Decision("fusion of conv", "with relu", "its only consumer reads it point by point", kernel="conv+relu")
SCALE = Decision("scale of conv", "folded into w", "its factors are constants")
AGAIN = replace(PRODUCT, name="conv_1+relu_1")
ALSO = tuple(replace(each, kernel="conv_1+relu_1") for each in (FUSED, MAPPING, TILE))


def explanation(**given: object) -> Explanation:
    decisions = (SCALE, FUSED, MAPPING, TILE, *ALSO)
    return Explanation(manifest(COPY, PRODUCT, AGAIN, SORT), decisions, 1, **given)  # type: ignore[arg-type]


def test_like_kernels_are_one_and_the_most_expensive_comes_first() -> None:
    first, second, third = explanation(machine=measured()).kernels
    assert first.names == ("conv+relu", "conv_1+relu_1")
    assert first.flops == 2 * PRODUCT.flops
    assert first.decisions == (FUSED, MAPPING, TILE)
    assert first.predicted_seconds == pytest.approx(2 * 1.2e6 / 4e9, rel=0.01)
    assert (first.bound, second.bound, third.bound) == ("compute", "L3", None)


def test_a_summary_says_time_bound_fusion_mapping_tile_and_refusals() -> None:
    lines = explanation(machine=measured()).text(top=1).splitlines()
    text = re.sub(r"\n {12}", " ", "\n".join(lines))
    assert "1. conv+relu, 1 more alike: " in text
    assert "bound by compute" in text
    for part in ("fused    with relu", "mapping  (i|j|k) on fma_16_f32_f32", "second: 4 rows by 6 vectors, +50.0%",
                 "+50.0%; 1 refused", "2 other kinds"):  # fmt: skip
        assert part in text
    assert max(map(len, lines)) <= 80


def test_a_prediction_says_which_part_of_the_ceiling_it_is() -> None:
    text = explanation(machine=measured()).text(top=1).replace("\n            ", " ")
    share = PRODUCT.flops / (4e9 * 64) / (PRODUCT.cycles / 4e9)
    assert f"predicted: {share:.0%} of the rate of fma_16_f32_f32" in text


def test_without_measured_rates_there_are_cycles_and_no_seconds() -> None:
    text = explanation().text()
    assert "no seconds" in text.replace("\n", " ")
    assert "2,400,000 cycles predicted" in text
    assert "bound by" not in text
    assert not re.search("[mµ]s (predicted|measured)", text), "of the least times that rank them alone"
    assert re.search("[mµ]s predicted", explanation(machine=measured()).text())


def test_a_profile_puts_measured_times_beside_predicted_ones() -> None:
    launches = (COPY, PRODUCT, AGAIN, SORT)
    times = [KernelTime(each.name, each.kernel, 1, each.flops, each.bytes, 1e-3) for each in launches]
    found = explanation(machine=measured(), profile=Profile(times, manifest(*launches), 1))
    assert [each.measured_seconds for each in found.kernels] == [2e-3, 1e-3, 1e-3]
    assert "50% of the time, 600 µs predicted, 2 ms measured" in found.text()


CHAIN = Decision(
    "fusion of a.block.of.a.long.name.0.convolution + conv", "a kernel each", "they cannot be one",
    refused=(Refusal("one kernel", "relu is read elsewhere too", "3 times"), Refusal("one kernel", "a block fits L2")),
    kernel="conv+relu",
)  # fmt: skip
ONE = replace(CHAIN, subject="fusion of first + rows + conv", chosen="one kernel, 4 rows", reason="it pays", refused=())


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (replace(CHAIN, subject="fusion of a.block.of.one.name + b.block.of.another.name + conv"),
         "not with a.block.of.one.name and b.block.of.another.name; refused: relu is read elsewhere too: 3 times; "
         "1 more"),
        (replace(CHAIN, subject="fusion of a + conv"),
         "not with a; refused: relu is read elsewhere too: 3 times; 1 more"),
        (CHAIN, "not with a.block.of.a…convolution; refused: relu is read elsewhere …"),
        (replace(CHAIN, subject="fusion of a + conv", refused=(replace(CHAIN.refused[0], rule="a" + " word" * 30),)),
         "not with a; refused: a word word word word word word word word …"),
        (replace(CHAIN, cost=Cost(cycles=79e6), runner_up="one kernel, 1 row", runner_up_cost=Cost(cycles=158e6),
                 refused=()),
         "not with a.block.of.a…convolution, 79,000,000 cycles; second: one kernel, +100.0%"),
        (replace(CHAIN, cost=Cost(cycles=79e6),
                 refused=(Refusal("one kernel, 4 rows", "it is 1.02 times as fast", "", Cost(cycles=78.21e6)),)),
         "not with a.block.of.a…convolution, 79,000,000 cycles; refused: one kernel, -1.0%"),
        (ONE, "one kernel with first and rows, 4 rows: it pays"),
        (replace(FUSED, refused=(Refusal("with y", "it reduces"),)),
         "with relu: its only consumer reads it point by point; refused: with y, it reduces"),
    ],
)  # fmt: skip
def test_a_fusion_says_with_whom_and_why_not(decision: Decision, expected: str) -> None:
    """It said "a kernel each: they cannot be one; 1 refused"."""
    found = Explanation(manifest(PRODUCT), (decision,), 1)
    lines = found.text(top=1).splitlines()
    assert f"fused    {expected}" in re.sub(r"\n {12}", " ", "\n".join(lines))
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("machine", ["", "a file of the user", "x86-64-v3", "znver5"])
def test_kernels_without_a_model_are_compared_with_others(machine: str) -> None:
    """A copy of few cycles came before a sort of a thousand times as many bytes, which has no cycles."""
    sort = replace(SORT, bytes=8_000_000_000)
    given = replace(manifest(COPY, sort), machine=machine)
    found = Explanation(given, (), 1)
    assert [each.names for each in found.kernels] == [("sort",), ("copy",)]
    assert found.kernels[0].peak_seconds > 100 * found.kernels[1].peak_seconds > 0
    text = found.text().replace("\n", " ")
    assert "ranked by an estimate, the larger of operations at the peak of" in text
    assert "1 of 2 kernels have no model of their time" in text
    assert re.search("1. sort: 1,000 operations, 8,000,000,000 bytes, no model of its time, .* ms at peak rates", text)
    assert re.search("2. copy: 10,000 cycles predicted, .* µs at peak rates", text)
    assert found.to_json()["kernels"][0]["peak_seconds"] == found.kernels[0].peak_seconds


def test_an_estimate_is_made_only_where_a_model_lacks() -> None:
    assert [each.peak_seconds for each in Explanation(manifest(COPY, PRODUCT), (), 1).kernels] == [None, None]
    parts = replace(PRODUCT, name="conv.parts"), replace(PRODUCT, name="conv", cycles=0)
    found = Explanation(manifest(*parts), (), 1)  # the first has the cycles of both
    assert [each.peak_seconds for each in found.kernels] == [None, None]
    assert "ranked" not in found.text()
    nothing = Explanation(manifest(COPY, replace(SORT, flops=0, bytes=0)), (), 1)  # of a tensor without elements
    assert [each.peak_seconds for each in nothing.kernels] == [None, None]


def test_one_kernel_and_all_decisions() -> None:
    found = explanation()
    assert found.text(kernel="conv_1+relu_1").endswith("\n".join(each.explain() for each in (FUSED, MAPPING, TILE)))
    assert found.text(all=True).count("because") == 7
    with pytest.raises(InvalidArgument, match=r"there is no kernel 'conv'(.|\n)*close: conv\+relu") as raised:
        found.text(kernel="conv")
    assert raised.value.help


def test_json_has_numbers_as_fields() -> None:
    first = explanation(machine=measured()).to_json()["kernels"][0]
    assert first["decisions"][2]["cost"]["cycles"] == 1.2e6
    assert first["predicted_seconds"] > 0
