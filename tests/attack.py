"""Processes that race, are killed, run out of disk or belong to others: `python -m tests.attack --rounds 100 --seed 0`.

Each attack is a function of a folder and a generator of random numbers; it raises AssertionError where something is
lost: a file that is neither the old nor the new one, a result that is wrong, an error that is none of ours, a process
that hangs, a file of somebody else that is gone. `tests/test_attack.py` runs a round of each.

Exit status: 0 nothing lost, 1 something was.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

NOBODY = 65534
SECONDS = 300  # after which a process hangs
Random = random.Random


@dataclass(frozen=True)
class Started:
    """A process, and what it prints."""

    process: BaseProcess
    output: IO[str]

    def await_ready(self) -> None:
        """Wait until it prints "ready"."""
        line = self.output.readline()
        assert line == "ready\n", line + self.output.read()

    def kill(self, number: int) -> None:
        """End it by a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self._join()
        self.output.close()
        assert self.process.exitcode != 0

    def ended(self) -> str:
        """What it printed. Raises AssertionError where it failed, crashed or hangs."""
        self._join()
        with self.output:
            text = self.output.read()
        assert self.process.exitcode == 0, f"exit status {self.process.exitcode}\n{text[-2000:]}"
        return text

    def _join(self) -> None:
        self.process.join(SECONDS)
        if self.process.is_alive():
            self.process.kill()
            raise AssertionError("a process hangs")


def started(folder: Path, script: str, user: int | None = None) -> Started:
    """A process that runs a script in `folder`, with the names of `_run`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.attack_process"])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(folder, script, user, send))
    process.start()
    send.close()
    with receive:
        return Started(process, os.fdopen(os.dup(receive.fileno())))


def _run(folder: Path, script: str, user: int | None, send: Connection) -> None:
    import numpy as np

    import tilewright
    from tests.attack_process import compile_in
    from tilewright.files import write_file
    from tilewright.runtime.cache import Cache

    for descriptor in (1, 2):
        os.dup2(send.fileno(), descriptor)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
    logging.basicConfig(stream=sys.stderr, force=True)
    os.chdir(folder)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    names = {"np": np, "tilewright": tilewright, "Cache": Cache, "write_file": write_file}
    exec(script, names | {"folder": folder, "compiled": partial(compile_in, folder)})


def age(folder: Path) -> None:
    """Let the temporary files of processes that were killed be as old as they have to be to be removed."""
    for path in folder.rglob(".tilewright-*"):
        os.utime(path, (1000, 1000))


# Attacks --------------------------------------------------------------------------------------------------------------


def race(folder: Path, rng: Random) -> None:
    """Three processes compile, evict and clear in one cache at the same time; files of others stay."""
    (folder / "cache").mkdir()
    started(folder, "compiled(1)").ended()
    strangers = [folder / "cache" / "ab" / "photo.zip", folder / "cache" / "notes.tmp"]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    script = """
import random
rng = random.Random({seed})
for turn in range(6):
    compiled(rng.randrange(1, 6), cache_bytes=rng.choice([20_000, 40_000, 1 << 30]))
    if rng.random() < 0.2:
        Cache(folder / "cache", 1 << 30).clear()
"""
    for process in [started(folder, script.format(seed=rng.randrange(1 << 30))) for _ in range(3)]:
        assert "does not work" not in process.ended(), "a race stopped the cache"
    assert all(path.read_text() == "mine" for path in strangers)
    assert not list(folder.rglob(".tilewright-*")), "a temporary file is left"


def kill_in_save(folder: Path, rng: Random) -> None:
    """A process is ended while it saves again and again: the old file or the new, and nothing else after the next."""
    script = """
module = compiled(7, cache=False)
big = np.zeros(8 << 20, np.uint8)
module.save(folder / "a.twm")
print("ready", flush=True)
while True:
    module.save(folder / "a.twm")
    write_file(folder / "big", big.tobytes())
"""
    process = started(folder, script)
    process.await_ready()
    for _ in range(1 if rng.random() < 0.5 else 3):
        time.sleep(rng.random() * 0.05)
    process.kill(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    left = [path.name for path in folder.iterdir() if path.name not in ("a.twm", "big")]
    assert len(left) <= 1, left
    age(folder)
    assert not (folder / "big").exists() or (folder / "big").stat().st_size == 8 << 20
    started(folder, """
