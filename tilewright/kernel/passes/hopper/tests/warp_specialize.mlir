// RUN: tilewright opt -p tensor-copies -p assign-layouts -p distribute -p warp-specialize %s | filecheck %s

// Four warps compute, and one thread of four others fills. Few threads: no registers to move.
// CHECK-LABEL: @four
// CHECK-SAME:    threads [256, 1, 1]
// CHECK:         simt.mbarrier_init
// CHECK:         simt.barrier
// CHECK:         %[[WARP:.*]] = simt.warp_id
// CHECK:         %[[IF:.*]] = tile.compare "lt" %[[WARP]]
// CHECK-NOT:     simt.registers
// CHECK:         scf.if %[[IF]] {
// CHECK-NOT:       simt.tensor_load
// CHECK:           scf.for %k
// CHECK:             simt.mbarrier_wait
// CHECK:             simt.warpgroup_mma
// CHECK:             simt.mbarrier_arrive
// CHECK:         } else {
// CHECK:           %[[FIRST:.*]] = tile.compare "eq" %[[WARP]]
// CHECK:           scf.if %[[FIRST]] {
// CHECK:             %[[ONE:.*]] = simt.elect
// CHECK:             scf.if %[[ONE]] {
// CHECK:               scf.for
// CHECK:                 simt.mbarrier_wait
// CHECK:                 simt.mbarrier_arrive %{{.*}} expect 24576
// CHECK-COUNT-3:         simt.tensor_load
// CHECK-NOT:           simt.warpgroup_mma

// Eight warps compute: they take the registers of those that fill.
// CHECK-LABEL: @eight
// CHECK-SAME:    threads [384, 1, 1]
// CHECK-SAME:    blocks_per_multiprocessor = 1
// CHECK:         simt.registers "grow" 240
// CHECK:         simt.barrier number 1 of 256
// CHECK:         simt.registers "shrink" 24

// What is read of a view that the kernel writes is read by those that compute: others would race with their stores.
// CHECK-LABEL: @onto
// CHECK-NOT:     tile.load
// CHECK:         simt.warp_id
// CHECK:         scf.if
// CHECK:           tile.load %c
// CHECK:           simt.warpgroup_mma
// CHECK:         } else {
// CHECK-NOT:       tile.load

// Kernels without tensor copies stay as they are.
// CHECK-LABEL: @without
// CHECK-SAME:    threads [128, 1, 1]
// CHECK-NOT:     simt.warp_id
builtin.module attributes {"tile.target" = {units = "mbarrier setmaxnreg tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @four(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @eight(%a: memref<32768xf16>, %b: memref<32768xf16>, %c: memref<65536xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 256 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<128x256xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<128x256xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<32768xf16> -> tensor<128x64xf16>
    %y = tile.load %b[%bo] strides [256, 1] align 16 : memref<32768xf16> -> tensor<64x256xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<128x64xf16>, tensor<64x256xf16>, tensor<128x256xf32>
    scf.yield %d : tensor<128x256xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [256, 1] align 4 : tensor<128x256xf32>, memref<65536xf32>
  tile.return
}
tile.func @onto(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %co = arith.muli %i, %width : index
  %z = tile.load %c[%co] strides [128, 1] align 16 : memref<16384xf32> -> tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @without(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %x2 = arith.addf %x, %x : tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x2, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
}
