"""Options of a compilation and of execution; the only place where environment variables are read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, nearest
from tilewright.files import as_path

SEARCHES = ("rules", "joint")
FUSIONS = ("auto", "always", "never")
CLUSTER_SIZES = (1, 2, 4)
RENAMED = {"route": "mma"}  # options by the names that they had before
MmaFamily = Literal["mma.sync", "wmma"]  # matrix instructions of one warp, two families of one vendor
DOCUMENTED_MMA: Final = "mma.sync"  # those whose fragment layouts are documented
OPAQUE_MMA: Final = "wmma"  # those whose fragment layouts are unspecified
MMA_FAMILIES = ("auto", DOCUMENTED_MMA, OPAQUE_MMA)
INPUT_PRECISIONS = ("ieee", "tf32", "tf32x3")


_MOST_DIGITS = 9  # of a number in an environment variable: Python refuses to read thousands
_DEVICES = re.compile(r"auto|emulator|cuda(:[0-9]{1,9})?")


def _default_cache_dir() -> Path:
    explicit = os.environ.get("TILEWRIGHT_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tilewright"


def _default_cache() -> bool:
    return os.environ.get("TILEWRIGHT_CACHE", "1") not in ("0", "off", "no", "false")


def _default_pin() -> bool:
    return os.environ.get("TILEWRIGHT_PIN", "1") not in ("0", "off", "no", "false")


def _default_device() -> str:
    return os.environ.get("TILEWRIGHT_DEVICE", "auto")


def environment_threads() -> int | None:
    """The thread count that `OMP_NUM_THREADS` asks for, or None where it is unset or not a positive number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    digits = first.isascii() and first.isdigit() and len(first) <= _MOST_DIGITS
    return int(first) if digits and int(first) > 0 else None


