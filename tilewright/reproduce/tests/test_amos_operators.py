"""The operator configurations: how many there are, and that each is the operator it says."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Compute
from tilewright.reproduce.amos.operators import ADDED, CONFIGURATIONS, configurations, resnet18

COUNTS = (5, 5, 8, 12, 11, 11, 4, 6, 7, 1, 4, 10, 12, 12, 5)


def core(name: str, number: int) -> Compute:
    """The node that sums, the last one."""
    return [node for node in CONFIGURATIONS[name][number].graph().nodes if node.accum][-1]


def test_spec3_g45() -> None:
    assert tuple(map(len, CONFIGURATIONS.values())) == COUNTS
    assert " ".join(CONFIGURATIONS) == "GMV GMM C1D C2D C3D T2D GRP DIL DEP CAP BCV GFC MEN VAR SCN"
    assert len(configurations()) == 113
    assert len(configurations(capsules=True)) == 124
    assert len(configurations(added=True)) == 113 + sum(map(len, ADDED.values()))


@pytest.mark.parametrize("each", configurations(capsules=True, added=True), ids=lambda each: each.name)
def test_every_configuration_is_a_graph(each) -> None:  # type: ignore[no-untyped-def]
    graph = each.graph()
    (output,) = graph.outputs
    assert output.dtype == "f16"
    sums = [node for node in graph.nodes if node.accum == "sum"]
    assert sums
    assert all(node.output.dtype == "f32" for node in sums)  # as the matrix units accumulate


def test_sizes_are_where_they_belong() -> None:
    assert core("GMV", 0).output.shape == (512, 1)
    assert core("C1D", 3).output.shape == (1, 512, 896)  # 892 + 2*4 - 2*2
    assert core("C2D", 0).output.shape == (1, 64, 112, 112)
    assert core("C3D", 3).output.shape == (1, 128, 4, 28, 28)
    assert core("T2D", 0).output.shape == (1, 3, 774, 774)
    assert core("T2D", 3).output.shape == (1, 64, 111, 111)
    assert core("GRP", 1).output.shape == (1, 3, 72, 28, 28)
    assert core("DEP", 1).output.shape == (1, 16, 6, 56, 56)
    assert core("CAP", 0).output.shape == (1, 32, 6, 6, 8)
    assert core("GFC", 9).output.shape == (1, 448, 112)
    assert core("MEN", 1).output.shape == (64, 1)
    assert core("SCN", 1).output.shape == (1024, 16)


def test_five_images_are_distinct() -> None:
    assert len({each.name for each in CONFIGURATIONS["MEN"]}) == 5
    assert len(resnet18(16)) == 12
    assert all(each.sizes["batch"] == 16 for each in resnet18(16))


def test_names_say_what_is_not_the_default() -> None:
    assert CONFIGURATIONS["C2D"][0].name == "C2D(c=3, size=224, k=64, kernel=7, stride=2, pad=3)"
    assert CONFIGURATIONS["T2D"][1].name == "T2D(k=64, size=56, c=64, kernel=3, stride=1, pad=1)"
