// RUN: tilewright opt -p 'assign-layouts{warps=1}' %s | filecheck %s

// Fragments are not told: what a product adds to is loaded in them where it lies, and what is the same for all elements
// is done in them, relu here. A cast makes other elements, for which the tile leaves them.
// CHECK-LABEL: @relu
// CHECK:         %c = tile.load %z[%o] {{.*}} -> tensor<16x16xf32, "#wmma<W=[1,1], instr=[16,16,16]>">
// CHECK:         tile.convert %a : {{.*}} -> tensor<16x16xf16, "#dot<idx=0, parent=#wmma<W=[1,1], instr=[16,16,16]>, w=2>">
// CHECK:         %d = tile.dot "wmma_16x16x16_f16_f32" {{.*}} tensor<16x16xf32, "#wmma<
// CHECK:         %r = arith.maximumf %d, %{{.*}} : tensor<16x16xf32, "#wmma<
// CHECK-NEXT:    tile.store %r, %z[%o]
// CHECK-NEXT:    %[[OUT:.*]] = tile.convert %r : {{.*}} -> tensor<16x16xf32, "#linear<r=[(0,1),(0,2),(8,0)],
// CHECK-NEXT:    %h = tile.cast %[[OUT]]
// CHECK:         tile.store {{.*}}, %n
tile.func @relu(%x: memref<256xf16>, %y: memref<256xf16>, %z: memref<256xf32>, %n: memref<256xf16>) grid [1] {
  %o = arith.constant 0 : index
  %zero = arith.constant dense<0.0> : tensor<16x16xf32>
  %a = tile.load %x[%o] strides [16, 1] align 16 : memref<256xf16> -> tensor<16x16xf16>
  %b = tile.load %y[%o] strides [16, 1] align 16 : memref<256xf16> -> tensor<16x16xf16>
  %c = tile.load %z[%o] strides [16, 1] align 16 : memref<256xf32> -> tensor<16x16xf32>
  %d = tile.dot "wmma_16x16x16_f16_f32" %a, %b, %c unsigned "" : tensor<16x16xf16>, tensor<16x16xf16>, tensor<16x16xf32>
  %r = arith.maximumf %d, %zero : tensor<16x16xf32>
  tile.store %r, %z[%o] strides [16, 1] align 16 : tensor<16x16xf32>, memref<256xf32>
  %h = tile.cast %r : tensor<16x16xf32> -> tensor<16x16xf16>
  tile.store %h, %n[%o] strides [16, 1] align 16 : tensor<16x16xf16>, memref<256xf16>
  tile.return
}

// A bias by column wants to know the columns, a bound which elements there are: both after the tile has left.
// CHECK-LABEL: @bias
// CHECK:         %d = tile.dot
// CHECK-NOT:     arith.addf {{.*}} "#wmma<
// CHECK:         %[[OUT:.*]] = tile.convert %d
// CHECK:         %s = arith.addf %[[OUT]], {{.*}} "#linear<
tile.func @bias(%x: memref<256xf16>, %y: memref<256xf16>, %z: memref<256xf32>, %v: memref<16xf32>, %n: memref<8xf16>) grid [1] {
  %o = arith.constant 0 : index
  %most = arith.constant 13 : index
  %zero = arith.constant dense<0.0> : tensor<16x16xf32>
  %a = tile.load %x[%o] strides [16, 1] align 16 : memref<256xf16> -> tensor<16x16xf16>
  %b = tile.load %y[%o] strides [16, 1] align 16 : memref<256xf16> -> tensor<16x16xf16>
  %d = tile.dot "wmma_16x16x16_f16_f32" %a, %b, %zero unsigned "" : tensor<16x16xf16>, tensor<16x16xf16>, tensor<16x16xf32>
  %e = tile.load %v[%o] strides [0, 1] : memref<16xf32> -> tensor<1x16xf32>
  %w = tile.broadcast %e : tensor<1x16xf32> -> tensor<16x16xf32>
  %s = arith.addf %d, %w : tensor<16x16xf32>
  tile.store %s, %z[%o] bounds(%most, %most) strides [16, 1] align 16 : tensor<16x16xf32>, memref<256xf32>
  tile.return
}
