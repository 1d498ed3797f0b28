// RUN: tilewright opt -p allocate-shared %s | filecheck %s

// The third buffer is used when the first two are no more: it lies over the first. Together 4096 bytes, not 6144.
// CHECK-LABEL: @after
// CHECK:         %s = simt.shared align 16 at 0 :
// CHECK-NEXT:    %t = simt.shared align 16 at 2048 :
// CHECK-NEXT:    %u = simt.shared align 16 at 0 :
tile.func @after(%a: memref<512xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<512xf32, "shared">
  %t = simt.shared align 16 : memref<512xf32, "shared">
  %u = simt.shared align 16 : memref<512xf32, "shared">
  %z = arith.constant 0.0 : f32
  tile.store %z, %s[%n] strides [] : f32, memref<512xf32, "shared">
  tile.store %z, %t[%n] strides [] : f32, memref<512xf32, "shared">
  simt.barrier
  %x = tile.load %s[%low] strides [] : memref<512xf32, "shared"> -> f32
  %y = tile.load %t[%low] strides [] : memref<512xf32, "shared"> -> f32
  simt.barrier
  tile.store %x, %u[%n] strides [] : f32, memref<512xf32, "shared">
  simt.barrier
  %v = tile.load %u[%low] strides [] : memref<512xf32, "shared"> -> f32
  tile.store %v, %a[%n] strides [] : f32, memref<512xf32>
  tile.return
}

// What is used in a loop gets its barrier before the loop. Both are used in the loop there, and lie side by side.
// CHECK-LABEL: @loop
// CHECK:         %s = simt.shared align 16 at 0 :
// CHECK-NEXT:    %t = simt.shared align 16 at 0 :
// CHECK-NEXT:    %u = simt.shared align 16 at 2048 :
// CHECK:         %x = tile.load %s
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    scf.for
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

// Copies to a buffer that another will lie over are waited for first.
// CHECK-LABEL: @copied
// CHECK:         %s = simt.shared align 16 at 0 :
// CHECK-NEXT:    %t = simt.shared align 16 at 0 :
// CHECK:         %x = tile.load %s
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    simt.wait 0
// CHECK-NEXT:    simt.barrier
tile.func @copied(%a: memref<512xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %n = simt.thread_id 0
  %s = simt.shared align 16 : memref<512xf32, "shared">
  %t = simt.shared align 16 : memref<512xf32, "shared">
  simt.async_copy %a[%n] to %s[%n] 1 : memref<512xf32>, memref<512xf32, "shared">
  simt.commit
  simt.wait 0
  simt.barrier
  %x = tile.load %s[%low] strides [] : memref<512xf32, "shared"> -> f32
  simt.barrier
  tile.store %x, %t[%n] strides [] : f32, memref<512xf32, "shared">
  simt.barrier
  %y = tile.load %t[%low] strides [] : memref<512xf32, "shared"> -> f32
  tile.store %y, %a[%n] strides [] : f32, memref<512xf32>
  tile.return
}