@dataclass(frozen=True)
class Options:
    """How to compile and run. Immutable; every field has the value that most users want.

    cache          use the compile cache in `cache_dir`, capped at `cache_bytes`
    pin            pin worker threads to distinct cores of the caller's affinity mask (never the caller itself), unless
                   a container's CPU quota grants less than those cores
    openmp         run on an OpenMP runtime that is already loaded in the process, if there is one
    output_pool_bytes
                   memory of large outputs that the process keeps for later calls when no array refers to it; 0: none
    disable        names of optimisation passes to switch off
    verify_each    verify the tile program after each pass
    device         where code for a GPU runs: "cuda", "cuda:1", "emulator", or "auto", a GPU if there is one
    intrinsics     an `intrinsics.registry.Registry` to choose from, best first (None: the catalogue)
    input_precision
                   what matrix instructions may read factors of f32 as: themselves ("ieee"); with 10 bits of mantissa
                   ("tf32"); as sums of two such numbers, which three products multiply, nearly as exact as f32
                   ("tf32x3"). A permission: where a machine has no instruction that reads tf32, f32 is multiplied
    mma            which matrix instructions products may take: "auto", or on an NVIDIA GPU those of one warp whose
                   fragment layouts are documented ("mma.sync") or those whose fragments only memory knows ("wmma")
    cluster        blocks of a cluster on an NVIDIA GPU, which share loads by multicast where a product's operands come
                   by the copy engine: 1, 2 or 4 (None: 1 or 2, whichever is predicted to take fewer cycles)
    search         how mapping and schedule of products are chosen: by "rules", or "joint": ranked by the model, the
                   best timed on this machine, once, and chains that are predicted to pay as one kernel timed both ways;
                   the compile cache and the `.twm` keep what was found
    fuse           whether products of which one reads the other run as one kernel, where there is one for them: "auto",
                   where that is predicted to take less time, "always", or "never"; or the path of a saved plan or tile
                   file: products of which it has a tree are one kernel, which runs so, others a kernel each
    trials         schedules to time per product in a joint search
    trees          the tile trees of some kernels by their names, as `compile --emit plan` writes them under "trees":
                   these kernels run as they say, others as the rules do
    """

    cache: bool = field(default_factory=_default_cache)
    cache_dir: Path = field(default_factory=_default_cache_dir)
    cache_bytes: int = 2 << 30
    pin: bool = field(default_factory=_default_pin)
    openmp: bool = True
    output_pool_bytes: int = 256 << 20
    disable: tuple[str, ...] = ()
    verify_each: bool = False
    device: str = field(default_factory=_default_device)
    intrinsics: Any = None
    input_precision: str = "ieee"
    cluster: int | None = None
    mma: str = "auto"
    search: str = "rules"
    fuse: str | Path = "auto"
    trials: int = 16
    trees: Mapping[str, Any] = field(default_factory=dict)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        for old, new in RENAMED.items():
            if old in named:
                raise InvalidArgument(f"the option {old!r} has another name now", where=old, help=f"write {new}=…")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_dir", as_path(self.cache_dir, "cache_dir"))  # a str is a path too
        for name in ("cache", "pin", "openmp", "verify_each"):
            _check(name, getattr(self, name), type(getattr(self, name)) is bool, "True or False")
        sizes = "a number of bytes from 0 to 2**62"
        for name in ("cache_bytes", "output_pool_bytes"):
            _check(name, getattr(self, name), _is_number(getattr(self, name), 0, 1 << 62), sizes)
        names = (str(self.disable),) if isinstance(self.disable, str) else self.disable
        are_names = isinstance(self.disable, tuple | list) and all(isinstance(name, str) for name in names)
        _check("disable", self.disable, are_names, "a tuple of names of passes")
        object.__setattr__(self, "disable", tuple(self.disable))
        known = isinstance(self.device, str) and _DEVICES.fullmatch(self.device) is not None
        _check("device", self.device, known, "auto, cuda, cuda:N or emulator")
        chosen = ("search", SEARCHES), ("mma", MMA_FAMILIES), ("input_precision", INPUT_PRECISIONS)
        for name, choices in chosen:
            _check_choice(name, getattr(self, name), choices)
        if isinstance(self.fuse, os.PathLike) or (isinstance(self.fuse, str) and Path(self.fuse).suffix):
            object.__setattr__(self, "fuse", as_path(self.fuse, "fuse"))
        else:
            _check_choice("fuse", self.fuse, FUSIONS, ", or a file with a suffix")
        known = self.cluster is None or (type(self.cluster) is int and self.cluster in CLUSTER_SIZES)
        _check("cluster", self.cluster, known, "1, 2, 4 or None")
        _check("trials", self.trials, _is_number(self.trials, 1, 1 << 30), "a number of 1 or more")
        are_trees = isinstance(self.trees, Mapping) and all(isinstance(name, str) for name in self.trees)
        _check("trees", self.trees, are_trees, "a mapping from names of kernels to their trees")
        if self.search != "joint" and self.trials != Options.trials:
            fact = f"trials is {self.trials}, but search={self.search!r} times no schedules"
            raise InvalidArgument(fact, where="trials", help='add search="joint"')
        if self.search == "joint" and self.fuse not in ("auto", "never"):
            fact = f"fuse is {str(self.fuse)!r}, but a search times chains both ways"
            raise InvalidArgument(fact, where="fuse", help='search="rules", or fuse="auto" or "never"')


def _is_number(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _check(name: str, value: Any, legal: bool, help: str) -> None:
    if not legal:
        raise InvalidArgument(f"{name} is {value!r}", where=name, help=help)


def _check_choice(name: str, value: Any, choices: Sequence[str], others: str = "") -> None:
    """Raise InvalidArgument unless `value` is one of `choices`; the help has the nearest first, `others` last."""
    if isinstance(value, str) and value in choices:
        return
    near = nearest(str(value), choices)
    listed = ", ".join([*near, *(each for each in choices if each not in near)])
    raise InvalidArgument(f"there is no {name.replace('_', ' ')} {value!r}", where=name, help=f"{listed}{others}")
