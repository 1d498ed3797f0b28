"""Names of a GPU's units beside its arithmetic, as `features` of machine files list them. Shared code asks by these."""

from __future__ import annotations

MATRIX_LOADS = "ldmatrix"  # loads rows of matrices for other lanes
COPIES = "cp_async"  # copies from global to shared memory while threads go on
WARPGROUP_UNITS = frozenset({"mbarrier", "tma", "wgmma"})  # what products of four warps take, of tiles that boxes bring
DEPENDENT_LAUNCHES = "griddepcontrol"  # by which a kernel itself waits for those before it
CLUSTERS = "cluster"  # by which blocks reach each other's memory, and boxes that of several
