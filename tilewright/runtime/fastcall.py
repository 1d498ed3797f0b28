"""The short way into a module: a built-in function, made of machine code, that checks arrays and calls `tw_main`.

`run(inputs, outputs)` takes two tuples. Where every item is a NumPy array of exactly the dtype, shape and storage that
the module wants, no output overlaps another tensor, and no other thread is in this function, it runs the module
without the interpreter lock and returns True. In any other case it does nothing and returns False: then `Module` takes
the long way, which copies, converts, or says what is wrong. `run(addresses)` takes one tuple, the addresses of all
tensors, inputs first, of which `Module` knows that they fit; the rest is the same. Checking arrays reads the fields of
the array objects, whose places are part of NumPy's binary interface; `available` holds them against what NumPy says.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable, Sequence
from string import Template
from typing import Any

import numpy as np

from tilewright.expr.dtypes import numpy_dtype
from tilewright.runtime.loader import Code, load_ir
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.once import once

_HEADER = object.__basicsize__  # PyObject_HEAD: reference count, type
# Fields of PyArrayObject_fields (numpy/ndarraytypes.h), bytes after the header.
_ARRAY = {"DATA": 0, "RANK": 8, "SHAPE": 16, "DESCR": 40, "FLAGS": 48}
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # NPY_ARRAY_*
# Words of the state that `tw_fast` gets, then one record per tensor, inputs first.
_STATE = {"BUSY": 0, "INPUTS": 1, "OUTPUTS": 2, "CALL": 3, "MAIN": 4, "TYPE": 5, "RECORDS": 6}
_RECORD = {"DESCR": 0, "RANK": 1, "SHAPE": 2, "BYTES": 3, "FLAGS": 4, "PLACE": 5, "DATA": 6}
_RECORD_WORDS = 8
_PYTHON = (
    "PyLong_AsVoidPtr", "PyTuple_Size", "PyTuple_GetItem", "PyBool_FromLong", "PyErr_SetString",
    "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
_METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


class FastCall:
    """The function for one module and one call structure, which works while this object lives."""

    run: Callable[..., bool]

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        call: int,
        pointers: int,
        main: int,
        alive: object,
    ) -> None:
        """Addresses: `call` of the call structure, `pointers` of the tensors' pointers in it, `main` of `tw_main`.

        `alive` is what these addresses are in: it is kept as long as this object.
        """
        specs = [*inputs, *outputs]
        self._state = np.zeros(_STATE["RECORDS"] + _RECORD_WORDS * len(specs), np.int64)
        code = call_code()
        self._alive: list[Any] = [self._state, alive, code]
        header = (("INPUTS", len(inputs)), ("OUTPUTS", len(outputs)), ("CALL", call), ("MAIN", main))
        for name, value in (*header, ("TYPE", id(np.ndarray))):
            self._state[_STATE[name]] = value
        for index, spec in enumerate(specs):
            dtype, shape = numpy_dtype(spec.dtype), np.array(spec.shape, np.int64)
            self._alive += [dtype, shape]
            record = self._state[_STATE["RECORDS"] + _RECORD_WORDS * index :]
            flags = _C_CONTIGUOUS | _ALIGNED | (_WRITEABLE if index >= len(inputs) else 0)
            fields = {
                "DESCR": id(dtype), "RANK": len(spec.shape), "SHAPE": shape.ctypes.data, "BYTES": spec.bytes,
                "FLAGS": flags, "PLACE": pointers + 8 * index,
            }  # fmt: skip
            for name, value in fields.items():
                record[_RECORD[name]] = value
        signature = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        new = signature(("PyCFunction_NewEx", ctypes.pythonapi))
        method = _MethodDef(b"tw_fast", code.address("tw_fast"), _METH_FASTCALL, None)
        self._alive.append(method)
        self.run = new(ctypes.addressof(method), int(self._state.ctypes.data), None)


@functools.cache
def available() -> bool:
    """Whether this interpreter and this NumPy have the layouts that the function relies on."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or sys.maxsize < 1 << 62:
        return False
    if np.ndarray.__basicsize__ < _HEADER + _ARRAY["FLAGS"] + 4:
        return False
    array = np.zeros((3, 5), np.float32)
    frozen = array[:, ::2]
    frozen.flags.writeable = False
    flags = _C_CONTIGUOUS | _ALIGNED | _WRITEABLE
    return _fields_agree(array, flags) and _fields_agree(frozen, _ALIGNED)


