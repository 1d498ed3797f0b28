"""The ablation of a product on a GPU: each optimisation on top of those before, counted in the emulator and predicted.

What 64 of k cost a block is counted: the difference between runs that differ by some slices. The model of level 3 turns
that into time at any size. Where there is a GPU the levels are timed there too (`measured`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any, Final

import numpy as np

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.instruction.model import Hierarchy, Level, core_cycles, hierarchy, predict
from tilewright.intrinsics.registry import standard
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.device import opened
from tilewright.reproduce.experiment import Table, positive
from tilewright.reproduce.matmul.measured import Measured, measure, torch_library
from tilewright.reproduce.matmul.switches import (
    INTRINSICS,
    LEFT_OUT,
    LEVELS,
    SWITCHES,
    Settings,
    Sizes,
    closed,
    compiled,
    settings,
    switches_of,
)
from tilewright.reproduce.pictures import Curves, Picture
from tilewright.runtime import emulated
from tilewright.runtime.cuda.measure import Timing

MACHINE: Final = "nvidia-rtx-3090"  # of the publication, with the clock that it was locked to
SIZES: Final = tuple(range(1024, 16384 + 1, 256))
SHOWN: Final = (1024, 2048, 4096, 8192, 16384)
WAVEFRONT_BYTES: Final = 128  # of shared memory
BYTES_A: Final = 2
BYTES_C: Final = 4
SLICES: Final = (3, 5)  # of the two runs whose difference is counted
DEPTH: Final = 64  # of k, what is counted
TOLERANCE: Final = 0.03
LARGE: Final = 4096  # the least size at which levels are compared by time


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Slice:
    """What a block does for 64 of k, be that one slice or several, and for its tile of C; counts of warps, bytes."""

    instructions: float
    global_requests: float
    global_bytes: float
    shared_requests: float
    wavefronts: float
    conflicts: float
    barriers: float
    products: float


@dataclass(frozen=True)
class Step:
    """A level of the ablation: what is on, the tiles, and what 64 of k cost."""

    name: str
    on: tuple[str, ...]
    block: Sizes
    warps: tuple[int, int]
    slice: Slice


@dataclass(frozen=True)
class Report:
    """Everything of this experiment: counts per level, predicted and, on a device, measured seconds per level and size.

    `unmeasured` says why there are none of a device, `mma` which matrix instruction the levels take.
    """

    machine: str
    without: tuple[str, ...]
    steps: tuple[Step, ...]
    seconds: Mapping[str, Mapping[int, float]]
    measured: Measured | None = None
    unmeasured: str = ""
    mma: str = "mma.sync"

    @cached_property
    def peak(self) -> float:
        """TFLOP/s of the matrix units."""
        machine = resolve(self.machine)
        assert isinstance(machine, Gpu)
        return 2 * machine.fma_per_cycle["f16"] * machine.multiprocessors * machine.clock_hz / 1e12

    def teraflops(self, level: str, size: int) -> float:
        return 2 * size**3 / self.seconds[level][size] / 1e12

    @property
    def tables(self) -> tuple[Table, ...]:
        timed = () if self.measured is None else (_timed(self, self.measured), *_ratios(self, self.measured))
        return _counted(self.steps), _predicted(self), *timed, _switches(self.mma)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(_claims(self))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        lines = {
            step.name: tuple((float(size), self.teraflops(step.name, size)) for size in self.seconds[step.name])
            for step in self.steps
        }
        ends = [float(size) for size in self.seconds[self.steps[0].name]]
        lines["peak"] = tuple((size, self.peak) for size in (ends[0], ends[-1]))
        predicted = Curves(f"Products on {self.machine}, as the model predicts", "M = N = K", "TFLOP/s", lines)
        if self.measured is None:
            return (predicted,)
        found = {**self.measured.levels, self.measured.library or "torch": self.measured.products}
        lines = {name: tuple((float(size), _rate(size, each)) for size, each in times.items())
                 for name, times in found.items() if times}  # fmt: skip
        return predicted, Curves(f"Products on {self.measured.device}, measured", "M = N = K", "TFLOP/s", lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "without": list(self.without),
            "mma": self.mma,
            "steps": [asdict(step) for step in self.steps],
            "seconds": {
                level: {str(size): value for size, value in times.items()} for level, times in self.seconds.items()
            },
            "measured": None if self.measured is None else asdict(self.measured),
            "unmeasured": self.unmeasured,
            "switches": {name: asdict(switch) for name, switch in switches_of(self.mma).items()},
            "claims": [claim.to_json() for claim in self.claims],
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Report:
        steps = tuple(
            Step(each["name"], tuple(each["on"]), tuple(each["block"]), tuple(each["warps"]),
                 Slice(**{key: float(value) for key, value in each["slice"].items()}))
            for each in found["steps"]
        )  # fmt: skip
        seconds = {
            level: {int(size): positive(value) for size, value in times.items()}
            for level, times in found["seconds"].items()
        }
        timed = found.get("measured")
        return cls(
            str(found["machine"]), tuple(found["without"]), steps, seconds,
            None if timed is None else Measured.from_json(timed), str(found.get("unmeasured", "")),
            str(found.get("mma", "mma.sync")),
        )  # fmt: skip


def report(
    without: Sequence[str] = (), sizes: Sequence[int] = SIZES, machine: str = MACHINE, device: str | None = None,
    mma: str = "mma.sync",
) -> Report:  # fmt: skip
    """Count every level in the emulator, predict every size, and time all of it where there is a GPU.

    `device`: "cuda" or "cuda:1", "emulator" to count only, "auto" for a GPU if there is one, or None, which is that of
    the options; `mma` the matrix instruction, one of `INTRINSICS`. Raises InvalidArgument for what cannot be,
    DeviceError and MissingExtra where a GPU is asked for that cannot be used.
    """
    if mma not in INTRINSICS:
        raise InvalidArgument(f"no matrix instruction {mma!r}", where="--mma", help=f"one of {', '.join(INTRINSICS)}")
    driver, reason = opened(device or Options().device)
    found = resolve(machine)
    if not isinstance(found, Gpu) or INTRINSICS[mma] not in found.intrinsics:
        fact = f"{found.name} does not have {INTRINSICS[mma]}"
        raise InvalidArgument(fact, where="--machine", help="see tilewright machines")
    for size in sizes:
        if size % 256 or size < 256:
            raise InvalidArgument(f"size {size}", where="--sizes", help="multiples of 256: every level's tiles fit")
    levels = closed((*without, *LEFT_OUT[mma]))
    steps = tuple(counted_step(level, on, found, mma) for level, on in levels.items())
    model = hierarchy(found)
    seconds = {step.name: {size: predicted(step, (size, size, size), model, mma) for size in sizes} for step in steps}
    timed = None
    if driver is not None:
        chosen = {level: settings(on, mma=mma) for level, on in levels.items()}
        timed = measure(chosen, sizes, found, driver, torch_library(driver))
    return Report(machine, tuple(without), steps, seconds, timed, reason, mma)


# Counting -------------------------------------------------------------------------------------------------------------


def counted_step(level: str, on: Iterable[str], machine: Gpu, mma: str = "mma.sync") -> Step:
    """A level with what 64 of k cost a block."""
    chosen = settings(frozenset(on), mma=mma)
    few, many = (counts(chosen, slices, machine) for slices in SLICES)
    apart = (SLICES[1] - SLICES[0]) * chosen.tiling.block[2] / DEPTH
    between = {name: (many[name] - few[name]) / apart for name in many}
    ordered = tuple(name for name in SWITCHES if name in on)
    return Step(level, ordered, chosen.tiling.block, chosen.tiling.warps, Slice(**between))


def counts(chosen: Settings, slices: int, machine: Gpu) -> dict[str, float]:
    """What one block counts over so many slices, on small whole numbers, whose result is compared with NumPy's."""
    bm, bn, bk = chosen.tiling.block
    k, rng = slices * bk, np.random.default_rng(0)
    module = compiled((bm, bn, k), chosen, machine.shared_bytes_per_block)
    operands: list[Array] = [rng.integers(-2, 3, shape).astype(dtype) for shape, dtype in
               (((bm, k), np.float16), ((k, bn), np.float16), ((bm, bn), np.float32))]  # fmt: skip
    a, b, c = operands
    wanted = np.asarray(c + a.astype(np.float32) @ b.astype(np.float32))
    found = c.ravel()
    run = _emulate(module, machine, [a.ravel(), b.ravel(), found])
    assert not run.diagnostics, f"bug: {run.diagnostics[0]}"
    assert (found.reshape(bm, bn) == wanted).all(), f"bug: {chosen} computes something else"
    ((_, made),) = run.counts
    warps = chosen.tiling.threads // 32
    return {
        "instructions": sum(made.warp_instructions.values()),
        "global_requests": made.total("global", "requests"),
        "global_bytes": made.bytes["global_load_sectors"] + made.bytes["global_store_sectors"],
        "shared_requests": made.total("shared", "requests"),
        "wavefronts": made.total("shared", "wavefronts"),
        "conflicts": made.total("shared", "conflicts"),
        "barriers": made.warp_instructions["synchronise"] / warps,
        "products": made.warp_instructions["matrix product"],
    }  # fmt: skip


