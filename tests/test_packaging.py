"""What an installed package holds."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tilewright.cli import doctor

ROOT = Path(__file__).parents[1]


def test_tests_stay_out_of_the_wheel() -> None:
    setuptools = pytest.importorskip("setuptools")
    chosen = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    packages = setuptools.find_packages(str(ROOT), include=chosen["include"], exclude=chosen["exclude"])
    assert [name for name in packages if "tests" in name.split(".")] == []
    folders = {path.parent for path in (ROOT / "tilewright").rglob("*.py") if "tests" not in path.parts}
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} == set(packages)


def test_the_wheel_holds_sources_and_their_data_and_no_file_of_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns of package data reached into folders of tests, which are no packages of the wheel."""
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.chdir(ROOT)
    distribution = setuptools.dist.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["pyproject.toml"])
    distribution.get_command_obj("egg_info").egg_base = str(tmp_path)  # what it lists is written there
    build = distribution.get_command_obj("build_py")
    build.build_lib = str(tmp_path)
    build.ensure_finalized()
    held = {Path(name).relative_to(tmp_path) for name in build.get_outputs(include_bytecode=False)}
    assert [str(path) for path in held if "tests" in path.parts] == []
    paths = [path.relative_to(ROOT) for path in (ROOT / "tilewright").rglob("*")]
    needed = {path for path in paths if path.suffix in (".py", ".yaml", ".csv") or path.name == "py.typed"}
    assert held == {path for path in needed if "tests" not in path.parts}


def test_the_build_tool_reads_a_license_expression_and_every_python_is_classified() -> None:
    """setuptools reads `license = "Apache-2.0"` from version 77 on; older ones refuse the file."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert metadata["build-system"]["requires"] == ["setuptools>=77"]
    assert isinstance(metadata["project"]["license"], str)
    assert not [each for each in metadata["project"]["classifiers"] if each.startswith("License ::")]
    minors = range(int(metadata["project"]["requires-python"].removeprefix(">=3.")), 15)
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in minors}
    assert {each for each in metadata["project"]["classifiers"] if ":: Python :: 3." in each} == versions


def test_doctor_looks_for_the_modules_of_cuda_that_are_imported() -> None:
    """It asked for cuda.core, which nothing imports."""
    imported = set()
    for path in (ROOT / "tilewright/runtime/cuda").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cuda":
                imported.add(node.module)
    assert imported == set(doctor._EXTRAS["cuda"])
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cuda"]
    assert [each.split(">")[0].replace("-", ".") for each in extra] == sorted(imported)


def test_nothing_outside_of_tests_imports_them() -> None:
    sources = [path for path in (ROOT / "tilewright").rglob("*.py") if "tests" not in path.relative_to(ROOT).parts]
    assert [str(path) for path in sources if ".tests" in path.read_text()] == []
