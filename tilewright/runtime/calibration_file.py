"""The file of a calibration: where it lies, and reading and writing it.

Apart from `runtime.calibrate`, which measures, so that a process that only loads what the cache holds imports neither
LLVM nor the registry of intrinsics for it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from tilewright.errors import InvalidMachine
from tilewright.files import reason, replace_file
from tilewright.machine import Cpu, Machine, host, resolve
from tilewright.options import Options
from tilewright.runtime.cache import Cache
from tilewright.runtime.quota import affinity
from tilewright.runtime.trust import distrusted, distrusted_entry

VERSION = 8  # of the way of measuring: another one does not read older files

_log = logging.getLogger(__name__)


def host_with_rates(options: Options | None = None) -> Cpu:
    """The host with the rates of an earlier measurement, or as described where there was none; nothing is measured."""
    return stored_rates(options) or host()


def stored_rates(options: Options | None = None) -> Cpu | None:
    """The host with the rates of an earlier measurement; None where there was none."""
    return read(calibration_file(options))


def calibration_file(options: Options | None = None, machine: Cpu | None = None) -> Path:
    """Where the measurement of this processor is, or will be: a machine file for `--machine`.

    A process that may use fewer cores than another one has a file of its own: rates of memory are those of all of them.
    """
    name = identity((machine or host()).digest(), len(affinity()))
    return (options or Options()).cache_dir / "machines" / f"{name}.yaml"


@cache
def identity(machine_digest: str, usable: int = 0) -> str:
    """A digest of what measurements depend on: the processor, its features, caches and cores, and how we measure.

    Of rates of memory also how many cores are `usable`.
    """
    parts = [machine_digest, _processor(), str(VERSION), str(usable)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def read(path: Path) -> Cpu | None:
    """The machine in the file, or None where there is none, it is damaged, or others can write to it."""
    try:
        if problem := distrusted(path.parent) or distrusted_entry(path):
            _warn_once(f"the calibration {path} is not used: {problem}")
            return None
        status = path.stat()
        machine = _described(path, (status.st_ino, status.st_mtime_ns, status.st_size))
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(f"the calibration {path} is not used: {reason(error)}")
        return None
    except InvalidMachine as error:
        _log.info("a damaged calibration is measured again: %s", error)
        return None
    return machine if isinstance(machine, Cpu) else None


@lru_cache(maxsize=16)
def _described(path: Path, version: tuple[int, int, int]) -> Machine:
    """The machine in a file, which is read again where inode, time of change in ns or bytes differ (`version`)."""
    return resolve(path)


def write(path: Path, machine: Cpu) -> None:
    """Write the file as a whole, or not at all."""
    try:
        Cache(path.parent.parent, 0).prepare(path.parent.name)
        with suppress(FileNotFoundError):
            if problem := distrusted_entry(path):
                raise PermissionError(problem)
        replace_file(path, to_yaml(machine).encode(), mode=0o644)
    except OSError as error:
        _log.warning("the calibration cannot be stored in %s: %s", path.parent, reason(error))


def to_yaml(machine: Cpu) -> str:
    """The text of a machine file."""
    import yaml

    head = f"# Measured on {_processor() or 'this machine'}, {time.strftime('%Y-%m-%d')}: `tilewright calibrate`\n"
    facts = machine.to_json()
    del facts["llvm"]["features"]  # follows from `features`
    return head + str(yaml.safe_dump(facts, sort_keys=False, width=110, default_flow_style=None))


@cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)


def _processor() -> str:
    """The name of the processor as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""
