"""A compiled module that can be called: `module(x, y)`, `module(x=x, y=y)`, `module(x, y, out=z)`.

A call fills in a *context* (the call structure of the binary interface, an arena and scratch space) and runs
`tw_main` without the interpreter lock. Contexts are made when calls overlap and kept for later ones, so that a call
allocates nothing but the outputs that the caller did not supply, and calls from several threads do not interfere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from tilewright.errors import InvalidArgument
from tilewright.expr.dtypes import numpy_dtype
from tilewright.options import Options
from tilewright.runtime import fastcall
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.calibration_file import stored_rates
from tilewright.runtime.counter import ticks_per_second
from tilewright.runtime.loader import load_object
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.memory import aligned, allocate
from tilewright.runtime.named_inputs import in_order
from tilewright.runtime.outputs import OUTPUTS, pooled
from tilewright.runtime.pool import Pool, get_pool
from tilewright.runtime.profile import KernelTime, Profile
from tilewright.runtime.tensor_call import TensorCall
from tilewright.runtime.tensors import View, empty, is_recording, is_torch, ready_input, ready_output, written

_MOST_REPEATS = 1_000_000  # of a profile
# Fields of the call structure, docs/developers/design.md; the pointers to inputs and outputs are behind it.
_FIELDS = ("inputs", "outputs", "constants", "arena", "scratch", "parallel", "pool", "profile")
_CALL = {name: word for word, name in enumerate(_FIELDS)}
_ARRAY = np.ndarray  # looked up once: a short call takes 1.6 µs
_MAIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # releases the interpreter lock


class Module:
    """An artifact, loaded: call it with arrays.

    Inputs are NumPy arrays, torch tensors, or other objects with `__dlpack__`, on the CPU, in the order of
    `manifest.inputs` or by name. They are used where they are; only an input that is not contiguous is copied. Results
    are torch tensors if an input was one, else NumPy arrays: one, or a tuple where the module has several outputs.
    """

    def __init__(self, artifact: Artifact, threads: int | None = None, options: Options | None = None) -> None:
        """Load the code. `threads`: by default OMP_NUM_THREADS, or the cores that the process may use.

        Raises InvalidFile where this machine cannot run the code.
        """
        self.artifact = artifact
        self._pool = get_pool(threads, options)
        self._code = load_object(artifact.code, artifact.manifest)
        self._main_address = self._code.address("tw_main")
        self._main = _MAIN(self._main_address)
        self._constants = aligned(artifact.constants)
        self._contexts: list[_Context] = []
        self._limit_bytes = (options or Options()).output_pool_bytes
        self._empty = [self._maker(spec) for spec in self.manifest.outputs]
        self._single = len(self._empty) == 1
        self._tensors: TensorCall | None = None  # made by the first call with tensors of torch
        self._fast: fastcall.FastCall | None = None
        if fastcall.available():
            manifest, context = self.manifest, self._make_context()
            call, pointers = context.address, context.address + 8 * len(_FIELDS)
            self._fast = fastcall.FastCall(
                manifest.inputs, manifest.outputs, call, pointers, self._main_address, alive=context
            )

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def device(self) -> str:
        """Where calls run: "cpu", a GPU's name, or "emulator"."""
        return "cpu"

    @property
    def threads(self) -> int:
        return self._pool.threads

    @property
    def pool(self) -> Pool:
        return self._pool

    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the module. `out`: an array, or a sequence with one array per output, that receives the results.

        Raises InvalidArgument that names the tensor, what is wrong with it and the nearest fix.
        """
        if named:
            arrays = in_order(self.manifest, arrays, named)
        fast = self._fast
        if fast is not None and (not arrays or type(arrays[0]) is _ARRAY):
            if out is None:
                empty = (
                    self._empty
                )  # gone through in a loop, a list of one takes 0.5 of the 2.2 µs of a short call (Zen 1)
                results: tuple[Any, ...] = (empty[0](),) if self._single else tuple([make() for make in empty])
            else:
                results = tuple(out) if isinstance(out, (tuple, list)) else (out,)
            if fast.run(arrays, results):
                return results[0] if self._single else results
            del results  # so that the long way can use their memory
        elif fast is not None and is_torch(arrays[0]):
            if self._tensors is None:
                self._tensors = TensorCall(self.manifest, fast, self._limit_bytes)
            found = self._tensors(arrays, out)
            if found is not None:
                return found[0] if self._single else tuple(found)
        return self._call_any(arrays, out)

    def profile(self, /, *arrays: Any, repeats: int = 10, **named: Any) -> Profile:
        """Time every launch: run once to warm up, then `repeats` times, and take the median. No arrays: zeros.

        The result is a sequence of the launches; printed it is a table, the longest first.
        """
        check_repeats(repeats)
        launches = self.manifest.launches
        if named:
            arrays = in_order(self.manifest, arrays, named)
        elif not arrays:
            arrays = tuple(np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in self.manifest.inputs)
        inputs = self._ready_inputs(arrays)
        outputs = self._ready_outputs(inputs, None)
        stamps = np.zeros((repeats + 1, len(launches), 2), np.int64)
        for repeat in range(repeats + 1):
            self._run(inputs, outputs, stamps[repeat])
        seconds = (stamps[1:, :, 1] - stamps[1:, :, 0]) / ticks_per_second()
        times = [
            KernelTime(
                launch.name, launch.kernel, launch.programs, launch.flops, launch.bytes,
                float(np.median(seconds[:, index])),
            )
            for index, launch in enumerate(launches)
        ]  # fmt: skip
        return Profile(times, self.manifest, self.threads)

    @property
    def trees(self) -> dict[str, Any]:
        """The tile tree of every kernel by its name, as data: what `Options.trees` takes."""
        return self.artifact.stored_plan().trees

    def explain(self, kernel: str = "", *, top: int = 3, all: bool = False, profile: Profile | None = None) -> str:
        """What was decided: summaries of the `top` most expensive kernels, or of `kernel` with all its decisions.

        `all` adds every decision: what was chosen and why, what came second, what was refused. Times are predicted if
        `tilewright calibrate` has measured this machine; a `profile` puts measured ones beside them.
        """
        from tilewright.runtime.explanation import Explanation

        rates = stored_rates() if self.manifest.code == "object" else None
        return Explanation.of(self.artifact, self.threads, rates, profile).text(top, kernel, all)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a `.twm`, which `tilewright.load` reads. Raises InvalidArgument if it cannot be written."""
        self.artifact.save(path)

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "a module cannot be pickled or copied: it is code in the memory of this process",
            where=self.manifest.name,
            help="save it and load the file where it is needed; calls from several threads may share one module",
        )

    def __repr__(self) -> str:
        inputs, outputs = (
            ", ".join(f"{spec.name}: {spec}" for spec in specs)
            for specs in (self.manifest.inputs, self.manifest.outputs)
        )
        return f"<Module {self.manifest.name} ({inputs}) -> ({outputs}), {self.threads} threads>"

    def _call_any(self, arrays: Sequence[Any], out: Any) -> Any:
        """The long way: arrays of any kind, copies, messages."""
        if any(map(is_torch, arrays)) and is_recording():
            message = "torch records its operations (torch.jit.trace, make_fx), and a call of a module is none of them"
            raise InvalidArgument(message, where=self.manifest.name, help="call the module outside of the recording")
        inputs = self._ready_inputs(arrays)
        outputs = self._ready_outputs(inputs, out)
        self._run(inputs, outputs, None)
        if out is not None:
            written([view.owner if view.alive is None else view.alive for view in outputs])  # `alive`: of no subclass
        return outputs[0].owner if self._single else tuple(output.owner for output in outputs)

    def _ready_inputs(self, arrays: Sequence[Any]) -> list[View]:
        specs = self.manifest.inputs
        if len(arrays) != len(specs):
            wanted = ", ".join(f"{spec.name}: {spec}" for spec in specs) or "none"
            raise InvalidArgument(
                f"{len(arrays)} inputs given, {len(specs)} expected", where=self.manifest.name, help=f"give {wanted}"
            )
        return [ready_input(array, spec) for array, spec in zip(arrays, specs, strict=True)]

    def _ready_outputs(self, inputs: Sequence[View], out: Any) -> list[View]:
        specs = self.manifest.outputs
        if out is None:
            torch = any(is_torch(view.owner) for view in inputs)
            return [empty(spec, torch, self._limit_bytes) for spec in specs]
        arrays = list(out) if isinstance(out, (tuple, list)) else [out]
        if len(arrays) != len(specs):
            raise InvalidArgument(
                f"out has {len(arrays)} arrays, the module has {len(specs)} outputs",
                where=self.manifest.name,
                help=f"give {', '.join(f'{spec.name}: {spec}' for spec in specs) or 'no out'}",
            )
        outputs = [ready_output(array, spec) for array, spec in zip(arrays, specs, strict=True)]
        _check_apart(inputs, self.manifest.inputs, outputs, specs)
        return outputs

    def _maker(self, spec: TensorSpec) -> Callable[[], np.ndarray[Any, Any]]:
        """Makes an array of NumPy for an output."""
        dtype = numpy_dtype(spec.dtype)
        if pooled(spec.bytes, self._limit_bytes):
            return partial(OUTPUTS.empty, spec.shape, dtype, self._limit_bytes)
        return partial(np.empty, spec.shape, dtype)

    def _run(self, inputs: Sequence[View], outputs: Sequence[View], stamps: np.ndarray[Any, Any] | None) -> None:
        addresses = tuple([view.address for view in (*inputs, *outputs)])
        if stamps is None and self._fast is not None and self._fast.run(addresses):
            return
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self._make_context()
        context.set_pointers(addresses)
        context.words[_CALL["profile"]] = stamps.ctypes.data if stamps is not None else 0
        status = self._main(context.address)
        self._contexts.append(context)
        if status:
            raise RuntimeError(f"the compiled code of {self.manifest.name} reported failure {status}")

    def _make_context(self) -> _Context:
        """Raises InvalidArgument where this machine has too little memory for a call."""
        try:
            return _Context(self.manifest, self._constants.ctypes.data, self._pool)
        except MemoryError as error:
            manifest, threads = self.manifest, self._pool.threads
            message = (
                f"{manifest.arena_bytes:,} bytes of arena and {threads} times {manifest.scratch_bytes:,} of scratch"
            )
            help = "fewer threads, or smaller tensors"
            raise InvalidArgument(f"{message} do not fit into the memory", where=manifest.name, help=help) from error


