"""What is timed: a `Case` by name, the `Problem` it builds, and the `Task` that a peer gets from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.arrays import Array, load_arrays

if TYPE_CHECKING:
    import onnx
    import torch

Limit = Literal["f32", "bf16", "int8", "copy", "none"]

# Largest error allowed, relative to the largest magnitude of the exact result. f32 is held to 1e-4: sums of a few
# thousand rounded terms and Winograd transforms stay below it; inputs rounded to bf16 (error about 3e-3) or to TF32
# (about 4e-4) do not. A bf16 result may be off by one unit in its last place.
F32_TOLERANCE = 1e-4
BF16_TOLERANCE = 2.0**-7


@dataclass(frozen=True)
class Problem:
    """One computation, defined as an ONNX model and as PyTorch modules that take the same inputs in the same order.

    inputs        example values by the model's input names
    modules       ways to write it in PyTorch, by name: the PyTorch peers time the fastest
    flops         additions and multiplications of the useful work, without what padding adds
    tolerance     largest error, relative to the largest magnitude of the exact result
    exponentials  of a softmax between products
    reference     computes the exact result; None: the first of `modules` in float64
    variants      the same work with another form of result, by the name of that form, for libraries whose fastest
                  code has no other; their inputs and the names of their outputs are those of the problem
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    modules: Mapping[str, torch.nn.Module]
    flops: int
    tolerance: float = F32_TOLERANCE
    exponentials: int = 0
    reference: torch.nn.Module | None = None
    variants: Mapping[str, Problem] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A named problem of a family. `limit` names what bounds its speed (`bench.ceilings.bound`).

    `build_modules` makes the modules of the problem alone, where the rest takes long and there are no variants.
    """

    name: str
    family: str
    limit: Limit
    build: Callable[[], Problem] = field(compare=False)
    build_modules: Callable[[], Mapping[str, torch.nn.Module]] | None = field(default=None, compare=False)

    def modules(self) -> dict[str, Mapping[str, torch.nn.Module]]:
        """The modules of the problem, as "", and of its variants by their names."""
        if self.build_modules:
            return {"": self.build_modules()}
        problem = self.build()
        return {name: form.modules for name, form in {"": problem, **problem.variants}.items()}


# Files of facts. Earlier versions, which `--earlier` times, read the first one and refuse what they do not know.
FACTS = "facts.json", "exponentials.json"


@dataclass(frozen=True)
class Facts:
    """What a prepared problem is like. `bytes` counts inputs, constants and outputs once."""

    flops: int
    exponentials: int
    bytes: int
    tolerance: float
    output_names: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """A prepared case, as a peer sees it: files in `directory`, and one core for each thread it may use."""

    case: str
    directory: Path
    cores: tuple[int, ...]

    @property
    def model_path(self) -> Path:
        return self.directory / "model.onnx"

    def inputs(self) -> dict[str, Array]:
        return load_arrays(self.directory / "inputs.npz")

    def reference(self) -> dict[str, Array]:
        """The exact outputs, in float64 or int64."""
        return load_arrays(self.directory / "reference.npz")

    def output_buffers(self) -> dict[str, Array]:
        """Zeroed arrays of the dtypes and shapes of the model's outputs: their pages exist before timing starts."""
        return load_arrays(self.directory / "outputs.npz")

    def facts(self) -> Facts:
        stored: dict[str, Any] = {}
        for name in FACTS:
            stored |= json.loads((self.directory / name).read_text())
        return Facts(**{**stored, "output_names": tuple(stored["output_names"])})

    def variant(self, name: str) -> Task:
        """The task of a variant of the problem; of the problem itself for ""."""
        return replace(self, directory=self.directory / name)

    def forms(self) -> dict[str, Task]:
        """The task itself, as "", and its variants by name."""
        names = sorted(path.name for path in self.directory.iterdir() if path.is_dir())
        return {name: self.variant(name) for name in ("", *names)}


@dataclass(frozen=True)
class Loaded:
    """A task that a peer is ready to run.

    call             runs it once, on the inputs and into the outputs that were fixed when it was loaded
    outputs          the arrays that the last call wrote, in the order of the model's outputs
    compile_seconds  from the model file to a callable, without Python's imports
    notes            what the reader of a result should know: layouts chosen, ways that were refused
    variant          the variant of the problem that it computes; empty: the problem itself
    keep             memory that the peer's library knows by address only
    """

    call: Callable[[], Any]
    outputs: Callable[[], list[Array]]
    compile_seconds: float
    notes: str = ""
    variant: str = ""
    keep: object = None


class SkippedError(Exception):
    """A peer can't run a task, for the reason given."""
