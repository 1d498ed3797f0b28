// RUN: tilewright opt -p 'split-k{splits=2}' %s | filecheck %s

// Two blocks per tile, each with two of four trips, from zero; the second kernel adds to what the first began with.
// CHECK-LABEL: tile.func @product_parts(%a: memref<2048xf16>, %b: memref<512xf16>,
// CHECK-SAME:    memref<512xf32>) grid [2, 2, 1]
// CHECK:         %[[S:.*]] = tile.program_id 0
// CHECK:         tile.program_id 1
// CHECK:         %[[SHIFT:.*]] = arith.muli %[[S]]
// CHECK:         scf.for %[[I:.*]] = %low
// CHECK-NEXT:      arith.addi %[[I]], %[[SHIFT]]
// CHECK:           tile.dot
// CHECK:         tile.store
// CHECK-LABEL: tile.func @product(%c: memref<512xf32>,
// CHECK-SAME:    %[[W:.*]]: memref<512xf32>) grid [2, 1]
// CHECK:         %[[INIT:.*]] = arith.constant dense<1.0
// CHECK:         %[[P:.*]] = tile.load %[[W]]
// CHECK-NEXT:    %[[T:.*]] = arith.addf %[[INIT]], %[[P]]
// CHECK:         %[[Q:.*]] = tile.load %[[W]]
// CHECK-NEXT:    %[[R:.*]] = arith.addf %[[T]], %[[Q]]
// CHECK:         %e = math.exp %[[R]]
// CHECK:         tile.store %e, %c
// CHECK-LABEL: tile.main arena 2304
// CHECK:         %[[A:.*]] = tile.buffer "arena" 256
// CHECK-NEXT:    tile.launch @product_parts(%x, %y, %[[A]])
// CHECK-NEXT:    tile.launch @product(%z, %[[A]])
tile.func @product(%a: memref<2048xf16>, %b: memref<512xf16>, %c: memref<512xf32>) grid [2, 1] {
  %p = tile.program_id 0
  %low = arith.constant 0 : index
  %high = arith.constant 64 : index
  %step = arith.constant 16 : index
  %width = arith.constant 8 : index
  %size = arith.constant 1024 : index
  %half = arith.constant 256 : index
  %z = arith.constant dense<1.0> : tensor<16x8xf32>
  %ao = arith.muli %p, %size : index
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<16x8xf32>) {
    %ak = arith.addi %ao, %k : index
    %bk = arith.muli %k, %width : index
    %x = tile.load %a[%ak] strides [64, 1] align 16 : memref<2048xf16> -> tensor<16x16xf16>
    %y = tile.load %b[%bk] strides [8, 1] align 16 : memref<512xf16> -> tensor<16x8xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<16x16xf16>, tensor<16x8xf16>, tensor<16x8xf32>
    scf.yield %d : tensor<16x8xf32>
  }
  %e = math.exp %r : tensor<16x8xf32>
  %co = arith.muli %p, %half : index
  tile.store %e, %c[%co] strides [8, 1] align 16 : tensor<16x8xf32>, memref<512xf32>
  tile.return
}
tile.main arena 10 constants 0 {
  %x = tile.buffer "input" 0 : memref<2048xf16>
  %y = tile.buffer "input" 1 : memref<512xf16>
  %z = tile.buffer "output" 0 : memref<512xf32>
  tile.launch @product(%x, %y, %z) : memref<2048xf16>, memref<512xf16>, memref<512xf32>
}
