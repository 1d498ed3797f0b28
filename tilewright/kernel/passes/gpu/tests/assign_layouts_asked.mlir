// RUN: tilewright opt -p assign-layouts %s | filecheck %s

// A kernel says in which layout it wants its tiles: rows of 64 on a warp each, two neighbours per lane. What is repeated
// along rows is read where it is wanted; a result that memory has along columns passes through shared memory.
// CHECK-LABEL: @rows
// CHECK:         %a = tile.load %x[%o] strides [64, 1] align 16 : memref<256xf32> -> tensor<4x64xf32, "#linear<r=[(0,1)], l=[(0,2),(0,4),(0,8),(0,16),(0,32)], w=[(1,0),(2,0)]>">
// CHECK:         %b = tile.load %z[%o] strides [0, 1] align 16 : memref<64xf32> -> tensor<1x64xf32, "#linear<r=[(0,1)], l=[(0,2),(0,4),(0,8),(0,16),(0,32)], w=[(0,0),(0,0)]>">
// CHECK-NOT:     tile.convert
// CHECK:         %s = arith.addf %a, %c
// CHECK-NEXT:    tile.store %s, %y[%o]
// CHECK-NEXT:    %[[T:.*]] = tile.convert %s
// CHECK-NEXT:    tile.store %[[T]], %t[%o]
tile.func @rows(%x: memref<256xf32>, %z: memref<64xf32>, %y: memref<256xf32>, %t: memref<256xf32>) grid [1] attributes {layout = "#linear<r=[(0,1)], l=[(0,2),(0,4),(0,8),(0,16),(0,32)], w=[(1,0),(2,0)]>", warps = array<i64: 4, 1>} {
  %o = arith.constant 0 : index
  %a = tile.load %x[%o] strides [64, 1] align 16 : memref<256xf32> -> tensor<4x64xf32>
  %b = tile.load %z[%o] strides [0, 1] align 16 : memref<64xf32> -> tensor<1x64xf32>
  %c = tile.broadcast %b : tensor<1x64xf32> -> tensor<4x64xf32>
  %s = arith.addf %a, %c : tensor<4x64xf32>
  tile.store %s, %y[%o] strides [64, 1] align 16 : tensor<4x64xf32>, memref<256xf32>
  tile.store %s, %t[%o] strides [1, 4] align 16 : tensor<4x64xf32>, memref<256xf32>
  tile.return
}
