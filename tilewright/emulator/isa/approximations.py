"""Elementary functions. The approximate ones are computed in f64 and rounded once, closer than hardware is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.emulator.decode import Decoder
from tilewright.emulator.isa.floating import raw_elements
from tilewright.emulator.isa.table import Built, elementwise, instruction
from tilewright.emulator.rounding import directed, flush, product_error, to_f32
from tilewright.emulator.scalars import Array

GROUP = "special function"

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt,
    "rcp": lambda a: 1.0 / a, "rsqrt": lambda a: 1.0 / np.sqrt(a),
}  # fmt: skip


@instruction(*_FUNCTIONS)
def elementary(decoder: Decoder) -> Built:
    function = _FUNCTIONS[decoder.name]
    decoder.flag("approx")
    mode = decoder.one_of("rn", "rz", "rm", "rp", default="rn")
    flushes = decoder.flag("ftz")
    kind = decoder.type()
    if kind == "f64":
        return elementwise(decoder, GROUP, lambda a: _in_f64(decoder.name, function(a), a, mode), kind, (kind,))

    def narrow(a: Any) -> Any:
        value = flush(a) if flushes and kind == "f32" else a
        wide = function(np.asarray(value, np.float64))
        if kind in ("f16", "f16x2"):
            return wide.astype(np.float16)
        if kind in ("bf16", "bf16x2"):
            return wide
        found = to_f32(wide, mode)
        return flush(found) if flushes else found

    return elementwise(decoder, GROUP, raw_elements(kind, narrow), kind, (kind,))


def _in_f64(name: str, found: Array, a: Array, mode: str) -> Array:
    """Directed rounding of reciprocals and roots, by the sign of what is left over."""
    if mode == "rn" or name not in ("rcp", "sqrt"):
        return found
    other = a if name == "rcp" else found
    product = found * other
    rest = ((1.0 if name == "rcp" else a) - product) - product_error(found, other, product)
    return directed(found, rest * np.sign(other), mode)
