// RUN: tilewright opt -p dce %s | filecheck %s

// What synchronises, copies, writes or counts stays, whether or not its result is used.
// CHECK-LABEL: @stays
// CHECK:         %t = simt.thread_id 0
// CHECK-NEXT:    %s = simt.shared
// CHECK-NEXT:    simt.async_copy
// CHECK-NEXT:    simt.commit
// CHECK-NEXT:    simt.wait 0
// CHECK-NEXT:    simt.barrier
// CHECK-NEXT:    %m = simt.load_matrix
// CHECK-NEXT:    simt.store_matrix
// CHECK-NEXT:    %o = simt.atomic
// CHECK-NEXT:    simt.store_fragment
// CHECK-NEXT:    scf.for
// CHECK-NEXT:      simt.barrier
// CHECK-NEXT:    }
// CHECK-NEXT:    tile.return
tile.func @stays(%in: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %one = arith.constant 1.0 : f32
  %c = arith.constant dense<1.0> : tensor<4xf32>
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %t = simt.thread_id 0
  %s = simt.shared align 16 : memref<64xf32, "shared">
  simt.async_copy %in[%t] to %s[%t] 1 : memref<64xf32>, memref<64xf32, "shared">
  simt.commit
  simt.wait 0
  simt.barrier
  %m = simt.load_matrix %s[%t] 1 : memref<64xf32, "shared"> -> tensor<1xf32>
  simt.store_matrix %m, %s[%t] 1 : tensor<1xf32>, memref<64xf32, "shared">
  %o = simt.atomic "add" %one, %in[%t] : f32, memref<64xf32> -> f32
  simt.store_fragment "mma_m16n8k16_f16_f32" %c, %in[%c0, %c4] : tensor<4xf32>, memref<64xf32>
  scf.for %i = %c0 to %c4 step %c4 {
    simt.barrier
  }
  tile.return
}

// Reads, shuffles and products without uses go, and shared memory that nothing touches.
// CHECK-LABEL: @goes
// CHECK-NEXT:    tile.return
tile.func @goes(%in: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %t = simt.thread_id 0
  %a = arith.constant dense<1.0> : tensor<8xf16>
  %b = arith.constant dense<1.0> : tensor<4xf16>
  %s = simt.shared align 16 : memref<64xf32, "shared">
  %m = simt.load_matrix %s[%t] 1 : memref<64xf32, "shared"> -> tensor<1xf32>
  %c = simt.load_fragment "mma_m16n8k16_f16_f32" "c" %in[%c0, %c4] : memref<64xf32> -> tensor<4xf32>
  %d = simt.mma "mma_m16n8k16_f16_f32" %a, %b, %c : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
  %e = simt.shuffle "xor" %d, %t : tensor<4xf32>
  tile.return
}
