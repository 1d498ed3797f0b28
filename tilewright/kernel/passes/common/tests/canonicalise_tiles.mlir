// RUN: tilewright opt -p canonicalise -p dce %s | filecheck %s

// CHECK-LABEL: @broadcasts
// CHECK:         tile.store %x, %out
// CHECK-NEXT:    %b = tile.broadcast %x : tensor<4x1xf32> -> tensor<4x8xf32>
tile.func @broadcasts(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %in[%o] strides [1, 1] : memref<64xf32> -> tensor<4x1xf32>
  %a = tile.broadcast %x : tensor<4x1xf32> -> tensor<4x1xf32>
  tile.store %a, %out[%o] strides [1, 1] : tensor<4x1xf32>, memref<64xf32>
  %b = tile.broadcast %a : tensor<4x1xf32> -> tensor<4x8xf32>
  %c = tile.broadcast %b : tensor<4x8xf32> -> tensor<4x8xf32>
  tile.store %c, %out[%o] strides [8, 1] : tensor<4x8xf32>, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @reshapes
// CHECK:         %x = tile.load
// CHECK:         %b = tile.reshape %x : tensor<4x8xf32> -> tensor<2x16xf32>
// CHECK:         tile.store %x, %out
tile.func @reshapes(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %in[%o] strides [8, 1] : memref<64xf32> -> tensor<4x8xf32>
  %a = tile.reshape %x : tensor<4x8xf32> -> tensor<32xf32>
  %b = tile.reshape %a : tensor<32xf32> -> tensor<2x16xf32>
  %c = tile.reshape %b : tensor<2x16xf32> -> tensor<4x8xf32>
  tile.store %b, %out[%o] strides [16, 1] : tensor<2x16xf32>, memref<64xf32>
  tile.store %c, %out[%o] strides [8, 1] : tensor<4x8xf32>, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @exact_casts
// CHECK:         %h = tile.load
// CHECK:         %i = tile.load
// CHECK-NOT:     f64
// CHECK:         %b = tile.cast %h : tensor<8xf16> -> tensor<8xf32>
// CHECK:         %e = tile.cast %i unsigned : tensor<8xi8> -> tensor<8xf32>
// CHECK:         tile.store %h, %half
tile.func @exact_casts(%half: memref<64xf16>, %bytes: memref<64xi8>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %h = tile.load %half[%o] strides [1] : memref<64xf16> -> tensor<8xf16>
  %i = tile.load %bytes[%o] strides [1] : memref<64xi8> -> tensor<8xi8>
  %a = tile.cast %h : tensor<8xf16> -> tensor<8xf64>
  %b = tile.cast %a : tensor<8xf64> -> tensor<8xf32>
  %c = tile.cast %b : tensor<8xf32> -> tensor<8xf16>
  %d = tile.cast %i unsigned : tensor<8xi8> -> tensor<8xi32>
  %e = tile.cast %d : tensor<8xi32> -> tensor<8xf32>
  tile.store %b, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.store %e, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.store %c, %half[%o] strides [1] : tensor<8xf16>, memref<64xf16>
  tile.return
}

// Rounding twice, or losing the sign on the way, is not one cast.
// CHECK-LABEL: @inexact_casts_stay
// CHECK:         %a = tile.cast %x : tensor<8xf32> -> tensor<8xf16>
// CHECK:         %b = tile.cast %a : tensor<8xf16> -> tensor<8xf32>
// CHECK:         %c = tile.cast %i : tensor<8xi8> -> tensor<8xi16>
// CHECK:         %e = tile.cast %c unsigned : tensor<8xi16> -> tensor<8xf32>
tile.func @inexact_casts_stay(%in: memref<64xf32>, %bytes: memref<64xi8>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %in[%o] strides [1] : memref<64xf32> -> tensor<8xf32>
  %i = tile.load %bytes[%o] strides [1] : memref<64xi8> -> tensor<8xi8>
  %a = tile.cast %x : tensor<8xf32> -> tensor<8xf16>
  %b = tile.cast %a : tensor<8xf16> -> tensor<8xf32>
  %c = tile.cast %i : tensor<8xi8> -> tensor<8xi16>
  %d = tile.cast %c unsigned : tensor<8xi16> -> tensor<8xi32>
  %e = tile.cast %d : tensor<8xi32> -> tensor<8xf32>
  tile.store %b, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.store %e, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @extents_of_one
// CHECK-NOT:     tile.program_id 0
// CHECK:         %q = tile.program_id 1
// CHECK-NOT:     tile.iota
// CHECK-NOT:     tile.reduce
tile.func @extents_of_one(%in: memref<64xf32>, %out: memref<64xf32>, %places: memref<64xi64>) grid [1, 8] {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %o = arith.addi %p, %q : index
  %x = tile.load %in[%o] strides [1, 1] : memref<64xf32> -> tensor<4x1xf32>
  %s = tile.reduce "sum" %x, 1 : tensor<4x1xf32> -> tensor<4x1xf32>
  %i = tile.iota 1 : tensor<4x1xi64>
  tile.store %s, %out[%o] strides [1, 1] : tensor<4x1xf32>, memref<64xf32>
  tile.store %i, %places[%o] strides [1, 1] : tensor<4x1xi64>, memref<64xi64>
  tile.return
}

// CHECK-LABEL: @index_casts
// CHECK:         %p = tile.program_id 0
// CHECK:         tile.store %{{.*}}, %out[%p]
// CHECK:         %n = arith.index_cast %p : index to i32
// CHECK-NEXT:    %w = arith.index_cast %n : i32 to index
tile.func @index_casts(%out: memref<64xf32>) grid [8] {
  %x = arith.constant 1.0 : f32
  %p = tile.program_id 0
  %i = arith.index_cast %p : index to i64
  %j = arith.index_cast %i : i64 to index
  tile.store %x, %out[%j] strides [] : f32, memref<64xf32>
  %n = arith.index_cast %p : index to i32
  %w = arith.index_cast %n : i32 to index
  tile.store %x, %out[%w] strides [] : f32, memref<64xf32>
  tile.return
}