def check_repeats(repeats: object, name: str = "repeats") -> None:
    """Raises InvalidArgument for what is no number of runs, or so large that their times would fill the memory.

    `name` is that of the argument.
    """
    if type(repeats) is not int or not 1 <= repeats <= _MOST_REPEATS:
        fact, legal = f"{name} is {repeats!r}", f"a number from 1 to {_MOST_REPEATS:,}"
        raise InvalidArgument(fact, where=name, help=legal)


class _Context:
    """The memory of one call at a time: call structure, pointers, arena, scratch."""

    def __init__(self, manifest: Manifest, constants: int, pool: Pool) -> None:
        tensors = len(manifest.inputs) + len(manifest.outputs)
        self.words = (ctypes.c_uint64 * (len(_FIELDS) + tensors))()
        self.address = ctypes.addressof(self.words)
        self._arena = allocate(manifest.arena_bytes)
        self._scratch = allocate(manifest.scratch_bytes * pool.threads)
        pointers = self.address + 8 * len(_FIELDS)
        values = {
            "inputs": pointers,
            "outputs": pointers + 8 * len(manifest.inputs),
            "constants": constants,
            "arena": self._arena.ctypes.data,
            "scratch": self._scratch.ctypes.data,
            "parallel": pool.parallel,
            "pool": pool.address,
        }
        for name, value in values.items():
            self.words[_CALL[name]] = value

    def set_pointers(self, addresses: Sequence[int]) -> None:
        self.words[len(_FIELDS) :] = list(addresses)


def _check_apart(
    inputs: Sequence[View], input_specs: Sequence[TensorSpec], outputs: Sequence[View], specs: Sequence[TensorSpec]
) -> None:
    """Raise if an output shares memory with an input or with another output."""
    others = [(f"input {spec.name!r}", view) for spec, view in zip(input_specs, inputs, strict=True)]
    for spec, output in zip(specs, outputs, strict=True):
        where = f"output {spec.name!r}"
        for name, other in others:
            if output.address < other.end and other.address < output.end and output.bytes and other.bytes:
                raise InvalidArgument(
                    f"out shares memory with {name}", where=where, help=f"give an array of its own as out: {spec}"
                )
        others.append((where, output))
