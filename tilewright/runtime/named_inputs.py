"""Inputs of a module that are given by name, in the order of its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import InvalidArgument, nearest
from tilewright.runtime.manifest import Manifest


def in_order(manifest: Manifest, arrays: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """All inputs: those by position first, then those by name, as Python binds arguments.

    Raises InvalidArgument that lists names that are unknown, given twice, or missing.
    """
    names = [spec.name for spec in manifest.inputs]
    expected = ", ".join(f"{spec.name}: {spec}" for spec in manifest.inputs) or "no inputs"
    unknown = [name for name in named if name not in names]
    if unknown:
        left = {name.casefold(): name for name in names[len(arrays) :] if name not in named}
        near = nearest(unknown[0].casefold(), left)
        help = f"did you mean {left[near[0]]}? The inputs are {expected}" if near else f"the inputs are {expected}"
        fact = f"no input is called {_listed(unknown)}"
        raise InvalidArgument(fact, where=manifest.name, help=help)
    twice = [name for name in names[: len(arrays)] if name in named]
    if twice:
        fact = f"{_listed(twice)} given by position and by name"
        raise InvalidArgument(fact, where=manifest.name, help="give each input once")
    missing = [name for name in names[len(arrays) :] if name not in named]
    if missing:
        raise InvalidArgument(f"{_listed(missing)} missing", where=manifest.name, help=f"the inputs are {expected}")
    return (*arrays, *(named[name] for name in names[len(arrays) :]))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
