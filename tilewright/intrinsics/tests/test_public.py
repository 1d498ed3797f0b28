"""The names that the package offers, and what asking for them costs."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import iter_modules

import pytest

from tilewright import intrinsics
from tilewright.intrinsics import files, intrinsic, registry


def test_every_public_name_is_found_and_is_no_module() -> None:
    homes = {"Intrinsic": intrinsic, "Registry": registry, "load_records": files, "standard": registry}
    assert set(homes) == set(intrinsics.__all__) <= set(dir(intrinsics))
    for name, home in homes.items():
        assert getattr(intrinsics, name) is getattr(home, name)
    assert not {module.name for module in iter_modules(intrinsics.__path__)} & set(intrinsics.__all__)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        intrinsics.nothing  # noqa: B018


def test_the_package_and_its_catalogue_are_cheap_to_import() -> None:
    """The package alone imports none of its modules; the catalogue does without the descriptions of machines."""
    assert "tilewright.intrinsics.intrinsic" not in modules_after("import tilewright.intrinsics")
    after = modules_after("from tilewright.intrinsics import standard; standard()")
    assert "tilewright.intrinsics.intrinsic" in after
    assert not {"yaml", "tilewright.instruction"} & after


def modules_after(code: str) -> set[str]:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
