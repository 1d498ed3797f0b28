// RUN: tilewright opt -p canonicalise %s | filecheck %s

// CHECK-LABEL: @folds_constants
// CHECK:         %c = arith.constant 42 : index
// CHECK-NEXT:    tile.store %{{.*}}, %out[%c]
tile.func @folds_constants(%out: memref<64xf32>) grid [1] {
  %a = arith.constant 6 : index
  %b = arith.constant 7 : index
  %x = arith.constant 1.5 : f32
  %c = arith.muli %a, %b : index
  tile.store %x, %out[%c] strides [] : f32, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @integers_wrap
// CHECK:         %sum = arith.constant -128 : i8
// CHECK-NEXT:    tile.store %sum
tile.func @integers_wrap(%out: memref<64xi8>) grid [1] {
  %zero = arith.constant 0 : index
  %a = arith.constant 127 : i8
  %b = arith.constant 1 : i8
  %sum = arith.addi %a, %b : i8
  tile.store %sum, %out[%zero] strides [] : i8, memref<64xi8>
  tile.return
}

// CHECK-LABEL: @division_by_zero_is_zero
// CHECK:         %quotient = arith.constant 0 : i32
// CHECK-NEXT:    tile.store %quotient
tile.func @division_by_zero_is_zero(%out: memref<64xi32>) grid [1] {
  %zero = arith.constant 0 : index
  %a = arith.constant 7 : i32
  %b = arith.constant 0 : i32
  %quotient = arith.divsi %a, %b : i32
  tile.store %quotient, %out[%zero] strides [] : i32, memref<64xi32>
  tile.return
}

// CHECK-LABEL: @joins_additions
// CHECK:         %[[SUM:.*]] = arith.constant 12 : index
// CHECK-NEXT:    %q = arith.addi %p, %[[SUM]] : index
// CHECK-NEXT:    tile.store %{{.*}}, %out[%q]
tile.func @joins_additions(%out: memref<64xf32>) grid [8] {
  %x = arith.constant 1.5 : f32
  %five = arith.constant 5 : index
  %seven = arith.constant 7 : index
  %p = tile.program_id 0
  %o = arith.addi %five, %p : index
  %q = arith.addi %o, %seven : index
  tile.store %x, %out[%q] strides [] : f32, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @identities
// CHECK:         %p = tile.program_id 0
// CHECK-NOT:     arith.muli
// CHECK-NOT:     arith.addi
// CHECK:         tile.store %{{.*}}, %out[%p]
tile.func @identities(%out: memref<64xf32>) grid [8] {
  %x = arith.constant 1.5 : f32
  %one = arith.constant 1 : index
  %zero = arith.constant 0 : index
  %p = tile.program_id 0
  %a = arith.muli %p, %one : index
  %b = arith.addi %a, %zero : index
  %c = arith.subi %b, %zero : index
  %d = arith.divui %c, %one : index
  %e = arith.maxsi %d, %d : index
  tile.store %x, %out[%e] strides [] : f32, memref<64xf32>
  tile.return
}

// -0.0 + 0.0 is 0.0, so adding 0.0 is no identity; adding -0.0 and multiplying by 1.0 are.
// CHECK-LABEL: @zero_is_not_neutral
// CHECK:         %t = tile.load
// CHECK:         %a = arith.addf %t, %{{.*}}
// CHECK-NOT:     arith
// CHECK:         tile.store %a
tile.func @zero_is_not_neutral(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %zero = arith.constant dense<0.0> : tensor<8xf32>
  %minus = arith.constant dense<-0.0> : tensor<8xf32>
  %one = arith.constant dense<1.0> : tensor<8xf32>
  %t = tile.load %in[%o] strides [1] : memref<64xf32> -> tensor<8xf32>
  %a = arith.addf %t, %zero : tensor<8xf32>
  %b = arith.addf %a, %minus : tensor<8xf32>
  %c = arith.mulf %b, %one : tensor<8xf32>
  tile.store %c, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}

// Functions keep the accuracy of generated code: exp of a constant is not folded.
// CHECK-LABEL: @functions_stay
// CHECK:         math.exp
// CHECK:         tile.sigmoid
tile.func @functions_stay(%out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = arith.constant 1.0 : f32
  %e = math.exp %x : f32
  %s = tile.sigmoid %x : f32
  %y = arith.addf %e, %s : f32
  tile.store %y, %out[%o] strides [] : f32, memref<64xf32>
  tile.return
}

// x * 0.0 may be NaN or -0.0.
// CHECK-LABEL: @float_times_zero_stays
// CHECK:         arith.mulf
tile.func @float_times_zero_stays(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %t = tile.load %in[%o] strides [] : memref<64xf32> -> f32
  %a = arith.mulf %t, %zero : f32
  tile.store %a, %out[%o] strides [] : f32, memref<64xf32>
  tile.return
}

// NaN < NaN is false but so is NaN <= NaN: comparing a float with itself is not folded, an integer is.
// CHECK-LABEL: @comparisons
// CHECK:         tile.compare "le" %t, %t
// CHECK:         %[[TRUE:.*]] = arith.constant true
// CHECK:         tile.broadcast %[[TRUE]]
tile.func @comparisons(%in: memref<64xf32>, %out: memref<64xi8>) grid [1] {
  %o = arith.constant 0 : index
  %t = tile.load %in[%o] strides [1] : memref<64xf32> -> tensor<8xf32>
  %i = tile.iota 0 : tensor<8xi64>
  %a = tile.compare "le" %t, %t : tensor<8xf32> -> tensor<8xi1>
  %b = tile.compare "le" %i, %i : tensor<8xi64> -> tensor<8xi1>
  %c = arith.xori %a, %b : tensor<8xi1>
  %d = tile.cast %c : tensor<8xi1> -> tensor<8xi8>
  tile.store %d, %out[%o] strides [1] : tensor<8xi8>, memref<64xi8>
  tile.return
}

// CHECK-LABEL: @selects
// CHECK:         %x = tile.load
// CHECK:         %y = tile.load
// CHECK-NOT:     tile.select
// CHECK:         tile.store %x, %out
// CHECK-NEXT:    tile.store %y, %out
tile.func @selects(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %true = arith.constant true
  %x = tile.load %in[%o] strides [1] : memref<64xf32> -> tensor<8xf32>
  %y = tile.load %in[%o] strides [2] : memref<64xf32> -> tensor<8xf32>
  %c = tile.compare "lt" %x, %y : tensor<8xf32> -> tensor<8xi1>
  %a = tile.select %true, %x, %y : i1, tensor<8xf32>
  %b = tile.select %c, %y, %y : tensor<8xi1>, tensor<8xf32>
  tile.store %a, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.store %b, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}

// The same function of repeated scalars is computed once.
// CHECK-LABEL: @on_scalars
// CHECK:         %[[ONCE:.*]] = arith.mulf %x, %{{.*}} : f32
// CHECK-NEXT:    %c = tile.broadcast %[[ONCE]] : f32 -> tensor<8xf32>
tile.func @on_scalars(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %in[%o] strides [] : memref<64xf32> -> f32
  %two = arith.constant dense<2.0> : tensor<8xf32>
  %a = tile.broadcast %x : f32 -> tensor<8xf32>
  %c = arith.mulf %a, %two : tensor<8xf32>
  tile.store %c, %out[%o] strides [1] : tensor<8xf32>, memref<64xf32>
  tile.return
}
