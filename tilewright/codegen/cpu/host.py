"""The host sequence of a module (`tile.main`) to LLVM IR: the exported function `tw_main` of the binary interface."""

from __future__ import annotations

from llvmlite import ir
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp
from xdsl.ir import Block, SSAValue

from tilewright.codegen.cpu.kernel import KERNEL_TYPE, KernelEmitter, argument_types
from tilewright.codegen.cpu.memory import NONTEMPORAL_ALIGNMENTS
from tilewright.codegen.cpu.target import Target
from tilewright.codegen.elementwise import scalar_constant
from tilewright.codegen.host_program import Launch
from tilewright.codegen.values import I8, I32, I64, POINTER
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.tile_types import element_bytes

#: Fields of the call structure, in order (docs/developers/design.md, "Object code").
FIELDS = ("inputs", "outputs", "constants", "arena", "scratch", "parallel", "pool", "profile")
ENTRY = "tw_main"
PARALLEL_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, POINTER, I64])


def emit_kernel(module: ir.Module, target: Target, func: tile.FuncOp) -> tuple[ir.Function, int]:
    """The exported form of a kernel, `void (args, thread, begin, end)`, and its scratch bytes per thread.

    A kernel with non-temporal stores is emitted once per alignment of its views, chosen when it is called.
    """
    name = func.sym_name.data
    streams = any(isinstance(op, tile.StoreOp) and op.nontemporal is not None for op in tile.operations(func.body))
    variants = NONTEMPORAL_ALIGNMENTS if streams else (0,)
    bodies, scratch_bytes = [], 0
    for alignment in variants:
        emitter = KernelEmitter(module, target, func, f"{name}.aligned{alignment}", alignment)
        emitter.emit()
        bodies.append(emitter.function)
        scratch_bytes = emitter.scratch_bytes
    function = _exported(module, f"kernel.{name}")
    args, thread, begin, end = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    count = len(func.body.block.args)

    def argument(number: int, type_: ir.Type = POINTER) -> ir.Value:
        place = builder.gep(args, [I64(number)], source_etype=POINTER)
        return builder.load(place, typ=type_)

    views = [argument(number, type_) for number, type_ in enumerate(argument_types(func))]
    base, stride = argument(count), builder.ptrtoint(argument(count + 1), I64)
    scratch = builder.gep(base, [builder.mul(thread, stride)], source_etype=I8)
    stored = _streamed_views(func)
    bits: ir.Value = I64(0)
    for number in stored:
        bits = builder.or_(bits, builder.ptrtoint(views[number], I64))
    for alignment, body in zip(variants, bodies, strict=True):
        if alignment:
            aligned = builder.icmp_unsigned("==", builder.and_(bits, I64(alignment - 1)), I64(0))
            with builder.if_then(aligned):
                builder.call(body, [*views, scratch, begin, end])
                builder.ret_void()
        else:
            builder.call(body, [*views, scratch, begin, end])
            builder.ret_void()
    return function, scratch_bytes


def _exported(module: ir.Module, name: str) -> ir.Function:
    """A kernel as other modules of the program know it; without blocks, it is one of theirs."""
    function = ir.Function(module, KERNEL_TYPE, name)
    function.linkage = "hidden"  # a visibility, which llvmlite knows not, and prints where it prints linkages
    return function


def _streamed_views(func: tile.FuncOp) -> list[int]:
    arguments = list(func.body.block.args)
    stores = (op for op in tile.operations(func.body) if isinstance(op, tile.StoreOp) and op.nontemporal is not None)
    return sorted({arguments.index(op.view) for op in stores if op.view in arguments})  # type: ignore[arg-type]


def emit_host(
    module: ir.Module,
    target: Target,
    program: ModuleOp,
    kernels: dict[str, tuple[ir.Function, tile.FuncOp]],
    scratch_bytes: int,
) -> list[Launch]:
    """`i32 tw_main(ptr call)`: resolves buffers, fills the argument arrays and runs the launches in order."""
    main = next((op for op in program.body.block.ops if isinstance(op, tile.MainOp)), None)
    if main is None:
        raise InvalidProgram("the module has no tile.main")
    function = ir.Function(module, ir.FunctionType(I32, [POINTER]), ENTRY)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (call,) = function.args

    def field(name: str) -> ir.Value:
        return builder.load(builder.gep(call, [I64(FIELDS.index(name))], source_etype=POINTER), typ=POINTER)

    fields = {name: field(name) for name in FIELDS}
    parallel = _Callee(fields["parallel"], PARALLEL_TYPE)
    launches = [op for op in tile.operations(main.body) if isinstance(op, tile.LaunchOp)]
    slots = max((len(op.arguments) for op in launches), default=0) + 2
    with builder.goto_entry_block():
        arguments = builder.alloca(ir.ArrayType(POINTER, slots))
    arguments.type = POINTER
    host = _Host(builder, _stamp_function(module, target), fields, parallel, arguments, kernels, scratch_bytes)
    host.emit(main.body.block, 1)
    builder.ret(I32(0))
    return host.launches


