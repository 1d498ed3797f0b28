"""Settings of passes: each is checked when its pass is made, so that an illegal one never reaches a program."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.passes import ModulePass

from tilewright.errors import InvalidArgument


def at_least(least: int, owner: ModulePass, *names: str) -> None:
    """Refuse settings of `owner` that are smaller."""
    for name in names:
        _check(owner, name, getattr(owner, name) >= least, f"{least} or more")


def power_of_two(owner: ModulePass, *names: str, most: int = 1 << 16) -> None:
    """Refuse settings that are not 1, 2, 4, … up to `most`."""
    for name in names:
        value = getattr(owner, name)
        _check(owner, name, 1 <= value <= most and not value & (value - 1), f"a power of two, {most} at most")


def one_of(words: Sequence[str], owner: ModulePass, name: str) -> None:
    """Refuse a setting that is none of the words."""
    _check(owner, name, getattr(owner, name) in words, f"one of {', '.join(words)}")


def _check(owner: ModulePass, name: str, legal: bool, help: str) -> None:
    if not legal:
        raise InvalidArgument(f"pass {owner.name!r}: {name}={getattr(owner, name)}", help=help)
