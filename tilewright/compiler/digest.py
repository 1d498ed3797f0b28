"""What tells one version of this compiler from another, for what is kept in the compile cache."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

VERSION = "1"
_WITHOUT_EFFECT = ("__pycache__", "tests", "cli", "emulator", "report", "reproduce")  # folders: they make no code


def compiler_digest() -> str:
    """What tells this compiler, and the LLVM below it, from other versions."""
    major, minor, patch = llvm.llvm_version_info
    return f"{VERSION} {_source_digest()} llvmlite {llvmlite.__version__}, LLVM {major}.{minor}.{patch}"


@cache
def _source_digest() -> str:
    """A digest of this package's own sources, so that a changed compiler never meets its old code."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(Path(__file__).resolve().parent.parent):
        folders[:] = sorted(name for name in folders if name not in _WITHOUT_EFFECT)
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()[:16]
