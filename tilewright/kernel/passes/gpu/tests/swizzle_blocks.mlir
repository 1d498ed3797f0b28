// RUN: tilewright opt -p swizzle-blocks -p canonicalise -p dce %s | filecheck %s

// 12 x 5 blocks in groups of 8 rows, of which the last has 4.
// CHECK-LABEL: @product
// CHECK-DAG:     %[[M:.*]] = tile.program_id 0
// CHECK-DAG:     %[[N:.*]] = tile.program_id 1
// CHECK:         arith.divui
// CHECK:         arith.minui
// CHECK:         arith.remui
// CHECK:         arith.remui
// CHECK:         arith.divui
// CHECK:         tile.dot
tile.func @product(%a: memref<768xf16>, %b: memref<640xf16>, %c: memref<7680xf32>) grid [12, 5] {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %h = arith.constant 256 : index
  %w = arith.constant 8 : index
  %s = arith.constant 640 : index
  %ao = arith.muli %p, %h : index
  %bo = arith.muli %q, %w : index
  %co = arith.muli %p, %s : index
  %do = arith.addi %co, %bo : index
  %x = tile.load %a[%ao] strides [16, 1] align 16 : memref<768xf16> -> tensor<16x16xf16>
  %y = tile.load %b[%bo] strides [40, 1] align 16 : memref<640xf16> -> tensor<16x8xf16>
  %z = arith.constant dense<0.0> : tensor<16x8xf32>
  %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %z unsigned "" : tensor<16x16xf16>, tensor<16x8xf16>, tensor<16x8xf32>
  tile.store %d, %c[%do] strides [40, 1] align 16 : tensor<16x8xf32>, memref<7680xf32>
  tile.return
}

// Without a product, or with one row of blocks, the order stays.
// CHECK-LABEL: @copy
// CHECK-NOT:     arith.divui
tile.func @copy(%a: memref<240xf32>, %c: memref<240xf32>) grid [12, 5] {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %w = arith.constant 20 : index
  %f = arith.constant 4 : index
  %r = arith.muli %p, %w : index
  %s = arith.muli %q, %f : index
  %o = arith.addi %r, %s : index
  %x = tile.load %a[%o] strides [1] : memref<240xf32> -> tensor<4xf32>
  tile.store %x, %c[%o] strides [1] : tensor<4xf32>, memref<240xf32>
  tile.return
}
