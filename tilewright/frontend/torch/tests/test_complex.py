"""Complex numbers inside of a program, and Fourier transforms, against torch."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.errors import Unsupported
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.tests.against_torch import Many, check, rand

torch = pytest.importorskip("torch")


def real(x: Any) -> Any:
    return torch.view_as_real(x.resolve_conj())


@pytest.mark.covering(1)
@pytest.mark.parametrize("length", [1, 2, 5, 63, 67, 96, 200, 1155])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_one_dimension(length: int, norm: str) -> None:
    fft = torch.fft
    check(
        {
            "real": lambda x: [real(fft.rfft(x, norm=norm)), real(fft.fft(x, norm=norm))],
            "inverse": lambda x: [real(fft.ifft(x, norm=norm)), fft.irfft(fft.rfft(x), n=length, norm=norm)],
            "along": lambda x: [real(fft.rfft(x, dim=0, norm=norm)), fft.irfft(torch.complex(x, x), n=length)],
            "hermitian": lambda x: fft.hfft(torch.complex(x, -x), n=length, norm=norm),
        },
        rand(3, length, dtype=torch.float64),
        ulps=length * 40,
    )


def test_transforms_of_several_dimensions() -> None:
    fft = torch.fft
    check(
        {
            "complex": lambda x: [real(fft.fft2(x)), real(fft.ifftn(fft.fftn(x, dim=(0, 2))))],
            "real": lambda x: [real(fft.rfft2(x)), fft.irfft2(fft.rfft2(x), s=(5, 6)), fft.irfftn(fft.rfftn(x) * 2)],
            "sizes": lambda x: [real(fft.fft(x, n=9)), real(fft.rfft(x, n=3)), fft.irfft(fft.rfft(x), n=11)],
            "mixing": lambda x: fft.fft2(x).real,
            "shifts": lambda x: real(fft.fftshift(fft.fft(x))),
        },
        rand(3, 5, 6),
        ulps=400,
    )


def test_short_time_transforms() -> None:
    window = torch.hann_window(16)

    def spectrum(x: Any) -> Any:
        return torch.stft(x, 16, 5, window=window, return_complex=True)

    check(
        {
            "spectrogram": lambda x: [spectrum(x).abs(), spectrum(x).abs() ** 2, real(spectrum(x))],
            "back": lambda x: torch.istft(spectrum(x), 16, 5, window=window, length=60),
        },
        rand(2, 61),
        ulps=400,
    )


def test_arithmetic() -> None:
    table = torch.polar(torch.ones(5, 3), torch.arange(15.0).view(5, 3))
    check(
        {
            "parts": lambda x, y: [torch.complex(x, y).real, torch.complex(x, y).imag, torch.complex(x, y).conj().imag],
            "polar": lambda x, y: [torch.complex(x, y).abs(), torch.complex(x, y).angle(), real(torch.polar(x, y))],
            "sum": lambda x, y: [real(torch.complex(x, y) + x), real(x - torch.complex(y, x)), real(x + 2j)],
            "product": lambda x, y: [
                real(torch.complex(x, y) * torch.complex(y, x)), real(torch.complex(x, y) * x), real(x * (1 + 2j)),
            ],
            "quotient": lambda x, y: [real(torch.complex(x, y) / torch.complex(y, x)), real(torch.complex(x, y) / 3)],
            "exp": lambda x, y: [real(torch.exp(torch.complex(x, y))), real(-torch.complex(x, y))],
            "views": lambda x, y: [
                real(torch.complex(x, y).flatten()[3:].flip(0)), real(torch.cat([torch.complex(x, y), y + 0j])),
            ],
            "sums": lambda x, y: [real(torch.complex(x, y).sum(1)), real(torch.complex(x, y).mean())],
            "matrices": lambda x, y: real(torch.complex(x, y) @ torch.complex(y, x).mT),
            "rotary": lambda x, y: real(torch.view_as_complex(torch.stack([x, y], -1)) * table).flatten(1),
        },
        rand(5, 3), rand(5, 3, seed=1),
        ulps=256,
    )  # fmt: skip


def test_what_is_refused() -> None:
    cases: dict[str, tuple[Any, str]] = {
        "an operator": (
            lambda x: torch.complex(x, x).tanh().real,
            "aten.tanh.default of complex numbers.*view_as_real",
        ),
        "a result": (lambda x: torch.complex(x, x), "returns complex numbers"),
        "a long prime": (lambda x: torch.fft.rfft(torch.cat([x] * 1400)[:4099]).real, "prime"),
    }
    for case, reason in cases.values():
        with pytest.raises(Unsupported, match=reason):
            import_module(Many({"case": case}), (rand(3),))
