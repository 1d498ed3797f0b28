"""Why a strategy, an attempt or an intrinsic was refused: a closed list."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One reason; its value is the word that traces and JSON show."""

    NO_INTRINSICS = "no-intrinsics"
    DYNAMIC_INNERMOST = "dynamic-innermost"
    MATVEC = "matvec"
    MIXED_INPUT = "mixed-input"
    NOT_A_CONTRACTION = "not-a-contraction"
    INPUT_TYPES = "input-types"
    ACCUMULATOR_TYPE = "accumulator-type"
    UNALIGNED = "unaligned"
    SKINNY = "skinny"
    NO_ELIGIBLE_INTRINSIC = "no-eligible-intrinsic"
    DOES_NOT_FIT = "does-not-fit"
    PADDING_NEEDS_STATIC = "padding-needs-static"
    NO_SUBGROUP_DIVIDES_K = "no-subgroup-divides-k"
    TOO_MANY_SUBGROUPS = "too-many-subgroups"
    FUSED_PRODUCER = "fused-producer"
    STRATEGY_DISABLED = "strategy-disabled"
