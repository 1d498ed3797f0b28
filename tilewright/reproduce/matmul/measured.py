"""The levels of the ablation timed on a GPU: checked first, then in turns with torch's product, over rotating inputs.

A sample is one recorded sequence of products, one for each set of inputs; together the sets are larger than the last
level of the cache. Without torch there is nothing to compare with, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import numpy as np

from tilewright.codegen.nvptx.pipeline import generate
from tilewright.codegen.nvptx.target import target_for
from tilewright.dataclass import dataclass
from tilewright.errors import DeviceError
from tilewright.machine.description import Gpu
from tilewright.reproduce.experiment import positive
from tilewright.reproduce.matmul.switches import Settings, compiled
from tilewright.runtime.cuda.driver import Driver, DriverFault, Slot
from tilewright.runtime.cuda.measure import Timing

Array = np.ndarray[Any, Any]
WARM, RUNS = 3, 10  # as in the publication
FEW_RUNS, SLOW_SECONDS = 3, 0.5  # of a product from which on there are but few runs
MOST_SECONDS = 5.0  # of a product; what would take longer by the size before is left out
MOST_SETS = 64
CHECKED_ROWS, CHECKED_COLUMNS = 8, 64


@dataclass(frozen=True)
class Measured:
    """What was timed on a device: by level and size, and the library's product by size.

    `library` is torch with its version, "" without; `wrong` names what was not right, `left_out` what was not run.
    """

    device: str
    library: str
    levels: dict[str, dict[int, Timing]]
    products: dict[int, Timing]
    wrong: list[str]
    left_out: list[str]

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Measured:
        """Raises LookupError, TypeError or ValueError for what `dataclasses.asdict` did not give."""
        return cls(
            str(found["device"]), str(found["library"]),
            {str(level): _timings(times) for level, times in found["levels"].items()}, _timings(found["products"]),
            list(map(str, found["wrong"])), list(map(str, found["left_out"])),
        )  # fmt: skip


def _timings(found: Mapping[str, Any]) -> dict[int, Timing]:
    return {
        int(size): Timing(
            positive(each["seconds"]), positive(each["low"]), positive(each["high"]), int(each["samples"])
        )
        for size, each in found.items()
    }


Sample = Callable[[], float]  # runs one product per set of inputs, gives the seconds of them all


class Library(Protocol):
    """Somebody else's product of f16."""

    name: str

    def sample(self, a: Array, b: Array, sets: int) -> Sample:
        """The product of so many copies of the same inputs; raises RuntimeError where memory does not suffice."""

    def release(self) -> None:
        """Give memory back that no sample needs any more."""


def torch_library(driver: Driver) -> Library | None:
    """The product of torch on the same device; None where torch is not installed, or has no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return _Torch(torch, int(getattr(driver, "ordinal", 0))) if torch.cuda.is_available() else None


def measure(
    levels: Mapping[str, Settings], sizes: Sequence[int], machine: Gpu, driver: Driver, library: Library | None,
    warm: int = WARM, runs: int = RUNS,
) -> Measured:  # fmt: skip
    """Time square products, smallest first; raises DeviceError where a kernel faults, which ends the device's use."""
    with _faults("a stream", driver):
        stream = driver.new_stream()
    found = Measured(driver.name, library.name if library else "", {level: {} for level in levels}, {}, [], [])
    for size in sorted(sizes):
        wanted = {
            level: chosen for level, chosen in levels.items()
            if _expected(found.levels[level], size) <= MOST_SECONDS
        }  # fmt: skip
        found.left_out.extend(f"{level} at {size}: too slow" for level in levels if level not in wanted)
        with ExitStack() as held:
            try:
                inputs = _Inputs(size, driver, stream, held)
            except DriverFault as fault:
                if "memory" not in fault.code.lower():
                    raise _error(fault, f"{size}x{size}x{size}", driver) from fault
                found.left_out.append(f"{size}: {_line(fault)}")
                continue
            times = _in_turns(_samples(wanted, inputs, machine, library, found), len(inputs.sets), warm, runs)
        for name, timing in times.items():
            found.levels.get(name, found.products)[size] = timing
        if library is not None:
            library.release()
    return found


def _samples(
    levels: Mapping[str, Settings], inputs: _Inputs, machine: Gpu, library: Library | None, found: Measured
) -> dict[str, Sample]:
    """What can be timed on some inputs; each level has been run and checked."""
    samples: dict[str, Sample] = {}
    for level, chosen in levels.items():
        samples[level] = _ours(level, chosen, inputs, machine)
        with _faults(_product(level, inputs.size), inputs.driver):
            right = inputs.right()
        if not right:
            found.wrong.append(f"{level} at {inputs.size}")
    if library is not None:
        try:
            samples[library.name] = library.sample(inputs.a, inputs.b, len(inputs.sets))
        except RuntimeError as error:
            found.left_out.append(f"{library.name} at {inputs.size}: {_line(error)}")
    return samples


def _expected(times: Mapping[int, Timing], size: int) -> float:
    """Seconds that a product would take by the time of the largest before; 0 for the first."""
    before = max(times, default=0)
    return times[before].seconds * (size / before) ** 3 if before else 0.0


def _in_turns(samples: Mapping[str, Sample], sets: int, warm: int, runs: int) -> dict[str, Timing]:
    """One sample of each after the other, so that all of them see the same clocks."""
    enough = {}
    for name, sample in samples.items():
        slow = sample() / sets > SLOW_SECONDS
        enough[name] = min(runs, FEW_RUNS) if slow else runs
        for _ in range(0 if slow else warm - 1):
            sample()
    taken: dict[str, list[float]] = {name: [] for name in samples}
    for run in range(runs):
        for name, sample in samples.items():
            if run < enough[name]:
                taken[name].append(sample() / sets)
    return {name: Timing.of(seconds) for name, seconds in taken.items()}


