// RUN: tilewright opt -p cse %s | filecheck %s

// Thread numbers, shuffles and loads of one moment are merged; shared memory is not.
// CHECK-LABEL: @merges
// CHECK:         %t = simt.thread_id 0
// CHECK-NEXT:    %s = simt.shared
// CHECK-NEXT:    %r = simt.shared
// CHECK-NEXT:    tile.store %one, %s[%t]
// CHECK-NEXT:    tile.store %one, %r[%t]
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    %x = simt.load_matrix %s
// CHECK-NEXT:    %z = simt.shuffle "xor" %x, %t
// CHECK-NEXT:    tile.store %x, %out
// CHECK-NEXT:    tile.store %z, %out
// CHECK-NEXT:    tile.store %x, %out
// CHECK-NEXT:    tile.store %z, %out
tile.func @merges(%out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %one = arith.constant 1.0 : f32
  %t = simt.thread_id 0
  %u = simt.thread_id 0
  %s = simt.shared align 16 : memref<64xf32, "shared">
  %r = simt.shared align 16 : memref<64xf32, "shared">
  tile.store %one, %s[%t] strides [] : f32, memref<64xf32, "shared">
  tile.store %one, %r[%u] strides [] : f32, memref<64xf32, "shared">
  simt.barrier
  %x = simt.load_matrix %s[%t] 1 : memref<64xf32, "shared"> -> tensor<1xf32>
  %y = simt.load_matrix %s[%u] 1 : memref<64xf32, "shared"> -> tensor<1xf32>
  %z = simt.shuffle "xor" %x, %t : tensor<1xf32>
  %w = simt.shuffle "xor" %y, %u : tensor<1xf32>
  tile.store %x, %out[%t] strides [1] : tensor<1xf32>, memref<64xf32>
  tile.store %z, %out[%t] strides [1] : tensor<1xf32>, memref<64xf32>
  tile.store %y, %out[%t] strides [1] : tensor<1xf32>, memref<64xf32>
  tile.store %w, %out[%t] strides [1] : tensor<1xf32>, memref<64xf32>
  tile.return
}

// A barrier or a wait may show what another thread or a copy wrote; what nobody writes is the same after it.
// CHECK-LABEL: @moments
// CHECK:         %a = tile.load %in
// CHECK-NEXT:    %x = tile.load %s
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    %y = tile.load %s
// CHECK-NEXT:    simt.async_copy
// CHECK-NEXT:    simt.commit
// CHECK-NEXT:    simt.wait 0
// CHECK-NEXT:    %z = tile.load %s
// CHECK-NEXT:    %o = simt.atomic "add" %a, %s
// CHECK-NEXT:    %w = tile.load %s
// CHECK-NEXT:    %p = simt.atomic "add" %a, %s
// CHECK-NEXT:    tile.store %a, %out
tile.func @moments(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %s = simt.shared align 16 : memref<64xf32, "shared">
  %a = tile.load %in[%t] strides [] : memref<64xf32> -> f32
  %x = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  simt.barrier
  %y = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  simt.async_copy %in[%t] to %s[%t] 1 : memref<64xf32>, memref<64xf32, "shared">
  simt.commit
  simt.wait 0
  %z = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  %o = simt.atomic "add" %a, %s[%t] : f32, memref<64xf32, "shared"> -> f32
  %w = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  %b = tile.load %in[%t] strides [] : memref<64xf32> -> f32
  %p = simt.atomic "add" %b, %s[%t] : f32, memref<64xf32, "shared"> -> f32
  tile.store %b, %out[%t] strides [] : f32, memref<64xf32>
  tile.return
}

// Shared views that have a place may lie over each other: a write to one is a write to all.
// CHECK-LABEL: @placed
// CHECK:         %x = tile.load %s
// CHECK-NEXT:    tile.store %x, %r
// CHECK-NEXT:    %y = tile.load %s
// CHECK-NEXT:    tile.store %y, %out
tile.func @placed(%out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %s = simt.shared align 16 at 0 : memref<64xf32, "shared">
  %r = simt.shared align 16 at 128 : memref<64xf32, "shared">
  %x = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  tile.store %x, %r[%t] strides [] : f32, memref<64xf32, "shared">
  %y = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
  tile.store %y, %out[%t] strides [] : f32, memref<64xf32>
  tile.return
}
