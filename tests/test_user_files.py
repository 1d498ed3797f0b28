"""Files that users name: what is no file is refused, what is there survives, and nothing is left behind."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import tilewright
from tests.command_line import CliRunner
from tilewright import files
from tilewright.errors import CompileError, InvalidArgument, InvalidFile
from tilewright.options import Options

PACKAGE = Path(__file__).parents[1] / "tilewright"


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def special(kind: str, path: Path) -> Path:
    """Something at `path` that is not a regular file."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        socket.socket(socket.AF_UNIX).bind(path.name)
        os.chdir(here)
    else:
        try:
            os.mknod(path, (stat.S_IFBLK if kind == "disk" else stat.S_IFCHR) | 0o600, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    return path


# Writing --------------------------------------------------------------------------------------------------------------


def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    files.write_file(tmp_path / "a", b"x")
    assert mode(tmp_path / "a") == 0o640


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o600)
    files.write_file(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_stays_and_what_it_names_is_written(dangling: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if not dangling:
        target.write_bytes(b"old")
    link.symlink_to("folder/target")
    files.write_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path / "folder") == ["target"]


@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "disk"])
def test_what_cannot_be_written_is_refused_and_stays(kind: str, tmp_path: Path) -> None:
    path = special(kind, tmp_path / "a")
    before = path.lstat()
    with pytest.raises(InvalidArgument, match="cannot write"):
        files.write_file(path, b"x")
    after = path.lstat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


def test_a_device_is_written_and_stays_a_device(tmp_path: Path) -> None:
    path = special("device", tmp_path / "zero")
    files.write_file(path, b"x")
    assert stat.S_ISCHR(path.lstat().st_mode)
    assert os.listdir(tmp_path) == ["zero"]


def test_a_fifo_with_a_reader_gets_the_bytes(tmp_path: Path) -> None:
    path = special("FIFO", tmp_path / "a")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    files.write_file(path, _write_and_go_back)
    assert os.read(descriptor, 100) == b"head body"
    os.close(descriptor)
    assert stat.S_ISFIFO(path.lstat().st_mode)


def _write_and_go_back(file: IO[bytes]) -> None:
    file.write(b"???? body")
    file.seek(0)
    file.write(b"head")


