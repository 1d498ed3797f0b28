"""Who touched what: the compact record finds exactly the pairs of accesses that a list of all of them shows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.kernel.views import READ, UPDATE, WRITE, Touches

UNITS, THREADS = 4, 3
ACCESS = st.tuples(
    st.sampled_from((READ, WRITE, UPDATE)),
    st.lists(st.tuples(st.integers(0, UNITS - 1), st.integers(0, THREADS - 1)), min_size=1, max_size=4, unique=True),
)
HARMLESS = ((READ, READ), (UPDATE, UPDATE))


def meets(kind: str, pairs: list[tuple[int, int]], earlier: list[tuple[str, int, int]]) -> bool:
    """Whether an access meets another thread's: an earlier one, or itself."""
    own = [(kind, unit, thread) for unit, thread in pairs]
    return any(
        unit == other_unit and thread != other_thread and (kind, other) not in HARMLESS
        for unit, thread in pairs
        for other, other_unit, other_thread in [*earlier, *own]
    )


@settings(max_examples=tries(60, full=300), deadline=None)
@given(st.lists(st.lists(ACCESS, max_size=5), min_size=1, max_size=4))
def test_clashes_are_those_of_a_list_of_all_accesses(moments: list[list[tuple[str, list[tuple[int, int]]]]]) -> None:
    touches = Touches(UNITS)
    for moment, accesses in enumerate(moments):
        base = (moment + 1) * (THREADS + 1)
        earlier: list[tuple[str, int, int]] = []
        for kind, pairs in accesses:
            units, threads = (np.asarray(column) for column in zip(*pairs, strict=True))
            clash = touches.clash(kind, units, base + 1 + threads, base)
            assert (clash is not None) == meets(kind, pairs, earlier), (moment, kind, pairs)
            if clash is not None:
                other, position, who = clash
                unit, thread = pairs[position]
                known = [*earlier, *((kind, *pair) for pair in pairs)]
                culprits = {by for what, where, by in known if (what, where) == (other, unit) and by != thread}
                assert culprits if who == base else who - base - 1 in culprits
                return
            earlier += [(kind, unit, thread) for unit, thread in pairs]
