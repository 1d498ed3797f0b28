// RUN: tilewright opt -p split-k{splits=2} -p tensor-copies -p persistent %s | filecheck %s

// Three trips in two parts: the second part has one, the first two. The loop over tiles carries how many uses of the circular
// buffer there were.
// CHECK-LABEL: @three_parts
// CHECK-SAME:    grid [2]
// CHECK:         tile.circular_buffer 1
// CHECK:         scf.for
// CHECK-SAME:    -> (index)

// Four trips in two parts are as many for each.
// CHECK-LABEL: @four_parts
// CHECK-SAME:    grid [2]
// CHECK:         tile.circular_buffer 1
// CHECK:         scf.for
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @three(%a: memref<49152xf16>, %b: memref<24576xf16>, %c: memref<32768xf32>) grid [4] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 192 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %height = arith.constant 256 : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %rows = arith.muli %k, %height : index
    %ao = arith.addi %i, %rows : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [1, 256] align 16 : memref<49152xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<24576xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<32768xf32>
  tile.return
}
tile.func @four(%a: memref<65536xf16>, %b: memref<32768xf16>, %c: memref<32768xf32>) grid [4] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 256 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %height = arith.constant 256 : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %rows = arith.muli %k, %height : index
    %ao = arith.addi %i, %rows : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [1, 256] align 16 : memref<65536xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<32768xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<32768xf32>
  tile.return
}
}