module = tilewright.load(folder / "a.twm", threads=1)
assert module(np.ones(7, np.float32)).sum() == 7
module.save(folder / "a.twm")
write_file(folder / "big", b"")
""").ended()  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {"a.twm", "big"}


def kill_in_compile(folder: Path, rng: Random) -> None:
    """A process is ended while it compiles and fills a cache: the next one goes on with it."""
    process = started(folder, 'print("ready", flush=True)\nfor size in range(1, 10_000): compiled(size)')
    process.await_ready()
    time.sleep(rng.random())
    process.kill(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    age(folder)
    said = started(folder, """
for size in (1, 2, 3, 20_000): compiled(size)
cache = Cache(folder / "cache", 1 << 30)
keys = [path.stem for path in (folder / "cache").glob("??/*.zip")]
assert all(cache.get(key) is not None for key in keys), "a damaged entry"
""").ended()  # fmt: skip
    assert "does not work" not in said, said
    assert not list(folder.rglob(".tilewright-*")), "a temporary file is left"


def full_disk(folder: Path, rng: Random) -> None:
    """No file may grow beyond some bytes: what does not fit is an error, the old file stays, compiling goes on."""
    (folder / "a.twm").write_bytes(b"old")
    said = started(folder, f"""
import resource
module = compiled(3, cache=False)
resource.setrlimit(resource.RLIMIT_FSIZE, ({rng.choice([0, 1, 100, 5000])},) * 2)
compiled(5)
for write in (module.save,):
    try:
        write(folder / "a.twm")
    except tilewright.CompileError as error:
        assert "cannot write" in str(error)
    else:
        raise AssertionError("it was saved")
""").ended()  # fmt: skip
    assert "does not work" in said, "the cache said nothing"
    assert (folder / "a.twm").read_bytes() == b"old"
    assert not list(folder.rglob(".tilewright-*")), "a temporary file is left"


def other_user(folder: Path, rng: Random) -> None:
    """What nobody put into a cache is not run by root, and nobody can neither read what it must not nor destroy it."""
    if os.geteuid() != 0:
        return
    folder.chmod(0o755)
    (folder / "cache").mkdir(mode=0o777)
    (folder / "cache").chmod(rng.choice([0o777, 0o1777]))
    said = started(folder, "compiled(3)", NOBODY).ended()
    assert "can be written by everybody" in said
    shutil.rmtree(folder / "cache")
    (folder / "cache").mkdir()
    os.chown(folder / "cache", NOBODY, NOBODY)
    started(folder, "compiled(3)", NOBODY).ended()
    for entry in (folder / "cache").glob("??/*.zip"):
        entry.write_bytes(entry.read_bytes()[::-1])  # root, on behalf of nobody
    before = {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    assert "belongs to" in started(folder, "compiled(3)").ended()
    assert before == {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    shutil.rmtree(folder / "cache")
    started(folder, "compiled(3)").ended()  # of root now, and readable
    before = {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    started(folder, """
compiled(3); compiled(4)
Cache(folder / "cache", 1 << 30).clear()
try:
    compiled(3).save(folder / "a.twm")
except tilewright.CompileError as error:
    assert "Permission denied" in str(error)
else:
    raise AssertionError("it was saved")
""", NOBODY).ended()  # fmt: skip
    assert before == {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}


ATTACKS: dict[str, Callable[[Path, Random], None]] = {
    "race": race,
    "kill in save": kill_in_save,
    "kill in compile": kill_in_compile,
    "full disk": full_disk,
    "other user": other_user,
}


def attacked(name: str, seed: int) -> str:
    """What was lost in one attack, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ATTACKS[name](Path(folder), Random(f"{name} {seed}"))
        except (AssertionError, OSError):
            return traceback.format_exc()
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60, help="when to end, whatever the rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=ATTACKS, help="only this attack")
    options = parser.parse_args()
    end, tried, lost = time.monotonic() + 60 * options.minutes, Counter[str](), Counter[str]()
    for round_ in range(options.rounds):
        for name in [options.only] if options.only else ATTACKS:
            if time.monotonic() > end:
                break
            tried[name] += 1
            if failure := attacked(name, options.seed + round_):
                lost[name] += 1
                print(
                    f"LOST python -m tests.attack --only '{name}' --rounds 1 --seed {options.seed + round_}\n{failure}"
                )
    for name, count in tried.items():
        print(f"{name:16} {count:5} rounds, {lost[name]} lost", flush=True)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