def _fields_agree(array: np.ndarray[Any, Any], flags: int) -> bool:
    """Whether the fields, read from memory, are what NumPy says of the array, and its flags are `flags`."""
    at = id(array) + _HEADER
    rank = ctypes.c_int.from_address(at + _ARRAY["RANK"]).value
    words = {name: ctypes.c_uint64.from_address(at + _ARRAY[name]).value for name in ("DATA", "SHAPE", "DESCR")}
    if ctypes.c_uint64.from_address(at - 8).value != id(np.ndarray) or rank != array.ndim:
        return False
    if words["DATA"] != array.ctypes.data or words["DESCR"] != id(array.dtype):
        return False
    shape = (ctypes.c_int64 * rank).from_address(words["SHAPE"])
    all_flags = _C_CONTIGUOUS | _ALIGNED | _WRITEABLE
    return tuple(shape) == array.shape and ctypes.c_int.from_address(at + _ARRAY["FLAGS"]).value & all_flags == flags


@once
def call_code() -> Code:
    """The function that all fast calls share."""
    symbols = {name: _address(getattr(ctypes.pythonapi, name)) for name in _PYTHON}
    runtime_error = ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyExc_RuntimeError").value
    words = {name: value + _HEADER for name, value in _ARRAY.items()}
    words |= {f"STATE_{name}": value for name, value in _STATE.items()}
    words |= {f"RECORD_{name}": value for name, value in _RECORD.items()}
    text = Template(_IR).substitute(words, TYPE=_HEADER - 8, RUNTIME_ERROR=runtime_error)
    return load_ir(text, ["tw_fast"], symbols)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_IR = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyBool_FromLong(i64)
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

@message = private constant [37 x i8] c"the compiled code reported a failure\\00"

define ptr @tw_fast(ptr %self, ptr %arguments, i64 %count) {
entry:
  %state = call ptr @PyLong_AsVoidPtr(ptr %self)
  %first = load ptr, ptr %arguments
  %input_count_at = getelementptr i64, ptr %state, i64 $STATE_INPUTS
  %input_count = load i64, ptr %input_count_at
  %output_count_at = getelementptr i64, ptr %state, i64 $STATE_OUTPUTS
  %output_count = load i64, ptr %output_count_at
  %tensors = add i64 %input_count, %output_count
  %records = getelementptr i64, ptr %state, i64 $STATE_RECORDS
  %first_count = call i64 @PyTuple_Size(ptr %first)
  %by_address = icmp eq i64 %count, 1
  br i1 %by_address, label %check_addresses, label %check_counts
check_addresses:
  %addresses_fit = icmp eq i64 %first_count, %tensors
  br i1 %addresses_fit, label %note_addresses, label %refuse
note_addresses:
  call void @note_all(ptr %first, i64 %tensors, ptr %records)
  br label %check_overlap
check_counts:
  %outputs_at = getelementptr ptr, ptr %arguments, i64 1
  %outputs = load ptr, ptr %outputs_at
  %type_at = getelementptr i64, ptr %state, i64 $STATE_TYPE
  %type = load ptr, ptr %type_at
  %inputs_fit = icmp eq i64 %first_count, %input_count
  %given_outputs = call i64 @PyTuple_Size(ptr %outputs)
  %outputs_fit = icmp eq i64 %given_outputs, %output_count
  %counts_fit = and i1 %inputs_fit, %outputs_fit
  br i1 %counts_fit, label %check_inputs, label %refuse
check_inputs:
  %inputs_good = call i1 @check_all(ptr %first, i64 %input_count, ptr %records, ptr %type)
  br i1 %inputs_good, label %check_outputs, label %refuse
check_outputs:
  %output_words = mul i64 %input_count, 8
  %output_records = getelementptr i64, ptr %records, i64 %output_words
  %outputs_good = call i1 @check_all(ptr %outputs, i64 %output_count, ptr %output_records, ptr %type)
  br i1 %outputs_good, label %check_overlap, label %refuse
check_overlap:
  %apart = call i1 @all_apart(ptr %records, i64 %input_count, i64 %output_count)
  br i1 %apart, label %check_busy, label %refuse
check_busy:
  %busy = load i64, ptr %state
  %idle = icmp eq i64 %busy, 0
  br i1 %idle, label %ready, label %refuse
ready:
  %result = call ptr @run(ptr %state, i64 %tensors)
  ret ptr %result
refuse:
  %false = call ptr @PyBool_FromLong(i64 0)
  ret ptr %false
}

