// RUN: tilewright opt -p ranges -p canonicalise -p dce %s | filecheck %s

// A remainder and a quotient inside one period; bounds above the tile, and bounds inside it.
// CHECK-LABEL: @one_period
// CHECK:         scf.for %i =
// CHECK-NEXT:      %left = arith.subi %c22, %i
// CHECK-NEXT:      %x = tile.load %in[%i] strides [1]
// CHECK-NEXT:      %y = tile.load %in[%i] bounds(%left) strides [1]
// CHECK-NEXT:      tile.store %x, %out[%i] strides [1] nontemporal
// CHECK-NEXT:      tile.store %y, %out[%i] bounds(%left) strides [1]
tile.func @one_period(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c7 = arith.constant 7 : index
  %c22 = arith.constant 22 : index
  scf.for %i = %c0 to %c7 step %c1 {
    %r = arith.remsi %i, %c7 : index
    %q = arith.floordivsi %i, %c7 : index
    %o = arith.addi %r, %q : index
    %left = arith.subi %c22, %i : index
    %x = tile.load %in[%r] bounds(%left) strides [1] : memref<64xf32> -> tensor<16xf32>
    %y = tile.load %in[%o] bounds(%left) strides [1] : memref<64xf32> -> tensor<17xf32>
    tile.store %x, %out[%i] bounds(%left) strides [1] nontemporal : tensor<16xf32>, memref<64xf32>
    tile.store %y, %out[%i] bounds(%left) strides [1] : tensor<17xf32>, memref<64xf32>
  }
  tile.return
}

// Steps: the last trip of 0, 4, 8 begins at 8, so that 16 elements after it are left of 24.
// CHECK-LABEL: @steps
// CHECK:         tile.load %in[%i] strides [1]
// CHECK:         tile.load %in[%i_1] bounds(%left) strides [1]
tile.func @steps(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c12 = arith.constant 12 : index
  %c13 = arith.constant 13 : index
  %c24 = arith.constant 24 : index
  scf.for %i = %c0 to %c12 step %c4 {
    %left = arith.subi %c24, %i : index
    %x = tile.load %in[%i] bounds(%left) strides [1] : memref<64xf32> -> tensor<16xf32>
    tile.store %x, %out[%i] strides [1] : tensor<16xf32>, memref<64xf32>
  }
  scf.for %i = %c0 to %c13 step %c4 {
    %left = arith.subi %c24, %i : index
    %x = tile.load %in[%i] bounds(%left) strides [1] : memref<64xf32> -> tensor<16xf32>
    tile.store %x, %out[%i] strides [1] : tensor<16xf32>, memref<64xf32>
  }
  tile.return
}

// The last block of a grid is whole, that of the other axis is not.
// CHECK-LABEL: @blocks
// CHECK:         scf.for %i = %low to %end step
// CHECK:         scf.for %j = %low to %high2 step
tile.func @blocks(%in: memref<64xf32>, %out: memref<64xf32>) grid [2, 3] {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %c1 = arith.constant 1 : index
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %low = arith.muli %p, %c16 : index
  %end = arith.addi %low, %c16 : index
  %high = arith.minsi %end, %c32 : index
  scf.for %i = %low to %high step %c1 {
    %x = tile.load %in[%i] strides [] : memref<64xf32> -> f32
    tile.store %x, %out[%i] strides [] : f32, memref<64xf32>
  }
  %low2 = arith.muli %q, %c16 : index
  %end2 = arith.addi %low2, %c16 : index
  %high2 = arith.minsi %end2, %c32 : index
  scf.for %j = %low to %high2 step %c1 {
    %x = tile.load %in[%j] strides [] : memref<64xf32> -> f32
    tile.store %x, %out[%j] strides [] : f32, memref<64xf32>
  }
  tile.return
}

// A floored remainder of what is not negative needs no correction; a mask that allows all goes.
// CHECK-LABEL: @floored
// CHECK:         %r = arith.remsi %i, %three
// CHECK-NEXT:    %x = tile.gather %in[%r : tensor<8xi64>] :
tile.func @floored(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %c0 = arith.constant 0 : index
  %zero = arith.constant dense<0> : tensor<8xi64>
  %three = arith.constant dense<3> : tensor<8xi64>
  %i = tile.iota 0 : tensor<8xi64>
  %r = arith.remsi %i, %three : tensor<8xi64>
  %negative = tile.compare "lt" %r, %zero : tensor<8xi64> -> tensor<8xi1>
  %moved = arith.addi %r, %three : tensor<8xi64>
  %m = tile.select %negative, %moved, %r : tensor<8xi1>, tensor<8xi64>
  %inside = tile.compare "lt" %m, %three : tensor<8xi64> -> tensor<8xi1>
  %x = tile.gather %in[%m : tensor<8xi64>] mask %inside : tensor<8xi1> : memref<64xf32> -> tensor<8xf32>
  tile.store %x, %out[%c0] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}

// Nothing is known of what is loaded, nor of what may have left its type.
// CHECK-LABEL: @unknown
// CHECK:         %r = arith.remsi %a, %c8
// CHECK:         %s = arith.remsi %square, %huge
tile.func @unknown(%in: memref<64xindex>, %out: memref<64xindex>) grid [1] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c8 = arith.constant 8 : index
  %huge = arith.constant 4611686018427387904 : index
  %a = tile.load %in[%c0] strides [] : memref<64xindex> -> index
  %r = arith.remsi %a, %c8 : index
  tile.store %r, %out[%c0] strides [] : index, memref<64xindex>
  scf.for %i = %c0 to %huge step %c1 {
    %square = arith.muli %i, %i : index
    %s = arith.remsi %square, %huge : index
    tile.store %s, %out[%c1] strides [] : index, memref<64xindex>
  }
  tile.return
}
