"""What every command shares: text or JSON on stdout, errors and progress on stderr, the exit statuses."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import typer

from tilewright.errors import CompileError, MissingExtra

NEGATIVE = 1  # the command ran, and the answer is no: a wrong result, something that needs attention
BAD_INPUT = 2  # a command line, file or model that does not fit
LACKING = 3  # this machine lacks something: a package, a CPU feature
INTERRUPTED = 130  # as shells report it
BROKEN_PIPE = 141  # likewise: who read the output has left, as `head` does

_QUIET_SECONDS = 2.0  # work shorter than this shows no progress

P = ParamSpec("P")
R = TypeVar("R")


class MachineLacks(CompileError):
    """This machine cannot run what was asked for; the message says what it lacks."""

    code = "machine-lacks"


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """`command`, with users' errors as messages instead of tracebacks; with `--json` also as JSON on stdout."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except CompileError as error:
            fail(error, as_json=bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            fail(CompileError("this machine has not enough memory for it"), as_json=bool(kwargs.get("as_json")))

    return run


def fail(error: CompileError, *, as_json: bool = False) -> NoReturn:
    """Report an error and leave with the status of its kind."""
    if as_json:
        show_json({"error": {"code": error.code, "where": error.where, "message": error.message, "help": error.help}})
    print(error, file=sys.stderr)
    raise typer.Exit(LACKING if isinstance(error, (MissingExtra, MachineLacks)) else BAD_INPUT)


def show_json(value: Any) -> None:
    """Print a value as JSON; what is neither a number nor a container becomes text, and NaN becomes null."""
    print(json.dumps(_finite(value), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


@contextmanager
def ending_with_the_reader() -> Iterator[None]:
    """Leave quietly with `BROKEN_PIPE` where standard output is a pipe that nobody reads any more.

    typer handles the error of a closed pipe itself, and leaves with 1: that error is the context of its SystemExit.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # it was closed when the process began
                sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as left:
        if isinstance(left, SystemExit) and not isinstance(left.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        raise SystemExit(BROKEN_PIPE) from None


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Show on a terminal that `what` is still going on, once it takes longer than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    status = Console(stderr=True).status(f"{what} …")
    timer = threading.Timer(_QUIET_SECONDS, status.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def log_progress(*loggers: str) -> None:
    """Show what these parts of the library report of their progress on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in loggers:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers[:] = [handler]  # a second command in one process writes to its own stderr
        logger.propagate = False
