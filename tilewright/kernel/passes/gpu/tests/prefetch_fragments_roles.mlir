// RUN: tilewright opt -p tensor-copies -p assign-layouts -p pipeline-loads -p distribute -p warp-specialize -p canonicalise -p licm -p cse -p dce -p prefetch-fragments %s | filecheck %s

// Four warps compute and four fill for the first product: the barrier before the loop of the second is of the four that
// get there.
// CHECK-LABEL: @two
// CHECK-SAME:    threads [256, 1, 1]
// CHECK:         simt.warpgroup_mma
// CHECK:         simt.wait 1
// CHECK-NEXT:    simt.barrier number 1 of 128
// CHECK:         simt.load_matrix
// CHECK:         scf.for
// CHECK:           simt.mma "mma_m16n8k32_s8_s32"
// CHECK:           simt.wait 1
// CHECK-NEXT:      simt.barrier number 1 of 128
// CHECK:         } else {
builtin.module attributes {"tile.target" = {units = "cp_async ldmatrix mbarrier mma tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @two(%a: memref<8192xf16>, %b: memref<16384xf16>, %c: memref<8192xf32>, %u: memref<16384xi8>, %v: memref<8192xi8>, %w: memref<2048xi32>) grid [1] {
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %c[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<8192xf32>
  %high = arith.constant 256 : index
  %zero = arith.constant dense<0> : tensor<64x32xi32>
  %s = scf.for %k = %low to %high step %step iter_args(%acc = %zero) -> (tensor<64x32xi32>) {
    %x = tile.load %u[%k] strides [256, 1] align 16 : memref<16384xi8> -> tensor<64x64xi8>
    %y = tile.load %v[%k] strides [1, 256] align 16 : memref<8192xi8> -> tensor<64x32xi8>
    %d = tile.dot "mma_m16n8k32_s8_s32" %x, %y, %acc unsigned "" : tensor<64x64xi8>, tensor<64x32xi8>, tensor<64x32xi32>
    scf.yield %d : tensor<64x32xi32>
  }
  tile.store %s, %w[%low] strides [32, 1] align 16 : tensor<64x32xi32>, memref<2048xi32>
  tile.return
}
}
