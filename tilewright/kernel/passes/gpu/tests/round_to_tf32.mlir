// RUN: tilewright opt -p round-to-tf32 %s | filecheck %s

// Each fragment once, before the first product that reads it; in the trip that multiplies where it was read a trip ahead.
// CHECK-LABEL: @once
// CHECK:         scf.for
// CHECK:           %n = tile.load
// CHECK-NEXT:      %[[A:.*]] = tile.tf32 "nearest" %p : tensor<4xf32>
// CHECK-NEXT:      %[[B:.*]] = tile.tf32 "nearest" %b : tensor<2xf32>
// CHECK-NEXT:      simt.mma "mma_m16n8k8_tf32_f32" %[[A]], %[[B]], %x :
// CHECK-NEXT:      %[[C:.*]] = tile.tf32 "nearest" %q : tensor<2xf32>
// CHECK-NEXT:      simt.mma "mma_m16n8k8_tf32_f32" %[[A]], %[[C]], %y :
// CHECK-NEXT:      scf.yield %n
tile.func @once(%m: memref<256xf32>, %r: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 64 : index
  %step = arith.constant 4 : index
  %a = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %c0 = arith.constant dense<0.0> : tensor<4xf32>
  %c1 = arith.constant dense<1.0> : tensor<4xf32>
  %f, %s, %t = scf.for %k = %low to %high step %step iter_args(%p = %a, %x = %c0, %y = %c1) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %b = tile.load %m[%k] strides [1] : memref<256xf32> -> tensor<2xf32>
    %q = tile.load %m[%step] strides [1] : memref<256xf32> -> tensor<2xf32>
    %n = tile.load %m[%k] strides [1] : memref<256xf32> -> tensor<4xf32>
    %d = simt.mma "mma_m16n8k8_tf32_f32" %p, %b, %x : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
    %e = simt.mma "mma_m16n8k8_tf32_f32" %p, %q, %y : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
    scf.yield %n, %d, %e : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  tile.store %s, %r[%low] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.store %t, %r[%step] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}

// What a loop does not change is rounded before it; what was rounded or split, not again.
// CHECK-LABEL: @before_the_loop
// CHECK:         %[[Q:.*]] = tile.tf32 "nearest" %q
// CHECK-NEXT:    scf.for
// CHECK-NEXT:      %b = tile.load
// CHECK-NEXT:      %low_b = tile.tf32 "low" %b
// CHECK-NEXT:      %d = simt.mma "mma_m16n8k8_tf32_f32" %[[Q]], %low_b, %x
// CHECK-NEXT:      scf.yield %d
tile.func @before_the_loop(%m: memref<256xf32>, %r: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %high = arith.constant 64 : index
  %step = arith.constant 4 : index
  %q = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %s = scf.for %k = %low to %high step %step iter_args(%x = %zero) -> (tensor<4xf32>) {
    %b = tile.load %m[%k] strides [1] : memref<256xf32> -> tensor<2xf32>
    %low_b = tile.tf32 "low" %b : tensor<2xf32>
    %d = simt.mma "mma_m16n8k8_tf32_f32" %q, %low_b, %x : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
    scf.yield %d : tensor<4xf32>
  }
  tile.store %s, %r[%low] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}

// Products that are to be split, and those of other factors, are left alone.
// CHECK-LABEL: @others
// CHECK-NOT:     tile.tf32
// CHECK:         tile.return
tile.func @others(%m: memref<256xf32>, %h: memref<256xf16>, %r: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %a = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %b = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<2xf32>
  %ha = tile.load %h[%low] strides [1] : memref<256xf16> -> tensor<8xf16>
  %hb = tile.load %h[%low] strides [1] : memref<256xf16> -> tensor<4xf16>
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %zero precision "tf32x3" : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  %e = simt.mma "mma_m16n8k16_f16_f32" %ha, %hb, %d : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>
  tile.store %e, %r[%low] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}

// Of four warps, fragments of a: where they are read, before the fence.
// CHECK-LABEL: @four_warps
// CHECK:         %a = tile.load
// CHECK-NEXT:    %[[A:.*]] = tile.tf32 "nearest" %a : tensor<4xf32>
// CHECK:         simt.warpgroup_fence %c, %[[A]] :
// CHECK-NOT:     tile.tf32
// CHECK:         tile.return
tile.func @four_warps(%m: memref<256xf32>, %r: memref<256xf32>) grid [] threads [128, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %s = simt.shared align 1024 : memref<512xf32, "shared">
  %c = arith.constant dense<0.0> : tensor<32xf32>
  %a = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %high = arith.constant 64 : index
  %x, %y = simt.warpgroup_fence %c, %a : tensor<32xf32>, tensor<4xf32> -> tensor<32xf32>, tensor<4xf32>
  %d = simt.warpgroup_mma "wgmma_m64n64k8_tf32_f32" %y, %s[%low] matrix [0, 256, 32, 0], %x : tensor<4xf32>, memref<512xf32, "shared">, tensor<32xf32>
  simt.warpgroup_commit
  %e = simt.warpgroup_wait 0 %d : tensor<32xf32> -> tensor<32xf32>
  tile.store %e, %r[%low] strides [1] : tensor<32xf32>, memref<256xf32>
  tile.return
}
