"""The names that the package offers, and what asking for them costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest

from tilewright import instruction
from tilewright.instruction import _LAZY, mma


def test_every_public_name_is_found_and_is_no_module() -> None:
    assert set(instruction.__all__) == set(_LAZY) <= set(dir(instruction))
    for name, home in _LAZY.items():
        assert getattr(instruction, name) is getattr(import_module(home), name)


def test_no_public_name_is_that_of_a_module() -> None:
    """An imported module would hide it."""
    assert not {module.name for module in iter_modules(instruction.__path__)} & set(instruction.__all__)


def test_spec5_interface_in_the_order_of_a_deduction() -> None:
    problem = instruction.MmaProblem(m=(512,), n=(512,), k=(512,))
    target = instruction.mma_target("sm_80")
    found = instruction.deduce_mma(problem, target)
    assert found.schedule is not None
    assert found.policy is not None
    x, seeds = found.schedule.intrinsic, mma.ScheduleSeeds(4, 4, 8)
    assert instruction.eligible(problem, x, found.policy) is None
    wish = instruction.initial_schedule(problem, x, seeds)
    fitted = instruction.fit(problem, wish, found.policy, target)
    assert fitted is not None
    assert instruction.check(problem, fitted, found.policy, target).valid
    assert instruction.kernel_config(problem, found.schedule, found.path) == found.config


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'deduce_nothing'"):
        instruction.deduce_nothing  # noqa: B018


def test_the_package_alone_imports_none_of_its_modules() -> None:
    after = modules_after("import tilewright.instruction")
    assert not [name for name in after if name.startswith("tilewright.instruction.")]


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
