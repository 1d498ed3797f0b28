"""Whether sums follow others in their pass on a CPU: by predicted cycles of a row, which the decision says."""

from __future__ import annotations

import pytest

from tilewright.decision import Cost, Decision
from tilewright.machine import resolve_cpu
from tilewright.operator.rules import cpu_rows
from tilewright.operator.rules.cpu_rows import schedule_rows
from tilewright.operator.tests.test_following import X, own, statements
from tilewright.operator.tests.test_gpu_rows import softmax
from tilewright.tiles.kernel import joined
from tilewright.tiles.tree import Stage, walk

MACHINE = resolve_cpu("znver5")  # 32 MiB in the last cache


@pytest.mark.parametrize(("rows", "columns", "follows"), [(4096, 1000, False), (4, 1 << 21, False), (2, 1 << 23, True)])
def test_softmax_of_rows_that_leave_the_caches_is_online(rows: int, columns: int, follows: bool) -> None:
    kernel, decision = schedule_rows(softmax(rows, columns), MACHINE, 1, "y")
    assert joined(kernel) == ({"total": "largest"} if follows else {})
    buffered = any(isinstance(node, Stage) for _, node in walk(kernel.tree))
    assert buffered != follows
    assert ("total in one pass with largest" in decision.chosen) == follows
    others = decision.runner_up, *(each.candidate for each in decision.refused)
    assert ("total in one pass with largest" in others) != follows
    assert decision.cost is not None
    assert decision.runner_up_cost is None or decision.runner_up_cost.exceeds(decision.cost)


@pytest.mark.parametrize("cycles", [8901.0, 9800.0])
def test_fewer_passes_that_are_hardly_faster_are_refused_with_their_cycles(cycles: float) -> None:
    """Those of a layer norm on Zen 1, and slower ones, which came second."""
    way = cpu_rows._Way((), "total", (), 9297.0, ("squares in one pass with total", cycles))
    decision = way.explained(Decision("vector of y", "32 points of j", "an inner loop with stride 1"), rows=3)
    assert decision.cost == Cost(cycles=3 * 9297.0)
    if cycles > 9297.0:
        assert decision.runner_up_cost == Cost(cycles=3 * cycles)
        assert not decision.refused
    else:
        (refusal,) = decision.refused
        assert (refusal.candidate, refusal.rule) == ("squares in one pass with total", "it is 1.05 times as fast")
        assert refusal.cost == Cost(cycles=3 * cycles)
        assert not decision.runner_up
        assert decision.runner_up_cost is None


def test_rows_that_stay_near_take_a_pass_for_every_sum() -> None:
    """Of 100 elements, whose second reading costs less than a running mean."""
    total = own("total") * 0.01
    kernel, decision = schedule_rows(statements(total, X - own("mean")), MACHINE, 1, "squares")
    assert joined(kernel) == {}
    assert decision.runner_up == "squares in one pass with total"


def test_a_kernel_without_such_sums_compares_nothing() -> None:
    given = statements(own("total"), X - own("mean"))
    _, decision = schedule_rows(given, MACHINE, 1, "squares")
    assert decision.runner_up == ""
