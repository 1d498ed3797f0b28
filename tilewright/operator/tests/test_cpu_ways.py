"""Whether sums follow others in their pass on a CPU: by predicted cycles of a row, which the decision says."""

from __future__ import annotations

import pytest

from tilewright.machine import resolve_cpu
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
    assert ("total in one pass with largest" in decision.runner_up) != follows
    assert decision.cost is not None
    assert decision.runner_up_cost is not None
    assert decision.runner_up_cost.exceeds(decision.cost) or not follows


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
