// RUN: tilewright opt -p licm %s | filecheck %s

// What nobody writes is loaded before the loop, in spite of the barrier; shared memory is not.
// CHECK-LABEL: @barriers
// CHECK:         %a = tile.load %in
// CHECK-NEXT:    scf.for
// CHECK-NEXT:      tile.store %a, %s
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      %x = tile.load %s
// CHECK-NEXT:      %m = simt.load_matrix %s
// CHECK-NEXT:      simt.store_matrix %m, %s
// CHECK-NEXT:      simt.barrier
tile.func @barriers(%in: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %s = simt.shared align 16 : memref<64xf32, "shared">
  scf.for %i = %c0 to %c4 step %c1 {
    %a = tile.load %in[%t] strides [] : memref<64xf32> -> f32
    tile.store %a, %s[%t] strides [] : f32, memref<64xf32, "shared">
    simt.barrier
    %x = tile.load %s[%t] strides [] : memref<64xf32, "shared"> -> f32
    %m = simt.load_matrix %s[%t] 1 : memref<64xf32, "shared"> -> tensor<1xf32>
    simt.store_matrix %m, %s[%t] 1 : tensor<1xf32>, memref<64xf32, "shared">
    simt.barrier
  }
  tile.return
}

// A barrier alone shows what others wrote before the loop.
// CHECK-LABEL: @only_a_barrier
// CHECK:         tile.store %one, %s
// CHECK-NEXT:    scf.for
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:      %x = tile.load %s
tile.func @only_a_barrier(%out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %one = arith.constant 1.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %s = simt.shared align 16 : memref<64xf32, "shared">
  tile.store %one, %s[%t] strides [] : f32, memref<64xf32, "shared">
  scf.for %i = %c0 to %c4 step %c1 {
    simt.barrier
    %x = tile.load %s[%c0] strides [] : memref<64xf32, "shared"> -> f32
    tile.store %x, %out[%t] strides [] : f32, memref<64xf32>
  }
  tile.return
}

// A wait for an mbarrier shows what a tensor copy of another warp brought.
// CHECK-LABEL: @only_an_mbarrier
// CHECK:         scf.for
// CHECK-NEXT:      simt.mbarrier_wait
// CHECK-NEXT:      %x = tile.load %s
tile.func @only_an_mbarrier(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %s = simt.shared align 128 : memref<64xf32, "shared">
  %b = simt.shared align 8 : memref<1xi64, "shared">
  simt.tensor_load %in[%c0] to %s[%c0] counted %b[%c0] extents [64] strides [1] box [64] swizzle 0 : memref<64xf32>, memref<64xf32, "shared">, memref<1xi64, "shared">
  scf.for %i = %c0 to %c4 step %c1 {
    simt.mbarrier_wait %b[%c0] parity %c0 : memref<1xi64, "shared">
    %x = tile.load %s[%c0] strides [] : memref<64xf32, "shared"> -> f32
    tile.store %x, %out[%t] strides [] : f32, memref<64xf32>
  }
  tile.return
}

// Products and shuffles leave a loop that surely runs, never a branch or a loop that may not run.
// CHECK-LABEL: @warps
// CHECK:         %p = simt.shuffle
// CHECK-NEXT:    %d = simt.mma
// CHECK-NEXT:    scf.for
// CHECK:           scf.if
// CHECK-NEXT:        %q = simt.shuffle
// CHECK:         scf.for
// CHECK-NEXT:      %r = simt.shuffle
tile.func @warps(%out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %n = tile.program_id 0
  %yes = arith.constant true
  %a = arith.constant dense<1.0> : tensor<8xf16>
  %b = arith.constant dense<1.0> : tensor<4xf16>
  %c = arith.constant dense<1.0> : tensor<4xf32>
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  scf.for %i = %c0 to %c4 step %c1 {
    %p = simt.shuffle "xor" %t, %c1 : index
    %d = simt.mma "mma_m16n8k16_f16_f32" %a, %b, %c : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
    tile.store %d, %out[%p] strides [1] : tensor<4xf32>, memref<64xf32>
    scf.if %yes {
      %q = simt.shuffle "up" %t, %c1 : index
      tile.store %d, %out[%q] strides [1] : tensor<4xf32>, memref<64xf32>
    }
  }
  scf.for %i = %c0 to %n step %c1 {
    %r = simt.shuffle "down" %t, %c1 : index
    tile.store %c, %out[%r] strides [1] : tensor<4xf32>, memref<64xf32>
  }
  tile.return
}
