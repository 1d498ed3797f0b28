// RUN: tilewright opt -p barriers %s | filecheck %s

// Two buffers written and read in turns: what stands behind one write orders the reads of the other before it.
// CHECK-LABEL: @turns
// CHECK:         scf.for
// CHECK-NEXT:      tile.store %{{.*}}, %s
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      %x = tile.load %s
// CHECK-NEXT:      tile.store %x, %t
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      %y = tile.load %t
// CHECK-NEXT:      scf.yield
tile.func @turns(%a: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 4 : index
  %step = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<32xf32, "shared">
  %t = simt.shared align 16 : memref<32xf32, "shared">
  %r = scf.for %k = %low to %high step %step iter_args(%z = %zero) -> (f32) {
    simt.barrier
    tile.store %z, %s[%n] strides [] : f32, memref<32xf32, "shared">
    simt.barrier
    %x = tile.load %s[%low] strides [] : memref<32xf32, "shared"> -> f32
    simt.barrier
    tile.store %x, %t[%n] strides [] : f32, memref<32xf32, "shared">
    simt.barrier
    %y = tile.load %t[%low] strides [] : memref<32xf32, "shared"> -> f32
    scf.yield %y : f32
  }
  tile.store %r, %a[%n] strides [] : f32, memref<32xf32>
  tile.return
}

// One buffer: both barriers of a trip stay, the second orders the next trip's write behind this trip's read.
// CHECK-LABEL: @one
// CHECK:         scf.for
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      tile.store
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      tile.load
tile.func @one(%a: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 4 : index
  %step = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<32xf32, "shared">
  %r = scf.for %k = %low to %high step %step iter_args(%z = %zero) -> (f32) {
    simt.barrier
    tile.store %z, %s[%n] strides [] : f32, memref<32xf32, "shared">
    simt.barrier
    %x = tile.load %s[%low] strides [] : memref<32xf32, "shared"> -> f32
    scf.yield %x : f32
  }
  tile.store %r, %a[%n] strides [] : f32, memref<32xf32>
  tile.return
}

// Buffers that lie over each other count as one; a wait for copies counts as their writing.
// CHECK-LABEL: @over
// CHECK:         simt.wait 0
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    tile.load %s
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    tile.store %{{.*}}, %t
// CHECK-NEXT:    tile.return
tile.func @over(%a: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %n = simt.thread_id 0
  %s = simt.shared align 16 at 0 : memref<32xf32, "shared">
  %t = simt.shared align 16 at 64 : memref<32xf32, "shared">
  simt.async_copy %a[%n] to %s[%n] 1 : memref<32xf32>, memref<32xf32, "shared">
  simt.commit
  simt.barrier
  simt.wait 0
  simt.barrier
  %x = tile.load %s[%low] strides [] : memref<32xf32, "shared"> -> f32
  simt.barrier
  tile.store %x, %t[%n] strides [] : f32, memref<32xf32, "shared">
  simt.barrier
  tile.return
}
