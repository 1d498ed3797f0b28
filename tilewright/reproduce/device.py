"""The device that an experiment times on, if there is one."""

from __future__ import annotations

from tilewright.errors import DeviceError, MissingExtra
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.driver import Driver


def opened(device: str) -> tuple[Driver | None, str]:
    """The device of that name, "auto" for a GPU if there is one; without one, why.

    Raises DeviceError and MissingExtra where a GPU is asked for that cannot be used.
    """
    if device == "emulator":
        return None, "the emulator was asked for, which counts"
    try:
        return open_driver("cuda" if device == "auto" else device), ""
    except (DeviceError, MissingExtra) as error:
        if device != "auto":
            raise
        return None, error.message
