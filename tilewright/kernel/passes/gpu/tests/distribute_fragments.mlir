// RUN: tilewright opt -p 'assign-layouts{warps=1}' -p 'distribute{warps=1}' %s | filecheck %s

// Operands pass through rows with padding, 16 bytes of it; what is added to, and the result, are where they are.
// CHECK-LABEL: @product
// CHECK:         %[[B:.*]] = simt.shared align 32 : memref<640xf16, "shared">
// CHECK:         %[[A:.*]] = simt.shared align 32 : memref<640xf16, "shared">
// CHECK:         simt.load_fragment "wmma_16x16x16_f16_f32" "c" %z
// CHECK:         simt.barrier
// CHECK:         tile.store %{{.*}}, %[[A]]
// CHECK:         simt.barrier
// CHECK:         simt.load_fragment "wmma_16x16x16_f16_f32" "a" %[[A]]
// CHECK:         simt.load_fragment "wmma_16x16x16_f16_f32" "a" %[[A]]
// CHECK:         tile.store %{{.*}}, %[[B]]
// CHECK:         simt.load_fragment "wmma_16x16x16_f16_f32" "b" %[[B]][{{.*}}] columns
// CHECK:         simt.load_fragment "wmma_16x16x16_f16_f32" "b" %[[B]][{{.*}}] columns
// CHECK:         simt.mma "wmma_16x16x16_f16_f32" {{.*}}, %c :
// CHECK:         simt.mma "wmma_16x16x16_f16_f32"
// CHECK:         simt.store_fragment "wmma_16x16x16_f16_f32" %{{.*}}, %z
tile.func @product(%x: memref<512xf16>, %y: memref<512xf16>, %z: memref<256xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [32, 1] align 16 : memref<512xf16> -> tensor<16x32xf16>
  %b = tile.load %y[%o] strides [1, 32] align 16 : memref<512xf16> -> tensor<32x16xf16>
  %c = tile.load %z[%o] strides [16, 1] align 16 : memref<256xf32> -> tensor<16x16xf32>
  %d = tile.dot "wmma_16x16x16_f16_f32" %a, %b, %c unsigned "" : tensor<16x32xf16>, tensor<32x16xf16>, tensor<16x16xf32>
  tile.store %d, %z[%o] strides [16, 1] align 16 : tensor<16x16xf32>, memref<256xf32>
  tile.return
}
