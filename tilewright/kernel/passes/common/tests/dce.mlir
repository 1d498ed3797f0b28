// RUN: tilewright opt -p dce %s | filecheck %s

// CHECK-LABEL: @removes
// CHECK-SAME:    grid [4] {
// CHECK-NEXT:    %p = tile.program_id 0
// CHECK-NEXT:    %x = tile.load
// CHECK-NEXT:    tile.store
// CHECK-NEXT:    tile.return
tile.func @removes(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %true = arith.constant true
  %scratch = tile.alloc : memref<4xf32>
  %x = tile.load %in[%p] strides [] : memref<64xf32> -> f32
  %y = arith.addf %x, %x : f32
  %z = arith.mulf %y, %y : f32
  scf.for %i = %c0 to %p step %c1 {
    %u = arith.addf %x, %x : f32
    scf.if %true {
      %v = tile.load %in[%i] strides [] : memref<64xf32> -> f32
      tile.store %v, %scratch[%c0] strides [] : f32, memref<4xf32>
    }
  }
  tile.store %x, %out[%p] strides [] : f32, memref<64xf32>
  tile.return
}

// CHECK-LABEL: @keeps
// CHECK:         tile.alloc
// CHECK:         tile.store %x, %scratch
// CHECK:         tile.load %scratch
// CHECK:         scf.for
// CHECK:           tile.store
tile.func @keeps(%in: memref<64xf32>, %out: memref<64xf32>) grid [4] {
  %p = tile.program_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %scratch = tile.alloc : memref<4xf32>
  %x = tile.load %in[%p] strides [] : memref<64xf32> -> f32
  tile.store %x, %scratch[%c0] strides [] : f32, memref<4xf32>
  %y = tile.load %scratch[%c0] strides [] : memref<4xf32> -> f32
  scf.for %i = %c0 to %p step %c1 {
    tile.store %y, %out[%i] strides [] : f32, memref<64xf32>
  }
  tile.return
}
