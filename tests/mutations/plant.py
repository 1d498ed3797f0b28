"""An error is planted where a diagnostic, a refusal or another result shows it: `seen`, and the counts of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.mutations.equivalent import reason
from tests.mutations.errors import Mutant
from tests.mutations.kernels import code_of, run
from tilewright.errors import CompileError

PATIENCE = 20  # times the instructions of the kernel as it was, before a mutant is said not to end


@cache
def unharmed(name: str) -> tuple[list[Any], int]:
    """The arguments after a run of the kernel as it was, which finds nothing, and the instructions."""
    diagnostics, arguments, instructions = run(name, code_of(name).ptx)
    assert not diagnostics, diagnostics
    return arguments, instructions


def seen(mutant: Mutant) -> str:
    """How an error shows: a kind of diagnostic, "refused", "wrong result"; "" where it does not."""
    lines = code_of(mutant.family).ptx.splitlines()
    lines[mutant.line - 1] = mutant.text
    wanted, instructions = unharmed(mutant.family)
    try:
        diagnostics, arguments, _ = run(mutant.family, "\n".join(lines), PATIENCE * instructions)
    except CompileError:
        return "refused"
    if diagnostics:
        return diagnostics[0].kind
    same = all(one.tobytes() == other.tobytes() for one, other in zip(arguments, wanted, strict=True))
    return "" if same else "wrong result"


def plant(chosen: Sequence[Mutant]) -> dict[str, Any]:
    """Counts by family and by kind of error, how errors showed, and those that did not."""
    families: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    shown, survivors, listed = Counter[str](), [], list[str]()
    for mutant in chosen:
        how, why = seen(mutant), reason(mutant)
        outcome = "found" if how else "equivalent" if why else "survived"
        families.setdefault(mutant.family, Counter())[outcome] += 1
        kinds.setdefault(mutant.kind, Counter())[outcome] += 1
        if how:
            shown[how] += 1
            listed += [str(mutant)] if why else []
        else:
            survivors.append({"mutant": str(mutant), "reason": why})
    found = sum(each["found"] for each in families.values())
    return {
        "planted": len(chosen), "found": found, "share": round(found / max(1, len(chosen)), 4),
        "families": {name: dict(each) for name, each in families.items()},
        "kinds": {name: dict(each) for name, each in kinds.items()},
        "shown": dict(shown.most_common()), "survivors": survivors, "found though listed": listed,
    }  # fmt: skip
