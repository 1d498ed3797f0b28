// RUN: tilewright opt -p assign-layouts %s | filecheck %s

// An access chooses the layout, so that neighbouring threads have neighbouring elements; constants follow.
// CHECK-LABEL: @add
// CHECK:         %a = tile.load %x[%o] strides [1] align 16 : memref<512xf32> -> tensor<512xf32, "#linear<r=[(1),(2)], l=[(4),(8),(16),(32),(64)], w=[(128),(256)]>">
// CHECK:         %s = arith.addf %a, %one : tensor<512xf32, "#linear<r=[(1),(2)], l=[(4),(8),(16),(32),(64)], w=[(128),(256)]>">
// CHECK-NOT:     tile.convert
tile.func @add(%x: memref<512xf32>, %y: memref<512xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [1] align 16 : memref<512xf32> -> tensor<512xf32>
  %one = arith.constant dense<1.0> : tensor<512xf32>
  %s = arith.addf %a, %one : tensor<512xf32>
  tile.store %s, %y[%o] strides [1] align 16 : tensor<512xf32>, memref<512xf32>
  tile.return
}

// Read along columns, written along rows: a conversion between the two.
// CHECK-LABEL: @transpose
// CHECK:         %a = tile.load {{.*}} -> tensor<32x32xf32, "#linear<r=[(1,0),(2,0),
// CHECK-NEXT:    %[[C:.*]] = tile.convert %a
// CHECK-NEXT:    tile.store %[[C]]
tile.func @transpose(%z: memref<1024xf32>) grid [1] {
  %o = arith.constant 0 : index
  %a = tile.load %z[%o] strides [1, 32] align 16 : memref<1024xf32> -> tensor<32x32xf32>
  tile.store %a, %z[%o] strides [32, 1] align 16 : tensor<32x32xf32>, memref<1024xf32>
  tile.return
}
