// RUN: tilewright opt -p tensor-copies -p multicast %s | filecheck %s

// Four rows of tiles and two columns: blocks of neighbouring rows bring their columns of b, the larger boxes, together.
// CHECK-LABEL: @rows
// CHECK-SAME:    grid [2, 2] cluster 2 attributes {warps
// CHECK:         %[[PAIR:.*]] = tile.program_id 0
// CHECK:         %[[TWO:.*]] = arith.constant 2 : index
// CHECK:         %[[FIRST:.*]] = arith.muli %[[PAIR]], %[[TWO]]
// CHECK:         %[[RANK:.*]] = tile.block_rank
// CHECK:         %[[ROW:.*]] = arith.addi %[[FIRST]], %[[RANK]]
// CHECK:         %q = tile.program_id 1
// CHECK:         %i = arith.muli %[[ROW]], %bm
// CHECK:         tile.produce
// CHECK-NEXT:      tile.bulk_load %a[{{.*}}] box [64, 64] swizzle 128 :
// CHECK-COUNT-2:   tile.bulk_load %b[{{.*}}] box [64, 64] swizzle 128 together :
// CHECK-NOT:     scf.if
// CHECK:         tile.store

// Where boxes of a are larger, blocks of neighbouring columns share those; three columns are two pairs. The last block
// computes what the one before does, and stores nothing.
// CHECK-LABEL: @columns
// CHECK-SAME:    grid [1, 2] cluster 2
// CHECK:         tile.program_id 1
// CHECK:         %[[OWN:.*]] = arith.addi %{{.*}}, %{{.*}} : index
// CHECK:         %[[THREE:.*]] = arith.constant 3 : index
// CHECK:         %[[INSIDE:.*]] = tile.compare "lt" %[[OWN]], %[[THREE]]
// CHECK:         %[[LAST:.*]] = arith.constant 2 : index
// CHECK:         %[[COLUMN:.*]] = arith.minui %[[OWN]], %[[LAST]]
// CHECK:         %j = arith.muli %[[COLUMN]], %bn
// CHECK:         tile.bulk_load %a[{{.*}}] box [128, 64] swizzle 128 together :
// CHECK-NOT:     together
// CHECK:         scf.if %[[INSIDE]] {
// CHECK-NEXT:      tile.store

// One row and one column of tiles; a kernel that asks for no cluster; loops of which the next row has other trips.
// CHECK-LABEL: @one
// CHECK-SAME:    grid [1, 1] attributes
// CHECK-NOT:     together
// CHECK-LABEL: @apart
// CHECK-SAME:    grid [4, 2] attributes
// CHECK-NOT:     together
// CHECK-LABEL: @uneven
// CHECK-SAME:    grid [4, 1] attributes
// CHECK:         tile.produce
// CHECK-NOT:     together
builtin.module attributes {"tile.target" = {units = "cluster mbarrier tma wgmma", multiprocessors = 4 : i64, shared_bytes = 232448 : i64}} {
tile.func @rows(%a: memref<32768xf16>, %b: memref<32768xf16>, %c: memref<65536xf32>) grid [4, 2] attributes {cluster = 2 : i64} {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant 64 : index
  %bn = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 256 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bk = arith.muli %k, %width : index
    %bo = arith.addi %bk, %j : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<32768xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [256, 1] align 16 : memref<32768xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %cm = arith.muli %i, %width : index
  %co = arith.addi %cm, %j : index
  tile.store %r, %c[%co] strides [256, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
tile.func @columns(%a: memref<16384xf16>, %b: memref<24576xf16>, %c: memref<24576xf32>) grid [1, 3] attributes {cluster = 2 : i64} {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant 128 : index
  %bn = arith.constant 64 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 192 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<128x64xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<128x64xf32>) {
    %ao = arith.addi %rows, %k : index
    %bk = arith.muli %k, %width : index
    %bo = arith.addi %bk, %j : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<16384xf16> -> tensor<128x64xf16>
    %y = tile.load %b[%bo] strides [192, 1] align 16 : memref<24576xf16> -> tensor<64x64xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<128x64xf16>, tensor<64x64xf16>, tensor<128x64xf32>
    scf.yield %d : tensor<128x64xf32>
  }
  %cm = arith.muli %i, %width : index
  %co = arith.addi %cm, %j : index
  tile.store %r, %c[%co] strides [192, 1] align 16 : tensor<128x64xf32>, memref<24576xf32>
  tile.return
}
tile.func @one(%a: memref<8192xf16>, %b: memref<16384xf16>, %c: memref<8192xf32>) grid [1, 1] attributes {cluster = 2 : i64} {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant 64 : index
  %bn = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bk = arith.muli %k, %width : index
    %bo = arith.addi %bk, %j : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<8192xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %cm = arith.muli %i, %width : index
  %co = arith.addi %cm, %j : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<8192xf32>
  tile.return
}
tile.func @apart(%a: memref<32768xf16>, %b: memref<32768xf16>, %c: memref<65536xf32>) grid [4, 2] {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant 64 : index
  %bn = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 256 : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %depth step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bk = arith.muli %k, %width : index
    %bo = arith.addi %bk, %j : index
    %x = tile.load %a[%ao] strides [128, 1] align 16 : memref<32768xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] strides [256, 1] align 16 : memref<32768xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %cm = arith.muli %i, %width : index
  %co = arith.addi %cm, %j : index
  tile.store %r, %c[%co] strides [256, 1] align 16 : tensor<64x128xf32>, memref<65536xf32>
  tile.return
}
tile.func @uneven(%a: memref<32768xf16>, %b: memref<16384xf16>, %c: memref<32768xf32>) grid [4, 1] attributes {cluster = 2 : i64} {
  %p = tile.program_id 0
  %q = tile.program_id 1
  %bm = arith.constant 64 : index
  %bn = arith.constant 128 : index
  %low = arith.constant 0 : index
  %depth = arith.constant 128 : index
  %step = arith.constant 64 : index
  %width = arith.constant 128 : index
  %one = arith.constant 1 : index
  %third = arith.constant 32 : index
  %height = arith.constant 256 : index
  %next = arith.addi %p, %one : index
  %high = arith.muli %next, %third : index
  %i = arith.muli %p, %bm : index
  %j = arith.muli %q, %bn : index
  %rows = arith.muli %i, %depth : index
  %down = arith.subi %height, %i : index
  %right = arith.subi %width, %j : index
  %z = arith.constant dense<0.0> : tensor<64x128xf32>
  %r = scf.for %k = %low to %high step %step iter_args(%acc = %z) -> (tensor<64x128xf32>) {
    %ao = arith.addi %rows, %k : index
    %bk = arith.muli %k, %width : index
    %bo = arith.addi %bk, %j : index
    %left = arith.subi %depth, %k : index
    %x = tile.load %a[%ao] bounds(%down, %left) strides [128, 1] align 16 : memref<32768xf16> -> tensor<64x64xf16>
    %y = tile.load %b[%bo] bounds(%left, %right) strides [128, 1] align 16 : memref<16384xf16> -> tensor<64x128xf16>
    %d = tile.dot "mma_m16n8k16_f16_f32" %x, %y, %acc unsigned "" : tensor<64x64xf16>, tensor<64x128xf16>, tensor<64x128xf32>
    scf.yield %d : tensor<64x128xf32>
  }
  %cm = arith.muli %i, %width : index
  %co = arith.addi %cm, %j : index
  tile.store %r, %c[%co] strides [128, 1] align 16 : tensor<64x128xf32>, memref<32768xf32>
  tile.return
}
}
