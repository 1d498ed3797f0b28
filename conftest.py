"""`pytest --device=cuda`: what tests run in the emulator also runs on the GPU, and its results are the GPU's."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = (
        "cuda: every kernel that the emulator runs for a test runs on the GPU too, whose results the test then checks"
    )
    parser.addoption("--device", choices=("emulator", "cuda"), default="emulator", help=help_)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where code for a GPU runs: modules by the environment, kernels that a test gives to the emulator by `on_both`."""
    name: str = request.config.getoption("--device")
    monkeypatch.setenv("TILEWRIGHT_DEVICE", name)
    if name == "cuda":
        from tests.on_device import on_both
        from tilewright import emulator

        def run(*arguments: Any, **options: Any) -> Any:
            return on_both(_opened(), *arguments, **options)

        monkeypatch.setattr(emulator, "run", run)
    return name


def _opened() -> Any:
    from tilewright.errors import DeviceError, MissingExtra
    from tilewright.runtime.cuda.driver import open_driver

    try:
        return open_driver("cuda")
    except (MissingExtra, DeviceError) as error:
        return pytest.skip(f"--device=cuda: {error.message}")