def _emulate(module: Any, machine: Gpu, arrays: list[Any]) -> emulated.Emulated:
    module.attributes["tile.target"] = target_for(machine).attribute()
    return emulated.run_kernel(generate(module), "k", arrays)


# Predicting -----------------------------------------------------------------------------------------------------------


def predicted(step: Step, sizes: Sizes, machine: Hierarchy, mma: str = "mma.sync") -> float:
    """Seconds by the model of level 3: 64 of k on a multiprocessor are an execution of its middle level.

    A warp issues one instruction per cycle and sub-core or keeps its matrix unit busy, whichever takes longer; shared
    memory moves a wavefront per cycle; what blocks that run at the same time read alike comes from main memory once.
    Loads hide behind products where they are ahead of them, otherwise nothing hides anything.
    """
    (m, n, k), (bm, bn, _), cost = sizes, step.block, step.slice
    warps = step.warps[0] * step.warps[1]
    unit_cycles = core_cycles(standard().find(INTRINSICS[mma]), machine) * machine.units_per_core
    busy = max(cost.instructions, cost.products * unit_cycles) / warps
    rows, columns = _wave(m // bm, n // bn, machine.cores, "reorder-blocks" in step.on)
    operands = (bm + bn) * DEPTH * BYTES_A
    shared = (bm * rows + bn * columns) * DEPTH * BYTES_A / (rows * columns)
    other = max(0.0, cost.global_bytes - operands)  # of C in every slice, and sectors that are fetched for a part
    nest = (
        Level(bytes_in=cost.wavefronts * WAVEFRONT_BYTES / warps, resident_bytes=0),
        Level(parallel=(warps,), bytes_in=shared + other, bytes_out=bm * bn * BYTES_C, resident_bytes=0),
        Level(reductions=(k // DEPTH,), parallel=(m // bm * (n // bn),), resident_bytes=0),
    )
    overlap = inf if "latency-hiding" in step.on else 1.0
    return predict(nest, busy, machine, overlap=overlap).seconds


def _wave(rows: int, columns: int, cores: int, grouped: bool) -> tuple[int, int]:
    """How many rows and columns of blocks run at the same time: row by row, or in groups of 8 rows."""
    running = min(cores, rows * columns)
    height = min(8, rows) if grouped else min(rows, max(1, running // columns))
    return height, max(1, min(columns, running // height))


# Showing --------------------------------------------------------------------------------------------------------------


def _counted(steps: Sequence[Step]) -> Table:
    heads = {"level": "left", "adds": "left", "block": "left", "warps": "right", "instructions": "right",
             "global requests": "right", "global bytes": "right", "wavefronts": "right", "conflicts": "right",
             "barriers": "right", "products": "right"}  # fmt: skip
    rows = tuple(
        (
            step.name, _adds(step), "x".join(map(str, step.block)),
            "x".join(map(str, step.warps)), *(f"{value:.0f}" for value in (
                step.slice.instructions, step.slice.global_requests, step.slice.global_bytes,
                step.slice.wavefronts, step.slice.conflicts, step.slice.barriers, step.slice.products)),
        )
        for step in steps
    )  # fmt: skip
    note = "Instructions, requests, wavefronts and products are those of all warps; asynchronous copies are requests."
    return Table(f"{DEPTH} of k in one block, counted by the emulator", heads, rows, note)


def _predicted(found: Report) -> Table:
    sizes = _shown(found.seconds[found.steps[0].name])
    rows = tuple(
        (step.name, _adds(step), *(f"{found.teraflops(step.name, size):.1f}" for size in sizes)) for step in found.steps
    )
    note = f"The matrix units' peak is {found.peak:.0f} TFLOP/s."
    if found.measured is None:
        note += f" No device was measured: {found.unmeasured or 'there was none'}."
    return Table(f"TFLOP/s on {found.machine}, predicted by the model of level 3",
                 {"level": "left", "adds": "left", **{f"{size}": "right" for size in sizes}}, rows, note)  # fmt: skip


def _rate(size: int, timing: Timing) -> float:
    """TFLOP/s."""
    return 2 * size**3 / timing.seconds / 1e12


def _shown(sizes: Iterable[int]) -> list[int]:
    """The sizes that tables have: those of the publication's powers of two, else all."""
    every = sorted(sizes)
    return [size for size in SHOWN if size in every] or every


def _timed(found: Report, timed: Measured) -> Table:
    sizes = _shown({size for times in (*timed.levels.values(), timed.products) for size in times})
    lines = [(step.name, _adds(step), timed.levels[step.name]) for step in found.steps]
    if timed.library:
        lines.append((timed.library, "torch.matmul, which is cuBLAS", timed.products))
    rows = tuple(
        (name, adds, *(f"{_rate(size, times[size]):.1f}" if size in times else "-" for size in sizes))
        for name, adds, times in lines
    )
    every = [each for _, _, times in lines for each in times.values()]
    spread = max(((each.high - each.low) / each.seconds for each in every), default=0.0)
    note = f"Medians; the range from the 10th to the 90th percentile is {spread:.0%} of them or less. Inputs rotate."
    note += "" if timed.library else " There is no torch here, so nothing to compare with."
    for what, names in (("Wrong", timed.wrong), ("Left out", timed.left_out)):
        note += f" {what}: {', '.join(names)}." if names else ""
    return Table(f"TFLOP/s on {timed.device}, measured",
                 {"level": "left", "adds": "left", **{f"{size}": "right" for size in sizes}}, rows, note)  # fmt: skip


def _ratios(found: Report, timed: Measured) -> tuple[Table, ...]:
    """Each level's part of the library's rate; none without a library."""
    if not timed.products:
        return ()
    sizes = _shown(timed.products)
    rows = []
    for step in found.steps:
        times = timed.levels[step.name]
        parts = (timed.products[size].seconds / times[size].seconds if size in times else None for size in sizes)
        rows.append((step.name, *("-" if part is None else f"{part:.1%}" for part in parts)))
    note = "The library writes c as f16, the ablation reads and writes c as f32: c += a b."
    heads = {"level": "left", **{f"{size}": "right" for size in sizes}}
    return (Table(f"Part of the rate of {timed.library}", heads, tuple(rows), note),)


def _switches(mma: str) -> Table:
    has = switches_of(mma)
    rows = tuple((name, ", ".join(each.needs) or "-", each.on, each.off) for name, each in has.items())
    heads = {"switch": "left", "needs": "left", "on": "left", "off": "left"}
    return Table(
        "What the switches change here", heads, rows, "swizzle takes the place of padding." if "swizzle" in has else ""
    )


def _adds(step: Step) -> str:
    """What is new at a level, as far as it is not switched off."""
    return " + ".join(name for name in LEVELS[step.name] if name in step.on) or "-"


def _claims(found: Report) -> Iterable[Claim]:
    steps = {step.name: step for step in found.steps}
    names = [name for name in LEVELS if name >= "L2"]
    yield _ablation_claim("ablation", "predicted", _slower(found.seconds, names), "by the model")
    yield from _device_claims(found, names)
    # Without padding, say, what a later level brings costs fragments of unspecified layouts conflicts or barriers.
    if not found.without or found.mma != "wmma":
        yield _counters_claim(found.mma, [steps[name] for name in names])
    if found.without:
        return
    naive, full, last = steps["L4"].slice, steps["L6"].slice, steps["L7"].slice
    threads = steps["L6"].warps[0] * steps["L6"].warps[1]
    (bm, bn, _) = steps["L7"].block
    copied = (
        "through registers, two barriers; asynchronous copies, one, or by wmma two: copies behind what a trip computes"
    )
    counted: tuple[tuple[str, str, float, float, str], ...] = (
        ("vector-copy", "scalar loads of a thread", naive.global_requests / threads, 64, "in a slice of L4"),
        ("vector-copy", "loads of 128 bits", full.global_requests / threads, 8, "in a slice of L6"),
        ("barriers", "barriers of a slice, L6", full.barriers, 2, copied),
        ("barriers", "barriers of a slice, L7", last.barriers, 2 if found.mma == "wmma" else 1, copied),
        ("conflicts", "bank conflicts of L7", last.conflicts, 0, "counted by the emulator"),
        ("intensity", "operations per global byte", 2 * bm * bn * DEPTH / last.global_bytes, 64, "in a slice of L7"),
    )
    for name, subject, ours, bar, reason in counted:
        yield Claim(name, subject, f"{bar:g}", ours, bar, "=", reason)


def _ablation_claim(name: str, how: str, slower: list[str] | None, reason: str) -> Claim:
    """No level is to be slower than the one before: the publication's bars are not known as numbers."""
    subject = f"{how} levels slower than before"
    if slower is None:
        return Claim(name, subject, NOT_STATED, None, 0, "=", f"no size from {LARGE} on, where levels are compared")
    reason += f", by more than {TOLERANCE:.0%} from {LARGE} on: {', '.join(slower[:4]) or 'none'}"
    return Claim(name, subject, NOT_STATED, len(slower), 0, "=", reason)


def _counters_claim(mma: str, steps: Sequence[Step]) -> Claim:
    # Rows of L3 are four times as long as those of L2, and fragments of unspecified layouts want padding, L4.
    excused = {("L3", "conflicts")} if mma == "wmma" else set()
    worse = [
        f"{later.name}: {what}" for earlier, later in pairwise(steps)
        for what in ("global_bytes", "conflicts", "barriers", "products")
        if getattr(later.slice, what) > getattr(earlier.slice, what) and (later.name, what) not in excused
    ]  # fmt: skip
    return Claim("counters", "counters worse than before", NOT_STATED, len(worse), 0, "=",
                 f"bytes, conflicts, barriers and products from L2 on: {', '.join(worse) or 'none'}")  # fmt: skip


def _device_claims(found: Report, names: Sequence[str]) -> Iterable[Claim]:
    """What a GPU decides; open without one."""
    ablation, products, timed = "ablation on the device", "products on the device", found.measured
    if timed is None:
        reason = f"no device: {found.unmeasured or 'there was none'}"
        yield Claim(ablation, "measured levels slower than before", NOT_STATED, None, 0, "=", reason)
        yield Claim(products, "levels with wrong products", NOT_STATED, None, 0, "=", reason)
        return
    seconds = {name: {size: each.seconds for size, each in times.items()} for name, times in timed.levels.items()}
    yield _ablation_claim(ablation, "measured", _slower(seconds, names), f"on {timed.device}")
    yield Claim(products, "levels with wrong products", NOT_STATED, len(timed.wrong), 0, "=",
                f"by a sample of rows and columns in f64: {', '.join(timed.wrong) or 'none'}")  # fmt: skip


def _slower(seconds: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> list[str] | None:
    """Levels that are slower than the one before at a large size that both have; None where no two have one."""
    pairs = [
        (later, size, seconds[earlier][size], own) for earlier, later in pairwise(names)
        for size, own in seconds[later].items() if size >= LARGE and size in seconds[earlier]
    ]  # fmt: skip
    if not pairs:
        return None
    return [f"{later} at {size}" for later, size, before, own in pairs if own > before * (1 + TOLERANCE)]
