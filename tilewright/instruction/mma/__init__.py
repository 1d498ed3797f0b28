"""MMA schedule deduction: which matrix intrinsic executes a contraction on a GPU, and how it is tiled and staged."""

from tilewright.instruction.mma.attention import AttentionDeduction, AttentionProblem, deduce_attention
from tilewright.instruction.mma.config import KernelConfig, kernel_config
from tilewright.instruction.mma.contraction import contraction_of
from tilewright.instruction.mma.deduce import Deduction, deduce_mma, given_schedule
from tilewright.instruction.mma.eligibility import eligible
from tilewright.instruction.mma.fitting import fit
from tilewright.instruction.mma.initial import initial_schedule
from tilewright.instruction.mma.policy import POLICIES, CostModel, Options, Policy, ScheduleSeeds, Switches
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.reasons import Reason
from tilewright.instruction.mma.schedule import MmaSchedule
from tilewright.instruction.mma.target import MmaIntrinsic, MmaTarget, mma_target
from tilewright.instruction.mma.trace import Event, explain
from tilewright.instruction.mma.validity import Validity, check

__all__ = [
    "POLICIES", "AttentionDeduction", "AttentionProblem", "CostModel", "Deduction", "Event", "KernelConfig",
    "MmaIntrinsic", "MmaProblem", "MmaSchedule", "MmaTarget", "Options", "Policy", "Reason", "ScheduleSeeds",
    "Switches", "Validity", "check", "contraction_of", "deduce_attention", "deduce_mma", "eligible",
    "explain", "fit", "given_schedule", "initial_schedule", "kernel_config", "mma_target",
]  # fmt: skip
