"""Errors for users: every one derives from `CompileError` and says where, what, and what would be legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class CompileError(Exception):
    """A mistake in what the user gave: a model, a shape, a file, an option.

    `where` names the place (file and line, node, argument), `message` the fact with its values, `help` the
    nearest legal change. `code` is stable and short, for scripts and tests.
    """

    code = "compile-error"

    def __init__(self, message: str, *, where: str = "", help: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.help = help

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  = help: {self.help}" if self.help else ""
        return f"{place}error[{self.code}]: {self.message}{advice}"


class InvalidExpression(CompileError):
    """A tensor expression that breaks a rule of `expr`: ranks, dtypes, loop kinds, bounds."""

    code = "invalid-expression"


class ExtentMismatch(InvalidExpression):
    """Two extents that must agree do not."""

    code = "extent-mismatch"


class Unsupported(CompileError):
    """Legal input that this version does not compile; the message lists every occurrence."""

    code = "unsupported"


class InvalidModel(CompileError):
    """A model file or program that cannot be read, or is malformed."""

    code = "invalid-model"


class InvalidArgument(CompileError):
    """An argument of an API call or a command that does not fit: dtype, shape, range, name."""

    code = "invalid-argument"


class InvalidMachine(CompileError):
    """A machine description that is unknown, malformed or contradictory."""

    code = "invalid-machine"


class InvalidIntrinsic(CompileError):
    """A description of an intrinsic that is unknown, malformed or contradictory."""

    code = "invalid-intrinsic"


class ScheduleError(CompileError):
    """A matrix problem, schedule or option of the schedule deduction that does not fit; the message has the numbers."""

    code = "schedule-error"


class InvalidProgram(CompileError):
    """A tile program that does not parse or verify."""

    code = "invalid-program"


class InvalidFile(CompileError):
    """A stored module, cache entry or data file that is missing, damaged or of another version."""

    code = "invalid-file"


class DeviceError(CompileError):
    """A GPU that is not there, refuses, or faults; the message names the kernel and its arguments."""

    code = "device-error"


class MissingExtra(CompileError):
    """An optional dependency is not installed; the help names the `pip install`."""

    code = "missing-extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed",
            help=f"pip install 'tilewright[{extra}]'",
        )


def nearest(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The words most like one that is not known, the most alike first; where several may be, less alike ones too."""
    from difflib import get_close_matches  # errors alone need it

    return get_close_matches(word, list(known), most, 0.6 if most == 1 else 0.5)
