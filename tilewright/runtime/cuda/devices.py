"""How a device is opened: a GPU through its driver, or the emulator; each is opened once."""

from __future__ import annotations

import logging
from functools import cache

from tilewright.errors import DeviceError, InvalidArgument, MissingExtra
from tilewright.runtime.cuda.bindings import CudaDriver
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.emulated import EmulatedDriver
from tilewright.runtime.once import once

_log = logging.getLogger(__name__)
DEVICES = ("auto", "cuda", "emulator")


def open_driver(device: str = "auto") -> Driver:
    """The device of that name: "cuda", "cuda:1", "emulator", or "auto", a GPU if there is one and else the emulator.

    Raises InvalidArgument for other names, MissingExtra where the bindings are not installed, DeviceError where no
    driver or no such GPU is found.
    """
    if device == "emulator":
        return _emulator()
    if device == "auto":
        try:
            return _cuda(0)
        except (MissingExtra, DeviceError) as error:
            _say_slow(error.message)
            return _emulator()
    kind, colon, number = device.partition(":")
    if kind != "cuda" or bool(colon) != number.isdecimal():
        raise InvalidArgument(f"there is no device {device!r}", where="device", help=f"one of {', '.join(DEVICES)}")
    return _cuda(int(number or 0))


@once
def _emulator() -> Driver:
    return EmulatedDriver()


@once
def _cuda(ordinal: int) -> Driver:
    return CudaDriver(ordinal)


@cache
def _say_slow(reason: str) -> None:
    _log.warning("GPU code runs in the emulator, on the CPU, which is slow: %s", reason)
