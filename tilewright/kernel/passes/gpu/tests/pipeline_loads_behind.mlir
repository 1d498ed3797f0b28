// RUN: tilewright opt -p assign-layouts -p 'pipeline-loads{schedule=load-first memory=padded}' %s | filecheck %s

// Three slices on their way before the loop; a trip computes, then fills the buffer that it has read again, for the trip
// three later. Rows of 16 and of 32 elements have 8 behind each: 3 x 32 x 24 and 3 x 16 x 40.
// CHECK-LABEL: @product
// CHECK:         %[[A:.*]] = tile.staging : memref<2304xf16, "shared">
// CHECK-NEXT:    %[[B:.*]] = tile.staging : memref<1920xf16, "shared">
// CHECK:         tile.stage %a[%{{.*}}] to %[[A]]{{.*}}memory "#padded<pad=8, O=[1,0]>" tensor<32x16xf16
// CHECK:         tile.stage %b[%{{.*}}] to %[[B]]{{.*}}memory "#padded<pad=8, O=[1,0]>" tensor<16x32xf16
// CHECK-NEXT:    tile.commit
// CHECK:         tile.commit
// CHECK:         tile.commit
// CHECK-NOT:     tile.commit
// CHECK:         scf.for %k
// CHECK:           %[[OWN:.*]] = arith.remui %{{.*}}, %{{.*}} : index
// CHECK:           %[[LATER:.*]] = arith.addi %k, %{{.*}} : index
// CHECK-NEXT:      %[[MORE:.*]] = tile.compare "lt" %[[LATER]], %high
// CHECK-NEXT:      tile.await 2
// CHECK-NOT:       tile.stage
// CHECK:           %x = tile.unstage %[[A]]
// CHECK:           %y = tile.unstage %[[B]]
// CHECK:           tile.dot "mma_m16n8k16_f16_f32" %x, %y
// CHECK-NEXT:      tile.barrier
// CHECK:           arith.muli %[[OWN]], %{{.*}} : index
// CHECK-NEXT:      tile.stage %a[%[[LATER]]] to %[[A]][%{{.*}}] when %[[MORE]]
// CHECK:           tile.stage %b[%{{.*}}] to %[[B]][%{{.*}}] when %[[MORE]]
// CHECK-NEXT:      tile.commit
// CHECK-NEXT:      scf.yield
tile.func @product(%a: memref<4096xf16>, %b: memref<4096xf16>, %c: memref<1024xf32>) grid [1] {
  %low = arith.constant 0 : index
  %high = arith.constant 128 : index
  %step = arith.constant 16 : index
  %width = arith.constant 32 : index
  %z = arith.constant dense<0.0> : tensor<32x32xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<32x32xf32>) {
    %bo = arith.muli %k, %width : index
    %x = tile.load %a[%k] strides [128, 1] align 16 : memref<4096xf16> -> tensor<32x16xf16>
    %y = tile.load %b[%bo] strides [32, 1] align 16 : memref<4096xf16> -> tensor<16x32xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<32x16xf16>, tensor<16x32xf16>, tensor<32x32xf32>
    scf.yield %d : tensor<32x32xf32>
  }
  tile.store %r, %c[%low] strides [32, 1] align 16 : tensor<32x32xf32>, memref<1024xf32>
  tile.return
}
