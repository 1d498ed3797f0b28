// RUN: tilewright opt -p overlap-launches %s | filecheck %s

// Indices, shared memory and mbarriers come before the wait, also in a branch; the first load behind it.
// CHECK-LABEL: @load
// CHECK-NEXT:    simt.launch_dependents
// CHECK-NEXT:    simt.thread_id
// CHECK:         simt.shared
// CHECK:         scf.if
// CHECK-NEXT:      simt.mbarrier_init
// CHECK-NEXT:    }
// CHECK-NEXT:    simt.fence
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    simt.wait_for_launches
// CHECK-NEXT:    tile.load
// CHECK-NOT:     simt.wait_for_launches

// What a loop touches it touches behind the wait before it.
// CHECK-LABEL: @loop
// CHECK:         simt.wait_for_launches
// CHECK-NEXT:    scf.for
// CHECK-NEXT:      scf.if
// CHECK-NEXT:        tile.store
// CHECK-NOT:     simt.wait_for_launches

// A kernel that touches nothing waits too: whoever waits for it has waited for those before.
// CHECK-LABEL: @nothing
// CHECK-NEXT:    simt.launch_dependents
// CHECK-NEXT:    simt.wait_for_launches
// CHECK-NEXT:    tile.return

// Copies of boxes, asynchronous copies and prefetches touch global memory; memory of a thread is none.
// CHECK-LABEL: @copy
// CHECK:         tile.store %{{.*}}, %own
// CHECK-NEXT:    simt.wait_for_launches
// CHECK-NEXT:    simt.async_copy
// CHECK-LABEL: @hint
// CHECK:         simt.wait_for_launches
// CHECK-NEXT:    tile.prefetch

// Kernels that have one of the operations stay as they are.
// CHECK-LABEL: @by_hand
// CHECK-NEXT:    simt.thread_id
// CHECK-NEXT:    simt.wait_for_launches
// CHECK-NEXT:    arith.constant
// CHECK-NEXT:    tile.store
// CHECK-NEXT:    simt.launch_dependents
// CHECK-NEXT:    tile.return
// CHECK-LABEL: @first
// CHECK-NEXT:    simt.launch_dependents
// CHECK-NEXT:    tile.return
builtin.module attributes {"tile.target" = {units = "griddepcontrol mbarrier tma"}} {

tile.func @load(%a: memref<64xf32>, %b: memref<64xf32>) grid [1] threads [64, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %s = simt.shared align 16 : memref<1xi64, "shared">
  %zero = arith.constant 0 : index
  %is = tile.compare "eq" %t, %zero : index -> i1
  scf.if %is {
    simt.mbarrier_init %s[%zero] arrivals 1 : memref<1xi64, "shared">
  }
  simt.fence "mbarrier"
  simt.barrier
  %x = tile.load %a[%t] strides [] : memref<64xf32> -> f32
  tile.store %x, %b[%t] strides [] : f32, memref<64xf32>
  tile.return
}

tile.func @loop(%a: memref<64xf32>) grid [1] threads [64, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %low = arith.constant 0 : index
  %high = arith.constant 4 : index
  %step = arith.constant 1 : index
  %x = arith.constant 1.0 : f32
  %is = tile.compare "eq" %t, %low : index -> i1
  scf.for %k = %low to %high step %step {
    scf.if %is {
      tile.store %x, %a[%k] strides [] : f32, memref<64xf32>
    }
  }
  tile.return
}

tile.func @nothing() grid [1] threads [32, 1, 1] warp 32 {
  tile.return
}

tile.func @copy(%a: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %x = arith.constant 1.0 : f32
  %zero = arith.constant 0 : index
  %s = simt.shared align 16 : memref<32xf32, "shared">
  %own = tile.alloc : memref<1xf32>
  tile.store %x, %own[%zero] strides [] : f32, memref<1xf32>
  simt.async_copy %a[%t] to %s[%t] 1 : memref<32xf32>, memref<32xf32, "shared">
  simt.commit
  simt.wait 0
  tile.return
}

tile.func @hint(%a: memref<32xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  tile.prefetch %a[%t] 128 : memref<32xf32>
  tile.return
}

tile.func @by_hand(%a: memref<64xf32>) grid [1] threads [64, 1, 1] warp 32 {
  %t = simt.thread_id 0
  simt.wait_for_launches
  %x = arith.constant 1.0 : f32
  tile.store %x, %a[%t] strides [] : f32, memref<64xf32>
  simt.launch_dependents
  tile.return
}

tile.func @first() grid [1] threads [64, 1, 1] warp 32 {
  simt.launch_dependents
  tile.return
}
}
