// RUN: tilewright opt -p cse %s | filecheck %s

// CHECK-LABEL: @merges
// CHECK:         %a = arith.addi %p, %c : index
// CHECK-NEXT:    %x = tile.load %in[%a]
// CHECK-NEXT:    tile.store %x, %out[%a]
// CHECK-NEXT:    %s = arith.addf %x, %x : f32
// CHECK-NEXT:    tile.store %s, %out[%a]
tile.func @merges(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c = arith.constant 1 : index
  %d = arith.constant 1 : index
  %a = arith.addi %p, %c : index
  %x = tile.load %in[%a] strides [] : memref<64xf32> -> f32
  tile.store %x, %out[%a] strides [] : f32, memref<64xf32>
  %b = arith.addi %p, %d : index
  %y = tile.load %in[%b] strides [] : memref<64xf32> -> f32
  %s = arith.addf %x, %y : f32
  tile.store %s, %out[%b] strides [] : f32, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @store_between
// CHECK:         %x = tile.load %out
// CHECK:         %y = tile.load %out
tile.func @store_between(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %x = tile.load %out[%p] strides [] : memref<64xf32> -> f32
  %s = arith.addf %x, %x : f32
  tile.store %s, %out[%p] strides [] : f32, memref<64xf32>
  %y = tile.load %out[%p] strides [] : memref<64xf32> -> f32
  %t = arith.addf %y, %y : f32
  tile.store %t, %out[%p] strides [] : f32, memref<64xf32>
  tile.return
}

// The second trip reads what the first wrote; after the loop, neither load before it holds.
// CHECK-LABEL: @store_in_a_loop
// CHECK:         %x = tile.load %out
// CHECK:         scf.for
// CHECK:           %y = tile.load %out
// CHECK:         %z = tile.load %out
tile.func @store_in_a_loop(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %x = tile.load %out[%p] strides [] : memref<64xf32> -> f32
  scf.for %i = %c0 to %c4 step %c1 {
    %y = tile.load %out[%p] strides [] : memref<64xf32> -> f32
    %s = arith.addf %x, %y : f32
    tile.store %s, %out[%p] strides [] : f32, memref<64xf32>
  }
  %z = tile.load %out[%p] strides [] : memref<64xf32> -> f32
  %t = arith.addf %z, %x : f32
  tile.store %t, %out[%p] strides [] : f32, memref<64xf32>
  tile.return
}

// What one branch computes is not there in the other, nor after both; 0.0 and -0.0, and views, differ.
// CHECK-LABEL: @not_the_same
// CHECK-COUNT-3: arith.mulf
// CHECK:         arith.constant 0.000000e+00
// CHECK:         arith.constant -0.000000e+00
tile.func @not_the_same(%in: memref<64xf32>, %out: memref<64xf32>, %flags: memref<64xi8>) grid [4] {
  %p = tile.program_id 0
  %x = tile.load %in[%p] strides [] : memref<64xf32> -> f32
  %f = tile.load %flags[%p] strides [] : memref<64xi8> -> i8
  %b = tile.cast %f : i8 -> i1
  scf.if %b {
    %m = arith.mulf %x, %x : f32
    tile.store %m, %out[%p] strides [] : f32, memref<64xf32>
  } else {
    %m = arith.mulf %x, %x : f32
    tile.store %m, %out[%p] strides [] : f32, memref<64xf32>
  }
  %n = arith.mulf %x, %x : f32
  tile.store %n, %out[%p] strides [] : f32, memref<64xf32>
  %y = arith.constant 0.0 : f32
  %z = arith.constant -0.0 : f32
  tile.store %y, %out[%p] strides [] : f32, memref<64xf32>
  tile.store %z, %out[%p] strides [] : f32, memref<64xf32>
  tile.return
}
