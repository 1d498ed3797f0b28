// RUN: tilewright opt -p ranges %s | filecheck %s

// A thread's coordinate is below the extent of the block; accesses keep their alignment.
// CHECK-LABEL: @threads
// CHECK:         %t = simt.thread_id 0
// CHECK:         %x = tile.load %in[%t] strides [1] align 16 :
// CHECK-NEXT:    tile.store %x, %in[%t] strides [1] align 16 :
// CHECK:         %r = arith.remui %t, %c16
tile.func @threads(%in: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %c16 = arith.constant 16 : index
  %c32 = arith.constant 32 : index
  %t = simt.thread_id 0
  %m = arith.remui %t, %c32 : index
  %n = arith.minsi %c16, %c32 : index
  %x = tile.load %in[%m] bounds(%n) strides [1] align 16 : memref<64xf32> -> tensor<4xf32>
  tile.store %x, %in[%m] bounds(%n) strides [1] align 16 : tensor<4xf32>, memref<64xf32>
  %r = arith.remui %t, %c16 : index
  tile.store %x, %in[%r] strides [1] : tensor<4xf32>, memref<64xf32>
  tile.return
}
