// RUN: tilewright opt -p tensor-copies -p pipeline-tensor-copies -p pipeline-chains %s | filecheck %s

// Both products of a trip start before its work; the second is that of the trip before, and what it takes is carried.
// CHECK-LABEL: @chain
// CHECK:         %[[V:.*]], %[[VS:.*]] = tile.circular_buffer 4
// CHECK-NEXT:    %[[K:.*]], %[[KS:.*]] = tile.circular_buffer 4
// CHECK-NEXT:    %[[Q:.*]], %[[QS:.*]] = tile.circular_buffer 1

// The first trip: no second product.
// CHECK:         tile.consumer_wait %[[K]]
// CHECK:         tile.staged_dot "wgmma_m64n64k16_f16_f32" %[[QS]]
// CHECK:         tile.finish 0
// CHECK:         tile.consumer_release %[[K]]
// CHECK:         scf.if
// CHECK-NEXT:      tile.consumer_wait %[[K]]

// CHECK:         %[[R:.*]], %[[F:.*]] = scf.for %j = %{{.*}} to %rows step %step iter_args(%acc = %{{.*}}, %[[W:.*]] = %{{.*}})
// CHECK:           tile.staged_dot "wgmma_m64n64k16_f16_f32" %[[QS]]
// CHECK:           %[[ONE:.*]] = arith.constant 1 : index
// CHECK-NEXT:      %[[N:.*]] = arith.subi %{{.*}}, %[[ONE]]
// CHECK-NEXT:      tile.consumer_wait %[[V]][%[[N]]]
// CHECK-NEXT:      %[[D:.*]] = tile.staged_dot "wgmma_m64n128k16_f16_f32" %[[W]], %[[VS]] memory {{.*}}[%[[N]]] depth 64, %acc
// CHECK-NEXT:      %{{.*}} = tile.finish 1
// CHECK:           scf.if
// CHECK-NEXT:        tile.consumer_wait %[[K]]
// CHECK:           %[[SUMS:.*]] = tile.finish 0 %[[D]]
// CHECK-NEXT:      tile.consumer_release %[[V]][%[[N]]]
// CHECK-NEXT:      tile.produce %[[V]]
// CHECK:           %[[LESS:.*]] = arith.mulf %[[SUMS]], %half
// CHECK:           %[[NEXT:.*]] = tile.cast
// CHECK-NEXT:      scf.yield %[[LESS]], %[[NEXT]]

// The second product of the last trip.
// CHECK:         tile.consumer_wait %[[V]]
// CHECK:         %[[E:.*]] = tile.staged_dot "wgmma_m64n128k16_f16_f32" %[[F]], %[[VS]] memory {{.*}} depth 64, %[[R]]
// CHECK-NEXT:    %[[D:.*]] = tile.finish 0 %[[E]]
// CHECK-NEXT:    tile.consumer_release %[[V]]
// CHECK:         tile.store %[[D]]

