"""From a contraction and a GPU to a kernel configuration: strategies in order, the first success wins.

Pure functions: the same arguments give the same answer and the same trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tilewright.dataclass import dataclass
from tilewright.errors import ScheduleError
from tilewright.instruction.mma import config as configs
from tilewright.instruction.mma import policy as policies
from tilewright.instruction.mma import size_classes, tensor_core_table
from tilewright.instruction.mma.config import KernelConfig, kernel_config
from tilewright.instruction.mma.cost_check import cheapest
from tilewright.instruction.mma.eligibility import eligible, sorted_order, target_order, usable
from tilewright.instruction.mma.fallbacks import FALLBACKS
from tilewright.instruction.mma.fitting import fit
from tilewright.instruction.mma.initial import initial_schedule
from tilewright.instruction.mma.policy import Options, Path, Policy, ScheduleSeeds, Switches
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, mma_target
from tilewright.instruction.mma.trace import Event, Trace, explain
from tilewright.instruction.mma.validity import check, footprint
from tilewright.instruction.mma.warpgroup import STAGES, schedule_warpgroups, warpgroup_config, warpgroup_seeds
from tilewright.machine import Machine

DEFAULTS: Final = Options()


@dataclass(frozen=True)
class Deduction:
    """The answer: a schedule and its path, or a fall-back; the configuration either way, and how it came about.

    `scheduled` is the problem that the schedule covers (the innermost loops, or those of known size), `shared_bytes`
    what the matrix schedule keeps in shared memory; both are None with a fall-back.
    """

    problem: MmaProblem
    target: str
    path: Path
    config: KernelConfig
    schedule: MmaSchedule | None
    scheduled: MmaProblem | None
    policy: Policy | None
    shared_bytes: int | None
    events: tuple[Event, ...]

    @property
    def refusals(self) -> tuple[tuple[str, Reason], ...]:
        """Every strategy and attempt that was refused, with its reason, in order."""
        kinds = ("strategy.refuse", "attempt.fail")
        return tuple((event.values[0], event.values[1]) for event in self.events if event.kind in kinds)

    def explain(self) -> str:
        """The trace as text, one line per event."""
        return explain(self.events)

    def __str__(self) -> str:
        return f"{self.problem} on {self.target}: {self.path} {self.schedule or self.config}"


def deduce_mma(
    problem: MmaProblem,
    target: MmaTarget | Machine | str,
    *,
    policy: str | Switches = "tilewright",
    options: Options = DEFAULTS,
) -> Deduction:
    """Decide how `target` executes `problem`: which intrinsic, how tiled, how staged; or which fall-back, and why.

    `policy` is "tilewright", "iree-3.6", "size-classes", or switches of one's own. Every well-formed problem has an
    answer. Raises ScheduleError for an unknown policy and for options that the target cannot follow.
    """
    switches = policies.switches_of(policy)
    found = options.on(target if isinstance(target, MmaTarget) else mma_target(target))
    return _Deducing(problem, found, switches, options, Trace()).run()


def given_schedule(
    problem: MmaProblem,
    schedule: MmaSchedule,
    target: MmaTarget | Machine | str,
    *,
    path: Path = "TF",
    policy: Policy | None = None,
) -> Deduction:
    """The configuration of a schedule that the caller made; it is checked and never repaired.

    `policy` defaults to the flags of the path with the transpositions of the problem. Raises ScheduleError with the
    failing numbers for a schedule that is not eligible, not valid, or has too many threads.
    """
    found = target if isinstance(target, MmaTarget) else mma_target(target)
    if path not in ("VD", "VD+upcast", "TF", "TF+pad"):
        raise ScheduleError(f"{path} has no matrix schedule", where="path", help="VD, VD+upcast, TF or TF+pad")
    scheduled = problem.innermost() if path in ("VD", "VD+upcast") else problem.without_dynamic()
    if None in (problem.m[-1], problem.n[-1], problem.k[-1]):
        raise ScheduleError(f"{problem} has an innermost size that is not known", where="problem")
    if policy is None:
        policy = Policy(path != "TF+pad", path == "VD+upcast", path == "TF+pad", problem.lhs_transposed,
                        problem.rhs_transposed, own_width=True)  # fmt: skip
    trace = Trace()
    reason = eligible(scheduled, schedule.intrinsic, policy, trace)
    if reason is not None:
        raise ScheduleError(f"{schedule.intrinsic.name} is refused by {reason}: {trace[-1]}", where="intrinsic")
    verdict = check(scheduled, schedule, policy, found)
    if not verdict:
        failing = [str(event) for event in verdict.numbers if event.fields.get("ok") is False]
        raise ScheduleError(f"{schedule} does not fit: {'; '.join(failing)}", where="schedule")
    if schedule.threads > found.max_threads:
        raise ScheduleError(f"{schedule} has {schedule.threads} threads, and {found.name} runs {found.max_threads}",
                            where="schedule")  # fmt: skip
    config = kernel_config(problem, schedule, path)
    return Deduction(problem, found.name, path, config, schedule, scheduled, policy, verdict.shared_bytes,
                     (*trace, *verdict.numbers))  # fmt: skip


@dataclass(frozen=True)
class _Deducing:
    """One deduction under way: its arguments and the trace that grows."""

    problem: MmaProblem
    target: MmaTarget
    switches: Switches
    options: Options
    trace: Trace

    def run(self) -> Deduction:
        problem, target, add = self.problem, self.target, self.trace.add
        add("schedule.begin", problem.operation, target.name, target.architecture, self.switches.name)
        add("schedule.dims", problem.m, problem.n, problem.k, problem.batch, problem.loops, problem.static)
        strategies: tuple[tuple[str, Callable[[], Deduction | Reason]], ...] = (
            *((("WG", self._warpgroups),) if self.options.warpgroup else ()),
            *((("TC", self._tensor_core_table),) if self.options.tensor_core_table else ()),
            ("VD", self._vector_distribution),
            ("TF", self._tile_and_fuse),
        )
        for name, strategy in strategies:
            add("strategy.try", name)
            found = strategy()
            if isinstance(found, Deduction):
                return found
            add("strategy.refuse", name, found)
        for path, fallback in FALLBACKS:
            add("strategy.try", path)
            config = Reason.STRATEGY_DISABLED if path in self.options.forbid else fallback(problem, target, self.trace)
            if isinstance(config, KernelConfig):
                return self._answer(path, config)
            add("strategy.refuse", path, config)
        raise AssertionError("the generic strategy takes everything")

    def _vector_distribution(self) -> Deduction | Reason:
        if not self.options.vector_distribution:
            return Reason.STRATEGY_DISABLED
        if not any(each.distributable for each in target_order(self.target)):
            return Reason.NO_INTRINSICS
        if not self.target.vector_distribution:
            return Reason.STRATEGY_DISABLED
        m, n, k = self.problem.m[-1], self.problem.n[-1], self.problem.k[-1]
        if m is None or n is None or k is None:
            return Reason.DYNAMIC_INNERMOST
        if m == 1 or n == 1:
            return Reason.MATVEC
        scheduled = self.problem.innermost()
        seeds, why = self._seeds(scheduled, policies.vector_distribution_seeds)
        intrinsics = self._intrinsics(scheduled, target_order)
        passed = self.switches.observed_transposes
        first = self._policy(self.problem.lhs_transposed and passed, self.problem.rhs_transposed and passed)
        second = self._policy(self.problem.lhs_transposed, self.problem.rhs_transposed, upcast_acc=True)
        return self._first_success(
            scheduled, intrinsics, seeds, why, (("VD-1", "VD", first), ("VD-2", "VD+upcast", second))
        )

    def _tile_and_fuse(self) -> Deduction | Reason:
        problem = self.problem
        if not any(each.distributable and not each.virtual for each in target_order(self.target)):
            return Reason.NO_INTRINSICS
        if problem.m[-1] is None or problem.n[-1] is None or problem.k[-1] is None:
            return Reason.DYNAMIC_INNERMOST
        if problem.a != problem.b:
            return Reason.MIXED_INPUT
        if all(size == 1 for size in (*problem.m, *problem.n)):
            return Reason.MATVEC  # a dot product: one element of C, for which padding to a whole tile is all waste
        scheduled = problem.without_dynamic()
        seeds, why = self._seeds(scheduled, policies.tile_and_fuse_seeds)
        intrinsics = self._intrinsics(scheduled, lambda target: sorted_order(scheduled, target))
        transposed = (problem.lhs_transposed, problem.rhs_transposed)
        padded = self._policy(*transposed, aligned_only=False, stage_c=True, upcast_acc=self.switches.tf_upcast,
                              check_alignment=not self.switches.size_classes)  # fmt: skip
        attempts: list[tuple[str, Path, Policy]] = [("TF-1", "TF", self._policy(*transposed))]
        if self.switches.tf_upcast:
            attempts.append(("TF-1u", "TF", self._policy(*transposed, upcast_acc=True)))
        attempts.append(("TF-2", "TF+pad", padded))
        return self._first_success(scheduled, intrinsics, seeds, why, tuple(attempts))

    def _warpgroups(self) -> Deduction | Reason:
        problem = self.problem
        intrinsics = [each for each in self.target.warpgroup_intrinsics if self._is_allowed(each)]
        if not intrinsics:
            return Reason.NO_INTRINSICS
        if problem.m[-1] is None or problem.n[-1] is None or problem.k[-1] is None:
            return Reason.DYNAMIC_INNERMOST
        if problem.a != problem.b:
            return Reason.MIXED_INPUT
        scheduled = problem.without_dynamic()
        policy = replace(self._policy(problem.lhs_transposed, problem.rhs_transposed),
                         stages=self.options.stages or STAGES)  # fmt: skip
        seeds = self.options.seeds or warpgroup_seeds(scheduled)
        self._begin("WG", scheduled, intrinsics, policy, seeds, "warpgroups")
        found = schedule_warpgroups(scheduled, intrinsics, seeds, policy, self.target, self.trace)
        if isinstance(found, Reason):
            self.trace.add("attempt.fail", "WG", found)
            return found
        return self._answer("TF", warpgroup_config(problem, found), found.schedule, scheduled, found.policy)

    def _tensor_core_table(self) -> Deduction | Reason:
        if "TC" in self.options.forbid:
            return Reason.STRATEGY_DISABLED
        table = self.options.tensor_core_table
        assert table is not None
        rows = tensor_core_table.ROWS if self.switches.own_rows else tensor_core_table.IREE_ROWS
        allowed = frozenset(each for each in self.target.intrinsics if self._is_allowed(each))
        found = tensor_core_table.schedule_by_table(
            self.problem, self.target, policies.TABLES[table], rows, allowed, self.trace
        )
        if isinstance(found, Reason):
            return found
        return self._answer("TC", found.config, found.schedule, found.scheduled, found.policy, found.shared_bytes)

    def _first_success(
        self,
        scheduled: MmaProblem,
        intrinsics: list[MmaIntrinsic],
        seeds: ScheduleSeeds,
        why: str,
        attempts: tuple[tuple[str, Path, Policy], ...],
    ) -> Deduction | Reason:
        reason = Reason.STRATEGY_DISABLED
        for name, path, policy in attempts:
            if path in self.options.forbid:
                reason = Reason.STRATEGY_DISABLED
            elif path == "TF+pad" and not self.problem.static:
                reason = Reason.PADDING_NEEDS_STATIC
            else:
                self._begin(name, scheduled, intrinsics, policy, seeds, why)
                found = self._attempt(scheduled, intrinsics, seeds, policy)
                if isinstance(found, MmaSchedule):
                    config = kernel_config(self.problem, found, path, prefetch=self.options.prefetch)
                    return self._answer(path, config, found, scheduled, policy)
                reason = found
            self.trace.add("attempt.fail", name, reason)
        return reason

    def _attempt(
        self, scheduled: MmaProblem, intrinsics: list[MmaIntrinsic], seeds: ScheduleSeeds, policy: Policy
    ) -> MmaSchedule | Reason:
        """The fitted schedule of the first eligible intrinsic; the next one if that fails and the policy says so."""
        result = Reason.NO_ELIGIBLE_INTRINSIC
        for x in usable(scheduled, intrinsics, policy, self.trace):
            wish = self._initial(scheduled, x, seeds, policy)
            fitted = fit(scheduled, wish, policy, self.target, self.trace)
            if fitted is not None:
                cost = self.options.cost
                return fitted if cost is None else cheapest(scheduled, fitted, policy, self.target, cost, self.trace)
            result = Reason.DOES_NOT_FIT
            if not self.switches.next_intrinsic:
                break
        return result

    def _initial(self, scheduled: MmaProblem, x: MmaIntrinsic, seeds: ScheduleSeeds, policy: Policy) -> MmaSchedule:
        if not self.switches.size_classes:
            return initial_schedule(scheduled, x, seeds, policy, self.trace)
        if self.options.seeds is None:
            found, _ = self._size_class(scheduled)
            seeds = size_classes.seeds_for_units(scheduled, x, seeds, found, self.options, self.trace)
        return size_classes.collapsed_schedule(scheduled, x, seeds, policy, self.trace)

    def _seeds(
        self, scheduled: MmaProblem, built_in: Callable[[MmaProblem, Options], ScheduleSeeds]
    ) -> tuple[ScheduleSeeds, str]:
        """The seeds of a strategy and where they come from."""
        if self.options.seeds is not None:
            return self.options.seeds, "given"
        if self.switches.size_classes:
            found, intensity = self._size_class(scheduled)
            self.trace.add("size.class", intensity, found, self.options.cutoffs or size_classes.CUTOFFS)
            return size_classes.class_seeds(scheduled, self.target, found), f"{found} {scheduled.operation}"
        seeds = built_in(scheduled, self.options)
        if seeds.k_elements == 0 and scheduled.operation == "convolution":
            return seeds, "convolution"
        elements, limit = policies.elements_of_c(scheduled.m, scheduled.n), self.options.c_threshold
        return seeds, f"m*n = {elements} {'<=' if elements <= limit else '>'} {limit}"

    def _intrinsics(
        self, scheduled: MmaProblem, order: Callable[[MmaTarget], list[MmaIntrinsic]]
    ) -> list[MmaIntrinsic]:
        """What an attempt tries, in order: the strategy's list, or the forced one; without the forbidden ones."""
        if self.options.force_intrinsic is not None:
            forced = self.target.intrinsic(self.options.force_intrinsic)
            listed = [forced] if forced in self.target.intrinsics else []  # warpgroups have a strategy of their own
        elif self.switches.size_classes:
            found, _ = self._size_class(scheduled)
            listed = sorted_order(scheduled, self.target, very_large=found == "very-large")
        else:
            listed = order(self.target)
        return [each for each in listed if self._is_allowed(each)] if self.options.forbid else listed

    def _is_allowed(self, intrinsic: MmaIntrinsic) -> bool:
        forced = self.options.force_intrinsic
        return self.options.forbid.isdisjoint(intrinsic.names) and forced in (None, *intrinsic.names)

    def _size_class(self, scheduled: MmaProblem) -> tuple[size_classes.SizeClass, int]:
        return size_classes.size_class(scheduled, self.options.cutoffs or size_classes.CUTOFFS)

    def _policy(self, lhs_transposed: bool, rhs_transposed: bool, **flags: bool) -> Policy:
        """The flags of an attempt; without any of its own: aligned, nothing upcast, C in registers."""
        return Policy(
            lhs_transposed=lhs_transposed, rhs_transposed=rhs_transposed, own_width=self.switches.own_width,
            pad_to_seed=self.switches.pad_to_seed, stages=self.options.stages or 1,
            c_per_stage=not self.switches.size_classes, **flags,
        )  # fmt: skip

    def _begin(
        self, name: str, scheduled: MmaProblem, intrinsics: list[MmaIntrinsic], policy: Policy, seeds: ScheduleSeeds,
        why: str,
    ) -> None:  # fmt: skip
        lanes = intrinsics[0].subgroup if intrinsics else self.target.subgroup_size
        self.trace.add("attempt.begin", name, scheduled.types, len(intrinsics), self.target.shared_limit, lanes,
                       policy.upcast_acc, policy.aligned_only, policy.stage_c, policy.lhs_transposed,
                       policy.rhs_transposed)  # fmt: skip
        self.trace.add("seeds", seeds.subgroups, seeds.mn_tiles, seeds.k_tiles, seeds.k_elements, why)

    def _answer(
        self,
        path: Path,
        config: KernelConfig,
        schedule: MmaSchedule | None = None,
        scheduled: MmaProblem | None = None,
        policy: Policy | None = None,
        shared_bytes: int | None = None,
    ) -> Deduction:
        add = self.trace.add
        factors = configs.grid(self.problem, config)
        add("config", config)
        add("config.grid", factors, configs.product_of(factors), configs.k_steps(self.problem, config),
            schedule and schedule.intrinsics_per_slice)  # fmt: skip
        add("schedule.end", path, config.intrinsic)
        if shared_bytes is None and schedule is not None and policy is not None:
            shared_bytes = footprint(schedule, policy)
        return Deduction(self.problem, self.target.name, path, config, schedule, scheduled, policy, shared_bytes,
                         tuple(self.trace))  # fmt: skip
