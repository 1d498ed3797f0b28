"""What tells one version of this compiler from another, for what is kept in the compile cache."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

VERSION = "1"


def compiler_digest() -> str:
    """What tells this compiler, and the LLVM below it, from other versions."""
    major, minor, patch = llvm.llvm_version_info
    return f"{VERSION} {_source_digest()} llvmlite {llvmlite.__version__}, LLVM {major}.{minor}.{patch}"


@cache
def _source_digest() -> str:
    """A digest of this package's own sources, so that a changed compiler never meets its old code."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.parent.rglob("*.py")):
        if "tests" not in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