def test_a_protected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to it
    with pytest.raises(InvalidArgument, match="protected"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_failure_half_way_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(InvalidArgument, match="No space left"):
        files.write_file(path, _fail_half_way)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_that_was_killed_leaves_nothing_beyond_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    script = f"""
import os, signal
from pathlib import Path
from tilewright.files import replace_file
def content(file):
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
replace_file(Path({str(path)!r}), content)
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = tmp_path.glob(".*")
    os.utime(left, (1000, 1000))
    files.write_file(tmp_path / "b", b"other")  # not ours to remove
    assert len(os.listdir(tmp_path)) == 3
    files.write_file(path, b"new")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_writer_that_is_at_work_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def content(file: IO[bytes]) -> None:
        file.write(b"slow")
        files.write_file(path, b"quick")  # another one, in between

    files.write_file(path, content)
    assert path.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["a"]


def test_a_young_temporary_file_may_have_a_writer_on_another_host(tmp_path: Path) -> None:
    def content(file: IO[bytes]) -> None:
        (temporary,) = tmp_path.glob(".*")
        fcntl.flock(file, fcntl.LOCK_UN)  # as locks look from another host
        files.write_file(tmp_path / "a", b"other")
        assert temporary.exists()

    files.write_file(tmp_path / "a", content)
    assert os.listdir(tmp_path) == ["a"]


def test_a_temporary_file_that_another_process_removes_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_, locks = os.open, list[tuple[Path, int]]()

    def open_and_lose(path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = open_(path, flags, mode)
        if flags & os.O_EXCL and not locks:
            locks.append((path, open_(path, os.O_RDWR)))  # of the one who removes, between open and lock
            fcntl.flock(locks[0][1], fcntl.LOCK_EX)
        return descriptor

    def content(file: IO[bytes]) -> None:
        locks[0][0].unlink(missing_ok=True)
        file.write(b"new")

    monkeypatch.setattr(os, "open", open_and_lose)
    files.write_file(tmp_path / "a", content)
    os.close(locks[0][1])
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def _fail_half_way(file: IO[bytes]) -> None:
    file.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_in_shared_memory_is_replaced() -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "a"
        path.write_bytes(b"old")
        with path.open("rb") as reader:
            files.write_file(path, b"new")
            assert (reader.read(), path.read_bytes()) == (b"old", b"new")


def test_a_file_behind_a_descriptor_is_overwritten_once_the_content_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"longer")
    with path.open("r+b") as file:
        named = f"/dev/fd/{file.fileno()}"
        with pytest.raises(InvalidArgument, match="No space left"):
            files.write_file(named, _fail_half_way)
        assert path.read_bytes() == b"longer"
        files.write_file(named, b"new")
        assert (file.read(), path.read_bytes()) == (b"new", b"new")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_file_in_a_folder_that_takes_no_files_is_overwritten(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_new_files(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and Path(path).parent == tmp_path:
            raise OSError(code, os.strerror(code))
        return open_(path, flags, mode)

    open_ = os.open
    monkeypatch.setattr(os, "open", no_new_files)
    _check_overwritten(tmp_path)
    with pytest.raises(InvalidArgument, match=os.strerror(code)):
        files.write_file(tmp_path / "new", b"x")


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EPERM])
def test_a_file_that_cannot_be_replaced_is_overwritten(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounted(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", mounted)
    _check_overwritten(tmp_path)


def test_a_file_on_a_full_disk_keeps_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        os.ftruncate(descriptor, size - 1)  # a part was reserved
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with path.open("r+b") as file, pytest.raises(InvalidArgument, match="No space left"):
        files.write_file(f"/dev/fd/{file.fileno()}", b"longer than the old")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV])
def test_file_systems_that_reserve_nothing(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", unable)
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with path.open("r+b") as file:
        files.write_file(f"/dev/fd/{file.fileno()}", b"longer than the old")
    assert path.read_bytes() == b"longer than the old"


def _check_overwritten(folder: Path) -> None:
    path = folder / "a"
    path.write_bytes(b"longer than the new")
    inode = path.stat().st_ino
    with pytest.raises(InvalidArgument, match="No space left"):
        files.write_file(path, _fail_half_way)
    assert path.read_bytes() == b"longer than the new"
    files.write_file(path, _write_and_go_back)
    assert (path.read_bytes(), path.stat().st_ino) == (b"head body", inode)
    assert os.listdir(folder) == ["a"]


def test_a_file_that_another_process_removes_just_now_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def removed(place: Any, mode: int) -> bool:
        path.unlink(missing_ok=True)
        return access(place, mode)

    access = os.access
    monkeypatch.setattr(os, "access", removed)
    files.replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    files.write_file(tmp_path / ("n" * 255), b"x")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"


# Reading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["FIFO", "device", "directory", "socket"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = special(kind, tmp_path / "a")
    with pytest.raises(InvalidFile, match=r"cannot be read: it is a .*, not a file"):
        files.read_bytes(path)


def test_larger_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    with pytest.raises(InvalidFile, match="5 bytes, the limit is 4"):
        files.read_bytes(path, limit=4)
    with pytest.raises(InvalidFile, match="does not end within 4 bytes"):
        files.read_bytes("/proc/self/status", limit=4)  # says that it has none


@pytest.mark.parametrize("value", [None, 3, b"a", "", "a\0b", Path("a\0b"), "\ud800"])
def test_what_is_no_path_is_said_everywhere(value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: files.write_file(value, b""),
        lambda: tilewright.load(value),
        lambda: Options(cache_dir=value),
        lambda: _module().save(value),
    ]
    for call in calls:
        with pytest.raises(CompileError, match="path"):
            call()


def _module() -> Any:
    from tilewright.expr import GraphBuilder
    from tilewright.expr.ops import elementwise

    b = GraphBuilder("relu")
    return tilewright.compile(b.finish([elementwise.relu(b.input("x", (3,), "f32"), name="y")]), threads=1)


def test_a_text_is_a_cache_directory(tmp_path: Path) -> None:
    options = Options(cache_dir=f"{tmp_path}/cache")  # type: ignore[arg-type]
    assert options.cache_dir == tmp_path / "cache"


COMMANDS = {
    "model.onnx": ["compile", "FILE"],
    "model.twm": ["run", "FILE"],
    "module.twm": ["explain", "FILE"],
    "program.tile": ["compile", "FILE", "--emit", "asm"],
    "passes.tile": ["opt", "FILE"],
    "machine.yaml": ["machines", "FILE"],
    "kernel.ptx": ["emulate", "FILE"],
    "records.csv": ["validate", "mma-schedule", "--data", "FILE"],
    "results.json": ["reproduce", "amos-model", "--from", "FILE"],
}


@pytest.mark.parametrize("kind", ["FIFO", "device"])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_what_never_ends(name: str, kind: str, tmp_path: Path) -> None:
    from tilewright.cli.main import app

    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    path = special(kind, tmp_path / name)
    words = [str(path) if word == "FILE" else word for word in COMMANDS[name]]
    result = CliRunner().invoke(app, words, prog_name="tilewright")
    assert result.exit_code == 2, result.output
    assert "not a file" in result.stderr


# Everything goes this way ---------------------------------------------------------------------------------------------

EXEMPT = {  # what may open files itself, and why
    "files.py": "the one place",
    "cli/console.py": "the null device",
    "codegen/amdgpu/link.py": "files of its own in a folder of its own, for a linker",
    "codegen/nvptx/ptxas.py": "files of its own in a folder of its own, for ptxas",
    "compiler/digest.py": "the sources of this package",
    "machine/detect.py": "files of the system",
    "machine/registry.py": "the machine files of this package",
    "runtime/pool.py": "files of the system",
    "runtime/quota.py": "files of the system",
    "runtime/calibration_file.py": "a file of the system",
    "runtime/stored_total.py": "a file of its own in the folder of the cache, which processes lock",
}


_BY_NAME = {"write_text", "write_bytes", "read_text", "NamedTemporaryFile"}  # of whatever
_OPENING = {("open", owner) for owner in ("", "os", "io", "path", "output")} | {("read_bytes", "path")}
_OPENING |= {(name, owner) for name in ("load", "save", "savez") for owner in ("np", "numpy", "torch", "onnx")}


_METHODS = _BY_NAME | {name for name, _ in _OPENING}
_WRITTEN = re.compile(rf"\b(?:{'|'.join(sorted(_METHODS))})\b")


def opened(source: str) -> Iterator[str]:
    """The calls in a module that open a file by its name."""
    for node in ast.walk(ast.parse(source)) if _WRITTEN.search(source) else ():
        if not isinstance(node, ast.Call):
            continue
        if (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")) not in _METHODS:
            continue
        name = ast.unparse(node.func)
        owner, _, method = name.rpartition(".")
        if (owner and method in _BY_NAME) or (method, owner) in _OPENING:
            yield f"line {node.lineno}: {name}"


def test_every_file_goes_through_one_place() -> None:
    opening = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if "tests" not in path.parts and name not in EXEMPT and (calls := list(opened(path.read_text()))):
            opening[name] = calls
    assert opening == {}


@pytest.mark.parametrize("source", ["open('x')", "path.write_text('')", "np.load(path)", "output.open('wb')"])
def test_a_file_that_is_opened_elsewhere_is_found(source: str) -> None:
    assert len(list(opened(source))) == 1


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("chian.tile", "did you mean {folder}/chain.tile?"),
        ("q.csv", "{folder} has no file of a similar name"),
        ("a/b/chain.tile", "a path in a folder that is there: {folder}"),
    ],
)
def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path, name: str, help_text: str) -> None:
    (tmp_path / "chain.tile").write_text("tree")
    with pytest.raises(InvalidFile, match="there is no such file") as caught:
        files.read_text(tmp_path / name)
    assert caught.value.help == help_text.format(folder=tmp_path)
    with pytest.raises(InvalidFile) as caught:
        files.read_text(tmp_path / name, help="a chain")
    assert caught.value.help == "a chain"