; Note addresses, which the caller has checked, in the records.
define internal void @note_all(ptr %addresses, i64 %count, ptr %records) alwaysinline {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %note ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %note, label %done
note:
  %i_next = add i64 %i, 1
  %words = shl i64 %i, 3
  %record = getelementptr i64, ptr %records, i64 %words
  %item = call ptr @PyTuple_GetItem(ptr %addresses, i64 %i)
  %data = call ptr @PyLong_AsVoidPtr(ptr %item)
  %data_note = getelementptr i64, ptr %record, i64 $RECORD_DATA
  store ptr %data, ptr %data_note
  br label %next
done:
  ret void
}

; Run with the data pointers in the records: True, or an exception. Under the interpreter lock, so no atomics.
define internal ptr @run(ptr %state, i64 %tensors) alwaysinline {
entry:
  store i64 1, ptr %state
  %records = getelementptr i64, ptr %state, i64 $STATE_RECORDS
  call void @place_all(ptr %records, i64 %tensors)
  %call_at = getelementptr i64, ptr %state, i64 $STATE_CALL
  %call = load ptr, ptr %call_at
  %main_at = getelementptr i64, ptr %state, i64 $STATE_MAIN
  %main = load ptr, ptr %main_at
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %main(ptr %call)
  call void @PyEval_RestoreThread(ptr %thread)
  store i64 0, ptr %state
  %success = icmp eq i32 %status, 0
  br i1 %success, label %done, label %failure
done:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
failure:
  call void @PyErr_SetString(ptr inttoptr (i64 $RUNTIME_ERROR to ptr), ptr @message)
  ret ptr null
}

