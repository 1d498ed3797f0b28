// RUN: tilewright opt -p licm %s | filecheck %s

// CHECK-LABEL: @hoists
// CHECK:         %c2 = arith.constant 2 : index
// CHECK-NEXT:    %a = arith.muli %p, %c2 : index
// CHECK-NEXT:    %x = tile.load %in[%a] strides [1]
// CHECK-NEXT:    scf.for %i
// CHECK-NEXT:      %o = arith.addi %i, %p : index
// CHECK-NEXT:      scf.for %j
// CHECK-NEXT:        tile.store %x, %out[%o]
tile.func @hoists(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c4 step %c1 {
    scf.for %j = %c0 to %c4 step %c1 {
      %c2 = arith.constant 2 : index
      %a = arith.muli %p, %c2 : index
      %x = tile.load %in[%a] strides [1] : memref<64xf32> -> tensor<8xf32>
      %o = arith.addi %i, %p : index
      tile.store %x, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
    }
  }
  tile.return
}

// The loop may not run, so the load may be out of bounds; what only computes moves.
// CHECK-LABEL: @unknown_trips
// CHECK:         %a = arith.muli
// CHECK:         scf.for
// CHECK-NEXT:      %x = tile.load %in[%a]
tile.func @unknown_trips(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c9 = arith.constant 9 : index
  scf.for %i = %c0 to %p step %c9 {
    %a = arith.muli %p, %c9 : index
    %x = tile.load %in[%a] strides [] : memref<64xf32> -> f32
    tile.store %x, %out[%i] strides [] : f32, memref<64xf32>
  }
  tile.return
}

// CHECK-LABEL: @written_in_the_loop
// CHECK:         scf.for
// CHECK-NEXT:      %x = tile.load %out[%c0]
tile.func @written_in_the_loop(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c4 step %c1 {
    %x = tile.load %out[%c0] strides [] : memref<64xf32> -> f32
    %true = arith.constant true
    scf.if %true {
      tile.store %x, %out[%i] strides [] : f32, memref<64xf32>
    }
  }
  tile.return
}

// CHECK-LABEL: @in_a_branch
// CHECK:         scf.for
// CHECK:           scf.if
// CHECK-NEXT:        tile.load
tile.func @in_a_branch(%in: memref<64xf32>, %out: memref<64xf32>, %flags: memref<64xi8>) grid [4] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c4 step %c1 {
    %f = tile.load %flags[%i] strides [] : memref<64xi8> -> i8
    %b = tile.cast %f : i8 -> i1
    scf.if %b {
      %x = tile.load %in[%c0] strides [] : memref<64xf32> -> f32
      tile.store %x, %out[%i] strides [] : f32, memref<64xf32>
    }
  }
  tile.return
}
