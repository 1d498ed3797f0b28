"""Predictions of cases beside their times, and the decisions about them. Nothing here looks at how long things take."""

import pytest

from bench import cases
from bench.predicted import Kernel, lost, total
from tilewright.compiler.compile import import_any, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.decision import ASKED, Cost, Decision

CASES = (
    "gemm-f32-skinny-m16-1024", "gemm-u8s8-1024", "gemm-bf16-1024", "yolo-C5", "resnet18-C3-bf16", "resnet18-C4-u8s8",
    "gemm-chain-G10-softmax", "conv-chain-C5", "transposed-dcgan-16", "lstm-100x128",
)  # fmt: skip
MACHINES = ("znver5", "x86-64-v3", "sm_90a", "gfx1100")


@pytest.mark.parametrize("name", CASES)
def test_no_winner_costs_more_than_what_came_second(name: str) -> None:
    graph = import_any(cases.CASES[name].build().model)
    compared = 0
    for machine in MACHINES:
        decisions = make_plan(graph, resolve_target(machine), 2).decisions
        assert lost(decisions) == []
        compared += sum(each.runner_up_cost is not None for each in decisions)
    assert compared, "no decision has the costs of two candidates"


def test_a_wrong_decision_is_found() -> None:
    wrong = Decision("tile of y", "a", "few cycles", "b", "", cost=Cost(cycles=2.0), runner_up_cost=Cost(cycles=1.0))
    asked = Decision("tile of y", "a", ASKED, "b", "", cost=Cost(cycles=2.0), runner_up_cost=Cost(cycles=1.0))
    assert lost([wrong, asked]) == [wrong]


def test_what_has_no_model_is_left_out() -> None:
    kernels = [Kernel("a", "compute", 2e-5, 1e-5), Kernel("sort", "", 9e-5, None), Kernel("b", "L2", 1e-5, 5e-6)]
    assert total(kernels, 3e-5).ratio == pytest.approx(0.5)
    assert not total(kernels, 3e-5).is_off
    assert Kernel("c", "L2", 1e-5, 4e-6).is_off
    assert total(kernels[1:2], 1e-9).ratio == 1.0
