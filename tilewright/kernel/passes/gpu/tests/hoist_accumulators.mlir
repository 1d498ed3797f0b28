// RUN: tilewright opt -p hoist-accumulators %s | filecheck %s

// The tile of c is read before both loops and written behind them.
// CHECK-LABEL: @nested
// CHECK:         %[[C:.*]] = tile.load %c
// CHECK:         %[[OUTER:.*]] = scf.for %{{.*}} iter_args(%[[X:.*]] = %[[C]])
// CHECK-NEXT:      %[[INNER:.*]] = scf.for %{{.*}} iter_args(%[[Y:.*]] = %[[X]])
// CHECK-NOT:         tile.load %c
// CHECK:             %[[D:.*]] = arith.addf %[[Y]]
// CHECK:             scf.yield %[[D]]
// CHECK:           scf.yield %[[INNER]]
// CHECK:         tile.store %[[OUTER]], %c
tile.func @nested(%a: memref<256xf32>, %c: memref<16xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 256 : index
  %step = arith.constant 64 : index
  %inner = arith.constant 16 : index
  scf.for %i = %low to %high step %step {
    scf.for %j = %low to %step step %inner {
      %o = arith.addi %i, %j : index
      %x = tile.load %a[%o] strides [1] : memref<256xf32> -> tensor<16xf32>
      %y = tile.load %c[%low] strides [1] : memref<16xf32> -> tensor<16xf32>
      %z = arith.addf %y, %x : tensor<16xf32>
      tile.store %z, %c[%low] strides [1] : tensor<16xf32>, memref<16xf32>
    }
  }
  tile.return
}

// Another place in every trip, or another reader in the loop: the store stays.
// CHECK-LABEL: @stays
// CHECK:         scf.for
// CHECK:           tile.load %c
// CHECK:           tile.store
// CHECK:         scf.for
// CHECK:           tile.load %c
// CHECK:           tile.store
// CHECK:           tile.load %c
tile.func @stays(%a: memref<16xf32>, %c: memref<256xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 256 : index
  %step = arith.constant 16 : index
  scf.for %i = %low to %high step %step {
    %y = tile.load %c[%i] strides [1] : memref<256xf32> -> tensor<16xf32>
    %z = arith.addf %y, %y : tensor<16xf32>
    tile.store %z, %c[%i] strides [1] : tensor<16xf32>, memref<256xf32>
  }
  scf.for %i = %low to %high step %step {
    %y = tile.load %c[%low] strides [1] : memref<256xf32> -> tensor<16xf32>
    %z = arith.addf %y, %y : tensor<16xf32>
    tile.store %z, %c[%low] strides [1] : tensor<16xf32>, memref<256xf32>
    %w = tile.load %c[%i] strides [1] : memref<256xf32> -> tensor<16xf32>
    tile.store %w, %a[%low] strides [1] : tensor<16xf32>, memref<16xf32>
  }
  tile.return
}
