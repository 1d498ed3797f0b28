"""What the compile cache holds of a model, and how it is found again.

There are two kinds of entries, since two things are shared differently:

*Code*, under the plan and everything else that the code depends on. Models that differ in the values of their weights
only share it: the states of a network in training, the layers that `torch.compile` hands over one by one.

*Models*, under what `compile` was given: the content of the source, machine, threads, options and versions. An entry
holds the packed constants and says which code belongs to them. It is found without importing or planning anything.

An entry of a model is used if it says the key under which it stands, its inputs and outputs are those of the source,
and the entry of the code has the digest that was noted. An entry of code that is found through a plan has to fit that
plan. Every other entry is removed and made anew. Whose folder is trusted is said in `runtime/trust.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.digest import compiler_digest
from tilewright.errors import CompileError, InvalidFile
from tilewright.files import read_bytes
from tilewright.runtime.archive import Blocks
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cache import Cache, cache_key
from tilewright.runtime.loader import is_object

if TYPE_CHECKING:
    from tilewright.compiler.plan import Plan
    from tilewright.compiler.source import Source
    from tilewright.machine.description import Cpu, Gpu
    from tilewright.options import Options

_MODEL, _CONSTANTS = "model.json", "constants.bin"
# Options that leave an artifact as it is: where it is kept, how it is checked, how it runs.
_WITHOUT_EFFECT = {
    "cache", "cache_dir", "cache_bytes", "pin", "openmp", "output_pool_bytes", "verify_each", "device",
}  # fmt: skip


def model_key(source: Source, machine: Cpu | Gpu, threads: int, options: Options, names: Sequence[str] | None) -> str:
    """The key of a model's entry, or "" for a source that cannot be identified.

    `names` are those of the outputs where they are not the source's own.
    """
    identity = source.identity()
    if identity is None:
        return ""
    return cache_key(
        {
            "kind": "model",
            "source": identity,
            "machine": machine.digest(),
            "threads": str(threads),
            "options": _options_text(options),
            "outputs": json.dumps(names),
            "compiler": compiler_digest(),
            "numpy": np.__version__,  # which computes constants
        }
    )


def _options_text(options: Options) -> str:
    values = {
        field.name: getattr(options, field.name) for field in fields(options) if field.name not in _WITHOUT_EFFECT
    }
    if options.intrinsics is not None:
        values["intrinsics"] = list(options.intrinsics)
    if isinstance(options.fuse, Path):
        values["fuse"] = read_bytes(options.fuse)
    return repr(sorted(values.items()))


def code_key(plan: Plan, machine: Cpu | Gpu, threads: int, options: Options, names: Sequence[str]) -> str:
    """The key of the code of a plan."""
    from tilewright.expr import serialize

    structure = json.dumps(serialize.to_json(plan.graph), sort_keys=True)
    decisions = repr([(k.name, k.scheduled, k.arguments) for k in plan.kernels])
    layouts = repr([(name, str(stored.layout), stored.space, stored.owner) for name, stored in plan.stored.items()])
    return cache_key(
        {
            "program": structure,
            "decisions": decisions + layouts + repr(plan.loops),
            "machine": machine.digest(),
            "threads": str(threads),
            "outputs": repr(names),
            "options": repr((options.disable, options.input_precision, options.mma, options.cluster)),
            "intrinsics": "" if options.intrinsics is None else repr(list(options.intrinsics)),
            "search": json.dumps([each["search"] for each in plan.products.values() if "search" in each]),
            "compiler": compiler_digest(),
        }
    )


def recalled_model(cache: Cache, key: str, source: Source, names: Sequence[str] | None) -> Artifact | None:
    """The artifact of the model under `key`; None where it is not there, or not what was put."""
    blocks = cache.get(key)
    if blocks is None:
        return None
    try:
        stored = json.loads(bytes(blocks[_MODEL]))
        code = cache.get(stored["code"]) if stored["key"] == key else None
        if code is not None and _digest(code) == stored["digest"]:
            artifact = Artifact.from_blocks({**code, _CONSTANTS: blocks[_CONSTANTS]}, known=True)
            if _has_interface(artifact, source, names) and _has_code(artifact):
                return artifact
    except (CompileError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        pass  # made anew, as any other entry that is not what was put
    cache.drop(key)
    return None


def keep_model(cache: Cache, key: str, code: str, artifact: Artifact) -> None:
    """Put a model whose code stands under the key `code`."""
    stored = {"key": key, "code": code, "digest": _digest(_code_blocks(artifact))}
    cache.put(key, {_MODEL: json.dumps(stored).encode(), _CONSTANTS: np.ascontiguousarray(artifact.constants).data})


def recalled_code(
    cache: Cache,
    key: str,
    constants: Callable[[], np.ndarray[Any, Any]],
    interface: Mapping[str, Any],
    launches: Sequence[str] | None,
) -> Artifact | None:
    """The artifact with the code under `key`, and what `constants` gives; None where it is not there, or does not fit.

    Its manifest has to have the fields `interface`, and on a CPU `launches` of these names.
    """
    blocks = cache.get(key)
    if blocks is None:
        return None
    try:
        artifact = Artifact.from_blocks({**blocks, _CONSTANTS: constants().data})
    except InvalidFile:
        cache.drop(key)
        return None
    manifest = artifact.manifest
    if (
        {name: getattr(manifest, name) for name in interface} != dict(interface)
        or (launches is not None and [launch.name for launch in manifest.launches] != list(launches))
        or not _has_code(artifact)
    ):
        cache.drop(key)
        return None
    return artifact


def keep_code(cache: Cache, key: str, artifact: Artifact) -> None:
    """Put the code of an artifact, and what explains it, without its constants."""
    cache.put(key, _code_blocks(artifact))


def _code_blocks(artifact: Artifact) -> Blocks:
    return {name: block for name, block in artifact.to_blocks().items() if name != _CONSTANTS}


def _digest(blocks: Blocks) -> str:
    return cache_key({name: bytes(block) for name, block in blocks.items()})


def _has_interface(artifact: Artifact, source: Source, names: Sequence[str] | None) -> bool:
    interface, manifest = source.interface(), artifact.manifest
    assert interface is not None, "a source with an identity tells its names"
    inputs, outputs = interface
    found = tuple(spec.name for spec in manifest.inputs), tuple(spec.name for spec in manifest.outputs)
    return found == (tuple(inputs), tuple(names or outputs))


def _has_code(artifact: Artifact) -> bool:
    manifest = artifact.manifest
    return manifest.code != "object" or is_object(artifact.code, manifest.triple)
