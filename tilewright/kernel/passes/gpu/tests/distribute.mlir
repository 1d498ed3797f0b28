// RUN: tilewright opt -p assign-layouts -p distribute %s | filecheck %s

// A thread has two elements, side by side: one access, one addition.
// CHECK-LABEL: @add
// CHECK-SAME:    grid [4] threads [128, 1, 1] warp 32
// CHECK:         %a = tile.load %x[%{{.*}}] strides [1] align 8 : memref<1024xf32> -> tensor<2xf32>
// CHECK:         %s = arith.addf %a, %{{.*}} : tensor<2xf32>
// CHECK:         tile.store %s, %y[%{{.*}}] strides [1] align 8 : tensor<2xf32>, memref<1024xf32>
tile.func @add(%x: memref<1024xf32>, %y: memref<1024xf32>) grid [4] {
  %p = tile.program_id 0
  %c = arith.constant 256 : index
  %o = arith.muli %p, %c : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<1024xf32> -> tensor<256xf32>
  %one = arith.constant dense<1.0> : tensor<256xf32>
  %s = arith.addf %a, %one : tensor<256xf32>
  tile.store %s, %y[%o] strides [1] align 16 : tensor<256xf32>, memref<1024xf32>
  tile.return
}

// A row of 64 lies in one warp: its own registers, then butterflies.
// CHECK-LABEL: @row_sums
// CHECK-COUNT-5: simt.shuffle "xor"
// CHECK-NOT:     simt.shuffle
// CHECK-NOT:     simt.barrier
tile.func @row_sums(%x: memref<256xi32>, %y: memref<4xi32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [64, 1] align 16 : memref<256xi32> -> tensor<4x64xi32>
  %m = tile.reduce "sum" %a, 1 : tensor<4x64xi32> -> tensor<4x1xi32>
  tile.store %m, %y[%o] strides [1, 1] : tensor<4x1xi32>, memref<4xi32>
  tile.return
}

// 16 x 8 results of one warp and 32 deep: two instructions, the second adds to the first.
// CHECK-LABEL: @product
// CHECK:         %[[FIRST:.*]] = simt.mma "mma_m16n8k16_f16_f32" %{{.*}}, %{{.*}}, %{{.*}} : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
// CHECK:         simt.mma "mma_m16n8k16_f16_f32" %{{.*}}, %{{.*}}, %[[FIRST]]
// CHECK-NOT:     simt.mma
tile.func @product(%a: memref<512xf16>, %b: memref<256xf16>, %c: memref<128xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %a[%o] strides [32, 1] align 16 : memref<512xf16> -> tensor<16x32xf16>
  %y = tile.load %b[%o] strides [8, 1] align 16 : memref<256xf16> -> tensor<32x8xf16>
  %z = arith.constant dense<0.0> : tensor<16x8xf32>
  %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %z unsigned "" : tensor<16x32xf16>, tensor<32x8xf16>, tensor<16x8xf32>
  tile.store %d, %c[%o] strides [8, 1] align 16 : tensor<16x8xf32>, memref<128xf32>
  tile.return
}
