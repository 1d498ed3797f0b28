// RUN: tilewright opt -p warp-products %s | filecheck %s

// What was to be a product of four warps is one of single warps, which share the tile as squarely as they can.
// CHECK-LABEL: @left_alone
// CHECK-SAME:    attributes {warps = array<i64: 2, 4>}
// CHECK:         tile.dot "mma_m16n8k16_f16_f32"

// Products of single warps stay as they are.
// CHECK-LABEL: @of_one_warp
// CHECK-SAME:    attributes {warps = array<i64: 4, 1>}
// CHECK:         tile.dot "mma_m16n8k16_bf16_f32"

// A load of a box that nothing copies is one of threads: bounds, a mask where a coordinate may be negative, and a place
// inside the view where there is no element.
// CHECK-LABEL: @box
// CHECK:         %[[I:.*]] = tile.iota 0 : tensor<8x64xi64>
// CHECK:         %[[M:.*]] = tile.compare "ge"
// CHECK:         %[[O:.*]] = tile.select
// CHECK:         tile.load %a[%[[O]]] bounds(%{{.*}}, %{{.*}}) mask %[[M]] : tensor<8x64xi1> strides [64, 1]
// CHECK-NOT:     tile.load_box
builtin.module {
tile.func @left_alone(%a: memref<2048xf16>, %b: memref<4096xf16>, %c: memref<32768xf32>) grid [1] attributes {warps = array<i64: 8, 1>} {
  %o = arith.constant 0 : index
  %z = arith.constant dense<0.0> : tensor<128x256xf32>
  %x = tile.load %a[%o] strides [16, 1] align 16 : memref<2048xf16> -> tensor<128x16xf16>
  %y = tile.load %b[%o] strides [256, 1] align 16 : memref<4096xf16> -> tensor<16x256xf16>
  %d = tile.dot "wgmma_m64n256k16_f16_f32" %x, %y, %z unsigned "" : tensor<128x16xf16>, tensor<16x256xf16>, tensor<128x256xf32>
  tile.store %d, %c[%o] strides [256, 1] align 16 : tensor<128x256xf32>, memref<32768xf32>
  tile.return
}
tile.func @of_one_warp(%a: memref<1024xbf16>, %b: memref<1024xbf16>, %c: memref<4096xf32>) grid [1] attributes {warps = array<i64: 4, 1>} {
  %o = arith.constant 0 : index
  %z = arith.constant dense<0.0> : tensor<64x64xf32>
  %x = tile.load %a[%o] strides [16, 1] align 16 : memref<1024xbf16> -> tensor<64x16xbf16>
  %y = tile.load %b[%o] strides [64, 1] align 16 : memref<1024xbf16> -> tensor<16x64xbf16>
  %d = tile.dot "mma_m16n8k16_bf16_f32" %x, %y, %z unsigned "" : tensor<64x16xbf16>, tensor<16x64xbf16>, tensor<64x64xf32>
  tile.store %d, %c[%o] strides [64, 1] align 16 : tensor<64x64xf32>, memref<4096xf32>
  tile.return
}
tile.func @box(%a: memref<512xf16>, %c: memref<512xf16>) grid [3] {
  %p = tile.program_id 0
  %one = arith.constant 1 : index
  %low = arith.constant 0 : index
  %i = arith.subi %p, %one : index
  %x = tile.load_box %a[%i, %low] extents [8, 64] strides [64, 1] : memref<512xf16> -> tensor<8x64xf16>
  tile.store %x, %c[%low] strides [64, 1] : tensor<8x64xf16>, memref<512xf16>
  tile.return
}
}
