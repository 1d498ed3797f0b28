"""Candidates of a tuner: timed, found wrong, faulting, hanging; the next one is measured all the same."""

from __future__ import annotations

import numpy as np

from tilewright.errors import DeviceError
from tilewright.runtime.cuda.measure import load_many, measure, measure_apart
from tilewright.runtime.cuda.module import DeviceModule
from tilewright.runtime.cuda.tests import made

X = np.arange(made.ELEMENTS, dtype=np.float32)
GOOD = made.artifact()
WRONG = made.artifact(code=made.ADD.replace("add.f32 %f3, %f1, %f2", "sub.f32 %f3, %f1, %f2"))
FAULTS = made.artifact(code=made.ADD.replace("%r1, 4;", "%r1, 400;"))
HANGS = made.artifact(code=made.ADD.replace("  ld.global.f32 %f1", "forever:\n  bra forever;\n  ld.global.f32 %f1"))


def test_many_are_loaded_and_each_says_why_not() -> None:
    good, broken = load_many([GOOD, made.artifact(code="no PTX")], "emulator")
    assert isinstance(good, DeviceModule)
    assert isinstance(broken, DeviceError)


def test_a_wrong_result_has_no_time() -> None:
    assert (measure(DeviceModule(GOOD, "emulator"), [X], [X + 2], repeats=2).seconds or 0) > 0
    wrong = measure(DeviceModule(WRONG, "emulator"), [X], [X + 2], repeats=2)
    assert wrong.seconds is None
    assert "output 0 is wrong by 0.121" in wrong.failure  # 4 of 33


def test_faulty_candidates_do_not_end_the_search() -> None:
    candidates = [GOOD, FAULTS, HANGS, GOOD]
    outcomes = list(measure_apart(candidates, [X], [X + 2], device="emulator", repeats=2, limit_seconds=3))
    assert [outcome.seconds is not None for outcome in outcomes] == [True, False, False, True]
    assert "out-of-bounds" in outcomes[1].failure
    assert outcomes[2].failure == "took longer than 3 s"
