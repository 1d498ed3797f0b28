// RUN: tilewright opt -p assign-layouts -p pipeline-registers %s | filecheck %s

// The first trip's tiles before the loop, the next trip's at its top, and the last trip behind it: 3 trips and one.
// CHECK-LABEL: @product
// CHECK:         %[[LAST:.*]] = arith.constant 96 : index
// CHECK:         %[[X:.*]] = tile.load %a
// CHECK:         %[[Y:.*]] = tile.load %b
// CHECK:         scf.for %{{.*}} = %low to %[[LAST]] step %step iter_args(%{{.*}} = %{{.*}}, %{{.*}} = %[[X]], %{{.*}} = %[[Y]])
// CHECK:           tile.load %a
// CHECK:           tile.load %b
// CHECK:           tile.convert
// CHECK:           tile.convert
// CHECK:           tile.dot "mma_m16n8k16_f16_f32"
// CHECK-NEXT:      scf.yield
// CHECK-NOT:     tile.load
// CHECK:         tile.dot "mma_m16n8k16_f16_f32"
// CHECK:         tile.store
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

// What the kernel writes is not read ahead, and neither is a place that a trip has read.
// CHECK-LABEL: @written
// CHECK:         scf.for %k = %low to %high step %step {
tile.func @written(%a: memref<8192xf16>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  scf.for %k = %low to %high step %step {
    %x = tile.load %a[%k] strides [1, 64] align 16 : memref<8192xf16> -> tensor<32x32xf16>
    tile.store %x, %a[%low] strides [32, 1] align 16 : tensor<32x32xf16>, memref<8192xf16>
  }
  tile.return
}

// Boxes of more dimensions, which a trip makes a matrix, are read ahead as they lie in memory.
// CHECK-LABEL: @boxes
// CHECK:         %[[X:.*]] = tile.load %a
// CHECK:         scf.for {{.*}} iter_args(%{{.*}} = %{{.*}}, %[[HELD:.*]] = %[[X]]
// CHECK:           tile.load %a
// CHECK:           tile.reshape %[[HELD]]
// CHECK:           tile.dot "mma_m16n8k16_f16_f32"
tile.func @boxes(%a: memref<16384xf16>, %b: memref<4096xf16>, %c: memref<2048xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  %width = arith.constant 32 : index
  %z = arith.constant dense<0.0> : tensor<64x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<64x32xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [2048, 256, 1] align 16 : memref<16384xf16> -> tensor<8x8x32xf16>
    %m = tile.reshape %x : tensor<8x8x32xf16> -> tensor<64x32xf16>
    %y = tile.load %b[%bo] strides [32, 1] align 16 : memref<4096xf16> -> tensor<32x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %m, %y, %acc unsigned "" : tensor<64x32xf16>, tensor<32x32xf16>, tensor<64x32xf32>
    scf.yield %d : tensor<64x32xf32>
  }
  tile.store %r, %c[%low] strides [32, 1] align 16 : tensor<64x32xf32>, memref<2048xf32>
  tile.return
}
