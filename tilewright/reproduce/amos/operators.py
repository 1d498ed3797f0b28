"""The operator configurations of the evaluation: 113 shapes of 15 operators, and what we add to them.

Source: AMOS code; spec 3, section 6.3. The batch is 1 unless a shape says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Graph
from tilewright.expr.ops import catalogue


@dataclass(frozen=True)
class Configuration:
    """One shape of an operator: `sizes` by the names of `expr.ops.catalogue`."""

    operator: str
    sizes: Mapping[str, int]

    @property
    def name(self) -> str:
        """Operator and sizes, those that say something: ``C2D(c=3, size=224, k=64, kernel=7, stride=2, pad=3)``."""
        shown = {key: value for key, value in self.sizes.items() if (key, value) not in _PLAIN}
        return f"{self.operator}({', '.join(f'{key}={value}' for key, value in shown.items())})"

    def graph(self, dtype: DType = "f16") -> Graph:
        """The operator as tensor expressions, in the form for mapping."""
        return catalogue.build(self.operator, form="mapping", dtype=dtype, **self.sizes)


_PLAIN = {("batch", 1), ("dilation", 1), ("output_padding", 0)}

Rows = Sequence[tuple[int, ...]]


def _rows(operator: str, names: str, rows: Rows, **fixed: int) -> tuple[Configuration, ...]:
    keys = names.split()
    return tuple(Configuration(operator, {**fixed, **dict(zip(keys, row, strict=True))}) for row in rows)


_PRODUCTS = ((16, 512, 128), (1024, 16, 256), (256, 1024, 256), (512, 256, 16), (1024, 1024, 1024))  # M, N, K
_RESNET18 = (  # C, H, K, window, stride, pad: C0 to C11
    (3, 224, 64, 7, 2, 3), (64, 56, 64, 3, 1, 1), (64, 56, 64, 1, 1, 0), (64, 56, 128, 3, 2, 1),
    (64, 56, 128, 1, 2, 0), (128, 28, 128, 3, 1, 1), (128, 28, 256, 3, 2, 1), (128, 28, 256, 1, 2, 0),
    (256, 14, 256, 3, 1, 1), (256, 14, 512, 3, 2, 1), (256, 14, 512, 1, 2, 0), (512, 7, 512, 3, 1, 1),
)  # fmt: skip
_IMAGES = tuple(row[:2] for row in _RESNET18)  # C, H of the inputs of C0 to C11

_CONV = "c size k kernel stride pad"
_CONV_3D = "c depth size k depth_kernel kernel depth_stride stride depth_pad pad"

#: The 113, by operator in the order of Table 5.3.
CONFIGURATIONS: Mapping[str, tuple[Configuration, ...]] = {
    "GMV": _rows("GMV", "rows columns", ((512, 16), (1024, 256), (256, 1024), (512, 256), (1024, 1024))),
    "GMM": _rows("GMM", "m n k", _PRODUCTS),
    "C1D": _rows("C1D", f"{_CONV} dilation", (  # ByteNet
        (512, 892, 512, 3, 1, 2, 1), (512, 892, 1024, 1, 1, 0, 1), (1024, 892, 512, 1, 1, 0, 1),
        (512, 892, 512, 3, 1, 4, 2), (512, 892, 512, 3, 1, 8, 4), (512, 892, 512, 3, 1, 16, 8),
        (512, 892, 512, 3, 1, 32, 16), (1024, 892, 250, 1, 1, 0, 1),
    ), batch=1),
    "C2D": _rows("C2D", _CONV, _RESNET18, batch=1),  # ResNet-18
    "C3D": _rows("C3D", _CONV_3D, (  # ResNet3D-18
        (3, 8, 112, 64, 1, 3, 3, 7, 1, 3), (64, 8, 56, 64, 3, 3, 1, 1, 1, 1), (64, 8, 56, 128, 1, 1, 2, 2, 0, 0),
        (64, 8, 56, 128, 3, 3, 2, 2, 1, 1), (128, 4, 28, 128, 3, 3, 1, 1, 1, 1), (128, 4, 28, 256, 1, 1, 2, 2, 0, 0),
        (128, 4, 28, 256, 3, 3, 2, 2, 1, 1), (256, 2, 14, 256, 3, 3, 1, 1, 1, 1), (256, 2, 14, 512, 1, 1, 2, 2, 0, 0),
        (256, 2, 14, 512, 3, 3, 2, 2, 1, 1), (256, 1, 7, 512, 3, 3, 1, 1, 1, 1),
    ), batch=1),
    "T2D": _rows("T2D", "k size c kernel stride pad", (
        (3, 112, 64, 3, 7, 3), (64, 56, 64, 3, 1, 1), (64, 56, 128, 1, 2, 0), (64, 56, 128, 3, 2, 1),
        (128, 28, 128, 3, 1, 1), (128, 28, 256, 1, 2, 0), (128, 28, 256, 3, 2, 1), (256, 14, 256, 3, 1, 1),
        (256, 14, 512, 1, 2, 0), (256, 14, 512, 3, 2, 1), (256, 7, 512, 3, 1, 1),
    ), batch=1, output_padding=0),
    "GRP": _rows("GRP", f"{_CONV} groups", (  # ShuffleNet
        (3, 224, 24, 3, 2, 1, 3), (54, 28, 216, 1, 1, 0, 3), (240, 28, 60, 1, 1, 0, 3), (60, 28, 240, 1, 1, 0, 3),
    ), batch=1),
    "DIL": _rows("DIL", f"{_CONV} dilation", (  # DeepLab on ResNet-50; windows of 1x1, so that dilation has no effect
        (256, 56, 512, 1, 1, 0, 2), (256, 56, 128, 1, 1, 0, 2), (512, 28, 1024, 1, 1, 0, 2),
        (512, 28, 256, 1, 1, 0, 2), (1024, 14, 2048, 1, 1, 0, 2), (1024, 14, 512, 1, 1, 0, 2),
    ), batch=1),
    "DEP": _rows("DEP", "c size multiplier kernel stride pad", (  # MobileNet-V2
        (32, 112, 1, 3, 1, 1), (16, 112, 6, 3, 2, 1), (24, 56, 6, 3, 2, 1), (32, 28, 6, 3, 2, 1),
        (64, 14, 6, 3, 1, 1), (96, 14, 6, 3, 2, 1), (160, 7, 6, 3, 1, 1),
    ), batch=1),
    "CAP": _rows("CAP", "size c k kernel stride pad capsules", ((20, 256, 32, 9, 2, 0, 8),), batch=1),  # CapsNet
    "BCV": _rows("BCV", _CONV, (
        (64, 56, 64, 3, 1, 1), (64, 56, 64, 1, 1, 0), (64, 56, 128, 3, 2, 1), (64, 56, 128, 1, 2, 0),
    ), batch=1),
    "GFC": _rows("GFC", "c k groups", (  # WeightNet on ShuffleNet-V2
        (24, 216, 24), (48, 576, 48), (56, 504, 56), (112, 1008, 112), (112, 1344, 112), (112, 3136, 112),
        (176, 4928, 176), (224, 2016, 224), (224, 12544, 224), (448, 50176, 448),
    ), batch=1),
    "MEN": _rows("MEN", "c size", _IMAGES, batch=1),
    "VAR": _rows("VAR", "c size", _IMAGES, batch=1),
    "SCN": _rows("SCN", "m n k", _PRODUCTS),
}  # fmt: skip

#: The capsule shapes of AMOS's own mapper script, 12 in place of the 1 of its comparisons: 124 configurations in all.
MAPPER_CAPSULES = _rows("CAP", _CONV, _RESNET18, batch=1, capsules=8)

#: What the lists lack or seem to have exchanged.
ADDED: Mapping[str, tuple[Configuration, ...]] = {
    "C3D": _rows("C3D", _CONV_3D, ((3, 8, 112, 64, 3, 7, 1, 2, 1, 3),), batch=1),
    "DIL": _rows("DIL", f"{_CONV} dilation", ((512, 28, 512, 3, 1, 2, 2), (1024, 14, 1024, 3, 1, 2, 2)), batch=1),
    "DEP": _rows("DEP", "c size multiplier kernel stride pad", ((96, 112, 1, 3, 2, 1),), batch=1),
    "BCV": _rows("BCV", _CONV, ((64, 56, 64, 3, 1, 1), (64, 56, 128, 3, 2, 1)), batch=8),
}


def configurations(*, capsules: bool = False, added: bool = False) -> tuple[Configuration, ...]:
    """All 113; with `capsules` the 124 of the mapper script, with `added` ours as well."""
    found = [each for shapes in CONFIGURATIONS.values() for each in shapes if not (capsules and each.operator == "CAP")]
    found += MAPPER_CAPSULES if capsules else ()
    found += [each for shapes in ADDED.values() for each in shapes] if added else []
    return tuple(found)


def resnet18(batch: int) -> tuple[Configuration, ...]:
    """The convolutions C0 to C11 at a batch size."""
    return _rows("C2D", _CONV, _RESNET18, batch=batch)
