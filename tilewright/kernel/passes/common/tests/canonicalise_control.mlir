// RUN: tilewright opt -p canonicalise %s | filecheck %s

// CHECK-LABEL: @one_trip
// CHECK-NOT:     scf.for
// CHECK:         tile.store %{{.*}}, %out[%c3]
tile.func @one_trip(%out: memref<64xf32>) grid [1] {
  %x = arith.constant 1.0 : f32
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c3 to %c4 step %c4 {
    tile.store %x, %out[%i] strides [] : f32, memref<64xf32>
  }
  tile.return
}

// CHECK-LABEL: @no_trips
// CHECK-NOT:     scf.for
// CHECK:         tile.store %x, %out
// CHECK-NEXT:    tile.return
tile.func @no_trips(%out: memref<64xf32>) grid [1] {
  %x = arith.constant 1.0 : f32
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c4 to %c4 step %c4 iter_args(%a = %x) -> (f32) {
    %b = arith.addf %a, %a : f32
    scf.yield %b : f32
  }
  tile.store %r, %out[%c4] strides [] : f32, memref<64xf32>
  tile.return
}

// The first carried value never changes, the second does.
// CHECK-LABEL: @invariant_carried
// CHECK:         %s = scf.for %i = %{{.*}} iter_args(%b = %x) -> (f32) {
// CHECK-NEXT:      %d = arith.addf %b, %y : f32
// CHECK-NEXT:      scf.yield %d : f32
// CHECK:         tile.store %y, %out
// CHECK:         tile.store %s, %out
tile.func @invariant_carried(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %x = tile.load %in[%c0] strides [] : memref<64xf32> -> f32
  %y = tile.load %in[%c1] strides [] : memref<64xf32> -> f32
  %r, %s = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %y, %b = %x) -> (f32, f32) {
    %d = arith.addf %b, %a : f32
    scf.yield %a, %d : f32, f32
  }
  tile.store %r, %out[%c0] strides [] : f32, memref<64xf32>
  tile.store %s, %out[%c1] strides [] : f32, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @known_branches
// CHECK-NOT:     scf.if
// CHECK:         tile.store %x, %out[%c0]
// CHECK-NEXT:    tile.return
tile.func @known_branches(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] {
  %c0 = arith.constant 0 : index
  %true = arith.constant true
  %false = arith.constant false
  %x = tile.load %in[%c0] strides [] : memref<64xf32> -> f32
  %y = arith.addf %x, %x : f32
  %r = scf.if %true -> (f32) {
    scf.yield %x : f32
  } else {
    scf.yield %y : f32
  }
  scf.if %false {
    tile.store %y, %out[%c0] strides [] : f32, memref<64xf32>
  }
  tile.store %r, %out[%c0] strides [] : f32, memref<64xf32>
  tile.return
}

// Two carried values that change places are not invariant; a loop whose bound is not known stays.
// CHECK-LABEL: @loops_stay
// CHECK:         scf.for %i = %c0 to %p step %c1 iter_args(%a = %x, %b = %y) -> (f32, f32) {
// CHECK-NEXT:      scf.yield %b, %a : f32, f32
tile.func @loops_stay(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %p = tile.program_id 0
  %x = tile.load %in[%c0] strides [] : memref<64xf32> -> f32
  %y = tile.load %in[%c1] strides [] : memref<64xf32> -> f32
  %r, %s = scf.for %i = %c0 to %p step %c1 iter_args(%a = %x, %b = %y) -> (f32, f32) {
    scf.yield %b, %a : f32, f32
  }
  tile.store %r, %out[%p] strides [] : f32, memref<64xf32>
  tile.return
}
