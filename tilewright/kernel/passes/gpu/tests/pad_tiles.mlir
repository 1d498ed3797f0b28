// RUN: tilewright opt -p pad-tiles %s | filecheck %s

// A reduction sees its neutral element where the tile had nothing.
// CHECK-LABEL: @maximum
// CHECK:         %[[N:.*]] = arith.constant 100 : index
// CHECK-NEXT:    %x = tile.load %v[%o] bounds(%[[N]]) strides [1] : memref<100xf32> -> tensor<128xf32>
// CHECK:         %[[COUNT:.*]] = tile.iota 0 : tensor<128xi64>
// CHECK:         %[[INSIDE:.*]] = tile.compare "lt" %[[COUNT]]
// CHECK:         %[[FILLED:.*]] = tile.select %[[INSIDE]], %x, %
// CHECK:         %m = tile.reduce "max" %[[FILLED]], 0 : tensor<128xf32> -> tensor<1xf32>
tile.func @maximum(%v: memref<100xf32>, %w: memref<1xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %v[%o] strides [1] : memref<100xf32> -> tensor<100xf32>
  %m = tile.reduce "max" %x, 0 : tensor<100xf32> -> tensor<1xf32>
  tile.store %m, %w[%o] strides [1] : tensor<1xf32>, memref<1xf32>
  tile.return
}

// A load leaves zeros, which a product may see; the bound that a load has is kept.
// CHECK-LABEL: @product
// CHECK:         arith.minsi
// CHECK:         %x = tile.load %a[%o] bounds(%{{.*}}, %{{.*}}) strides [12, 1] : memref<240xf32> -> tensor<32x16xf32>
// CHECK-NOT:     tile.select
// CHECK:         tile.dot "fma" %x, %y, %z unsigned "" : tensor<32x16xf32>, tensor<16x16xf32>, tensor<32x16xf32>
tile.func @product(%a: memref<240xf32>, %b: memref<192xf32>, %c: memref<320xf32>) grid [1] {
  %o = arith.constant 0 : index
  %n = arith.constant 12 : index
  %some = arith.constant 17 : index
  %z = arith.constant dense<0.0> : tensor<20x16xf32>
  %x = tile.load %a[%o] bounds(%some, %n) strides [12, 1] : memref<240xf32> -> tensor<20x12xf32>
  %y = tile.load %b[%o] strides [16, 1] : memref<192xf32> -> tensor<12x16xf32>
  %d = tile.dot "fma" %x, %y, %z unsigned "" : tensor<20x12xf32>, tensor<12x16xf32>, tensor<20x16xf32>
  tile.store %d, %c[%o] strides [16, 1] : tensor<20x16xf32>, memref<320xf32>
  tile.return
}

// Powers of two stay.
// CHECK-LABEL: @even
// CHECK-NOT:     bounds
tile.func @even(%v: memref<64xf32>, %w: memref<64xf32>) grid [1] {
  %o = arith.constant 0 : index
  %x = tile.load %v[%o] strides [1] : memref<64xf32> -> tensor<64xf32>
  tile.store %x, %w[%o] strides [1] : tensor<64xf32>, memref<64xf32>
  tile.return
}
