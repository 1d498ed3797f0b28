"""What an installed package holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_tests_stay_out_of_the_wheel() -> None:
    setuptools = pytest.importorskip("setuptools")
    chosen = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packages = setuptools.find_packages(str(ROOT), include=chosen["include"], exclude=chosen["exclude"])
    assert [name for name in packages if "tests" in name.split(".")] == []
    folders = {path.parent for path in (ROOT / "tilewright").rglob("*.py") if "tests" not in path.parts}
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} == set(packages)


def test_nothing_outside_of_tests_imports_them() -> None:
    sources = [path for path in (ROOT / "tilewright").rglob("*.py") if "tests" not in path.relative_to(ROOT).parts]
    assert [str(path) for path in sources if ".tests" in path.read_text()] == []
