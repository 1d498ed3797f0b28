// RUN: tilewright opt -p canonicalise %s | filecheck %s

// The one thread along y is number 0; a copy of which all is valid says no number; accesses keep their alignment.
// CHECK-LABEL: @simplifies
// CHECK:         simt.async_copy %in[%t] to %s[%t] 4 bypass :
// CHECK-NEXT:    simt.async_copy %in[%t] to %s[%t] 4 valid %few :
// CHECK:         %x = tile.load %in[%t] strides [1] align 16 :
// CHECK-NEXT:    tile.store %x, %out[%t] strides [1] nontemporal align 16 :
// CHECK-NEXT:    %y = tile.load %in[%zero] strides [] :
tile.func @simplifies(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %zero = simt.thread_id 1
  %few = arith.constant 3 : index
  %many = arith.constant 4 : index
  %s = simt.shared align 16 : memref<64xf32, "shared">
  simt.async_copy %in[%t] to %s[%t] 4 valid %many bypass : memref<64xf32>, memref<64xf32, "shared">
  simt.async_copy %in[%t] to %s[%t] 4 valid %few : memref<64xf32>, memref<64xf32, "shared">
  %x = tile.load %in[%t] bounds(%many) strides [1] align 16 : memref<64xf32> -> tensor<4xf32>
  tile.store %x, %out[%t] bounds(%many) strides [1] nontemporal align 16 : tensor<4xf32>, memref<64xf32>
  %y = tile.load %in[%zero] strides [] : memref<64xf32> -> f32
  tile.store %y, %out[%zero] strides [] : f32, memref<64xf32>
  tile.return
}