class _Host:
    """The host sequence while it is emitted; values of views are pointers, those of numbers literals."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        stamp: ir.Function,
        fields: dict[str, ir.Value],
        parallel: _Callee,
        arguments: ir.Value,
        kernels: dict[str, tuple[ir.Function, tile.FuncOp]],
        scratch_bytes: int,
    ) -> None:
        self.builder, self.stamp, self.fields, self.parallel = builder, stamp, fields, parallel
        self.arguments, self.kernels, self.scratch_bytes = arguments, kernels, scratch_bytes
        self.values: dict[SSAValue, ir.Value] = {}
        self.launches: list[Launch] = []

    def emit(self, block: Block, trips: int) -> None:
        """Emit the operations of a block that runs `trips` times in all."""
        for op in block.ops:
            if isinstance(op, tile.BufferOp):
                self.values[op.result] = _buffer(self.builder, op, self.fields)
            elif isinstance(op, arith.ConstantOp):
                assert isinstance(op.value, IntegerAttr | FloatAttr), "verified: launches take numbers, not tiles"
                self.values[op.result] = scalar_constant(op.result.type, op.value.value.data)
            elif isinstance(op, tile.SliceOp):
                self.values[op.result] = self._slice(op)
            elif isinstance(op, tile.FirstOp):
                begins = self.builder.icmp_unsigned("==", self.values[op.trip], I64(0))
                first, later = self.values[op.first], self.values[op.later]
                self.values[op.result] = self.builder.select(begins, first, later)
            elif isinstance(op, tile.LoopOp):
                self._loop(op, trips)
            elif isinstance(op, tile.LaunchOp):
                self._launch(op, trips)
            else:
                raise InvalidProgram(f"operation {op.name} in tile.main")

    def _slice(self, op: tile.SliceOp) -> ir.Value:
        builder, trip, period = self.builder, self.values[op.trip], int(op.period.value.data)
        if period:
            trip = builder.urem(trip, I64(period))
        width = element_bytes(op.result)
        moved = builder.mul(trip, I64(int(op.stride.value.data) * width))
        offset = builder.add(moved, I64(int(op.start.value.data) * width))
        return builder.gep(self.values[op.whole], [offset], source_etype=I8)

    def _loop(self, op: tile.LoopOp, trips: int) -> None:
        builder = self.builder
        before = builder.block
        body = builder.append_basic_block("trip")
        builder.branch(body)
        builder.position_at_end(body)
        trip = builder.phi(I64)
        trip.add_incoming(I64(0), before)
        self.values[op.body.block.args[0]] = trip
        self.emit(op.body.block, trips * op.count)
        following = builder.add(trip, I64(1))
        trip.add_incoming(following, builder.block)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_unsigned("<", following, I64(op.count)), body, after)
        builder.position_at_end(after)

    def _launch(self, op: tile.LaunchOp, trips: int) -> None:
        builder, name = self.builder, op.kernel.root_reference.data
        if name not in self.kernels:
            raise InvalidProgram(f"launches unknown kernel {name!r}", help=f"one of {', '.join(self.kernels)}")
        kernel, func = self.kernels[name]
        given, wanted = [a.type for a in op.arguments], list(func.function_type.inputs.data)
        if given != wanted:
            raise InvalidProgram(f"kernel {name} takes {wanted}, is launched with {given}")
        passed = [self.values[argument] for argument in op.arguments]
        stride = builder.inttoptr(I64(self.scratch_bytes), POINTER)
        for number, value in enumerate([*passed, self.fields["scratch"], stride]):
            builder.store(value, builder.gep(self.arguments, [I64(number)], source_etype=POINTER))
        number, profile, kept = len(self.launches), self.fields["profile"], I64(int(trips > 1))
        builder.call(self.stamp, [profile, I64(2 * number), kept])
        if kernel.name not in builder.module.globals:
            _exported(builder.module, kernel.name)
        called = ir.FormattedConstant(POINTER, kernel.get_reference())
        builder.call(self.parallel, [self.fields["pool"], called, self.arguments, I64(func.programs)])
        builder.call(self.stamp, [profile, I64(2 * number + 1), kept])
        cost = func.cost.data if func.cost is not None else {}
        numbers = {key: int(value.value.data) for key, value in cost.items()}  # type: ignore[attr-defined]
        flops, moved = (trips * numbers.get(key, 0) for key in ("flops", "bytes"))
        self.launches.append(Launch(name, name, func.programs, flops, moved, trips=trips))


class _Callee:
    """A pointer with the type of the function it points to: what llvmlite asks of the target of a call."""

    def __init__(self, pointer: ir.Value, function_type: ir.FunctionType) -> None:
        self.type = pointer.type
        self.function_type = function_type
        self.calling_convention = ""
        self.get_reference = pointer.get_reference


def _stamp_function(module: ir.Module, target: Target) -> ir.Function:
    """`void (i64 *profile, i64 slot, i64 kept)`: stores the cycle counter in the profile, where there is one.

    Of what is there `kept` times as much stays: 1 in loops, which add up their trips. A function of its own keeps the
    sequence of launches free of branches, which LLVM would clean up one by one.
    """
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, I64, I64]), "stamp")
    function.linkage = "internal"
    function.attributes.add("noinline")
    profile, slot, kept = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    wanted = builder.icmp_unsigned("!=", builder.ptrtoint(profile, I64), I64(0))
    with builder.if_then(wanted, likely=False):
        name = "llvm.readcyclecounter" if target.x86 else "llvm.readsteadycounter"
        counter = module.globals.get(name) or ir.Function(module, ir.FunctionType(I64, []), name)
        place, now = builder.gep(profile, [slot], source_etype=I64), builder.call(counter, [])
        before = builder.mul(builder.load(place, typ=I64), kept)
        builder.store(builder.add(before, now), place)
    builder.ret_void()
    return function


def _buffer(builder: ir.IRBuilder, op: tile.BufferOp, fields: dict[str, ir.Value]) -> ir.Value:
    number = op.index.value.data
    space = op.space.data
    if space in ("input", "output"):
        place = builder.gep(fields[f"{space}s"], [I64(number)], source_etype=POINTER)
        return builder.load(place, typ=POINTER)
    base = fields["constants" if space == "constant" else "arena"]
    return builder.gep(base, [I64(number)], source_etype=I8)
