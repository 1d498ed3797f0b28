"""Chains of products in the joint search: what is predicted to pay as one kernel is timed, as is a kernel each."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.compiler.chains import fusions
from tilewright.compiler.plan import Plan
from tilewright.compiler.timer import Timer
from tilewright.dataclass import dataclass
from tilewright.decision import APART, FUSED, Cost, Decision
from tilewright.fields import Readable, flag, record, required, string


@dataclass(frozen=True)
class TimedChain(Readable):
    """Whether products are one kernel, by the times of both ways; `fusion` is the subject of the decision to fuse."""

    fusion: str = required(string)
    fused: bool = required(flag)
    decision: Decision = required(record(Decision))


def timed_chains(predicted: Plan, plan: Callable[[frozenset[str]], Plan], timer: Timer) -> dict[str, TimedChain]:
    """The chains that a plan by the rules makes one kernel, by their last product, each timed in both ways.

    `plan` gives a plan in which these fusions happen and no others. Chains that were confirmed stay, so that later ones
    are timed beside them.
    """
    found: dict[str, TimedChain] = {}
    confirmed: frozenset[str] = frozenset()
    apart = plan(confirmed)
    for each in fusions(predicted.decisions):
        if not each.chosen.startswith(FUSED):
            continue
        one = plan(confirmed | {each.subject})
        if not any(made.subject == each.subject and made.chosen.startswith(FUSED) for made in fusions(one.decisions)):
            continue  # with what was found for its products there is no such kernel
        seconds = timer.in_turns(one, apart)
        *_, last = (name for name, product in predicted.products.items() if product["kernel"] == each.kernel)
        found[last] = _timed(each, *seconds)
        if found[last].fused:
            confirmed, apart = confirmed | {each.subject}, one
    return found


def _timed(predicted: Decision, one: float, several: float) -> TimedChain:
    """The decision by seconds, with the cycles that were predicted."""
    fused = one < several
    ways = {FUSED: one, APART: several}
    chosen, other = ways if fused else reversed(ways)
    cycles = [each.cycles or 0.0 if each is not None else 0.0 for each in (predicted.cost, predicted.runner_up_cost)]
    decision = Decision(
        predicted.subject.replace("fusion of", "search of"),
        chosen,
        f"in turns {ways[chosen]:.3g} s, {ways[other]:.3g} s as {other}; predicted {cycles[0]:.0f} cycles as {FUSED}, "
        f"{cycles[1]:.0f} as {APART}",
        other,
        f"{ways[other]:.3g} s",
        cost=Cost(seconds=ways[chosen]),
        runner_up_cost=Cost(seconds=ways[other]),
    )
    return TimedChain(predicted.subject, fused, decision)
