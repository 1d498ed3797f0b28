"""Time as calls of Python functions, which no other program on the machine changes."""

from __future__ import annotations

import cProfile
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any


def calls_of(work: Callable[[], Any]) -> Counter[CodeType]:
    """How often each Python function is called."""
    profile = cProfile.Profile(builtins=False)
    profile.runcall(work)
    return Counter({each.code: each.callcount for each in profile.getstats()})


def superlinear(work: Callable[[int], Any], n: int) -> list[str]:
    """Functions that are called far more than twice as often for 2n as for n, but for equality.

    How often dictionaries compare their keys depends on the hashes of names, which each process draws anew.
    """
    less, more = calls_of(lambda: work(n)), calls_of(lambda: work(2 * n))
    return [
        f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno}): {less[code]} calls, then {more[code]}"
        for code in more
        if more[code] > 2.6 * less[code] + 2 * n and code.co_name != "__eq__"
    ]
