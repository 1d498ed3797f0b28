"""Which of several ways to run a task a peer is timed with: the fastest in a short trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from bench.problem import Loaded, SkippedError, Task

TRIAL_SECONDS = 0.1  # per way


def fastest(ways: Mapping[str, Callable[[], object]]) -> tuple[str, str]:
    """The name of the way whose call takes the least time, and a note on the others.

    A way that raises RuntimeError is left out and noted. Raises SkippedError with the reasons if all do.
    """
    seconds, refused = {}, []
    for name, call in ways.items():
        try:
            seconds[name] = _trial(call)
        except RuntimeError as error:
            refused.append(f"{name}: {str(error).splitlines()[0]}")
    if not seconds:
        raise SkippedError("; ".join(refused))
    chosen = min(seconds, key=seconds.__getitem__)
    notes = [f"{chosen} is the fastest of {len(ways)} ways to run it"] if len(ways) > 1 else []
    return chosen, "; ".join([*notes, *refused])


def fastest_form(load: Callable[[Task], Loaded], task: Task) -> Loaded:
    """The problem or the variant of it that takes the least time; the problem itself where there are no variants."""
    forms = task.forms()
    if len(forms) == 1:
        return load(task)
    loaded = {form: load(variant) for form, variant in forms.items()}
    names = {form or "as defined": form for form in forms}
    chosen, notes = fastest({name: loaded[form].call for name, form in names.items()})
    best = loaded[names[chosen]]
    return replace(best, variant=names[chosen], notes="; ".join(note for note in (notes, best.notes) if note))


def _trial(call: Callable[[], object]) -> float:
    """Seconds of the fastest call within `TRIAL_SECONDS`, after one that is not counted."""
    call()
    best = float("inf")
    end = time.perf_counter() + TRIAL_SECONDS
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best
