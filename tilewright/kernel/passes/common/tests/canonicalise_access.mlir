// RUN: tilewright opt -p canonicalise %s | filecheck %s

// CHECK-LABEL: @all_inside
// CHECK:         tile.load %in[%o] strides [8, 1]
// CHECK:         tile.store %x, %out[%o] strides [8, 1] nontemporal
tile.func @all_inside(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %four = arith.constant 4 : index
  %nine = arith.constant 9 : index
  %true = arith.constant dense<true> : tensor<4x8xi1>
  %x = tile.load %in[%o] bounds(%four, %nine) mask %true : tensor<4x8xi1> strides [8, 1] : memref<64xf32> -> tensor<4x8xf32>
  tile.store %x, %out[%o] bounds(%four, %nine) strides [8, 1] nontemporal : tensor<4x8xf32>, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @none_inside
// CHECK-NOT:     tile.load
// CHECK-NOT:     tile.gather
// CHECK:         tile.store %x
// CHECK-NEXT:    tile.store %g
// CHECK-NEXT:    tile.return
tile.func @none_inside(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %four = arith.constant 4 : index
  %i = tile.iota 0 : tensor<8xi64>
  %false = arith.constant dense<false> : tensor<8xi1>
  %x = tile.load %in[%o] bounds(%four, %o) strides [8, 1] : memref<64xf32> -> tensor<4x8xf32>
  %g = tile.gather %in[%i : tensor<8xi64>] mask %false : tensor<8xi1> : memref<64xf32> -> tensor<8xf32>
  tile.store %x, %out[%o] strides [8, 1] : tensor<4x8xf32>, memref<64xf32>
  tile.store %g, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.store %g, %out[%o] mask %false : tensor<8xi1> strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}

// One bound that is not known keeps the other.
// CHECK-LABEL: @unknown_bound
// CHECK:         tile.load %in[%o] bounds(%four, %p) strides [8, 1]
tile.func @unknown_bound(%in: memref<64xf32>, %out: memref<64xf32>) grid [8] {
  %o = arith.constant 0 : index
  %four = arith.constant 4 : index
  %p = tile.program_id 0
  %x = tile.load %in[%o] bounds(%four, %p) strides [8, 1] : memref<64xf32> -> tensor<4x8xf32>
  tile.store %x, %out[%o] strides [8, 1] : tensor<4x8xf32>, memref<64xf32>
  tile.return
}
