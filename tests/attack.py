"""Processes that race, are killed, run out of disk or belong to others: `python -m tests.attack --rounds 100 --seed 0`.

Each attack is a function of a folder and a generator of random numbers; it raises AssertionError where something is
lost: a file that is neither the old nor the new one, a result that is wrong, an error that is none of ours, a process
that hangs, a file of somebody else that is gone. `tests/test_attack.py` runs a round of each.

Exit status: 0 nothing lost, 1 something was.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOBODY = 65534
SECONDS = 300  # after which a process hangs
Random = random.Random

PRELUDE = """
import sys; sys.path[:0] = {path!r}
import numpy as np, tilewright
from pathlib import Path
from tilewright.compiler.compile import compile_graph
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.options import Options
from tilewright.runtime.cache import Cache, cache_key
folder = Path({folder!r})
def compiled(size, **options):
    b = GraphBuilder("relu")
    graph = b.finish([elementwise.relu(b, b.input("x", (size,), "f32"), name="y")])
    module = compile_graph(graph, threads=1, options=Options(cache_dir=folder / "cache", **options))
    assert np.array_equal(module(np.full(size, 2, np.float32)), np.full(size, 2)), "a wrong result"
    return module
"""

# Another user may not be able to read this Python: what is needed is imported before.
BECOME = """
import os, tempfile
whole, folder = folder, Path(tempfile.mkdtemp())
for _ in range(2): compiled(9).save(folder / "a.twm")
tilewright.load(folder / "a.twm", threads=1)
Cache(folder / "cache", 1 << 30).clear()
import shutil; shutil.rmtree(folder)
folder = whole
os.setgroups([]); os.setresgid({user}, {user}, {user}); os.setresuid({user}, {user}, {user})
"""


def started(folder: Path, script: str, user: int | None = None) -> subprocess.Popen[str]:
    """A process that runs a script after `PRELUDE`."""
    become = "" if user is None else BECOME.format(user=user)
    text = PRELUDE.format(path=[str(ROOT), *sys.path], folder=str(folder)) + become + script
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def ended(process: subprocess.Popen[str]) -> str:
    """What the process printed. Raises AssertionError where it failed, crashed or hangs."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError("a process hangs") from None
    assert process.returncode == 0, f"exit status {process.returncode}\n{err[-2000:]}"
    return out + err


def age(folder: Path) -> None:
    """Let the temporary files of processes that were killed be as old as they have to be to be removed."""
    for path in folder.rglob(".tilewright-*"):
        os.utime(path, (1000, 1000))


# Attacks --------------------------------------------------------------------------------------------------------------


def race(folder: Path, rng: Random) -> None:
    """Three processes compile, evict and clear in one cache at the same time; files of others stay."""
    (folder / "cache").mkdir()
    ended(started(folder, "compiled(1)"))
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
        assert "does not work" not in ended(process), "a race stopped the cache"
    assert all(path.read_text() == "mine" for path in strangers)
    assert not list(folder.rglob(".tilewright-*")), "a temporary file is left"


def kill_in_save(folder: Path, rng: Random) -> None:
    """A process is ended while it saves again and again: the old file or the new, and nothing else after the next."""
    script = """
module = compiled(7, cache=False)
big = np.zeros(8 << 20, np.uint8)
from tilewright.files import write_file
module.save(folder / "a.twm")
print("ready", flush=True)
while True:
    module.save(folder / "a.twm")
    write_file(folder / "big", big.tobytes())
"""
    process = started(folder, script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for _ in range(1 if rng.random() < 0.5 else 3):
        time.sleep(rng.random() * 0.05)
    process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    left = [path.name for path in folder.iterdir() if path.name not in ("a.twm", "big")]
    assert len(left) <= 1, left
    age(folder)
    assert not (folder / "big").exists() or (folder / "big").stat().st_size == 8 << 20
    ended(started(folder, """
module = tilewright.load(folder / "a.twm", threads=1)
assert module(np.ones(7, np.float32)).sum() == 7
module.save(folder / "a.twm")
from tilewright.files import write_file
write_file(folder / "big", b"")
"""))  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {"a.twm", "big"}


def kill_in_compile(folder: Path, rng: Random) -> None:
    """A process is ended while it compiles and fills a cache: the next one goes on with it."""
    process = started(folder, 'print("ready", flush=True)\nfor size in range(1, 10_000): compiled(size)')
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    time.sleep(rng.random())
    process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    process.communicate(timeout=SECONDS)
    age(folder)
    said = ended(started(folder, """
for size in (1, 2, 3, 20_000): compiled(size)
cache = Cache(folder / "cache", 1 << 30)
keys = [path.stem for path in (folder / "cache").glob("??/*.zip")]
assert all(cache.get(key) is not None for key in keys), "a damaged entry"
"""))  # fmt: skip
    assert "does not work" not in said, said
    assert not list(folder.rglob(".tilewright-*")), "a temporary file is left"


def full_disk(folder: Path, rng: Random) -> None:
    """No file may grow beyond some bytes: what does not fit is an error, the old file stays, compiling goes on."""
    (folder / "a.twm").write_bytes(b"old")
    said = ended(started(folder, f"""
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
"""))  # fmt: skip
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
    said = ended(started(folder, "compiled(3)", NOBODY))
    assert "can be written by everybody" in said
    shutil.rmtree(folder / "cache")
    (folder / "cache").mkdir()
    os.chown(folder / "cache", NOBODY, NOBODY)
    ended(started(folder, "compiled(3)", NOBODY))
    (entry,) = (folder / "cache").glob("??/*.zip")
    entry.write_bytes(entry.read_bytes()[::-1])  # root, on behalf of nobody
    before = {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    assert "belongs to" in ended(started(folder, "compiled(3)"))
    assert before == {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    shutil.rmtree(folder / "cache")
    ended(started(folder, "compiled(3)"))  # of root now, and readable
    before = {path: path.read_bytes() for path in (folder / "cache").rglob("*") if path.is_file()}
    ended(started(folder, """
compiled(3); compiled(4)
Cache(folder / "cache", 1 << 30).clear()
try:
    compiled(3).save(folder / "a.twm")
except tilewright.CompileError as error:
    assert "Permission denied" in str(error)
else:
    raise AssertionError("it was saved")
""", NOBODY))  # fmt: skip
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
        except (AssertionError, OSError, subprocess.SubprocessError):
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
