// RUN: tilewright opt -p 'assign-layouts{promote=false warps=1}' -p 'distribute{warps=1 outer_product=false}' %s | filecheck %s

// Operands are loaded where lanes multiply them, before any barrier; all steps of one sum follow each other.
// CHECK-LABEL: @product
// CHECK:         tile.load %a
// CHECK-NOT:     simt.barrier
// CHECK-NOT:     simt.load_matrix
// CHECK:         %[[FIRST:[0-9]+]] = simt.mma "mma_m16n8k16_f16_f32"
// CHECK-NEXT:    simt.mma "mma_m16n8k16_f16_f32" %{{[0-9]+}}, %{{[0-9]+}}, %[[FIRST]]
// CHECK-NEXT:    %[[SECOND:[0-9]+]] = simt.mma "mma_m16n8k16_f16_f32"
// CHECK-NEXT:    simt.mma "mma_m16n8k16_f16_f32" %{{[0-9]+}}, %{{[0-9]+}}, %[[SECOND]]
// CHECK-NEXT:    simt.join
tile.func @product(%a: memref<512xf16>, %b: memref<512xf16>, %c: memref<256xf32>) grid [1] {
  %low = arith.constant 0 : index
  %z = arith.constant dense<0.0> : tensor<16x16xf32>
  %x = tile.load %a[%low] strides [32, 1] align 16 : memref<512xf16> -> tensor<16x32xf16>
  %y = tile.load %b[%low] strides [16, 1] align 16 : memref<512xf16> -> tensor<32x16xf16>
  %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %z unsigned "" : tensor<16x32xf16>, tensor<32x16xf16>, tensor<16x16xf32>
  tile.store %d, %c[%low] strides [16, 1] align 16 : tensor<16x16xf32>, memref<256xf32>
  tile.return
}