# Ours -----------------------------------------------------------------------------------------------------------------


class _Inputs:
    """Sets of a, b and c on the device, with the same a and b; `held` gives back whatever is on the device."""

    def __init__(self, size: int, driver: Driver, stream: int, held: ExitStack) -> None:
        self.size, self.driver, self.stream, self.held = size, driver, stream, held
        self.sets: list[tuple[Slot, Slot, Slot]] = []
        rng = np.random.default_rng(size)
        self.a, self.b = (rng.standard_normal((size, size), np.float32).astype(np.float16) for _ in "ab")
        self.rows = np.unique([*rng.integers(0, size, CHECKED_ROWS), size - 1])
        self.columns = np.unique([*rng.integers(0, size, CHECKED_COLUMNS), size - 1])
        few, large = 2 * size**2, 4 * size**2
        count = min(MOST_SETS, max(2, 2 * driver.cache_bytes // (2 * few + large) + 1))
        for number in range(count):
            a, b, c = (Slot(f"{name} of set {number}", bytes_, self._allocated(bytes_))
                       for name, bytes_ in (("a", few), ("b", few), ("c", large)))  # fmt: skip
            for slot, array in ((a, self.a), (b, self.b)):
                driver.upload(slot.word.value, array.ctypes.data, slot.bytes, self.stream)
            driver.fill(c.word.value, large, self.stream)
            self.sets.append((a, b, c))
        driver.synchronize(self.stream)

    def right(self) -> bool:
        """Whether c of the first set is the product, by the bound of sums in f32; it is 0 again afterwards."""
        c = np.empty((self.size, self.size), np.float32)
        place = self.sets[0][2]
        self.driver.download(c.ctypes.data, place.word.value, place.bytes, self.stream)
        self.driver.synchronize(self.stream)
        self.driver.fill(place.word.value, place.bytes, self.stream)
        a, b = self.a[self.rows].astype(np.float64), self.b[:, self.columns].astype(np.float64)
        bound = (self.size / 16 + 4) * 2.0**-20 * (np.abs(a) @ np.abs(b))
        return bool((np.abs(c[np.ix_(self.rows, self.columns)] - a @ b) <= bound).all())

    def _allocated(self, size: int) -> int:
        address = self.driver.allocate(size)
        self.held.callback(_quietly, self.driver.free, address)
        return address


def _ours(level: str, chosen: Settings, inputs: _Inputs, machine: Gpu) -> Sample:
    """The kernel of a level, run once on the first set; then samples that are recorded."""
    size, driver = inputs.size, inputs.driver
    module = compiled((size, size, size), chosen, machine.shared_bytes_per_block)
    module.attributes["tile.target"] = target_for(machine).attribute()
    code = generate(module)
    kernel = code.kernel("k")
    with _faults(_product(level, size), driver):
        library = driver.load(code.ptx.encode())
        inputs.held.callback(_quietly, driver.unload, library)
        launches = [driver.prepare(library, kernel, slots) for slots in inputs.sets]
        driver.launch(launches[0], inputs.stream)
        driver.synchronize(inputs.stream)
        recording = driver.begin_capture()
        for launch in launches:
            driver.launch(launch, recording)
        graph = driver.end_capture(recording)
        inputs.held.callback(_quietly, driver.drop_graph, graph)

    def sample() -> float:
        with _faults(_product(level, size), driver):
            start, end = driver.new_event(), driver.new_event()
            driver.record(start, inputs.stream)
            driver.launch_graph(graph, inputs.stream)
            driver.record(end, inputs.stream)
            driver.synchronize(inputs.stream)
            return driver.seconds(start, end)

    return sample


def _quietly(release: Callable[[Any], None], what: Any) -> None:
    """Give something back; a device that has failed has given up everything already."""
    with suppress(DriverFault):
        release(what)


@contextmanager
def _faults(where: str, driver: Driver) -> Iterator[None]:
    """Faults of the device in here are errors for the user."""
    try:
        yield
    except DriverFault as fault:
        raise _error(fault, where, driver) from fault


def _product(level: str, size: int) -> str:
    return f"{level}, {size}x{size}x{size}"


def _error(fault: DriverFault, where: str, driver: Driver) -> DeviceError:
    help_ = "--machine: what the code is for; --device emulator only counts"
    return DeviceError(f"{fault} on {driver.name}", where=f"mlir-matmul, {where}", help=help_)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# Torch ----------------------------------------------------------------------------------------------------------------


class _Torch:
    """``torch.matmul`` of f16, which is cuBLAS's, recorded and timed by torch's own events."""

    def __init__(self, torch: Any, ordinal: int) -> None:
        self.name = f"torch {torch.__version__}"
        self._torch, self._device = torch, f"cuda:{ordinal}"

    def sample(self, a: Array, b: Array, sets: int) -> Sample:
        torch = self._torch
        inputs = [tuple(torch.from_numpy(each).to(self._device, copy=True) for each in (a, b)) for _ in range(sets)]
        results = [torch.empty_like(first) for first, _ in inputs]

        def run() -> None:
            for (x, y), result in zip(inputs, results, strict=True):
                torch.matmul(x, y, out=result)

        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                run()  # what the library sets up at first cannot be recorded
            aside.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()

        def sample() -> float:
            with torch.cuda.device(self._device):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return sample

    def release(self) -> None:
        self._torch.cuda.empty_cache()
