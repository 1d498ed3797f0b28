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

// Two registers of one tile in a row are one part; a part of joined tiles is of one of them; all of them are the tile.
// CHECK-LABEL: @registers
// CHECK:         %x = tile.load
// CHECK-NEXT:    %y = tile.load
// CHECK:         %[[P:.*]] = simt.part %x[1] : tensor<4xf32> -> tensor<2xf32>
// CHECK-NEXT:    tile.store %[[P]]
// CHECK:         tile.store %y
// CHECK:         %[[Q:.*]] = simt.part %y[2]
// CHECK:         %[[R:.*]] = simt.part %y[0]
// CHECK:         %[[S:.*]] = simt.join %[[Q]], %[[R]]
// CHECK-NEXT:    tile.store %[[S]]
tile.func @registers(%in: memref<64xf32>, %out: memref<64xf32>) grid [1] threads [32, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %x = tile.load %in[%t] strides [1] : memref<64xf32> -> tensor<4xf32>
  %y = tile.load %in[%t] strides [1] : memref<64xf32> -> tensor<4xf32>
  %a = simt.part %x[1] : tensor<4xf32> -> tensor<1xf32>
  %b = simt.part %x[2] : tensor<4xf32> -> tensor<1xf32>
  %c = simt.join %a, %b : tensor<1xf32>, tensor<1xf32> -> tensor<2xf32>
  tile.store %c, %out[%t] strides [1] : tensor<2xf32>, memref<64xf32>
  %d = simt.join %x, %y : tensor<4xf32>, tensor<4xf32> -> tensor<8xf32>
  %e = simt.part %d[4] : tensor<8xf32> -> tensor<4xf32>
  tile.store %e, %out[%t] strides [1] : tensor<4xf32>, memref<64xf32>
  %f = simt.part %d[6] : tensor<8xf32> -> tensor<2xf32>
  %g = simt.part %e[0] : tensor<4xf32> -> tensor<2xf32>
  %h = simt.join %f, %g : tensor<2xf32>, tensor<2xf32> -> tensor<4xf32>
  tile.store %h, %out[%t] strides [1] : tensor<4xf32>, memref<64xf32>
  tile.return
}
