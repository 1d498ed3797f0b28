// RUN: tilewright opt -p tensor-copies -p pipeline-tensor-copies -p pipeline-wgmma %s | filecheck %s

// A product is waited for in the next trip, which releases its slot and then fills it; the last one behind the loop.
// CHECK-LABEL: @plain
// CHECK:         %[[S:.*]], %{{.*}}, %{{.*}} = tile.circular_buffer 4
// CHECK:         scf.for %k
// CHECK-NOT:       tile.produce
// CHECK:           tile.consumer_wait %[[S]][%[[N:.*]]]
// CHECK:           tile.staged_dot
// CHECK:           %d = tile.finish 1
// CHECK:           %[[BEFORE:.*]] = arith.subi %[[N]]
// CHECK-NEXT:      %[[LATER:.*]] = tile.compare "gt" %k, %low
// CHECK-NEXT:      scf.if %[[LATER]] {
// CHECK-NEXT:        tile.consumer_release %[[S]][%[[BEFORE]]]
// CHECK:           tile.produce %[[S]]
// CHECK:           scf.yield %d
// CHECK:         %[[R:.*]] = tile.finish 0 %r
// CHECK:         tile.consumer_release %[[S]]
// CHECK:         tile.store %[[R]]

// With fewer than 3 slots, products are waited for at once.
// CHECK-LABEL: @two_slots
// CHECK:         tile.circular_buffer 2
// CHECK:         tile.finish 0
// CHECK-NOT:     tile.finish
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @plain(%a: memref<32768xf16>, %b: memref<32768xf16>, %c: memref<16384xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 256 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [256, 1] align 16 : memref<32768xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<32768xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
tile.func @two_slots(%a: memref<131072xf16>, %b: memref<131072xf16>, %c: memref<65536xf32>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 256 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 512 : index
  %step = arith.constant 128 : index
  %width = arith.constant 256 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<256x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<256x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [512, 1] align 16 : memref<131072xf16> -> tensor<256x128xf16>
    %y = tile.load %b[%bo] strides [256, 1] align 16 : memref<131072xf16> -> tensor<128x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<256x128xf16>, tensor<128x128xf16>, tensor<256x128xf32>
    scf.yield %d : tensor<256x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [256, 1] align 16 : tensor<256x128xf32>, memref<65536xf32>
  tile.return
}
}
