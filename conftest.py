"""`pytest --device=cuda`: what tests run in the emulator also runs on the GPU: both agree, and tests check the GPU's.

`pytest --kernels=FILE`: `ptxas` checks every kernel that a test compiles, and the file lists what each takes.

`pytest --full`: every case of tests that else try a part (`tests/covering.py`).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cases
from tests.cases import pytest_collection_modifyitems  # noqa: F401
from tests.kernel_report import KernelReport, install
from tests.torch_export import remember_operators

# Bytecode is kept, also where the environment says otherwise: each process that runs tests, and each one that a test
# starts, would compile every module again, and rewrite the assertions of every test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_REPORT = pytest.StashKey[KernelReport]()
_WATCHED = pytest.StashKey[bool]()
_REMEMBERED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = (
        "cuda: every kernel that the emulator runs for a test runs on the GPU too, whose results the test then checks"
    )
    parser.addoption("--device", choices=("emulator", "cuda"), default="emulator", help=help_)
    help_ = "have ptxas check every kernel that a test compiles, and list registers, spills and shared memory in FILE"
    parser.addoption("--kernels", metavar="FILE", default=None, help=help_)
    cases.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORT] = KernelReport(assemble=config.getoption("--kernels") is not None)
    cases.pytest_configure(config)
    gc.disable()  # until tests run: what is collected before them stays
    config.addinivalue_line("markers", "emulator_only: runs kernels that are wrong on purpose; never on a device")


def pytest_collection_finish() -> None:
    """What is there now stays, so that searches for garbage leave it out.

    They are rare, too: with the usual thresholds they take a tenth of the time of compilations, and there is memory.
    """
    gc.freeze()
    gc.set_threshold(600_000, 20, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    report = item.config.stash[_REPORT]
    report.test = item.nodeid
    if not item.config.stash.get(_WATCHED, False):
        item.config.stash[_WATCHED] = install(report)
    if not item.config.stash.get(_REMEMBERED, False):
        item.config.stash[_REMEMBERED] = remember_operators()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist
        session.config.workeroutput["kernels"] = session.config.stash[_REPORT].rows


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_REPORT].merge(getattr(node, "workeroutput", {}).get("kernels", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report, place = config.stash[_REPORT], config.getoption("--kernels")
    if lines := report.lines():
        terminalreporter.section("kernels")
        terminalreporter.write("\n".join(lines) + "\n")
    if place is not None:
        report.write(Path(place))
        terminalreporter.write(f"all of them: {place}\n")


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where code for a GPU runs: modules by the environment, kernels that a test gives to the emulator by `on_both`.

    Tests marked `emulator_only` run kernels that are wrong on purpose, which may take a device with them. One that does
    ends the run, or with pytest-xdist its process.
    """
    name: str = request.config.getoption("--device")
    if request.node.get_closest_marker("emulator_only") is not None:
        name = "emulator"
    monkeypatch.setenv("TILEWRIGHT_DEVICE", name)
    if name == "cuda":
        from tests.on_device import on_both, skipping_newer_targets
        from tilewright import emulator
        from tilewright.runtime.cuda.bindings import CudaDriver

        def run(*arguments: Any, **options: Any) -> Any:
            return on_both(_opened(), *arguments, **options)

        monkeypatch.setattr(emulator, "run", run)
        monkeypatch.setattr(CudaDriver, "load", skipping_newer_targets(CudaDriver.load))
    yield name
    if name == "cuda":
        from tests.on_device import end_if_lost

        end_if_lost(request.node.nodeid, replaced=hasattr(request.config, "workerinput"))


def _opened() -> Any:
    from tilewright.errors import DeviceError, MissingExtra
    from tilewright.runtime.cuda.devices import open_driver

    try:
        return open_driver("cuda")
    except (MissingExtra, DeviceError) as error:
        return pytest.skip(f"--device=cuda: {error.message}")
