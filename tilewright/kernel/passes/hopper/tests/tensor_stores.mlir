// RUN: tilewright opt -p tensor-copies -p tensor-stores %s | filecheck %s

// A tile of 16-bit elements leaves as boxes, two parts of 64 columns one after the other.
// CHECK-LABEL: @halves
// CHECK:         %[[H:.*]] = tile.cast %r
// CHECK:         tile.bulk_store %[[H]] to %c[%{{.*}}, %{{.*}}] extents [128, 128] strides [128, 1] box [64, 64] swizzle 128 by "wgmma_m64n128k16_f16_f32" turns 2
// CHECK-NOT:     tile.store
// CHECK:         tile.finish_stores
// CHECK-NEXT:    tile.return

// Sums in f32 fill sectors from where they are, and stay stores.
// CHECK-LABEL: @wide
// CHECK:         tile.store
// CHECK-NOT:     tile.finish_stores

// So do results in memory that the kernel reads.
// CHECK-LABEL: @read_too
// CHECK:         tile.store
// CHECK-NOT:     tile.finish_stores
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @halves(%a: memref<16384xf16>, %b: memref<16384xf16>, %c: memref<16384xf16>) grid [2] {
  %p = tile.program_id 0
  %bm = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %h = tile.cast %r : tensor<64x128xf32> -> tensor<64x128xf16>
  %co = arith.muli %i, %width : index
  tile.store %h, %c[%co] strides [128, 1] align 16 : tensor<64x128xf16>, memref<16384xf16>
  tile.return
}
tile.func @wide(%a: memref<8192xf16>, %b: memref<16384xf16>, %c: memref<8192xf32>) grid [1] {
  %o = arith.constant 0 : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %x = tile.load %a[%o] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x128xf16>
  %y = tile.load %b[%o] strides [128, 1] align 16 : memref<16384xf16> -> tensor<128x128xf16>
  %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %z unsigned "" : tensor<64x128xf16>, tensor<128x128xf16>, tensor<64x128xf32>
  tile.store %d, %c[%o] strides [128, 1] align 16 : tensor<64x128xf32>, memref<8192xf32>
  tile.return
}
tile.func @read_too(%a: memref<8192xf16>, %b: memref<16384xf16>, %c: memref<8192xf16>) grid [1] {
  %o = arith.constant 0 : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %x = tile.load %a[%o] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x128xf16>
  %y = tile.load %b[%o] strides [128, 1] align 16 : memref<16384xf16> -> tensor<128x128xf16>
  %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %z unsigned "" : tensor<64x128xf16>, tensor<128x128xf16>, tensor<64x128xf32>
  %before = tile.load %c[%o] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x128xf16>
  %h = tile.cast %d : tensor<64x128xf32> -> tensor<64x128xf16>
  %sum = arith.addf %h, %before : tensor<64x128xf16>
  tile.store %sum, %c[%o] strides [128, 1] align 16 : tensor<64x128xf16>, memref<8192xf16>
  tile.return
}
}
