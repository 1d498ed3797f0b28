// RUN: tilewright opt -p assign-layouts -p pipeline-loads %s | filecheck %s

// Two tiles on their way before the loop, then one more in every trip, into the buffer that the trip before has read.
// CHECK-LABEL: @product
// CHECK:         %[[A:.*]] = tile.staging : memref<6144xf16, "shared">
// CHECK-NEXT:    %[[B:.*]] = tile.staging : memref<3072xf16, "shared">
// CHECK:         tile.stage %a[%{{.*}}] to %[[A]]
// CHECK:         tile.stage %b[%{{.*}}] to %[[B]]
// CHECK:         tile.commit
// CHECK:         tile.stage %a
// CHECK:         tile.stage %b
// CHECK:         tile.commit
// CHECK:         scf.for %k
// CHECK:           tile.await 1
// CHECK:           tile.stage %a
// CHECK:           tile.stage %b
// CHECK:           tile.commit
// CHECK-NOT:       tile.load
// CHECK:           %x = tile.unstage %[[A]]
// CHECK:           %y = tile.unstage %[[B]]
// CHECK:           tile.dot "mma_m16n8k16_f16_f32" %x, %y
tile.func @product(%a: memref<8192xf16>, %b: memref<4096xf16>, %c: memref<2048xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  %width = arith.constant 32 : index
  %z = arith.constant dense<0.0> : tensor<64x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<64x32xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x32xf16>
    %y = tile.load %b[%bo] strides [32, 1] align 16 : memref<4096xf16> -> tensor<32x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x32xf16>, tensor<32x32xf16>, tensor<64x32xf32>
    scf.yield %d : tensor<64x32xf32>
  }
  tile.store %r, %c[%low] strides [32, 1] align 16 : tensor<64x32xf32>, memref<2048xf32>
  tile.return
}

// Rows and the last slice of k are ragged: copies have the bounds of the load, those of the trip that they are for.
// CHECK-LABEL: @ragged
// CHECK:         scf.for %k
// CHECK:           tile.stage %a[%{{.*}}] to %{{.*}} when %{{.*}} bounds(%rows, %left{{.*}}) strides [100, 1] align 16
// CHECK-NOT:       tile.load %a
// CHECK:           tile.unstage
tile.func @ragged(%a: memref<2000xf16>, %c: memref<512xf32>, %b: memref<4096xf16>) grid [1] {
  %low = arith.constant 0 : index
  %depth = arith.constant 100 : index
  %step = arith.constant 32 : index
  %rows = arith.constant 20 : index
  %y = tile.load %b[%low] strides [16, 1] align 16 : memref<4096xf16> -> tensor<32x16xf16>
  %z = arith.constant dense<0.0> : tensor<32x16xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<32x16xf32>) {
    %left = arith.subi %depth, %k : index
    %x = tile.load %a[%k] bounds(%rows, %left) strides [100, 1] : memref<2000xf16> -> tensor<32x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<32x32xf16>, tensor<32x16xf16>, tensor<32x16xf32>
    scf.yield %d : tensor<32x16xf32>
  }
  tile.store %r, %c[%low] bounds(%rows, %rows) strides [16, 1] align 16 : tensor<32x16xf32>, memref<512xf32>
  tile.return
}

// Neighbours in memory are copied together, though those who read want others.
// CHECK-LABEL: @bounded
// CHECK:         scf.for %k
// CHECK:           tile.stage %a[%{{.*}}] {{.*}} align 16 {{.*}}tensor<32x32xf16, "#linear<r=[(1,0),(2,0),(4,0)],
// CHECK:           tile.unstage
tile.func @bounded(%a: memref<8192xf16>, %b: memref<4096xf16>, %n: memref<8xf16>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  %some = arith.constant 20 : index
  scf.for %k = %low to %high step %step {
    %x = tile.load %a[%k] bounds(%some, %step) strides [1, 64] align 16 : memref<8192xf16> -> tensor<32x32xf16>
    tile.store %x, %b[%low] strides [32, 1] align 16 : tensor<32x32xf16>, memref<4096xf16>
  }
  tile.return
}

// Rows of an odd number of halves are pieces too small to copy.
// CHECK-LABEL: @odd
// CHECK-NOT:     tile.stage
tile.func @odd(%a: memref<8192xf16>, %b: memref<4096xf16>, %n: memref<8xf16>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 32 : index
  %some = arith.constant 20 : index
  scf.for %k = %low to %high step %step {
    %x = tile.load %a[%k] bounds(%some, %step) strides [63, 1] : memref<8192xf16> -> tensor<32x32xf16>
    tile.store %x, %b[%low] strides [32, 1] align 16 : tensor<32x32xf16>, memref<4096xf16>
  }
  tile.return
}
