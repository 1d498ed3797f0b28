"""`tilewright emulate`: results, diagnostics, exit statuses and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.emulator.tests.harness import STORED, kernel

ADD = [str(STORED / "add.ptx"), "--entry", "add", "--grid", "4,1,1", "--block", "128,1,1", "--shared", "0"]


def call(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["emulate", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_add_writes_its_buffers(tmp_path: Path) -> None:
    target = tmp_path / "out.npz"
    status, out, _ = call(*ADD, "--args", str(STORED / "add.npz"), "-o", str(target), "--json")
    assert status == 0
    value = json.loads(out)
    assert value["diagnostics"] == []
    assert value["counts"]["global_transactions"] == 375
    with np.load(target) as found, np.load(STORED / "add.npz") as given:
        assert sorted(found.files) == ["p0", "p1", "p2"]
        assert (found["p2"] == given["expect2"]).all()


def test_a_diagnostic_is_status_1(tmp_path: Path) -> None:
    text, args = tmp_path / "k.ptx", tmp_path / "in.npz"
    text.write_text(kernel("st.global.u32 [%rd2+4], %r0;"))
    np.savez(args, p0=np.zeros(32, np.uint32), p1=np.zeros(1, np.uint32))
    status, out, _ = call(str(text), "--block", "32", "--args", str(args), "--json")
    assert status == 1
    (diagnostic,) = json.loads(out)["diagnostics"]
    assert diagnostic["kind"] == "out-of-bounds"
    assert diagnostic["thread"] == [31, 0, 0]
    assert diagnostic["line"] == text.read_text().split("st.global")[0].count("\n") + 1
    status, out, _ = call(str(text), "--block", "32", "--args", str(args))
    assert status == 1
    assert "byte 128 of p0" in out


def test_buffers_that_are_not_there(tmp_path: Path) -> None:
    text = tmp_path / "k.ptx"
    text.write_text(kernel("ret;"))
    status, _, errors = call(str(text), "--block", "32", "--uninitialised", "p0")
    assert status == 2
    assert "--uninitialised: " in errors
    assert "add --args" in errors


def test_reads_of_fresh_buffers(tmp_path: Path) -> None:
    text, args = tmp_path / "k.ptx", tmp_path / "in.npz"
    text.write_text(kernel("ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd3], %r1;"))
    np.savez(args, p0=np.zeros(32, np.uint32), p1=np.zeros(32, np.uint32))
    assert call(str(text), "--block", "32", "--args", str(args))[0] == 0
    status, out, _ = call(str(text), "--block", "32", "--args", str(args), "--uninitialised", "p0")
    assert status == 1
    assert "uninitialised" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.ptx"], "no such file"), ([*ADD, "--entry", "other"], "no entry 'other'"),
        ([*ADD, "--grid", "x"], "extents"),
        ([*ADD, "--block", "64"], "requires (128, 1, 1)"), ([*ADD, "--args", "nothing.npz"], "there is no such file"),
        ([*ADD, "--shared", "999999"], "shared memory"), ([*ADD, "--block", "0"], "1 or more"),
    ],
)  # fmt: skip
def test_bad_usage_is_status_2(arguments: list[str], words: str) -> None:
    status, _, err = call(*arguments)
    assert status == 2
    assert words in err


_FOUR = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"p0": np.array([None, 1], object)}, "objects"), ({"x": _FOUR}, "holds x, no p0"),
        ({"p0": _FOUR}, "p3: error[invalid-argument]: is missing"),
        ({"p0": _FOUR, "p3": np.float32(4)}, "float32 4.0 for a parameter .u32"),
        ({"p0": np.float32(4), "p3": np.int32(4)}, "float32 4.0 for a parameter .u64"),
        ({"p0": np.array(["text"]), "p3": np.int32(4)}, "p0: error[invalid-argument]: elements of type <U4"),
        ({"p3": np.int64(1 << 40)}, "1099511627776 does not fit .u32"),
        ({"p3": np.zeros(2, np.int32)}, "8 bytes for a scalar .u32 of 4"),
        ({"p7": _FOUR}, "8 arguments"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    status, _, err = call(*ADD, "--args", str(tmp_path / "in.npz"))
    assert status == 2
    assert words in err


@pytest.mark.parametrize(
    ("swizzle", "words"),
    [(32, ""), ([32], ""), ([32, 64], "2 values"), ([], "whole numbers"), ("32", "elements of type <U2"),
     ([33], "swizzle of 33 bytes")],
)  # fmt: skip
def test_a_tensor_map_has_one_swizzle(tmp_path: Path, swizzle: object, words: str) -> None:
    text, args = tmp_path / "k.ptx", tmp_path / "in.npz"
    text.write_text(kernel(""))
    box, given = np.array([4, 4]), np.array(swizzle)
    np.savez(args, **{"p0": np.zeros((8, 8), np.float32), "p0.box": box, "p0.swizzle": given, "p1": _FOUR})
    status, _, err = call(str(text), "--block", "32", "--args", str(args))
    assert status == (2 if words else 0)
    assert words in err


def test_files_that_hold_no_arguments(tmp_path: Path) -> None:
    whole = (STORED / "add.npz").read_bytes()
    np.save(tmp_path / "one.npy", _FOUR)
    for name, contents in (("empty.npz", b""), ("cut.npz", whole[:3000]), ("text.npz", b"hello")):
        (tmp_path / name).write_bytes(contents)
    for name, words in (
        ("empty.npz", "cannot be read"), ("cut.npz", "cannot be read"), ("text.npz", "not a zip file"),
        ("one.npy", "one array without a name"), (".", "cannot be read"),
    ):  # fmt: skip
        status, _, err = call(*ADD, "--args", str(tmp_path / name))
        assert status == 2
        assert words in err


def test_strides_and_byte_orders_do_not_matter(tmp_path: Path) -> None:
    with np.load(STORED / "add.npz") as given:
        arrays = {name: given[name] for name in ("p0", "p1", "p2", "p3")}
        wanted = given["expect2"]
    arrays["p0"] = np.repeat(arrays["p0"], 2)[::2]
    arrays["p1"], arrays["p3"] = arrays["p1"].astype(">f4"), arrays["p3"].astype(">i4")
    np.savez(tmp_path / "in.npz", **arrays)
    assert call(*ADD, "--args", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz"))[0] == 0
    with np.load(tmp_path / "out.npz") as found:
        assert (found["p2"] == wanted).all()
        assert (found["p1"] == arrays["p1"]).all()


def test_text_may_have_a_byte_order_mark_and_end_as_a_c_string(tmp_path: Path) -> None:
    text = tmp_path / "k.ptx"
    text.write_bytes(b"\xef\xbb\xbf" + kernel("").replace("\n", "\r\n").encode() + b"\0")
    assert call(str(text), "--block", "32")[0] == 0


def test_malformed_text_is_status_2(tmp_path: Path) -> None:
    text = tmp_path / "k.ptx"
    text.write_text(kernel("add.s32 %r1 %r2;"))
    status, out, err = call(str(text), "--json")
    assert status == 2
    assert json.loads(out)["error"]["code"] == "invalid-ptx"
    assert f"{text}:" in err
    assert "PTX:" not in err


def test_diagnostics_name_the_file(tmp_path: Path) -> None:
    text = tmp_path / "k.ptx"
    text.write_text(kernel("\nst.global.u32 [%rd2], %r0;"))
    status, out, _ = call(str(text), "--block", "32")
    line = text.read_text().splitlines().index("st.global.u32 [%rd2], %r0;") + 1
    assert status == 1
    assert out.startswith(f"{text}:{line}:1: out-of-bounds: ")
