// RUN: tilewright opt -p 'allocate-shared{most=2048}' -p barriers %s | filecheck %s

// A block may have 2048 bytes: inside of the loop, too, what every trip writes anew shares, with a barrier before each.
// CHECK-LABEL: @loop
// CHECK:         %s = simt.shared align 16 at 0 :
// CHECK-NEXT:    %t = simt.shared align 16 at 0 :
// CHECK-NEXT:    %u = simt.shared align 16 at 0 :
// CHECK:         scf.for
// CHECK:           simt.barrier
// CHECK-NEXT:      tile.store %x, %t
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      %y = tile.load %t
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      tile.store %y, %u
tile.func @loop(%a: memref<512xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 4 : index
  %step = arith.constant 1 : index
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<512xf32, "shared">
  %t = simt.shared align 16 : memref<512xf32, "shared">
  %u = simt.shared align 16 : memref<512xf32, "shared">
  %z = arith.constant 0.0 : f32
  tile.store %z, %s[%n] strides [] : f32, memref<512xf32, "shared">
  simt.barrier
  %x = tile.load %s[%low] strides [] : memref<512xf32, "shared"> -> f32
  scf.for %k = %low to %high step %step {
    simt.barrier
    tile.store %x, %t[%n] strides [] : f32, memref<512xf32, "shared">
    simt.barrier
    %y = tile.load %t[%low] strides [] : memref<512xf32, "shared"> -> f32
    tile.store %y, %u[%n] strides [] : f32, memref<512xf32, "shared">
    simt.barrier
    %v = tile.load %u[%low] strides [] : memref<512xf32, "shared"> -> f32
    tile.store %v, %a[%n] strides [] : f32, memref<512xf32>
  }
  tile.return
}

// What a trip writes at a place of its own is not written anew: nothing shares.
// CHECK-LABEL: @carried
// CHECK:         %s = simt.shared align 16 :
// CHECK-NEXT:    %t = simt.shared align 16 :
tile.func @carried(%a: memref<512xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 4 : index
  %step = arith.constant 1 : index
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<512xf32, "shared">
  %t = simt.shared align 16 : memref<512xf32, "shared">
  %z = arith.constant 0.0 : f32
  scf.for %k = %low to %high step %step {
    simt.barrier
    tile.store %z, %s[%k] strides [] : f32, memref<512xf32, "shared">
    simt.barrier
    %y = tile.load %s[%low] strides [] : memref<512xf32, "shared"> -> f32
    tile.store %y, %t[%n] strides [] : f32, memref<512xf32, "shared">
    simt.barrier
    %v = tile.load %t[%low] strides [] : memref<512xf32, "shared"> -> f32
    tile.store %v, %a[%n] strides [] : f32, memref<512xf32>
  }
  tile.return
}
