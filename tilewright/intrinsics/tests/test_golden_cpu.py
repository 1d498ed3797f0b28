"""Golden tests of spec 3, records of CPUs: G30, G39 to G42."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.intrinsics.composite import MicroKernel, optimum
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.registry import standard


def find(name: str):
    return standard().find(name)


def test_spec3_g30() -> None:
    assert optimum(32) == MicroKernel(6, 4, 2)
    assert optimum(32).registers == 30
    assert optimum(32).intensity(256) == pytest.approx(2.3558, abs=5e-5)


def test_spec3_g39() -> None:
    bytes_u8, bytes_s8 = np.full(4, 255, np.uint8), np.full((16, 4), 127, np.int8)
    zero = np.zeros(16, np.int32)
    assert execute(find("vpdpbusd"), zero, bytes_u8, bytes_s8).tolist() == [129540] * 16
    assert execute(find("gemv_16x4_sat16"), zero, bytes_u8, bytes_s8).tolist() == [65534] * 16
    high = np.full(16, 2147483637, np.int32)
    assert execute(find("vpdpbusd"), high, bytes_u8, bytes_s8)[0] == -2147354119
    assert execute(find("vpdpbusds"), high, bytes_u8, bytes_s8)[0] == 2147483647


def test_spec3_g40() -> None:
    a = (np.arange(64) + 1).astype(np.uint8).reshape(16, 4)
    b = (np.arange(64) % 4 + 1).astype(np.int8).reshape(16, 4)
    acc = (100 * np.arange(16)).astype(np.int32)
    assert execute(find("vpdpbusd_full_16x4_u8s8_s32"), acc, a, b)[3] == 450


@pytest.mark.parametrize(
    ("acc", "even", "odd", "expected"),
    [
        (2.0**24, (1.0, 1.0), (1.0, 1.0), 16777216.0),
        (1.0, (1.0, 1.0), (2.0**12, 2.0**12), 16777216.0),
        (0.0, (2.0**-133, 2.0**127), (2.0**-133, 2.0**127), 0.0),
        (0.0, (2.0**-100, 2.0**-40), (2.0**-100, 2.0**-40), 0.0),
    ],
)
def test_spec3_g41(acc: float, even: tuple[float, float], odd: tuple[float, float], expected: float) -> None:
    a = np.tile(np.array([even[0], odd[0]]), (16, 1)).astype(ml_dtypes.bfloat16)
    b = np.tile(np.array([even[1], odd[1]]), (16, 1)).astype(ml_dtypes.bfloat16)
    full = find("vdpbf16ps_full_16x2_bf16_f32")
    assert execute(full, np.full(16, acc, np.float32), a, b).tolist() == [expected] * 16
    assert execute(find("vdpbf16ps"), np.full(16, acc, np.float32), a[0], b).tolist() == [expected] * 16


def test_spec3_g42() -> None:
    a = np.arange(-8, 8).astype(np.int8).reshape(4, 4)
    b = ((7 * np.arange(16)) % 11 - 5).astype(np.int8).reshape(4, 4)
    zero = np.zeros(4, np.int32)
    assert execute(find("sdot_full_4x4_s8_s32"), zero, a, b).tolist() == [13, -3, -14, 35]
    assert execute(find("sdot"), zero, a, b[2]).tolist() == [42, 14, -14, -42]
