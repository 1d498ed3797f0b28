"""The `.twm` file: a compiled module on disk. Loading one runs its machine code: only load files you trust."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from os import PathLike, fspath

from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.loader import missing_features, same_platform
from tilewright.runtime.module import Module

Rebuild = Callable[[Artifact], Artifact]  # compiles the program of an artifact for this machine


def load(
    path: str | PathLike[str],
    threads: int | None = None,
    options: Options | None = None,
    rebuild: Rebuild | None = None,
    device: str | None = None,
) -> Module:
    """Load a `.twm`: it runs as it was saved, nothing is compiled.

    Where it was made for another kind of machine or for CPU features that this one lacks, `rebuild` compiles it
    again, with a warning; without `rebuild` that is an InvalidFile that says what is missing. Code for a GPU runs on
    `device`.
    """
    artifact, name = Artifact.read(path), fspath(path)
    manifest = artifact.manifest
    lacking = missing_features(manifest.features)
    foreign = not same_platform(manifest.triple)
    if rebuild and manifest.code == "object" and (foreign or lacking):
        needs = f"a machine of kind {manifest.triple}" if foreign else f"the CPU features {', '.join(lacking)}"
        message = (
            f"{name}: its code needs {needs}, and is compiled again for this machine; "
            f"`tilewright compile {name} --rebuild -o FILE` keeps the result"
        )
        warnings.warn(message, stacklevel=3)
        artifact = rebuild(artifact)
    return opened(artifact, threads, options, device)


def opened(
    artifact: Artifact, threads: int | None = None, options: Options | None = None, device: str | None = None
) -> Module:
    """The module of an artifact, ready to be called: on threads of the host, or on `device` if it is for a GPU."""
    if artifact.manifest.code == "object":
        return Module(artifact, threads=threads, options=options)
    from tilewright.runtime.cuda.module import DeviceModule

    return DeviceModule(artifact, device, options)
