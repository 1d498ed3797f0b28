// RUN: tilewright opt -p tensor-copies -p persistent %s | filecheck %s

// Two multiprocessors, six programs: each block runs every second one. Uses of the circular buffer are numbered on.
// CHECK-LABEL: @six
// CHECK-SAME:    grid [2]
// CHECK:         %[[S:.*]], %{{.*}}, %{{.*}} = tile.circular_buffer 1
// CHECK:         %[[ID:.*]] = tile.program_id 0
// CHECK:         scf.for %[[T:.*]] = %[[ID]] to %{{.*}} step %{{.*}} {
// CHECK:           %[[C3:.*]] = arith.constant 1 : index
// CHECK:           %[[Q:.*]] = arith.divui %[[T]], %[[C3]]
// CHECK:           %p = arith.remui %[[Q]]
// CHECK:           %[[TILE:.*]] = arith.divui
// CHECK:           %[[BASE:.*]] = arith.muli %[[TILE]], %{{.*}}
// CHECK:           scf.for %k
// CHECK:             %[[OWN:.*]] = arith.divui
// CHECK:             %[[N:.*]] = arith.addi %[[OWN]], %[[BASE]]
// CHECK:             tile.produce %[[S]][%[[N]]]
// CHECK:             tile.consumer_wait %[[S]][%[[N]]]
// CHECK:             tile.consumer_release %[[S]][%[[N]]]
// CHECK:           tile.store %r

// One program for each multiprocessor, and kernels without circular buffers, stay as they are.
// CHECK-LABEL: @two
// CHECK-SAME:    grid [2]
// CHECK-NOT:     scf.for %{{[0-9]+}}
// CHECK-LABEL: @without
// CHECK-SAME:    grid [6]
// CHECK:         tile.load
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @six(%a: memref<49152xf16>, %b: memref<16384xf16>, %c: memref<49152xf32>) grid [6] {
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
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<49152xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<49152xf32>
  tile.return
}
tile.func @two(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf32>) grid [2] {
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
tile.func @without(%a: memref<49152xf16>, %b: memref<16384xf16>, %c: memref<49152xf32>) grid [6] {
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
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<49152xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %x2 = arith.addf %x, %x : tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x2, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %co = arith.muli %i, %width : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<49152xf32>
  tile.return
}
}