// Of a loop that may have no trip, and of one of two trips at most, every product is waited for at once.
// CHECK-LABEL: @perhaps
// CHECK-NOT:     tile.finish 1
// CHECK-LABEL: @two_trips
// CHECK-NOT:     tile.finish 1
builtin.module attributes {"tile.target" = {units = "mbarrier tma wgmma", multiprocessors = 2 : i64, shared_bytes = 232448 : i64}} {
tile.func @chain(%q: memref<65536xf16>, %k: memref<65536xf16>, %v: memref<65536xf16>, %o: memref<65536xf32>) grid [2] attributes {warps = array<i64: 4, 1>} {
  %low = arith.constant 0 : index
  %step = arith.constant 64 : index
  %rows = arith.constant 512 : index
  %width = arith.constant 128 : index
  %qs = tile.load %q[%low] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
  %none = arith.constant dense<0.0> : tensor<64x64xf32>
  %zero = arith.constant dense<0.0> : tensor<64x128xf32>
  %half = arith.constant dense<0.5> : tensor<64x128xf32>
  %r = scf.for %j = %low to %rows step %step iter_args(%acc = %zero) -> (tensor<64x128xf32>) {
    %jw = arith.muli %j, %width : index
    %ks = tile.load %k[%jw] strides [1, 128] align 16 : memref<65536xf16> -> tensor<128x64xf16>
    %vs = tile.load %v[%jw] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
    %dots = tile.dot "wgmma_m64n64k16_f16_f32" %qs, %ks, %none unsigned "" : tensor<64x128xf16>, tensor<128x64xf16>, tensor<64x64xf32>
    %weights = tile.cast %dots : tensor<64x64xf32> -> tensor<64x64xf16>
    %less = arith.mulf %acc, %half : tensor<64x128xf32>
    %d = tile.dot "wgmma_m64n128k16_f16_f32" %weights, %vs, %less unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %o[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
tile.func @perhaps(%q: memref<65536xf16>, %k: memref<65536xf16>, %v: memref<65536xf16>, %o: memref<65536xf32>) grid [2] attributes {warps = array<i64: 4, 1>} {
  %low = arith.constant 0 : index
  %step = arith.constant 64 : index
  %rows = arith.constant 512 : index
  %width = arith.constant 128 : index
  %p = tile.program_id 0
  %some = arith.muli %p, %step : index
  %qs = tile.load %q[%low] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
  %none = arith.constant dense<0.0> : tensor<64x64xf32>
  %zero = arith.constant dense<0.0> : tensor<64x128xf32>
  %half = arith.constant dense<0.5> : tensor<64x128xf32>
  %r = scf.for %j = %low to %some step %step iter_args(%acc = %zero) -> (tensor<64x128xf32>) {
    %jw = arith.muli %j, %width : index
    %ks = tile.load %k[%jw] strides [1, 128] align 16 : memref<65536xf16> -> tensor<128x64xf16>
    %vs = tile.load %v[%jw] strides [128, 1] align 16 : memref<65536xf16> -> tensor<64x128xf16>
    %dots = tile.dot "wgmma_m64n64k16_f16_f32" %qs, %ks, %none unsigned "" : tensor<64x128xf16>, tensor<128x64xf16>, tensor<64x64xf32>
    %weights = tile.cast %dots : tensor<64x64xf32> -> tensor<64x64xf16>
    %less = arith.mulf %acc, %half : tensor<64x128xf32>
    %d = tile.dot "wgmma_m64n128k16_f16_f32" %weights, %vs, %less unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %o[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
tile.func @two_trips(%q: memref<16384xf16>, %k: memref<16384xf16>, %v: memref<16384xf16>, %o: memref<16384xf32>) grid [2] attributes {warps = array<i64: 4, 1>} {
  %low = arith.constant 0 : index
  %step = arith.constant 64 : index
  %rows = arith.constant 128 : index
  %width = arith.constant 128 : index
  %qs = tile.load %q[%low] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
  %none = arith.constant dense<0.0> : tensor<64x64xf32>
  %zero = arith.constant dense<0.0> : tensor<64x128xf32>
  %half = arith.constant dense<0.5> : tensor<64x128xf32>
  %r = scf.for %j = %low to %rows step %step iter_args(%acc = %zero) -> (tensor<64x128xf32>) {
    %jw = arith.muli %j, %width : index
    %ks = tile.load %k[%jw] strides [1, 128] align 16 : memref<16384xf16> -> tensor<128x64xf16>
    %vs = tile.load %v[%jw] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %dots = tile.dot "wgmma_m64n64k16_f16_f32" %qs, %ks, %none unsigned "" : tensor<64x128xf16>, tensor<128x64xf16>, tensor<64x64xf32>
    %weights = tile.cast %dots : tensor<64x64xf32> -> tensor<64x64xf16>
    %less = arith.mulf %acc, %half : tensor<64x128xf32>
    %d = tile.dot "wgmma_m64n128k16_f16_f32" %weights, %vs, %less unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  tile.store %r, %o[%low] strides [128, 1] align 16 : tensor<64x128xf32>, memref<16384xf32>
  tile.return
}
}
