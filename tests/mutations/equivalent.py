"""Errors in PTX that change nothing that its model defines: `EQUIVALENT`, each with the reason."""

from __future__ import annotations

from tests import equivalents
from tests.mutations.errors import Mutant, mutants

_COPIES = "copies ahead.*|parts of k|attention|bf16|tf32|tf32x3|s8"
_NO_COPY_LEFT = (
    "A trip commits the slice two ahead and then waits for all but that group. Behind the loop the groups still open "
    "are those of slices beyond k, which hold no copy."
)
_NOTHING_VALID = (
    "A slice beyond k has nothing within the bounds: the copy reads nothing, and its zeros go to a slot that no trip "
    "reads any more."
)
_NO_COPY_BEYOND = "The last trip commits a slice beyond k, which holds no copy, and no wait follows."
_NOT_STORED = (
    "The bound of columns of b in a slice that other rows follow: what is read beyond it lies in b, and enters only "
    "columns of c that are beyond the bound of c, which are not stored."
)
_NOT_COPIED = (
    "A copy of a tensor into one with a border: loads and the store of a thread have one mask, and a load that is not "
    "masked reads another row of the tensor, which the thread does not store."
)
_FRESH_SLOT = "The first turn of a slot: nothing was in it, its mbarrier and the next one let go at once."
_NOBODY_WAITS = "The release of the last slot behind the last product: no box follows that waits for it."
_LATER_RELEASE = (
    "Boxes of a tile that in no tile come to the last slot: instead of the last release of their slot, "
    "that of the next slot is waited for, in the same turn. The warps that compute give it later: the wait is longer."
)
_OTHERS_BETWEEN = (
    "Before the bias of a tile is put where that of the tile before was read. Between the two stand the four barriers "
    "around the boxes of the result, of the same warps."
)
_SPILLED = (
    "Registers of PTX are as many as a kernel names: without those of the warps that fill, an assembler puts some of "
    "them into local memory."
)
_ONE_BLOCK = (
    "It orders the making of mbarriers before uses by other blocks of a cluster. The cluster is one block, whose "
    "threads are ordered by the barrier behind it."
)
_RELEASED = (
    "The barrier of the cluster behind it releases what its threads wrote, mbarriers among that. The fence is for "
    "arrivals that release nothing, and for the copy engine, which comes behind both."
)

EQUIVALENT: list[equivalents.Entry] = [
    (_COPIES, "no wait", r"cp\.async\.wait_group 0;", (0,), _NO_COPY_LEFT),
    (_COPIES, "a wait leaves one more", r"cp\.async\.wait_group 0;", (0,), _NO_COPY_LEFT),
    ("copies ahead|attention|bf16|tf32|tf32x3|s8", "no mask", r"cp\.async", (0, 1), _NOTHING_VALID),
    ("multiply-adds", "no mask", r"cp\.async", (0, 1, 2), _NOTHING_VALID),
    ("copies ahead", "no bound of a copy", r"\[%r\d+(\+2048)?\], .* 16, %r", (0, 1), _NOT_STORED),
    ("bf16", "no bound of a copy", r"\[%r\d+(\+2048)?\], .* 16, %r", (0, 1), _NOT_STORED),
    ("f64", "no mask", r"mov.b64 %rd\d+, 0; @%p\d+ ld\.global\.nc", (1,), _NOT_STORED),
    ("multiply-adds", "no bound of a copy", r"\[%r\d+(\+1024)?\], .* 8, %r", (0, 1), _NOT_STORED),
    ("registers ahead", "no mask", r"mov.b32 %r\d+, 0; mov.b32 .* ld\.global\.nc\.v2\.b32 .*\+0\]", (1,), _NOT_STORED),
    ("boxes, clusters", "no fence", r"fence\.mbarrier_init\.release\.cluster", (0,), _RELEASED),
    ("boxes, clusters", "other slot", r"mbarrier\.try_wait", (1,), _LATER_RELEASE),
    ("boxes(?!, clusters).*|large product.*", "no fence", r"fence\.mbarrier_init\.release\.cluster", (0,), _ONE_BLOCK),
    ("large product.*", "no registers handed over", r"setmaxnreg\.inc", (0,), _SPILLED),
    ("large product.*", "other slot", r"mbarrier\.try_wait", (1, 2), _LATER_RELEASE),
    ("large product of bf16, bias, relu", "no barrier", r"bar\.sync 1, 256", (0,), _OTHERS_BETWEEN),
    ("boxes, a block per tile", "other slot", r"mbarrier\.try_wait", (1, 2, 3), _FRESH_SLOT),
    ("boxes, a block per tile", "no wait for an mbarrier", r"mbarrier\.try_wait", (1, 2, 3), _FRESH_SLOT),
    ("boxes, a block per tile", "other slot", r"mbarrier\.arrive\.shared", (1,), _NOBODY_WAITS),
    ("boxes, a block per tile", "no arrival", r"mbarrier\.arrive\.shared", (1,), _NOBODY_WAITS),
    ("graph: convolution", "no commit", r"cp\.async\.commit_group", (3,), _NO_COPY_BEYOND),
    ("graph: convolution", "no mask", r"mov.b16 %rs\d+, 0; @%p1 ld\.global\.nc", range(7), _NOT_COPIED),
]  # fmt: skip
"""Errors that change nothing: family and kind, a pattern of the line, which of the sites that match, and why."""


def reason(mutant: Mutant) -> str:
    """Why an error changes nothing, from `EQUIVALENT`; "" where it is not listed."""
    return equivalents.reason(mutant, mutants(mutant.family), EQUIVALENT)
