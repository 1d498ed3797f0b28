// RUN: tilewright opt -p tf32x3 %s | filecheck %s

// Fragments are split once; of products that do not wait for each other, all small ones come first. The sums of a step
// begin at zero and are added to c outside of the instruction.
// CHECK-LABEL: @three
// CHECK-SAME:    blocks_per_multiprocessor = 1
// CHECK:         %[[AH:.*]] = tile.tf32 "high" %a : tensor<4xf32>
// CHECK-NEXT:    %[[AL:.*]] = tile.tf32 "low" %a : tensor<4xf32>
// CHECK-NEXT:    %[[BH:.*]] = tile.tf32 "high" %b : tensor<2xf32>
// CHECK-NEXT:    %[[BL:.*]] = tile.tf32 "low" %b : tensor<2xf32>
// CHECK-NEXT:    %[[ZERO:.*]] = arith.constant dense<0.000000e+00> : tensor<4xf32>
// CHECK-NEXT:    %[[D1:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AL]], %[[BH]], %[[ZERO]] : tensor<4xf32>
// CHECK-NEXT:    %[[QH:.*]] = tile.tf32 "high" %q : tensor<2xf32>
// CHECK-NEXT:    %[[QL:.*]] = tile.tf32 "low" %q : tensor<2xf32>
// CHECK-NEXT:    %[[E1:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AL]], %[[QH]], %[[ZERO]] : tensor<4xf32>
// CHECK-NEXT:    %[[D2:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[BL]], %[[D1]] : tensor<4xf32>
// CHECK-NEXT:    %[[E2:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[QL]], %[[E1]] : tensor<4xf32>
// CHECK-NEXT:    %[[D3:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[BH]], %[[D2]] : tensor<4xf32>
// CHECK-NEXT:    %[[E3:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[QH]], %[[E2]] : tensor<4xf32>
// CHECK-NEXT:    %d = arith.addf %zero, %[[D3]] : tensor<4xf32>
// CHECK-NEXT:    %e = arith.addf %zero, %[[E3]] : tensor<4xf32>
// The next one waits for the first.
// CHECK-NEXT:    %[[ZERO2:.*]] = arith.constant dense<0.000000e+00> : tensor<4xf32>
// CHECK-NEXT:    %[[F1:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AL]], %[[BH]], %[[ZERO2]]
// CHECK-NEXT:    %[[F2:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[BL]], %[[F1]]
// CHECK-NEXT:    %[[F3:.*]] = simt.mma "mma_m16n8k8_tf32_f32" %[[AH]], %[[BH]], %[[F2]]
// CHECK-NEXT:    %f = arith.addf %d, %[[F3]]
// CHECK-NEXT:    tile.store %f
tile.func @three(%m: memref<256xf32>, %r: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %next = arith.constant 4 : index
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %a = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %b = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<2xf32>
  %q = tile.load %m[%next] strides [1] : memref<256xf32> -> tensor<2xf32>
  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %zero precision "tf32x3" : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  %e = simt.mma "mma_m16n8k8_tf32_f32" %a, %q, %zero precision "tf32x3" : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  %f = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %d precision "tf32x3" : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  tile.store %f, %r[%low] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.store %e, %r[%next] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}

// A product of one precision is what its instruction gives.
// CHECK-LABEL: @one
// CHECK-NOT:     blocks_per_multiprocessor
// CHECK-NOT:     tile.tf32
// CHECK:         simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %zero
// CHECK-NEXT:    tile.store
tile.func @one(%m: memref<256xf32>, %r: memref<256xf32>) grid [] threads [32, 1, 1] warp 32 {
  %low = arith.constant 0 : index
  %zero = arith.constant dense<0.0> : tensor<4xf32>
  %a = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<4xf32>
  %b = tile.load %m[%low] strides [1] : memref<256xf32> -> tensor<2xf32>
  %d = simt.mma "mma_m16n8k8_tf32_f32" %a, %b, %zero : tensor<4xf32>, tensor<2xf32>, tensor<4xf32>
  tile.store %d, %r[%low] strides [1] : tensor<4xf32>, memref<256xf32>
  tile.return
}