; Whether all items of a tuple are arrays as their records say; notes their data pointers in the records.
define internal i1 @check_all(ptr %tuple, i64 %count, ptr %records, ptr %type) alwaysinline {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %good ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %fetch, label %yes
fetch:
  %i_next = add i64 %i, 1
  %words = shl i64 %i, 3
  %record = getelementptr i64, ptr %records, i64 %words
  %item = call ptr @PyTuple_GetItem(ptr %tuple, i64 %i)
  %item_type_at = getelementptr i8, ptr %item, i64 $TYPE
  %item_type = load ptr, ptr %item_type_at
  %is_array = icmp eq ptr %item_type, %type
  br i1 %is_array, label %descr, label %no
descr:
  %descr_at = getelementptr i8, ptr %item, i64 $DESCR
  %descr_is = load i64, ptr %descr_at
  %descr_want_at = getelementptr i64, ptr %record, i64 $RECORD_DESCR
  %descr_want = load i64, ptr %descr_want_at
  %descr_fits = icmp eq i64 %descr_is, %descr_want
  %rank_at = getelementptr i8, ptr %item, i64 $RANK
  %rank_is = load i32, ptr %rank_at
  %rank = sext i32 %rank_is to i64
  %rank_want_at = getelementptr i64, ptr %record, i64 $RECORD_RANK
  %rank_want = load i64, ptr %rank_want_at
  %rank_fits = icmp eq i64 %rank, %rank_want
  %flags_at = getelementptr i8, ptr %item, i64 $FLAGS
  %flags_32 = load i32, ptr %flags_at
  %flags_is = zext i32 %flags_32 to i64
  %flags_want_at = getelementptr i64, ptr %record, i64 $RECORD_FLAGS
  %flags_want = load i64, ptr %flags_want_at
  %flags_both = and i64 %flags_is, %flags_want
  %flags_fit = icmp eq i64 %flags_both, %flags_want
  %kind_fits = and i1 %descr_fits, %rank_fits
  %head_fits = and i1 %kind_fits, %flags_fit
  br i1 %head_fits, label %shape, label %no
shape:
  %shape_at = getelementptr i8, ptr %item, i64 $SHAPE
  %shape_is = load ptr, ptr %shape_at
  %shape_want_at = getelementptr i64, ptr %record, i64 $RECORD_SHAPE
  %shape_want = load ptr, ptr %shape_want_at
  br label %dimension
dimension:
  %d = phi i64 [ 0, %shape ], [ %d_next, %compare ]
  %more_dimensions = icmp slt i64 %d, %rank
  br i1 %more_dimensions, label %compare, label %good
compare:
  %d_next = add i64 %d, 1
  %extent_at = getelementptr i64, ptr %shape_is, i64 %d
  %extent = load i64, ptr %extent_at
  %extent_want_at = getelementptr i64, ptr %shape_want, i64 %d
  %extent_want = load i64, ptr %extent_want_at
  %extent_fits = icmp eq i64 %extent, %extent_want
  br i1 %extent_fits, label %dimension, label %no
good:
  %data_at = getelementptr i8, ptr %item, i64 $DATA
  %data = load i64, ptr %data_at
  %data_note = getelementptr i64, ptr %record, i64 $RECORD_DATA
  store i64 %data, ptr %data_note
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; Whether no output shares a byte with an input or with an output before it.
define internal i1 @all_apart(ptr %records, i64 %inputs, i64 %outputs) alwaysinline {
entry:
  %tensors = add i64 %inputs, %outputs
  br label %output
output:
  %o = phi i64 [ %inputs, %entry ], [ %o_next, %other ]
  %more = icmp slt i64 %o, %tensors
  br i1 %more, label %bounds, label %yes
bounds:
  %o_next = add i64 %o, 1
  %o_words = shl i64 %o, 3
  %o_record = getelementptr i64, ptr %records, i64 %o_words
  %o_data_at = getelementptr i64, ptr %o_record, i64 $RECORD_DATA
  %o_begin = load i64, ptr %o_data_at
  %o_bytes_at = getelementptr i64, ptr %o_record, i64 $RECORD_BYTES
  %o_bytes = load i64, ptr %o_bytes_at
  %o_end = add i64 %o_begin, %o_bytes
  br label %other
other:
  %k = phi i64 [ 0, %bounds ], [ %k_next, %compare ]
  %more_others = icmp slt i64 %k, %o
  br i1 %more_others, label %compare, label %output
compare:
  %k_next = add i64 %k, 1
  %k_words = shl i64 %k, 3
  %k_record = getelementptr i64, ptr %records, i64 %k_words
  %k_data_at = getelementptr i64, ptr %k_record, i64 $RECORD_DATA
  %k_begin = load i64, ptr %k_data_at
  %k_bytes_at = getelementptr i64, ptr %k_record, i64 $RECORD_BYTES
  %k_bytes = load i64, ptr %k_bytes_at
  %k_end = add i64 %k_begin, %k_bytes
  %begins = icmp ult i64 %k_begin, %o_end
  %ends = icmp ult i64 %o_begin, %k_end
  %shared = and i1 %begins, %ends
  br i1 %shared, label %no, label %other
yes:
  ret i1 true
no:
  ret i1 false
}

; Write the data pointers into the call.
define internal void @place_all(ptr %records, i64 %tensors) alwaysinline {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_next, %place ]
  %more = icmp slt i64 %i, %tensors
  br i1 %more, label %place, label %done
place:
  %i_next = add i64 %i, 1
  %words = shl i64 %i, 3
  %record = getelementptr i64, ptr %records, i64 %words
  %data_at = getelementptr i64, ptr %record, i64 $RECORD_DATA
  %data = load i64, ptr %data_at
  %place_at = getelementptr i64, ptr %record, i64 $RECORD_PLACE
  %slot = load ptr, ptr %place_at
  store i64 %data, ptr %slot
  br label %next
done:
  ret void
}
"""
