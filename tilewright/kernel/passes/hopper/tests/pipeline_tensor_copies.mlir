// RUN: tilewright opt -p tensor-copies -p pipeline-tensor-copies %s | filecheck %s

// Four slots: three are filled before the loop, then one more in every trip, three trips ahead.
// CHECK-LABEL: @plain
// CHECK:         %[[S:.*]], %[[A:.*]], %[[B:.*]] = tile.circular_buffer 4 : memref<8xi64, "shared">, memref<16384xf16, "shared">, memref<32768xf16, "shared">
// CHECK-COUNT-3: tile.produce %[[S]]
// CHECK:         scf.for %k
// CHECK:           %[[AHEAD:.*]] = arith.addi %k, %{{.*}}
// CHECK-NEXT:      %[[WHEN:.*]] = tile.compare "lt" %[[AHEAD]], %depth
// CHECK:           %[[N:.*]] = arith.divui
// CHECK:           tile.produce %[[S]][%[[N]]] when %[[WHEN]] {
// CHECK-NEXT:        tile.bulk_load %a[%{{.*}}, %[[AHEAD]]]
// CHECK-NOT:       tile.produce
// CHECK:           tile.consumer_wait %[[S]]
// CHECK:           tile.consumer_release %[[S]]

// Tiles of which two do not fit beside a result that goes through block memory keep one slot.
// CHECK-LABEL: @large
// CHECK:         tile.circular_buffer 1
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
tile.func @large(%a: memref<131072xf16>, %b: memref<131072xf16>, %c: memref<65536xf32>) grid [2] {
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
  tile.store %r, %c[%co] strides [256, 1] align 4 : tensor<256x128xf32>, memref<65536xf32>
  tile.return
}
}
