// RUN: tilewright opt -p assign-layouts -p pipeline-loads -p distribute -p canonicalise -p licm -p cse -p dce -p prefetch-fragments %s | filecheck %s

// The fragments of the first of two steps are read before the loop and at the end of each trip; in between come those of
// the second step, before the products of the first.
// CHECK-LABEL: @product
// CHECK:         simt.wait 1
// CHECK-NEXT:    simt.barrier
// CHECK:         %[[X:.*]] = simt.load_matrix
// CHECK:         scf.for
// CHECK-NOT:       simt.wait
// CHECK:           simt.async_copy
// CHECK:           simt.commit
// CHECK:           simt.load_matrix
// CHECK:           simt.mma
// CHECK-NOT:       simt.load_matrix
// CHECK:           simt.mma
// CHECK:           tile.select
// CHECK-NEXT:      simt.wait 1
// CHECK-NEXT:      simt.barrier
// CHECK:           simt.load_matrix
// CHECK:           scf.yield
tile.func @product(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<2048xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  %width = arith.constant 32 : index
  %z = arith.constant dense<0.0> : tensor<64x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<64x32xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x32xf16>
    %y = tile.load %b[%bo] strides [32, 1] align 16 : memref<4096xf16> -> tensor<32x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x32xf16>, tensor<32x32xf16>, tensor<64x32xf32>
    scf.yield %d : tensor<64x32xf32>
  }
  tile.store %r, %c[%low] strides [32, 1] align 16 : tensor<64x32xf32>, memref<2048xf32>
  tile.return
}

// One step of k to a trip: nothing to read ahead of.
// CHECK-LABEL: @one_step
// CHECK:         scf.for
// CHECK:           simt.wait 1
// CHECK-NEXT:      simt.barrier
// CHECK:           simt.load_matrix
tile.func @one_step(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<2048xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 16 : index
  %width = arith.constant 32 : index
  %z = arith.constant dense<0.0> : tensor<64x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<64x32xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x16xf16>
    %y = tile.load %b[%bo] strides [32, 1] align 16 : memref<4096xf16> -> tensor<16x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x16xf16>, tensor<16x32xf16>, tensor<64x32xf32>
    scf.yield %d : tensor<64x32xf32>
  }
  tile.store %r, %c[%low] strides [32, 1] align 16 : tensor<64x32xf32>, memref<2048xf32>
  tile.return
}
