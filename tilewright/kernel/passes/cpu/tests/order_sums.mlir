// RUN: tilewright opt -p order-sums %s | filecheck %s

// Each sum is in the outermost loop that it can be in; the constant stays with the access.
// CHECK-LABEL: @orders
// CHECK:         scf.for %i
// CHECK-NEXT:      %[[OUTER:.*]] = arith.addi %p, %i : index
// CHECK-NEXT:      scf.for %j
// CHECK-NEXT:        %[[INNER:.*]] = arith.addi %[[OUTER]], %j : index
// CHECK-NEXT:        %o = arith.addi %[[INNER]], %c9 : index
// CHECK-NEXT:        tile.store %x, %out[%o]
tile.func @orders(%out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c9 = arith.constant 9 : index
  %x = arith.constant 1.0 : f32
  scf.for %i = %c0 to %c4 step %c1 {
    scf.for %j = %c0 to %c4 step %c1 {
      %a = arith.addi %j, %c9 : index
      %b = arith.addi %p, %i : index
      %o = arith.addi %a, %b : index
      tile.store %x, %out[%o] strides [] : f32, memref<64xf32>
    }
  }
  tile.return
}

// A value that carries from trip to trip, and two values of one operation, are added where both are known.
// CHECK-LABEL: @one_definition_of_two
// CHECK:         %from, %to = scf.for
// CHECK:         %[[SUM:.*]] = arith.addi %c4, %from : index
// CHECK-NEXT:    %[[BOTH:.*]] = arith.addi %[[SUM]], %to : index
// CHECK-NEXT:    scf.for %j = {{.*}} iter_args(%k = %c0)
// CHECK-NEXT:      %[[ONE:.*]] = arith.addi %[[BOTH]], %j : index
// CHECK-NEXT:      %o = arith.addi %[[ONE]], %k : index
tile.func @one_definition_of_two(%out: memref<64xf32>) grid [4] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %p = tile.program_id 0
  %c4 = arith.addi %p, %p : index
  %x = arith.constant 1.0 : f32
  %from, %to = scf.for %i = %c0 to %c4 step %c1 iter_args(%l = %c0, %m = %c1) -> (index, index) {
    scf.yield %m, %l : index, index
  }
  %end = scf.for %j = %c0 to %c4 step %c1 iter_args(%k = %c0) -> (index) {
    %a = arith.addi %k, %to : index
    %b = arith.addi %a, %j : index
    %d = arith.addi %b, %from : index
    %o = arith.addi %d, %c4 : index
    tile.store %x, %out[%o] strides [] : f32, memref<64xf32>
    scf.yield %o : index
  }
  tile.return
}

// A partial sum that something else reads, and sums of other types, stay.
// CHECK-LABEL: @stays
// CHECK:           %a = arith.addi %j, %f : index
// CHECK-NEXT:      %o = arith.addi %p, %a : index
// CHECK:           %n = arith.addi %l, %l : i32
// CHECK-NEXT:      %m = arith.addi %n, %k : i32
tile.func @stays(%out: memref<64xi32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %k = arith.constant 1 : i32
  scf.for %j = %c0 to %c4 step %c1 {
    %f = arith.muli %j, %j : index
    %a = arith.addi %j, %f : index
    %o = arith.addi %a, %p : index
    %l = tile.load %out[%a] strides [] : memref<64xi32> -> i32
    %n = arith.addi %l, %l : i32
    %m = arith.addi %n, %k : i32
    tile.store %m, %out[%o] strides [] : i32, memref<64xi32>
  }
  tile.return
}
